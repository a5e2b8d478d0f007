"""What Auto may gain with a pair, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.compare.outlook import Expectation

UNMEASURED = "What Auto may gain here is told after its first answer, which measures what passes cost."
RECORDED = "Estimated from this pair's own speed and from how drafts fared with Qwen2.5-Coder 1.5B and 0.5B."
OWN = "Estimated from this pair's own speed and from your comparisons."


def shown(expectations: Sequence[Expectation]) -> dict[str, Any]:
    """A headline, the rows of kind, estimate and measurement, and what the estimate rests on."""
    from app.compare.workloads import KINDS

    gains = [one.expected for one in expectations if one.expected is not None]
    is_known = any(one.measured is not None for one in expectations)
    rows = [
        [_capital(KINDS[one.kind]), _times(one.expected, " est."), _times(one.measured, " measured")]
        for one in expectations
    ]
    return {
        "headline": _headline(gains) if gains else UNMEASURED,
        "rows": rows if gains or is_known else [],
        "note": (OWN if any(one.is_own for one in expectations) else RECORDED) if gains else "",
    }


def _headline(gains: Sequence[float]) -> str:
    least, most = (f"{gain:.1f}" for gain in (min(gains), max(gains)))
    if most == "1.0":
        return "Auto here: as fast as plain (est.)"
    span = f"{most}x" if least == most else f"{least}x to {most}x"
    return f"Auto here: {span} plain, by kind of task (est.)"


def _times(gain: float | None, what: str) -> str:
    return "" if gain is None else f"{gain:.2f}x{what}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
