"""The figures of one answer, counted from its rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.core.tokens import Round


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot. Times in seconds; None where a figure does not apply.

    ``decode_s`` runs from the end of prefill to the last commit; ``draft_s + verify_s + other_s`` equals
    it. ``prefill_s`` covers both models. Discarded tokens count as drafted. Field order is the contract's.
    """

    time_to_first_token_s: float | None = None
    prefill_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    decode_s: float | None = None
    total_s: float | None = None
    output_tokens: int = 0
    tokens_per_s: float | None = None
    target_passes: int = 0
    rounds_with_draft: int = 0
    drafted: int = 0
    accepted: int = 0
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    tokens_per_pass: float | None = None
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float | None = None


@dataclass(slots=True)
class StatsRecorder:
    """Observes one answer as it is made; ``clock`` returns seconds and only ever grows."""

    clock: Callable[[], float]
    prompt_tokens: int
    cached_tokens: int
    started_at: float
    prefill_ended_at: float | None = None
    _first_token_at: float | None = None
    _last_commit_at: float | None = None
    _output_tokens: int = 0
    _target_passes: int = 0
    _rounds_with_draft: int = 0
    _drafted: list[int] = field(default_factory=list)
    _accepted: list[int] = field(default_factory=list)
    _draft_s: float = 0.0
    _verify_s: float = 0.0

    def end_prefill(self) -> None:
        """Both caches hold the prompt; decoding starts now."""
        self.prefill_ended_at = self.clock()

    def observe(self, round_: Round) -> None:
        """Count one finished round."""
        now = self.clock()
        if self._first_token_at is None:
            self._first_token_at = now
        self._last_commit_at = now
        self._target_passes += 1
        self._output_tokens += len(round_.output)
        self._draft_s += round_.draft_s
        self._verify_s += round_.verify_s
        if round_.draft:
            self._rounds_with_draft += 1
        missing = len(round_.draft) - len(self._drafted)
        self._drafted += [0] * missing
        self._accepted += [0] * missing
        for position in range(len(round_.draft)):
            self._drafted[position] += 1
            self._accepted[position] += position < round_.n_accepted

    def snapshot(self) -> Stats:
        """The figures so far."""
        end = self._last_commit_at
        decode_s = None if end is None or self.prefill_ended_at is None else end - self.prefill_ended_at
        drafted, accepted = sum(self._drafted), sum(self._accepted)
        return Stats(
            time_to_first_token_s=None
            if self._first_token_at is None
            else self._first_token_at - self.started_at,
            prefill_s=None if self.prefill_ended_at is None else self.prefill_ended_at - self.started_at,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            decode_s=decode_s,
            total_s=None if end is None else end - self.started_at,
            output_tokens=self._output_tokens,
            tokens_per_s=_ratio(self._output_tokens, decode_s) if decode_s is not None else None,
            target_passes=self._target_passes,
            rounds_with_draft=self._rounds_with_draft,
            drafted=drafted,
            accepted=accepted,
            acceptance_rate=_ratio(accepted, drafted),
            mean_acceptance_length=1 + accepted / self._rounds_with_draft
            if self._rounds_with_draft
            else None,
            tokens_per_pass=_ratio(self._output_tokens, self._target_passes),
            drafted_per_position=tuple(self._drafted),
            accepted_per_position=tuple(self._accepted),
            draft_s=self._draft_s,
            verify_s=self._verify_s,
            other_s=None if decode_s is None else decode_s - self._draft_s - self._verify_s,
        )
