"""How much memory a pair of models takes, whether that is there, and what would fit where it isn't.

Bytes throughout. ``RAM`` is the memory of the processor; every other device has its ggml name.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RAM = "RAM"
# llama.cpp rounds a context up to a multiple of this.
CONTEXT_STEP = 256


@dataclass(frozen=True, slots=True)
class Amount:
    """A part of one model's memory, as a line over the context: ``fixed`` and so much a token.

    ``what``: ``weights`` (as in the file), ``repacked`` (the copies that llama.cpp makes of weights for the
    processor's instructions), ``cache`` (keys and values of the context) or ``compute`` (buffers of a pass).
    """

    what: str
    device: str
    fixed: float
    per_token: float = 0.0

    def at(self, n_ctx: int) -> int:
        """Bytes with a context of so many tokens."""
        return round(self.fixed + self.per_token * -(-n_ctx // CONTEXT_STEP) * CONTEXT_STEP)


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What one model takes with given cache types and layers.

    ``role`` is ``target`` or ``draft``; so many of its layers were meant for graphics devices. Without
    ``n_ctx_most`` it takes any context.
    """

    role: str
    amounts: tuple[Amount, ...]
    gpu_layers: int
    n_ctx_most: int | None = None

    def parts(self, n_ctx: int) -> tuple[MemoryPart, ...]:
        """What it takes with a context of so many tokens, or of its most."""
        n_ctx = min(n_ctx, self.n_ctx_most or n_ctx)
        return tuple(
            MemoryPart(self.role, amount.what, amount.device, amount.at(n_ctx)) for amount in self.amounts
        )


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of what a model takes on one device; ``what`` as in Amount."""

    role: str
    what: str
    device: str
    bytes: int


def by_device(parts: Iterable[MemoryPart]) -> Counter[str]:
    """Bytes of each device."""
    needs = Counter[str]()
    for part in parts:
        needs[part.device] += part.bytes
    return needs


@dataclass(frozen=True, slots=True)
class Room:
    """A device's memory; what is free counts what our own loaded models would give back.

    ``lends_to`` names graphics devices that have no memory of their own and use this one.
    """

    device: str
    free: int
    total: int
    lends_to: tuple[str, ...] = ()

    def need(self, parts: Iterable[MemoryPart]) -> int:
        """What the parts take of it."""
        return sum(part.bytes for part in parts if part.device in (self.device, *self.lends_to))

    def holds(self, parts: Iterable[MemoryPart]) -> bool:
        """Whether the parts have room here.

        Weights lie in pages of the file. llama.cpp doesn't read those again that it has repacked, and the
        system may drop them: only one of the two has to be there.
        """
        return self.need(part for part in parts if part.what != "repacked") <= self.free


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """What is needed of one device, and what is there."""

    device: str
    need: int
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a pair takes, by part and by device; whether it fits; if not, what would, each a whole clause."""

    parts: tuple[MemoryPart, ...]
    devices: tuple[DeviceNeed, ...]
    fits: bool
    advice: tuple[str, ...] = ()

    @property
    def is_tight(self) -> bool:
        """Whether it fits only because the system can drop file pages that nobody reads any more."""
        return self.fits and any(device.need > device.free for device in self.devices)


def weigh(models: Sequence[ModelMemory], n_ctx: int, rooms: Sequence[Room]) -> MemoryEstimate:
    """What the models take together, against the room there is; advice is left to ``advise``."""
    parts = tuple(part for model in models for part in model.parts(n_ctx))
    devices = tuple(
        DeviceNeed(room.device, room.need(parts), room.free, room.total)
        for room in rooms
        if room.device == RAM or room.need(parts)
    )
    return MemoryEstimate(parts, devices, all(room.holds(parts) for room in rooms))


def advise(
    models: Sequence[ModelMemory],
    with_small_cache: Sequence[ModelMemory],
    n_ctx: int,
    rooms: Sequence[Room],
) -> tuple[str, ...]:
    """What would make the models fit; ``with_small_cache`` are the same with caches of q8_0, if that helps.

    Each way is tried by itself, with a smaller context too where it is not enough.
    """
    advice = []
    if most := largest_context(models, n_ctx, rooms):
        advice.append(f"a context of at most {most} tokens fits")
    ways = {"without the draft model": [model for model in models if model.role == "target"]}
    if len(models) == 1:
        ways.clear()
    if with_small_cache:
        ways["with a cache of type q8_0"] = [*with_small_cache]
    for words, changed in ways.items():
        if weigh(changed, n_ctx, rooms).fits:
            advice.append(f"{words} it fits")
        elif (reachable := largest_context(changed, n_ctx, rooms)) > most:
            advice.append(f"{words} a context of at most {reachable} tokens fits")
    advice += _fewer_layers(models, n_ctx, rooms)
    return tuple(advice) or ("no context fits, choose a smaller model",)


def warning(found: MemoryEstimate) -> str | None:
    """What is wrong and what would fit, on one line; None where the pair fits."""
    if found.fits:
        return None
    lacking = [
        f"the models need {_gigabytes(device.need)} of {device.device} and {_gigabytes(device.free)} are free"
        for device in found.devices
        if device.need > device.free
    ]
    return f"{', '.join(lacking)}: {'; '.join(found.advice)}"


def largest_context(models: Sequence[ModelMemory], n_ctx: int, rooms: Sequence[Room]) -> int:
    """The largest multiple of 256 below ``n_ctx`` with which the models fit, or 0."""
    least, most = 0, (n_ctx - 1) // CONTEXT_STEP
    while least < most:
        middle = (least + most + 1) // 2
        if weigh(models, middle * CONTEXT_STEP, rooms).fits:
            least = middle
        else:
            most = middle - 1
    return least * CONTEXT_STEP


def _fewer_layers(models: Sequence[ModelMemory], n_ctx: int, rooms: Sequence[Room]) -> list[str]:
    """For each model how many of its layers fit, where graphics devices have too little room for all."""
    graphics = [room for room in rooms if room.device != RAM]
    advice = []
    for model in models:
        others = [part for other in models if other is not model for part in other.parts(n_ctx)]
        fitting = next(
            (
                layers
                for layers in range(model.gpu_layers, -1, -1)
                if all(room.holds([*others, *_with_layers(model, n_ctx, layers)]) for room in graphics)
            ),
            model.gpu_layers,
        )
        if fitting < model.gpu_layers:
            advice.append(
                f"of the {model.role}'s layers, {fitting} in place of {model.gpu_layers} fit on the GPU"
            )
    return advice


def _with_layers(model: ModelMemory, n_ctx: int, layers: int) -> list[MemoryPart]:
    """What it would take of graphics devices with fewer layers there, all taken as equally large."""
    share = layers / max(model.gpu_layers, 1)
    return [
        part if part.what == "compute" else dataclasses.replace(part, bytes=round(part.bytes * share))
        for part in model.parts(n_ctx)
        if part.device != RAM
    ]


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
