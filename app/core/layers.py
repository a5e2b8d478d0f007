"""How many of a model's layers a GPU can hold."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.models import Device

# What stays free for compute buffers, the cache of the layers placed there and the desktop.
_HEADROOM = 0.85


def layers_that_fit(size_bytes: int, n_layer: int, devices: Sequence[Device]) -> int:
    """Layers (the output layer counts as one more) whose weights fit the GPUs' free memory; 0 without one.

    Layers are taken as equally large: the weights are ``size_bytes`` over ``n_layer + 1``.
    """
    free = sum(device.memory_free for device in devices if device.kind in ("gpu", "igpu"))
    per_layer = max(size_bytes, 1) / (n_layer + 1)
    return min(int(free * _HEADROOM / per_layer), n_layer + 1)
