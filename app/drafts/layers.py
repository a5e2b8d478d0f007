"""Which layers a draft can do without: those whose loss changes the least of what it would say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.worker import tasks

# Numbers of layers to leave out together.
_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class Cut:
    """Layers left out, and how often the rest agrees with the texts."""

    layers: tuple[int, ...]
    agreement: float


def search_cuts(
    model: Path,
    n_layer: int,
    scratch: Path,
    texts: tasks.Texts,
    seconds: float,
    on_progress: Callable[[int, int], None],
    cancelled: Callable[[], bool],
) -> list[Cut]:
    """Cuts of growing size, each of the layers that are missed least one by one.

    The layers are tried alone, those in the middle first, for at most two thirds of ``seconds``; then the
    best of them together. The first and the last always stay. ``scratch`` is written over and left to the
    caller. Raises HeadstartError and Cancelled.
    """
    began = time.monotonic()
    inner = _from_the_middle(n_layer)
    counts = [count for count in _COUNTS if count <= n_layer // 3]
    total = len(inner) + len(counts)
    alone: dict[int, float] = {}
    singles = [(layer,) for layer in inner]
    for cut in _tried(model, singles, scratch, texts, began + seconds * 2 / 3, cancelled):
        alone[cut.layers[0]] = cut.agreement
        on_progress(len(alone), total)
    best = sorted(alone, key=lambda layer: -alone[layer])
    together = [tuple(sorted(best[:count])) for count in counts if count <= len(best)]
    cuts = []
    for cut in _tried(model, together, scratch, texts, began + seconds, cancelled):
        cuts.append(cut)
        on_progress(len(inner) + len(cuts), total)
    return cuts


def _tried(
    model: Path,
    cuts: Sequence[tuple[int, ...]],
    scratch: Path,
    texts: tasks.Texts,
    until: float,
    cancelled: Callable[[], bool],
) -> Iterator[Cut]:
    """Each cut's agreement while there is time; at least one."""
    found = tasks.cut_agreements(model, scratch, cuts, texts, cancelled)
    for layers, agreement in zip(cuts, found, strict=False):
        yield Cut(layers, agreement)
        if time.monotonic() > until:
            break


def _from_the_middle(n_layer: int) -> list[int]:
    middle = (n_layer - 1) / 2
    return sorted(range(1, n_layer - 1), key=lambda layer: abs(layer - middle))
