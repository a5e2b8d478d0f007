"""Facts about model files, pairs and devices, as they cross from a helper process."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Models that can be target and draft, told apart by their memory.
USABLE_KINDS = frozenset({"model", "recurrent", "hybrid"})
# Why a file of another kind can be neither.
WHY_UNUSABLE = {
    "encoder": "it is an encoder and does not write text",
    "encoder-decoder": "it turns one whole text into another (encoder-decoder) and cannot continue a text",
    "diffusion": "it is a diffusion model and does not write one token after another",
    "adapter": "it is an adapter (LoRA), not a model",
    "projector": "it is the image projector of another model",
    "vocabulary": "it has a vocabulary and no weights",
}
_SIZE_IN_NAME = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?[bm])(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a GGUF file says of itself.

    ``kind``: ``model`` (attention alone), ``recurrent`` or ``hybrid`` (a running state in all layers or
    in some), which can be target and draft, or a key of WHY_UNUSABLE. ``made_from``: the SHA-256 of
    the file that this one was made from, where Headstart made it.
    """

    kind: str
    architecture: str
    name: str | None
    parameters: int
    quantization: str
    n_ctx_train: int
    n_vocab: int
    vocab_type: str
    n_layer: int
    has_chat_template: bool
    licence: str | None
    made_from: str | None = None


@dataclass(frozen=True, slots=True)
class PairCheck:
    """Whether a draft fits a target, and if not, why, each reason a whole clause."""

    fits: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One of ggml's devices; ``kind`` is ``cpu``, ``gpu``, ``igpu`` or ``accel``; memory in bytes."""

    name: str
    description: str
    kind: str
    memory_free: int
    memory_total: int


@dataclass(frozen=True, slots=True)
class LlamaFacts:
    """The llama.cpp build in use: its version, the CPU features it was built with, its devices."""

    version: str
    features: str
    devices: tuple[Device, ...]


def size_in_name(name: str) -> str | None:
    """How many parameters a model has by its name, such as 0.5B or 135M."""
    found = _SIZE_IN_NAME.search(name)
    return found[1].upper() if found else None
