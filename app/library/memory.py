"""What a pair of models will take of this machine's memory, told before it is loaded.

llama.cpp itself says it, in a simulated load (see ``app.backend.memory``): weights, caches and buffers are
those that it then allocates, to the megabyte. The rest of the model process, Python and the vocabularies,
takes about 0.1 GB more and is not counted.

Weights are mapped from the file, so that their pages are the system's to drop; but each is read for every
token, and a machine that drops them crawls. So they count in full. The copies that llama.cpp repacks for
the processor come on top, and once they are made their originals are never read again: both are resident
after loading (the child's RSS shows it), yet a machine where only one of the two has room does not suffer.
Such a pair fits, and is called tight.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.core.errors import HeadstartError
from app.core.memory import (
    RAM,
    Amount,
    MemoryEstimate,
    ModelMemory,
    Room,
    advise,
    by_device,
    warning,
    weigh,
)
from app.core.models import Device
from app.core.settings import LoadSettings
from app.library import cache
from app.worker import client, machine, tasks

_LARGE_TYPES = ("f32", "f16")
# What was measured where graphics devices are: it depends on what is free there, and is not kept on disk.
_with_graphics: dict[LoadSettings, tuple[ModelMemory, ...]] = {}


def estimate(load: LoadSettings) -> MemoryEstimate:
    """What the pair takes, whether that is there, and what would fit if not.

    What a loaded pair of this process would give back counts as free. A pair that is new takes about half a
    second, other contexts of the same pair nothing. Raises HeadstartError where a model can't be loaded.
    """
    models, devices = _measured(load)
    rooms = _rooms(devices)
    found = weigh(models, load.n_ctx, rooms)
    if found.fits:
        return found
    return dataclasses.replace(found, advice=advise(models, _with_small_cache(load), load.n_ctx, rooms))


def warn(load: LoadSettings, whose: str = "") -> None:
    """Print the warning, if there is one, on standard error; ``whose`` begins it.

    What can't be loaded at all is passed over: loading it will say why.
    """
    with contextlib.suppress(HeadstartError):
        if line := warning(estimate(load)):
            print(f"warning: {whose}{line}", file=sys.stderr)


def _measured(load: LoadSettings) -> tuple[tuple[ModelMemory, ...], tuple[Device, ...]]:
    """What each model takes, and the graphics devices, if there are any."""
    keys = _keys(load)
    known = [_recall(path, key) for path, key in keys]
    if all(known):
        return tuple(filter(None, known)), ()
    devices, models = tasks.memory_of(load, _given_back())
    graphics = tuple(device for device in devices if device.kind in ("gpu", "igpu"))
    if graphics:
        _with_graphics[load] = models
    else:
        for (path, key), model in zip(keys, models, strict=True):
            cache.remember(path, key, dataclasses.asdict(model))
    return models, graphics


def _with_small_cache(load: LoadSettings) -> tuple[ModelMemory, ...]:
    """The models with caches of q8_0; none where the caches are as small already, or can't be."""
    names = ("cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v")
    smaller: dict[str, Any] = {name: "q8_0" for name in names if getattr(load, name) in _LARGE_TYPES}
    with contextlib.suppress(HeadstartError):
        if smaller:
            return _measured(dataclasses.replace(load, **smaller))[0]
    return ()


def _keys(load: LoadSettings) -> list[tuple[Path, str]]:
    """For each model the file and what else its need depends on, in the order of ``tasks.memory_of``."""
    keys = [(load.target, "target", load.gpu_layers, load.cache_type_k, load.cache_type_v)]
    if load.draft:
        types = load.draft_cache_type_k, load.draft_cache_type_v
        keys.append((load.draft, "draft", load.draft_gpu_layers, *types))
    return [
        (path, f"memory {role} {layers} {load.n_batch} {type_k} {type_v} {_llama_cpp()}")
        for path, role, layers, type_k, type_v in keys
    ]


@functools.cache
def _llama_cpp() -> str:
    """The build of llama.cpp: another one, for graphics devices say, places weights in other ways."""
    found = importlib.util.find_spec("llama_cpp")
    when = Path(found.origin).stat().st_mtime_ns if found and found.origin else 0
    return f"{importlib.metadata.version('llama-cpp-python')} {when}"


def _recall(path: Path, key: str) -> ModelMemory | None:
    value = cache.recall(path, key)
    try:
        amounts = tuple(Amount(**amount) for amount in value["amounts"])
        return ModelMemory(**{**value, "amounts": amounts})
    except (TypeError, KeyError):  # nothing yet, or written by a version with other fields
        return None


def _rooms(graphics: Sequence[Device]) -> list[Room]:
    free, total = machine.usable_memory()
    free += sum(machine.private_memory(pid) for pid, _ in client.loaded())
    # A Mac's graphics processor has no memory of its own either, though ggml calls it a GPU.
    lends_to = tuple(device.name for device in graphics if device.kind == "igpu" or sys.platform == "darwin")
    given_back = _given_back()
    return [
        Room(RAM, min(free, total), total, lends_to),
        *(
            Room(device.name, device.memory_free + given_back[device.name], device.memory_total)
            for device in graphics
        ),
    ]


def _given_back() -> Counter[str]:
    """Bytes that the loaded pair has on each graphics device, as far as they were estimated."""
    parts = [
        part
        for _, load in client.loaded()
        for model in _with_graphics.get(load, ())
        for part in model.parts(load.n_ctx)
    ]
    return by_device(parts)
