"""What passes cost, measured once for a model on this machine and kept for the next time."""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from app.backend.llama import Context
from app.core.costs import PROBED, PassCosts
from app.worker import store

_FILE = "costs.json"
_BUDGET_S = {"target": 2.0, "draft": 1.0}
_MODELS_KEPT = 64


def name_of(path: Path, *settings: object) -> str:
    """A model on this machine, as it is loaded: all that decides how long its passes take."""
    stat = path.stat()
    facts = (path, stat.st_size, stat.st_mtime_ns, platform.node(), platform.machine(), *settings)
    return "|".join(map(str, facts))


def pass_costs(context: Context, name: str, role: str) -> PassCosts:
    """The costs kept under ``name``, or those measured now, in at most 3 s for a pair. Raises Cancelled.

    A model too slow for that gets no further than a few sizes; real passes teach the rest.
    """
    kept = store.read(_FILE)
    with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError):
        return PassCosts({int(n): float(seconds) for n, seconds in kept[name].items()})
    measured = PassCosts(_measure(context, PROBED[role], _BUDGET_S[role]))
    keep(name, measured)
    return measured


def keep(name: str, known: PassCosts) -> None:
    """Keep what is known by now; a folder that cannot be written only costs the next measurement."""
    kept = store.read(_FILE)
    others = kept if isinstance(kept, dict) else {}
    others.pop(name, None)
    others[name] = known.measured()
    with contextlib.suppress(OSError):
        store.write(_FILE, dict(list(others.items())[-_MODELS_KEPT:]))


def _measure(context: Context, sizes: Sequence[int], budget_s: float) -> dict[int, float]:
    """Seconds of passes of these sizes behind what the cache holds, which stays; at least that of 1.

    The shortest of repeated passes counts: whatever else runs can only make one longer.
    """
    length = len(context.ids)
    if context.n_ctx - length < max(sizes):
        length = 0
    times: dict[int, float] = {}
    started = time.perf_counter()
    try:
        context.rewind(length)
        context.decode([0], 1)  # warms up
        while True:
            for n in sizes:
                context.rewind(length)
                if times and time.perf_counter() - started > budget_s:
                    return times
                if length + n > context.n_ctx:
                    continue
                before = context.seconds
                if n <= context.max_rows:
                    context.decode([0] * n, n)
                else:
                    context.extend([0] * n, lambda done: None)
                times[n] = min(context.seconds - before, times.get(n, math.inf))
    finally:
        context.rewind(length)
