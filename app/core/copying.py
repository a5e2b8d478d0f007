"""Looked-up proposals that keep their place in what is being copied.

A plain n-gram match loses its place after every edit and needs several matching tokens to find it again.
``Copier`` remembers where in the text so far the copy stands, goes on behind a token that was changed, finds
its place again nearby after a longer change, and repeats changes that it has seen made before.

Every proposed token comes with its evidence, a small class such as "the copy has matched for 5 to 8 tokens";
how often tokens of a class turn out right is learned by who asks (app.core.auto).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

# The origins of a proposed token. Each has classes by how many tokens have matched just before it.
NGRAM, PLACE, GUESS, EDIT = range(4)
_RUNS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # the least run of each class
N_EVIDENCE = 4 * len(_RUNS)
_GRAMS = (5, 2)  # n-grams that are indexed; longer matches are found by going back from them
_CANDIDATES = 6  # most recent places of an n-gram that are tried
_LONGEST_RUN = 40
_CLASS = tuple(bisect_right(_RUNS, run) - 1 for run in range(_LONGEST_RUN + 1))
_COPY_RUN = 4  # from so many matching tokens on it is a copy, whose place is worth finding again
_NEARBY = 32  # source tokens in which a lost copy looks for its place
_LONGEST_EDIT = 12  # output tokens after which a lost copy gives up
_FOUND_RUN = 2  # matching tokens nearby that end an edit
_ADOPTED_RUN = 3  # matching tokens anywhere that do
_EDITS_KEPT = 4  # of those that begin alike


@dataclass(frozen=True, slots=True)
class Proposal:
    """Ids to follow, each with its evidence (0 <= evidence < N_EVIDENCE)."""

    ids: tuple[int, ...] = ()
    evidence: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Edit:
    """A change seen in a copy: ``source`` became ``result``, between ``left`` and ``right``."""

    left: int
    source: tuple[int, ...]
    right: int
    result: tuple[int, ...]


def evidence_of(origin: int, run: int) -> int:
    """The class of a token after ``run`` matching ones."""
    return origin * len(_RUNS) + _CLASS[min(run, _LONGEST_RUN)]


def run_of(evidence: int) -> int:
    """The least run of a class."""
    return _RUNS[evidence % len(_RUNS)]


def origin_of(evidence: int) -> int:
    """The origin of a class."""
    return evidence // len(_RUNS)


class Copier:
    """Follows a growing text and proposes what comes next as a copy of what stands in it already."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._place: int | None = None  # of the source token that is expected next
        self._pending: tuple[int, ...] = ()  # a known edit's tokens that are expected before it
        self._origin = PLACE
        self._run = 0
        self._lost_at: tuple[int, int] | None = None  # where in source and text the copy was left
        self._edits: dict[int, list[_Edit]] = {}  # by the first token of the source, or of what follows it

    def read(self, prompt: Sequence[int]) -> None:
        """Take in a prompt: it can be copied from, and is no copy itself."""
        for token in prompt:
            self._append(token)
        self._seek()

    def follow(self, token: int) -> None:
        """Take in the next token of the text."""
        goes_on = self._place is not None and self._lost_at is None and self._goes_on(token)
        if not goes_on and self._place is not None and self._lost_at is None:
            self._lost_at = (self._place, len(self._ids)) if self._run >= _COPY_RUN else None
            self._place = self._place if self._lost_at else None
            self._pending, self._run = (), 0
        self._append(token)
        if goes_on:
            self._run = min(self._run + 1, _LONGEST_RUN)
        else:
            self._find_again()
            self._seek()

    def propose(self, n_max: int) -> Proposal:
        """Up to ``n_max`` ids that continue the copy; none where nothing is being copied."""
        if self._place is None or n_max <= 0:
            return Proposal()
        ids, length = self._ids, len(self._ids)
        drafted: list[int] = []
        evidence: list[int] = []
        place, pending, run = self._place, self._pending, self._run
        origin = GUESS if self._lost_at is not None and not run else self._origin
        edited_at = -1
        while len(drafted) < n_max:
            if not pending and place != edited_at and (edit := self._edit_at(place)) is not None:
                place += len(edit.source)
                pending, edited_at = edit.result, place
                continue
            if pending:
                token, pending, kind = pending[0], pending[1:], EDIT
            else:
                # A source that reaches the text's end goes on through what is drafted here.
                token, kind = ids[place] if place < length else drafted[place - length], origin
                place += 1
            drafted.append(token)
            evidence.append(evidence_of(kind, run))
            run += 1
        return Proposal(tuple(drafted), tuple(evidence))

    def _append(self, token: int) -> None:
        ids = self._ids
        for size in _GRAMS:
            if len(ids) >= size:
                places = self._places.setdefault(tuple(ids[-size:]), [])
                places.append(len(ids))
                if len(places) > 2 * _CANDIDATES:
                    del places[:-_CANDIDATES]
        ids.append(token)

    def _goes_on(self, token: int) -> bool:
        """Whether the token is the expected one, by the source or by a known edit; moves the place."""
        assert self._place is not None
        if self._pending:
            if token != self._pending[0]:
                return False
            self._pending = self._pending[1:]
            return True
        edit = self._edit_at(self._place)
        if edit is not None:
            place = self._place + len(edit.source)
            if token == (edit.result[0] if edit.result else self._ids[place]):
                self._place = place if edit.result else place + 1
                self._pending = edit.result[1:]
                return True
            self._edits[_first(edit)].remove(edit)
        if token != self._ids[self._place]:
            return False
        self._place += 1
        return True

    def _seek(self) -> None:
        """Take up the longest match of the text's end, where the copy has no place."""
        if self._place is not None and self._lost_at is None:
            return
        best, best_run = None, 0
        for size in _GRAMS:
            for place in reversed(self._places.get(tuple(self._ids[-size:]), ())[-_CANDIDATES:]):
                run = self._match_before(place)
                if run > best_run:
                    best, best_run = place, run
            if best is not None:
                break
        if best is not None and (self._lost_at is None or best_run >= _ADOPTED_RUN):
            self._place, self._run, self._origin, self._lost_at = best, best_run, NGRAM, None

    def _match_before(self, place: int) -> int:
        """How many tokens before ``place`` equal the text's last ones."""
        ids, end = self._ids, len(self._ids)
        run = 0
        while run < min(place, _LONGEST_RUN) and ids[place - 1 - run] == ids[end - 1 - run]:
            run += 1
        return run

    def _find_again(self) -> None:
        """After a change the text's last tokens may stand a little further on in the source."""
        if self._lost_at is None:
            return
        source, text = self._lost_at
        ids, end = self._ids, len(self._ids)
        if end - text > _LONGEST_EDIT:
            self._place = self._lost_at = None
            return
        best, best_run = min(source + 1, text - 1) - 1, 0
        for place in range(source, min(source + _NEARBY, text)):
            run = 0
            while run < end - text and place - run >= source and ids[place - run] == ids[end - 1 - run]:
                run += 1
            if run > best_run:
                best, best_run = place, run
        self._place, self._run, self._origin = best + 1, best_run, PLACE
        if best_run >= _FOUND_RUN:
            self._learn(source, best - best_run + 1, text, end - best_run)
            self._lost_at = None

    def _learn(self, source: int, source_end: int, text: int, text_end: int) -> None:
        """Remember that the text has ``ids[text:text_end]`` for the source's ``ids[source:source_end]``."""
        ids = self._ids
        edit = _Edit(
            ids[source - 1], tuple(ids[source:source_end]), ids[source_end], tuple(ids[text:text_end])
        )
        known = self._edits.setdefault(_first(edit), [])
        if edit in known:
            known.remove(edit)
        known.insert(0, edit)
        del known[_EDITS_KEPT:]

    def _edit_at(self, place: int) -> _Edit | None:
        """A change that was made before where the source reads as it does at ``place``."""
        ids = self._ids
        if not 0 < place < len(ids):
            return None
        for edit in self._edits.get(ids[place], ()):
            end = place + len(edit.source)
            if end >= len(ids) or tuple(ids[place:end]) != edit.source:
                continue
            # What was replaced speaks for itself; where something was added or left out both sides must fit.
            if (edit.source and edit.result) or (ids[place - 1] == edit.left and ids[end] == edit.right):
                return edit
        return None


def _first(edit: _Edit) -> int:
    return edit.source[0] if edit.source else edit.right
