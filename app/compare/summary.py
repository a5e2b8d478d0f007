"""The figures of a comparison, computed from its runs, and what they say in words.

Every function here is pure: the same runs give the same figures, and so does the exported JSON.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.compare.record import Column, Comparison, Row
from app.compare.workloads import KINDS
from app.core.models import size_in_name
from app.core.settings import Mode
from app.core.stats import Stats

# By how much the median of so many pairs, or more, may differ from 1 without meaning anything. With equal
# settings twice, that of 16 pairs differed by less than 1 %, that of 2 by up to 9 %, a single pair by 16 %.
_NOISE = {6: 0.05, 2: 0.1, 1: 0.2}
# How many of the pairs must lie on the median's side of 1 before a difference is called one.
_AGREEING = 0.75


@dataclass(frozen=True, slots=True)
class Spread:
    """Speed-ups of paired runs."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One column over one kind of task, or over all (category None). Field order is the contract's.

    ``tokens_per_s`` is the median; the rates are pooled from the totals of the runs. None where a figure
    does not apply; ``audit`` counts verdicts.
    """

    column: str
    category: str | None
    tokens_per_s: float | None
    speedup: Spread | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    tokens_per_pass: float | None
    audit: dict[str, int] | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sentence; ``outcome`` is ``faster``, ``slower``, ``same`` or ``uneven``."""

    column: str
    category: str | None
    outcome: str
    text: str


def summarise(comparison: Comparison) -> list[Summary]:
    """Each column over everything and then over each kind of task, in the order of the columns."""
    kinds = categories(comparison)
    speedups = comparison.speedups()
    return [
        _summary(column, category, rows_of(comparison, column.name, category), speedups)
        for column in comparison.columns
        for category in (None, *kinds)
    ]


def categories(comparison: Comparison) -> list[str]:
    """The kinds of task, in the order of the prompts."""
    return list(dict.fromkeys(prompt.category for prompt in comparison.prompts))


def rows_of(comparison: Comparison, column: str, category: str | None = None) -> list[Row]:
    """A column's runs, all or of one kind of task."""
    return [row for row in comparison.runs if row.column == column and category in (None, row.category)]


def median_of(rows: Iterable[Row], figure: str) -> float | None:
    """The median of one of the figures over the runs that have it."""
    values = [value for row in rows if row.stats and (value := getattr(row.stats, figure)) is not None]
    return statistics.median(values) if values else None


def acceptance_by_position(rows: Iterable[Row]) -> list[float]:
    """Accepted over drafted at each place in the draft."""
    drafted: list[int] = []
    accepted: list[int] = []
    for row in rows:
        if row.stats:
            drafted = _added(drafted, row.stats.drafted_per_position)
            accepted = _added(accepted, row.stats.accepted_per_position)
    return [part / whole for part, whole in zip(accepted, drafted, strict=True)]


def label(column: Column, comparison: Comparison) -> str:
    """A column in words, such as "Draft 0.5B, K=4" or "Auto, 0.5B"."""
    speculation, sampling = column.request.speculation, column.request.sampling
    parts = [speculation.mode.value.capitalize()]
    if speculation.mode is Mode.DRAFT and column.load.draft:
        parts[0] += f" {_size(column.load.draft, comparison)}"
    if speculation.mode is Mode.AUTO and column.load.draft:
        parts.append(_size(column.load.draft, comparison))
    if speculation.mode in (Mode.DRAFT, Mode.LOOKUP):
        parts.append(f"K={speculation.n_draft}")
    if speculation.mode is Mode.DRAFT and speculation.p_min:
        parts.append(f"p_min={speculation.p_min:g}")
    if speculation.mode is Mode.LOOKUP and len(_spans(comparison)) > 1:
        parts.append(f"n={speculation.ngram_min} to {speculation.ngram_max}")
    if sampling.temperature:
        parts.append(f"temperature {sampling.temperature:g}")
    return ", ".join(parts)


def labels(comparison: Comparison) -> dict[str, str]:
    """Every column in words, by name; the name is added where the words would be another's too."""
    words = {column.name: label(column, comparison) for column in comparison.columns}
    counts = list(words.values())
    return {name: text if counts.count(text) == 1 else f"{text} ({name})" for name, text in words.items()}


def outcome(speedups: Sequence[float]) -> str:
    """What paired speed-ups say: ``faster`` or ``slower`` only where most of the pairs agree."""
    middle = statistics.median(speedups)
    if abs(middle - 1) < next(noise for pairs, noise in _NOISE.items() if len(speedups) >= pairs):
        return "same"
    agreeing = sum((value > 1) == (middle > 1) for value in speedups) / len(speedups)
    if agreeing < _AGREEING:
        return "uneven"
    return "faster" if middle > 1 else "slower"


def verdicts(comparison: Comparison) -> list[Verdict]:
    """A sentence on each column beside plain, and one on each kind of task where it comes out otherwise."""
    found = []
    words = labels(comparison)
    speedups = comparison.speedups()
    kinds = categories(comparison)
    for column in comparison.columns:
        if column is comparison.baseline:
            continue
        everything = _values(rows_of(comparison, column.name), speedups)
        if not everything:
            continue
        overall = outcome(everything)
        found.append(_verdict(column.name, None, overall, words[column.name], everything))
        for kind in kinds if len(kinds) > 1 else ():
            values = _values(rows_of(comparison, column.name, kind), speedups)
            if values and outcome(values) != overall and outcome(values) != "uneven":
                text = f"{words[column.name]}, on {KINDS.get(kind, kind)}"
                found.append(_verdict(column.name, kind, outcome(values), text, values))
    return found


_MEANING = {
    "faster": "worth it",
    "slower": "not worth it",
    "same": "no difference beyond noise",
    "uneven": "too uneven to say",
}


def _verdict(column: str, category: str | None, found: str, words: str, values: Sequence[float]) -> Verdict:
    middle = statistics.median(values)
    spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return Verdict(column, category, found, f"{words}: {middle:.2f}x plain here{spread}; {_MEANING[found]}")


def _summary(
    column: Column, category: str | None, rows: Sequence[Row], speedups: dict[Any, float]
) -> Summary:
    pooled = [row.stats for row in rows if row.stats]
    drafted, accepted = _total(pooled, "drafted"), _total(pooled, "accepted")
    with_draft, passes = _total(pooled, "rounds_with_draft"), _total(pooled, "target_passes")
    values = _values(rows, speedups)
    audits = [row.audit.verdict for row in rows if row.audit]
    return Summary(
        column.name,
        category,
        median_of(rows, "tokens_per_s"),
        Spread(statistics.median(values), min(values), max(values)) if values else None,
        accepted / drafted if drafted else None,
        1 + accepted / with_draft if with_draft else None,
        _total(pooled, "output_tokens") / passes if passes else None,
        {verdict: audits.count(verdict) for verdict in ("identical", "near_tie", "different")}
        if audits
        else None,
    )


def _values(rows: Iterable[Row], speedups: dict[Any, float]) -> list[float]:
    return [speedups[row.key] for row in rows if row.key in speedups]


def _total(stats: Iterable[Stats], figure: str) -> int:
    return sum(getattr(one, figure) for one in stats)


def _added(totals: Sequence[int], more: Sequence[int]) -> list[int]:
    longest = max(len(totals), len(more))
    padded = [[*values, *[0] * (longest - len(values))] for values in (totals, more)]
    return [a + b for a, b in zip(*padded, strict=True)]


def _spans(comparison: Comparison) -> set[tuple[int, int]]:
    """The n-gram bounds that the lookup columns use."""
    asked = [column.request.speculation for column in comparison.columns if column.mode is Mode.LOOKUP]
    return {(one.ngram_min, one.ngram_max) for one in asked}


def _size(model: Path, comparison: Comparison) -> str:
    """A model's size as people write it, such as 0.5B or 135M; its name where that is unknown.

    The name's own figure goes first: a file that stores shared weights twice counts them twice.
    """
    if named := size_in_name(model.stem):
        return named
    known = {facts["path"]: facts["parameters"] for facts in comparison.machine["models"]}
    count = known.get(str(model))
    if not count:
        return model.stem
    return f"{count / 1e9:.1f}B" if count >= 3e8 else f"{count / 1e6:.0f}M"
