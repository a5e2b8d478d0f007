"""The figures beside an answer, in words: from counts to what the page shows."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from app.core.stats import Stats
from app.core.tokens import TokenEvent, TokenKind, sources_in_words

DASH = "—"
NOW_WINDOW_S = 2.0
READABLE_S = 1.0  # for which a line of words stands at least


@dataclass(slots=True)
class FigureKeeper:
    """Follows one answer: its latest figures, its tokens by kind, and how fast it goes right now."""

    stats: Stats = field(default_factory=Stats)
    plain_tokens_per_s: float | None = None
    speculates: bool = False
    kinds: Counter[TokenKind] = field(default_factory=Counter)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _sources: Counter[str] = field(default_factory=Counter)  # of Auto's rounds
    _doing: str = ""
    _doing_since: float = float("-inf")

    def observe(self, tokens: tuple[TokenEvent, ...], stats: Stats, t: float, plain: float | None) -> None:
        """Take in one round; ``t`` is seconds since the run started."""
        self.stats, self.plain_tokens_per_s = stats, plain
        self.kinds.update(token.kind for token in tokens)
        self._recent.append((t, stats.output_tokens))
        while len(self._recent) > 2 and t - self._recent[1][0] >= NOW_WINDOW_S:
            self._recent.popleft()

    def explain(self, source: str, why: str, t: float) -> None:
        """What Auto did in a round, and why; it is shown long enough to be read."""
        self._sources[source] += 1
        if t - self._doing_since >= READABLE_S:
            self._doing, self._doing_since = f"Now {why}", t

    def finish(self, stats: Stats, plain: float | None) -> None:
        """The answer is complete: nothing happens right now any more."""
        self.stats, self.plain_tokens_per_s = stats, plain
        self._recent.clear()
        self._doing = f"Rounds: {sources_in_words(self._sources)}" if self._sources else ""

    @property
    def now_tokens_per_s(self) -> float | None:
        """Tokens a second over the last two seconds."""
        if len(self._recent) < 2:
            return None
        (t0, n0), (t1, n1) = self._recent[0], self._recent[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else None

    def shown(self) -> dict[str, Any]:
        """What the figures component needs, every text ready to be set."""
        stats = self.stats
        return {
            "speed": speed(stats.tokens_per_s),
            "now": speed(self.now_tokens_per_s),
            **self._against_plain(),
            "doing": self._doing,
            "acceptance": percent(stats.acceptance_rate),
            "length": number(stats.mean_acceptance_length, 2),
            "per_pass": number(stats.tokens_per_pass, 2),
            "passes": str(stats.target_passes) if stats.target_passes else DASH,
            "tokens": str(stats.output_tokens) if stats.output_tokens else DASH,
            "first": seconds(stats.time_to_first_token_s),
            "prompt": prompt_words(stats),
            "chart": [
                [accepted, drafted]
                for accepted, drafted in zip(
                    stats.accepted_per_position, stats.drafted_per_position, strict=True
                )
            ],
            "counts": {kind.value: self.kinds[kind] for kind in TokenKind},
        }

    def _against_plain(self) -> dict[str, Any]:
        ours, plain = self.stats.tokens_per_s, self.plain_tokens_per_s
        if not self.speculates:
            return {
                "ratio": "plain decoding",
                "slower": False,
                "ratio_detail": "the baseline: nothing is drafted",
            }
        if not self.stats.drafted:
            return {"ratio": DASH, "slower": False, "ratio_detail": "nothing drafted so far"}
        if not ours or not plain:
            return {"ratio": DASH, "slower": False, "ratio_detail": "no estimate of plain decoding yet"}
        return {
            "ratio": versus_plain(ours, plain),
            "slower": _is_slower(ours, plain),
            "ratio_detail": f"{speed(ours)} against {speed(plain)} tokens/s",
        }

    def summary(self) -> str:
        """One line on a finished answer."""
        stats = self.stats
        if not stats.output_tokens:
            return "no tokens"
        parts = [
            f"{count(stats.output_tokens, 'token')} in {count(stats.target_passes, 'pass', 'passes')}, "
            f"{seconds(stats.total_s)}"
        ]
        if stats.tokens_per_s:
            parts.append(f"{speed(stats.tokens_per_s)} tokens/s")
            if self.stats.drafted and self.plain_tokens_per_s:
                parts.append(versus_plain(stats.tokens_per_s, self.plain_tokens_per_s))
        if stats.acceptance_rate is not None:
            parts.append(f"{percent(stats.acceptance_rate)} accepted")
        if stats.cached_tokens:
            parts.append(f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens cached")
        return " · ".join(parts)


def versus_plain(ours: float, plain: float) -> str:
    """How a speed compares with plain decoding's, never flattering."""
    ratio = f"{ours / plain:.2f}x"
    words = f"slower than plain: {ratio}" if _is_slower(ours, plain) else f"{ratio} plain"
    return f"{words} (estimate)"


def _is_slower(ours: float, plain: float) -> bool:
    """By the ratio as it is shown, so that 1.00x is not called slower."""
    return round(ours / plain, 2) < 1


def prompt_words(stats: Stats) -> str:
    """The prompt's length, and how much of it was not processed again."""
    if not stats.prompt_tokens:
        return ""
    words = count(stats.prompt_tokens, "prompt token")
    return f"{words}, {stats.cached_tokens} of them cached" if stats.cached_tokens else words


def count(n: int, one: str, many: str | None = None) -> str:
    """A number and its noun."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def number(value: float | None, digits: int = 1) -> str:
    """A figure, or a dash where it does not apply."""
    return DASH if value is None else f"{value:.{digits}f}"


def speed(value: float | None) -> str:
    """Tokens a second, to a tenth where that can be read."""
    return number(value, 0 if value is not None and value >= 99.95 else 1)


def percent(value: float | None) -> str:
    """A rate as a whole percentage."""
    return DASH if value is None else f"{100 * value:.0f} %"


def seconds(value: float | None) -> str:
    """A duration that people can read at a glance."""
    if value is None:
        return DASH
    if value < 9.95:
        return f"{value:.2f} s" if value < 0.995 else f"{value:.1f} s"
    whole = round(value)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def size(n_bytes: int) -> str:
    """Bytes as people know them from download pages."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"
