"""What one token and one round are, in the field's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class TokenKind(str, Enum):
    """What speculation did with a token."""

    ACCEPTED = "accepted"  # proposed by the drafter and kept
    RECOVERED = "recovered"  # the target's own token at the first rejection
    BONUS = "bonus"  # the target's free token after a fully accepted draft
    TARGET = "target"  # the target's own token of a round without a draft
    REJECTED = "rejected"  # proposed, tested and not kept; never part of the output
    DISCARDED = "discarded"  # proposed after the first rejection, so never tested

    @property
    def is_output(self) -> bool:
        """Whether a token of this kind is part of the answer."""
        return self not in (TokenKind.REJECTED, TokenKind.DISCARDED)


class DraftSource(str, Enum):
    """Who proposed a token."""

    MODEL = "model"
    LOOKUP = "lookup"


@dataclass(frozen=True, slots=True)
class Round:
    """One pass of the target over ``[last, *draft]``.

    ``draft`` holds every proposed id; the first ``n_accepted`` were kept. ``next_token`` is the target's
    own token after them, or None where the answer ended inside the draft (an end-of-generation id or a
    stop string): the rest of the draft then counts as discarded.

    ``target_probs`` has the target's untransformed probability of every tested draft token and, last, of
    ``next_token``; ``draft_probs`` has the drafter's own, or None where it was looked up. Times in seconds.
    ``n_again``: ids of earlier rounds that the target's pass had to decode again.
    """

    index: int
    draft: tuple[int, ...]
    n_accepted: int
    next_token: int | None
    next_kind: TokenKind | None  # RECOVERED, BONUS, TARGET
    sources: tuple[DraftSource, ...]
    draft_probs: tuple[float | None, ...]
    target_probs: tuple[float, ...]
    draft_s: float
    verify_s: float
    n_again: int = 0

    @property
    def n_passed(self) -> int:
        """How many ids the target's pass went over."""
        return self.n_again + 1 + len(self.draft)

    @property
    def output(self) -> tuple[int, ...]:
        """The ids that this round adds to the answer."""
        kept = self.draft[: self.n_accepted]
        return kept if self.next_token is None else (*kept, self.next_token)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token as it is shown. The fields are those of the ``--json`` contract.

    ``text`` is what this token adds to the answer: empty for an end-of-generation id and where its bytes
    only begin a character; for rejected and discarded tokens it is the token's own text.
    """

    id: int
    text: str
    kind: TokenKind
    round: int
    position: int | None  # place in the draft, from 0; None for the target's own token
    source: DraftSource | None
    target_prob: float | None
    draft_prob: float | None


# Who proposed a round's draft, and how a number of such rounds is called.
ROUND_SOURCES = {"none": "plain", "lookup": "looked up", "model": "drafted", "both": "both"}


def round_source(tokens: Iterable[TokenEvent]) -> str:
    """Who proposed a round's draft: ``none``, ``lookup``, ``model`` or ``both``."""
    sources = {token.source.value for token in tokens if token.source}
    return "both" if len(sources) > 1 else next(iter(sources), "none")


def sources_in_words(rounds: Mapping[str, int]) -> str:
    """How many rounds each source had, such as "20 plain, 12 looked up"."""
    return ", ".join(f"{rounds[name]} {words}" for name, words in ROUND_SOURCES.items() if rounds.get(name))
