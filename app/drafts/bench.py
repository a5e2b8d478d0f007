"""Measures drafts of one target on a short mixed workload, beside plain decoding."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.compare import runner
from app.compare.record import Column, Comparison, Prompt, Row
from app.compare.summary import Spread, outcome, rows_of
from app.compare.workloads import MIXED, workload
from app.core.errors import Cancelled, HeadstartError
from app.core.settings import ChatMessage, LoadSettings, Mode, Request, SpeculationSettings
from app.worker.client import WorkerClient
from app.worker.messages import Failed, Finished

OnProgress = Callable[[str, int, int], None]

_RECORDED_TOKENS = 48
_MEASURED_TOKENS = 128  # a shorter answer can't earn back what the draft needs to read the prompt
_DRAFT_LENGTH = 4  # of the runs that tell acceptance and what a token costs
_FEWEST_PROMPTS = 3
_POLL_S = 0.3
PLAIN, DRAFT, AUTO = "plain", "draft", "auto"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a draft brought: Auto's speed over plain decoding's, prompt by prompt.

    ``step_cost`` and ``verify_cost``: a drafted token, and a further token in a pass of the target, over a
    plain one.
    """

    speedups: tuple[float, ...]
    acceptance: float | None = None
    step_cost: float | None = None
    verify_cost: float | None = None

    @property
    def speedup(self) -> Spread:
        """The median and the ends."""
        return Spread(statistics.median(self.speedups), min(self.speedups), max(self.speedups))

    @property
    def outcome(self) -> str:
        """As in compare.summary."""
        return outcome(self.speedups)

    def with_more(self, again: Measured) -> Measured:
        """Both measurements of one draft."""
        return replace(self, speedups=self.speedups + again.speedups)


@dataclass(slots=True)
class Bench:
    """One target, its answers, and the worker that runs it. Every call may raise Cancelled."""

    target: Path
    quantization: str
    client: WorkerClient
    on_progress: OnProgress
    cancelled: Callable[[], bool]
    texts: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    _prompts: list[Prompt] = field(default_factory=list)

    def record(self, until: Callable[[], bool]) -> None:
        """Let the target answer the workload's prompts, until ``until``; its ids become ``texts``."""
        prompts = workload(MIXED)
        # This step visits each of the eight, so that the first few are unlike each other.
        prompts = tuple(prompts[place * 3 % len(prompts)] for place in range(len(prompts)))
        for done, prompt in enumerate(prompts):
            if done >= _FEWEST_PROMPTS and until():
                break
            self.on_progress(f"recording the target's answers: {prompt.category}", done, len(prompts))
            last = self._answer(Request((ChatMessage("user", prompt.prompt),), max_tokens=_RECORDED_TOKENS))
            if len(last.output_ids) > 1:
                self.texts.append((last.prompt_ids, last.output_ids))
                self._prompts.append(prompt)
        if len(self._prompts) < _FEWEST_PROMPTS:
            raise HeadstartError(
                f"{self.target.name} ends its answers at once, so nothing can be measured",
                "choose a target that writes text",
            )

    def shortest_texts(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The half of the texts that takes the least time to read."""
        return sorted(self.texts, key=lambda text: len(text[0]))[: max(len(self.texts) // 2, 1)]

    def measure(self, draft: Path | None, words: str, seconds: float) -> Measured | str:
        """The draft beside plain decoding, for about ``seconds``; or why it failed.

        Without a draft Auto has its look-ups alone. That comes first: the prompts it gets through are those
        of all that follow, so that they can be compared.
        """
        plain = Column(PLAIN, LoadSettings(self.target), _request(Mode.PLAIN))
        load = LoadSettings(self.target, draft)
        auto = Column(AUTO, load, _request(Mode.AUTO))
        columns = [plain, Column(DRAFT, load, _request(Mode.DRAFT)), auto] if draft else [plain, auto]
        machine = {"models": [{"path": str(self.target), "quantization": self.quantization}]}
        comparison = runner.new(columns, self._prompts, 1, machine)
        work = runner.Runner(self.client, comparison, save=lambda comparison: None)
        until = time.monotonic() + seconds
        done = 0
        with contextlib.closing(work.events()) as events:
            for event in events:
                done = len(comparison.runs) // len(columns)
                is_enough = done >= _FEWEST_PROMPTS and time.monotonic() > until
                if is_enough or self.cancelled():
                    work.cancel()
                if not isinstance(event, runner.Ended):
                    self.on_progress(f"measuring {words}", len(comparison.runs), len(comparison.slots()))
        if self.cancelled():
            raise Cancelled
        if draft is None:
            self._prompts = self._prompts[:done]
        return _measured(comparison)

    def _answer(self, request: Request) -> Finished:
        run = self.client.submit(LoadSettings(self.target), request)
        try:
            for batch in run.batches(_POLL_S):
                if self.cancelled():
                    raise Cancelled
                for message in batch:
                    if isinstance(message, Failed):
                        raise HeadstartError(message.what, message.remedy)
                    if isinstance(message, Finished) and message.finish_reason != "cancelled":
                        return message
            raise Cancelled
        finally:
            run.cancel()  # whatever ended this; nobody waits for it


def _request(mode: Mode) -> Request:
    speculation = SpeculationSettings(mode, n_draft=_DRAFT_LENGTH)
    return Request((), max_tokens=_MEASURED_TOKENS, speculation=speculation)


def _measured(comparison: Comparison) -> Measured | str:
    for row in comparison.runs:
        if row.error:
            return row.error
        if row.audit and row.audit.verdict == "different":
            return "its output differs from plain decoding's: a fault, please report it"
    speedups = tuple(value for (column, *_), value in comparison.speedups().items() if column == AUTO)
    if not speedups:
        return "its answers are too short to measure"
    drafted = rows_of(comparison, DRAFT)
    if not drafted:
        return Measured(speedups)
    plain = rows_of(comparison, PLAIN)
    token_s = _total(plain, "decode_s") / _total(plain, "output_tokens")
    passes, proposed = _total(drafted, "target_passes"), max(_total(drafted, "drafted"), 1)
    verify = _total(drafted, "verify_s") / passes / token_s
    return Measured(
        speedups,
        acceptance=_total(drafted, "accepted") / proposed,
        step_cost=_total(drafted, "draft_s") / proposed / token_s,
        verify_cost=max(verify - 1, 0) / max(proposed / passes, 1),
    )


def _total(rows: Sequence[Row], figure: str) -> float:
    return sum(getattr(row.stats, figure) or 0 for row in rows if row.stats)
