"""What a pass costs: the time of one over n tokens, for the target and for the draft model.

Only the ratios decide how much to draft. They are not smooth (kernels work in groups of rows), so each
number of tokens has an estimate of its own, taken from a short measurement and then from every real pass. A
machine that is busy for a while slows all passes alike: one common factor follows that, so that it doesn't
pass for a change of the ratios.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

from app.core.settings import MAX_DRAFT

# Numbers of tokens worth measuring, the most telling first: a slow machine gets no further than its time. The
# draft model goes step by step, and reads what it missed; the larger passes tell what reading a prompt costs.
# A single token is measured again and again, since all depends on it.
PROBED = {
    "target": (1, 2, 1, 4, 1, 8, 16, 1, 32, 3, 1, 5, 6, 1, 12, 24),
    "draft": (1, 2, 1, 16, 1, 64, 1, 4, 128),
}
_FIRST_BAND = (
    1024  # tokens in the cache up to which the first measurement holds; each further band is twice as long
)
_FOLLOW_SPEED = 0.1
_FOLLOW_RATIO = 0.05
_MOST_SURPRISE = math.log(2)
_SHARED = 0.3  # of what one size teaches, that the next ones learn
# What a further token is taken to cost where nothing but single ones was measured: a model too slow for more
# gains most from drafts, and only drafts that are tried teach what they cost.
_HOPE = 0.5


class PassCosts:
    """Seconds of one pass by its number of tokens, at the machine's usual speed.

    ``measured``: seconds by number of tokens; at least that of 1. In between they are interpolated, beyond
    the largest they go on in its direction.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        if not measured or min(measured) != 1 or not all(0 < value < math.inf for value in measured.values()):
            raise ValueError("costs need a time above 0, that of a single token first")
        self._bands: dict[int, dict[int, float]] = {0: dict(sorted(measured.items()))}
        self._seen: dict[tuple[int, int], int] = {}
        self._tables: dict[int, list[float]] = {}

    def __call__(self, n: int, n_past: int = 0) -> float:
        """The seconds of a pass over ``n`` tokens behind ``n_past`` others; 0 for none."""
        if n <= 0:
            return 0.0
        table = self.table(n_past)
        return table[n] if n < len(table) else _interpolated(self._bands[self._nearest(_band(n_past))], n)

    def table(self, n_past: int = 0) -> list[float]:
        """The seconds of passes over 0, 1, … tokens, as far as the longest draft and one more."""
        band = self._nearest(_band(n_past))
        if band not in self._tables:
            known = self._bands[band]
            self._tables[band] = [0.0, *(_interpolated(known, n) for n in range(1, MAX_DRAFT + 3))]
        return self._tables[band]

    def observe(self, n: int, n_past: int, seconds: float, rate: float = _FOLLOW_RATIO) -> None:
        """Take in the time of a real pass, already freed from the machine's present slowness."""
        band = _band(n_past)
        if band not in self._bands:
            nearest = self._nearest(band)
            self._bands[band] = dict(self._bands[nearest])
        before = self(n, n_past)
        seen = self._seen.get((band, n), 0) + 1
        self._seen[band, n] = seen
        table = self._bands[band]
        if n not in table:
            table = self._bands[band] = dict(sorted({**table, n: before}.items()))
        change = max(rate, 0.5 / (seen + 1)) * _tamed(math.log(seconds / before))
        # What one size teaches holds in part for the others: the measurement may have been off as a whole.
        for size in table:
            if size > 1 or n == 1:
                nearness = _SHARED * min(n, size) / max(n, size) if size != n else 1.0
                changed = table[size] * math.exp(nearness * change)
                table[size] = (
                    min(changed, size * table[1]) if size > 1 else changed
                )  # one at a time always goes
        self._tables.pop(band, None)

    def renewed(self, later: PassCosts) -> PassCosts:
        """These costs after a later measurement: at its speed, each size at the lower of both ratios.

        Other work can only lengthen a pass. A size that seems dear is not tried, so nothing would ever put it
        right, while one that seems cheap is tried and found out.
        """
        tables = self._bands[0], later._bands[0]
        sizes = {size for table in tables for size in table}
        return PassCosts(
            {n: later(1) * min(table[n] / table[1] for table in tables if n in table) for n in sizes}
        )

    def measured(self) -> dict[int, float]:
        """What is known of the shortest contexts, to be kept for the next time."""
        return dict(self._bands[0])

    def _nearest(self, band: int) -> int:
        return max(known for known in self._bands if known <= band)


class Costs:
    """Both models' costs on a machine whose speed changes; ``draft`` is None without a draft model."""

    def __init__(self, target: PassCosts, draft: PassCosts | None = None) -> None:
        self.target, self.draft = target, draft
        self._slowness = 1.0
        self._seen = 0

    def observe_target(self, n: int, n_past: int, seconds: float) -> None:
        """Take in a pass of the target over ``n`` tokens behind ``n_past``."""
        self._observe(self.target, n, n_past, seconds)

    def observe_draft(self, n: int, n_past: int, seconds: float) -> None:
        """Take in a pass of the draft model."""
        if self.draft is not None:
            self._observe(self.draft, n, n_past, seconds)

    def _observe(self, costs: PassCosts, n: int, n_past: int, seconds: float) -> None:
        if n < 1 or seconds <= 0:
            return
        usual = seconds / self._slowness
        surprise = _tamed(math.log(usual / costs(n, n_past)))
        # A single token's time is the measure of all others, so only the machine's speed explains its change.
        if n > 1 or costs is self.draft or n_past >= _FIRST_BAND:
            costs.observe(n, n_past, usual)
        if n > MAX_DRAFT + 1:  # what reading takes is known too roughly to tell the speed
            return
        # What was measured an hour ago says little of the speed now; the first passes do.
        self._seen += 1
        self._slowness *= math.exp(max(_FOLLOW_SPEED, 1 / (self._seen + 1)) * surprise)


def _band(n_past: int) -> int:
    return (n_past // _FIRST_BAND).bit_length()


def _tamed(surprise: float) -> float:
    return max(-_MOST_SURPRISE, min(_MOST_SURPRISE, surprise))


def _interpolated(table: Mapping[int, float], n: int) -> float:
    if n in table:
        return table[n]
    sizes = list(table)  # ascending
    place = bisect_left(sizes, n)
    if len(sizes) == 1:
        return table[sizes[0]] * (1 + _HOPE * (n - 1))
    low, high = (sizes[-2], sizes[-1]) if place == len(sizes) else (sizes[place - 1], sizes[place])
    slope = (table[high] - table[low]) / (high - low)
    if place == len(sizes):
        slope = max(slope, 0.0)
    return table[low] + slope * (n - low)
