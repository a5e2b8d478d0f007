"""What Auto may gain with a pair, by kind of task: an estimate, and beside it what was measured here.

The estimate takes the pair's costs on this machine, and acceptances from past comparisons of the pair, or
where there are none those that were recorded with another one (acceptances.json).
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.compare import history
from app.compare.summary import categories, rows_of
from app.compare.workloads import KINDS
from app.core.errors import HeadstartError
from app.core.outlook import Acceptance, acceptance_of, expected_speedup
from app.core.settings import LoadSettings, Mode
from app.worker import kept_costs
from app.worker.machine import usable_cores

_RECORDED = Path(__file__).with_name("acceptances.json")


@dataclass(frozen=True, slots=True)
class Expectation:
    """Speed-ups over plain decoding on one kind of task; None where they can't be told yet.

    ``is_own``: the estimate rests on comparisons of this very pair.
    """

    kind: str
    expected: float | None
    is_own: bool
    measured: float | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """A column of a past comparison, on one kind of task."""

    mode: Mode
    target: Path
    draft: Path | None
    category: str
    drafted: tuple[int, ...]  # by position
    accepted: tuple[int, ...]
    rounds: int
    passes: int
    speedups: tuple[float, ...]


def outlook(load: LoadSettings) -> list[Expectation]:
    """Each kind of task with what is known of it for this pair, or for the target with look-ups alone."""
    seen = [one for stamp in history.stamps() for one in _seen(*stamp) if one.target == load.target]
    threads = load.threads or usable_cores()
    passes = kept_costs.latest(load.target, "target", threads)
    steps = kept_costs.latest(load.draft, "draft", threads) if load.draft else None
    expectations = []
    for kind in KINDS:
        here = [one for one in seen if one.category == kind]
        drafted = [one for one in here if one.mode is Mode.DRAFT and one.draft == load.draft]
        looked_up = [one for one in here if one.mode is Mode.LOOKUP]
        gains = [
            gain for one in here if one.mode is Mode.AUTO and one.draft == load.draft for gain in one.speedups
        ]
        expected = None
        if passes and (steps or not load.draft):
            expected = expected_speedup(passes, 0.0, _acceptance("lookup", kind, looked_up))
            if steps:
                by_model = expected_speedup(passes, steps(1), _acceptance("draft", kind, drafted))
                expected = max(expected, by_model)
        measured = statistics.median(gains) if gains else None
        expectations.append(Expectation(kind, expected, bool(drafted or looked_up), measured))
    return expectations


def _acceptance(source: str, kind: str, seen: Sequence[_Seen]) -> Acceptance:
    """From the comparisons, or the recorded one without any."""
    if not seen:
        return _recorded()[source][kind]
    return acceptance_of(
        _summed(one.drafted for one in seen),
        _summed(one.accepted for one in seen),
        sum(one.rounds for one in seen),
        sum(one.passes for one in seen),
    )


@functools.cache
def _recorded() -> dict[str, dict[str, Acceptance]]:
    content = json.loads(_RECORDED.read_text("utf-8"))
    return {
        source: {kind: Acceptance(one["share"], tuple(one["kept"])) for kind, one in content[source].items()}
        for source in ("draft", "lookup")
    }


@functools.lru_cache(maxsize=512)  # a comparison has all its tokens, which take a while to read
def _seen(name: str, stamp: int) -> tuple[_Seen, ...]:
    """What a past comparison has to say; nothing where it can't be read."""
    try:
        comparison = history.load(name)
    except HeadstartError:
        return ()
    speedups = comparison.speedups()
    found = []
    for column, category in itertools.product(comparison.columns, categories(comparison)):
        if column.mode is Mode.DRAFT and column.request.speculation.p_min:
            continue  # it drafted only where it was sure
        rows = [row for row in rows_of(comparison, column.name, category) if row.stats]
        stats = [row.stats for row in rows if row.stats]
        found.append(
            _Seen(
                column.mode,
                column.load.target,
                column.load.draft,
                category,
                _summed(one.drafted_per_position for one in stats),
                _summed(one.accepted_per_position for one in stats),
                sum(one.rounds_with_draft for one in stats),
                sum(one.target_passes for one in stats),
                tuple(speedups[row.key] for row in rows if row.key in speedups),
            )
        )
    return tuple(found)


def _summed(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Position by position; the shorter ones end earlier."""
    return tuple(map(sum, itertools.zip_longest(*counts, fillvalue=0)))
