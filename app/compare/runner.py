"""Makes the runs of a comparison one at a time and tells what happens.

Every run begins with empty caches. Columns take turns at each prompt (Comparison.slots). A column's first
run, and its first after any model was loaded, follows a short discarded one. Sampled repeats draw from seeds
that follow each other, the same ones in every column. A column without a draft keeps
whichever draft is loaded, idle, because loading it again for the next column would cost more than the memory
it frees; columns with different drafts do load theirs at each turn, and one with Auto alone, which would use
the draft, drops it. A run during which a model had to be loaded is made again.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from app.compare import audit, history
from app.compare.record import Audit, Column, Comparison, Prompt, Replay, Row, Slot
from app.core.settings import ChatMessage, LoadSettings, Mode, Request, Scoring
from app.core.tokens import TokenEvent
from app.worker.client import Run, WorkerClient
from app.worker.messages import (
    Failed,
    Finished,
    Last,
    Loading,
    Measuring,
    RoundDone,
    Scored,
    Started,
    Waiting,
)

_POLL_S = 0.3
_TRIES = 3
_WARM_UP = ChatMessage("user", "Count from one to ten.")
_WARM_UP_TOKENS = 8
_DRAFT_FIELDS = ("draft", "draft_gpu_layers", "draft_cache_type_k", "draft_cache_type_v")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is; ``remaining_s`` is None before the first run is over."""

    done: int
    total: int
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class Doing:
    """What goes on, in words; comes at least twice a second while nothing else does."""

    what: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A measured run begins; one that is made again begins again."""

    slot: Slot
    progress: Progress


@dataclass(frozen=True, slots=True)
class TokensCame:
    """A round of the run; ``t`` in seconds since it began."""

    slot: Slot
    t: float
    tokens: tuple[TokenEvent, ...]


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run is over, failed or not, and is stored."""

    row: Row
    progress: Progress


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more comes; ``cancelled`` where runs remain."""

    cancelled: bool


Event = Doing | RunStarted | TokensCame | RunEnded | Ended
T = TypeVar("T")
Work = Generator[Event, None, T]  # tells events and returns a T


@dataclass(slots=True)
class _Outcome:
    """What one submission brought."""

    last: Last | None = None
    started: bool = False
    loaded: bool = False
    rounds: list[tuple[float, tuple[TokenEvent, ...]]] = field(default_factory=list)


def new(
    columns: Sequence[Column], prompts: Sequence[Prompt], repeats: int, machine: dict[str, Any]
) -> Comparison:
    """A comparison with nothing done yet."""
    now = datetime.now()
    created = now.isoformat(timespec="seconds")
    return Comparison(history.new_id(now), created, machine, tuple(columns), tuple(prompts), repeats)


def remaining_s(done: Sequence[tuple[str, float]], left: Sequence[str]) -> float | None:
    """Seconds that the runs of the columns ``left`` will take, from the (column, seconds) of those done.

    A column that has not run yet is taken to be as fast as the others are on average.
    """
    if not done:
        return None
    times: dict[str, list[float]] = {}
    for name, seconds in done:
        times.setdefault(name, []).append(seconds)
    means = {name: statistics.fmean(values) for name, values in times.items()}
    usual = statistics.fmean(means.values())
    return sum(means.get(name, usual) for name in left)


def load_for(column: Column, held: LoadSettings | None) -> LoadSettings:
    """What to load for a column while ``held`` is loaded."""
    if column.load.draft or held is None or column.mode is Mode.AUTO:
        return column.load
    return dataclasses.replace(column.load, **{name: getattr(held, name) for name in _DRAFT_FIELDS})


class Runner:
    """Makes the remaining runs of a comparison. ``save`` is called after each."""

    def __init__(
        self,
        client: WorkerClient,
        comparison: Comparison,
        save: Callable[[Comparison], None] = history.save,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.comparison = comparison
        self._client = client
        self._save = save
        self._clock = clock
        self._cancelled = False
        self._active: Run | None = None
        self._held: LoadSettings | None = None
        self._warm: set[str] = set()
        self._times: list[tuple[str, float]] = []

        self._scores: dict[object, Scored] = {}

    def cancel(self) -> None:
        """Stop now, from any thread; the current run is dropped and can be made later."""
        self._cancelled = True
        if self._active:
            self._active.cancel()

    def events(self) -> Work[None]:
        """Make the runs; iterate once. Raises HeadstartError where a run cannot be stored."""
        try:
            for slot in self.comparison.remaining():
                began = self._clock()
                row = yield from self._row(slot)
                if row is None:
                    break
                self.comparison.runs.append(row)
                self._save(self.comparison)
                self._times.append((slot.column.name, self._clock() - began))
                yield RunEnded(row, self.progress())
            yield Ended(bool(self.comparison.remaining()))
        finally:
            if self._active:
                self._active.cancel()

    def progress(self) -> Progress:
        """How far it is."""
        left = [slot.column.name for slot in self.comparison.remaining()]
        done = len(self.comparison.runs)
        return Progress(done, done + len(left), remaining_s(self._times, left))

    def _row(self, slot: Slot) -> Work[Row | None]:
        """One run as a row, or None where it was cancelled."""
        column, sampling = slot.column, slot.column.request.sampling
        load = load_for(column, self._held)
        if load != self._held:
            self._warm.clear()
        if column.name not in self._warm:
            request = dataclasses.replace(
                column.request,
                messages=(_WARM_UP,),
                max_tokens=min(column.request.max_tokens, _WARM_UP_TOKENS),
            )
            yield from self._submit(load, request, None)
        request = dataclasses.replace(
            column.request,
            messages=(ChatMessage("user", slot.prompt.prompt),),
            sampling=dataclasses.replace(sampling, seed=sampling.seed + slot.repeat),
            fresh=True,
        )
        for _ in range(_TRIES):
            if self._cancelled:
                return None
            load = load_for(column, self._held)
            yield RunStarted(slot, self.progress())
            outcome = yield from self._submit(load, request, slot)
            if not outcome.loaded or isinstance(outcome.last, Failed):
                break
        self._warm.add(column.name)
        row = Row(column.name, slot.prompt.id, slot.prompt.category, slot.repeat)
        if isinstance(outcome.last, Failed):  # also of a child that had to be ended to stop it
            return None if self._cancelled else dataclasses.replace(row, error=outcome.last.what)
        if not isinstance(outcome.last, Finished) or outcome.last.finish_reason == "cancelled":
            return None
        row = dataclasses.replace(
            row,
            output_ids=outcome.last.output_ids,
            finish_reason=outcome.last.finish_reason,
            stats=outcome.last.stats,
            replay=_replay(outcome),
        )
        verdict = yield from self._audit(slot, row, outcome.last.prompt_ids)
        return None if self._cancelled else dataclasses.replace(row, audit=verdict)

    def _audit(self, slot: Slot, row: Row, prompt_ids: tuple[int, ...]) -> Work[Audit | None]:
        """The row's audit against plain; None where nothing can be said."""
        base = self.comparison.baseline
        if base is None or not audit.is_comparable(slot.column, base):
            return None
        plain = row if slot.column is base else self.comparison.plain_run(row)
        if plain is None or plain.error:
            return None
        difference = audit.first_difference(plain.output_ids, row.output_ids)
        if difference is None:
            return Audit("identical")
        common = row.output_ids[: difference[0]]
        scoring = Scoring(prompt_ids, common, base.request.sampling)
        if scoring not in self._scores:
            outcome = yield from self._submit(load_for(base, self._held), scoring, None)
            if not isinstance(outcome.last, Scored):
                return None
            self._scores[scoring] = outcome.last
        scored = self._scores[scoring]
        return audit.judge(difference, scored.ids, scored.logits, _quantisation(self.comparison))

    def _submit(self, load: LoadSettings, request: Request | Scoring, slot: Slot | None) -> Work[_Outcome]:
        """Make one submission and return its outcome; only those of a slot tell their tokens."""
        outcome = _Outcome()
        what = "scoring" if isinstance(request, Scoring) else "running" if slot else "warming up"
        self._active = self._client.submit(load, request)
        if self._cancelled:
            self._active.cancel()
        for batch in self._active.batches(_POLL_S):
            said = False
            for message in batch:
                if isinstance(message, Loading):
                    outcome.loaded = True
                    what = f"loading {message.name} {message.fraction:.0%}"
                elif isinstance(message, Measuring):
                    what = f"measuring {message.name}"
                elif isinstance(message, Waiting):
                    what = "waiting for another answer"
                elif isinstance(message, Started):
                    outcome.started = True
                    what = "running" if slot else "warming up"
                elif isinstance(message, RoundDone):
                    outcome.rounds.append((message.t, message.tokens))
                    if slot:
                        yield TokensCame(slot, message.t, message.tokens)
                        said = True
                elif isinstance(message, Last):
                    outcome.last = message
            if not said and outcome.last is None:
                yield Doing(self._active.silence or what, self.progress())
        self._active = None
        died = isinstance(outcome.last, Failed) and outcome.last.child_died
        has_models = outcome.started or isinstance(outcome.last, Scored)
        self._held = load if has_models and not died else None
        return outcome


def _replay(outcome: _Outcome) -> Replay:
    return tuple(
        (round(t, 4), tuple((token.text, token.kind.value) for token in tokens))
        for t, tokens in outcome.rounds
    )


def _quantisation(comparison: Comparison) -> str:
    target = str(comparison.columns[0].load.target)
    models = {model["path"]: model for model in comparison.machine["models"]}
    return str(models.get(target, {}).get("quantization") or "unknown")
