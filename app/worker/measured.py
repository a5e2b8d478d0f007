"""What passes cost, measured once for a model on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from app.backend.context import Context
from app.core.costs import PROBED, PassCosts
from app.worker.kept_costs import Kept, keep, recall

_BUDGET_S = {"target": 2.0, "draft": 1.0}
_ENOUGH = 16  # times through all sizes; a fast machine needs no more
# A measurement beside other work is wrong, and nothing tells that it was.
_TIMES = 3
_ROUGHNESS = 1.25  # how much longer a pass may take than one over more tokens


def pass_costs(context: Context, name: str, role: str, on_measuring: Callable[[], None]) -> Kept:
    """The costs kept under ``name``, measured now unless that was done often enough. Raises Cancelled.

    ``on_measuring`` is called before, and a pair takes at most 3 s. A model too slow for that gets no further
    than a few sizes; real passes teach the rest.
    """
    kept = recall(name)
    if kept and kept.times >= _TIMES:
        return kept
    on_measuring()
    measured = measure(context, role)
    known = Kept(kept.costs.renewed(measured), kept.times + 1) if kept else Kept(measured, 1)
    keep(name, known)
    return known


def measure(context: Context, role: str) -> PassCosts:
    """Time passes of several sizes behind what the cache holds, which stays. Raises Cancelled.

    Of repeated passes the median counts, of every size alike: the shortest of many against the only one of
    another size would tell a wrong ratio. So does reason: what several short passes, or one a little longer,
    would do cannot take much longer.
    """
    # Of a target's pass every row is wanted; what a draft model reads in one is there to be remembered only.
    times = _times(context, PROBED[role], _BUDGET_S[role], needs_rows=role == "target")
    return PassCosts(
        {
            n: min(seconds, n * times[1], *(_ROUGHNESS * times[m] for m in times if m > n))
            for n, seconds in times.items()
        }
    )


def _times(context: Context, sizes: Sequence[int], budget_s: float, needs_rows: bool) -> dict[int, float]:
    """The seconds by size; at least that of 1."""
    length = len(context.ids)
    if context.n_ctx - length < max(sizes):
        length = 0
    every: dict[int, list[float]] = {}
    times: dict[int, float] = {}
    started = time.perf_counter()
    try:
        context.rewind(length)
        context.decode([0], 1)  # warms up
        for _ in range(_ENOUGH):
            for n in sizes:
                context.rewind(length)
                if length + n > context.n_ctx:
                    continue
                expected = PassCosts(times)(n) if len(times) > 1 else n * times.get(1, 0)
                if times and time.perf_counter() - started + expected > budget_s:
                    return times
                before = context.seconds
                if n == 1 or (needs_rows and n <= context.max_rows):
                    context.decode([0] * n, n)
                else:
                    context.extend([0] * n, lambda done: None)
                every.setdefault(n, []).append(context.seconds - before)
                times[n] = statistics.median(every[n])
        return times
    finally:
        context.rewind(length)
