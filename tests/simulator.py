"""Replays recorded answers through the real round loop and drafters, under any machine's costs.

The traces are those of tests/record_traces.py. A pass takes no time here: its cost is looked up and added to
the models' clocks, so a replay tells exactly what a setting would have taken.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.core.acceptance import Record
from app.core.auto import Policy
from app.core.costs import Costs, PassCosts
from app.core.settings import MAX_DRAFT, SamplingSettings
from app.core.tokens import Round
from app.engine.drafters import AtLeast, AutoDrafter, LookupDrafter, ModelDrafter, NoDrafter
from app.engine.protocols import Drafter
from app.engine.rounds import rounds

TRACES = Path(__file__).with_name("traces")
GREEDY = SamplingSettings()
N_CTX = 1 << 16
MAX_TOKENS = 192  # what the recorded answers were allowed


@dataclass(frozen=True)
class Trace:
    """One answer, its ids renumbered from 1 so that rows of logits stay short; 0 is any other id."""

    id: str
    category: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    draft: tuple[tuple[int, float], ...]  # what the draft model proposes at each output position
    astray: Mapping[int, tuple[tuple[int, float], ...]]  # and how it goes on where that is wrong
    n_vocab: int


def read(path: Path) -> list[Trace]:
    """The traces of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [_trace(json.loads(line)) for line in file]


def _trace(line: dict[str, object]) -> Trace:
    numbers: dict[int, int] = {}

    def renumbered(token: int) -> int:
        return numbers.setdefault(token, len(numbers) + 1) if token >= 0 else 0

    def pairs(values: Sequence[Sequence[float]]) -> tuple[tuple[int, float], ...]:
        return tuple((renumbered(int(token)), prob) for token, prob in values)

    prompt, output = (tuple(map(renumbered, line[key])) for key in ("prompt", "output"))  # type: ignore[call-overload]
    draft = pairs(line["draft"])  # type: ignore[arg-type]
    astray = {int(place): pairs(value) for place, value in line["astray"].items()}  # type: ignore[attr-defined]
    return Trace(str(line["id"]), str(line["category"]), prompt, output, draft, astray, len(numbers) + 1)


class _Replayed:
    """A decoder whose rows say what the trace says, and whose clock goes by the costs."""

    max_rows = MAX_DRAFT + 1
    n_behind = 0
    n_ctx = N_CTX

    def __init__(self, trace: Trace, costs: PassCosts) -> None:
        self._path = trace.prompt + trace.output
        self._trace, self._costs = trace, costs
        self.n_vocab = trace.n_vocab
        self.ids: list[int] = []
        self.seconds = 0.0

    def decode(self, ids: Sequence[int], rows: int) -> NDArray[np.float32]:
        """The logits after the last ``rows`` of ``ids``."""
        self.seconds += self._costs(len(ids), len(self.ids))
        self.ids += ids
        logits = np.zeros((rows, self.n_vocab), dtype=np.float32)
        for row in range(rows):
            token, logit = self._next(len(self.ids) - rows + row + 1)
            logits[row, token] = logit
        return logits

    def extend(self, ids: Sequence[int], on_chunk: Callable[[int], None]) -> None:
        """Take in ``ids``."""
        self.seconds += self._costs(len(ids), len(self.ids))
        self.ids += ids

    def reachable(self, length: int) -> int:
        """Any length can be gone back to."""
        return length

    def rewind(self, length: int) -> None:
        """Forget what is behind ``length``."""
        del self.ids[length:]

    def _next(self, length: int) -> tuple[int, float]:
        """The id that follows the first ``length`` ones, and its logit over the others' 0."""
        return (self._path[length] if length < len(self._path) else 0), 20.0


class _ReplayedDraft(_Replayed):
    def _next(self, length: int) -> tuple[int, float]:
        start = len(self._trace.prompt)
        ours, path = self.ids[start:length], self._trace.output
        off = next((i for i, token in enumerate(ours) if i >= len(path) or token != path[i]), None)
        if off is None:
            place = length - start
            token, prob = self._trace.draft[place] if place < len(path) else (0, 0.5)
        else:
            steps = self._trace.astray.get(off, ())
            behind = len(ours) - off - 1
            follows = off < len(path) and ours[off] == self._trace.draft[off][0]
            token, prob = steps[behind] if follows and behind < len(steps) else (0, 0.4)
        prob = min(max(prob, 2 / self.n_vocab), 0.9995)
        return token, math.log(prob / (1 - prob) * (self.n_vocab - 1))


@dataclass(frozen=True)
class Setting:
    """How to draft: ``plain``, ``draft``, ``lookup`` or ``auto``."""

    mode: str
    n_draft: int = MAX_DRAFT
    p_min: float = 0.0

    def __str__(self) -> str:
        if self.mode in ("plain", "auto"):
            return self.mode
        return f"{self.mode} {self.n_draft}" + (f" p{self.p_min}" if self.p_min else "")


@dataclass(frozen=True)
class Replay:
    """What a setting would have taken: seconds of decoding and of the draft model's prefill."""

    decode_s: float
    prefill_s: float
    rounds: tuple[Round, ...]


def replay(trace: Trace, setting: Setting, costs: Costs, record: Record | None = None) -> Replay:
    """Replay one answer. ``record`` is Auto's, kept from one answer to the next."""
    target, draft = _Replayed(trace, costs.target), None
    rng = np.random.default_rng(0)
    prefill_s = 0.0
    drafter: Drafter = NoDrafter()
    auto = None
    if costs.draft is not None and setting.mode in ("draft", "auto"):
        draft = _ReplayedDraft(trace, costs.draft)
    if setting.mode == "lookup":
        drafter = LookupDrafter(4, 6, lambda token: False)
    elif setting.mode == "draft" and draft is not None:
        drafter = ModelDrafter(draft, trace.n_vocab, GREEDY, AtLeast(setting.p_min), rng, lambda token: False)
    elif setting.mode == "auto":
        measured = Costs(
            PassCosts(costs.target.measured()), costs.draft and PassCosts(costs.draft.measured())
        )
        policy = Policy(measured, record or Record(), MAX_TOKENS)
        model = None
        if draft is not None:
            model = ModelDrafter(draft, trace.n_vocab, GREEDY, policy, rng, lambda token: False)
        drafter = auto = AutoDrafter(policy, model, lambda token: False)
    if drafter.begin(trace.prompt) and draft is not None:
        draft.extend(trace.prompt[:-1], lambda done: None)
        prefill_s = draft.seconds
    target.ids = list(trace.prompt[:-1])
    committed = list(trace.prompt)
    done = []
    loop: Iterator[Round] = rounds(
        target,
        drafter,
        committed,
        sampling=GREEDY,
        n_draft=setting.n_draft,
        max_tokens=len(trace.output),
        rng=rng,
        ends=lambda token: False,
    )
    for round_ in loop:
        done.append(round_)
        if auto:
            auto.learn(round_)
    assert tuple(committed[len(trace.prompt) :]) == trace.output
    decode_s = target.seconds + (draft.seconds - prefill_s if draft else 0.0)
    return Replay(decode_s, prefill_s, tuple(done))
