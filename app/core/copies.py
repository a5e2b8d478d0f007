"""Copies of a model file in another type or with fewer layers: what can be asked for, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.core.errors import UsageError

# What people ask for, and llama.cpp's number for it.
FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "BF16": 32,
    "Q8_0": 7,
    "Q6_K": 18,
    "Q5_K_M": 17,
    "Q5_K_S": 16,
    "Q4_K_M": 15,
    "Q4_K_S": 14,
    "Q4_1": 3,
    "Q4_0": 2,
    "Q3_K_M": 12,
    "Q3_K_S": 11,
    "Q2_K": 10,
}
# Types that llama.cpp writes only with an importance matrix, which takes hours of a calibration text.
_NEED_IMPORTANCE = {
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "Q2_K_S"),
}
_NUMBER = re.compile(r"[0-9]+")
_LIST = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*,?")
# A pass reads one row of these, not the whole; the output matrix is the embedding where there is no other.
_LOOKED_UP = {"token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight"}


@dataclass(frozen=True, slots=True)
class ModelCopy:
    """A copy to write: its type (None: every tensor as it is), the layers left out, metadata to add.

    A value of the metadata holds at most 127 bytes.
    """

    file_type: str | None
    skipped_layers: tuple[int, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TensorSize:
    """A tensor of a file, in bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What a copy will be: tensors, bytes of the file, and bytes that a pass over one token reads.

    ``source_pass_bytes``: the same of the file that is copied.
    """

    tensors: int
    size_bytes: int
    pass_bytes: int
    source_pass_bytes: int

    @property
    def cost(self) -> float:
        """A pass over one token as a part of the source's, where memory decides the speed."""
        return self.pass_bytes / self.source_pass_bytes


def check_type(text: str) -> str:
    """The type as it is written. Raises UsageError for one that is unknown or can't be made here."""
    name = text.upper()
    if name in _NEED_IMPORTANCE:
        raise UsageError(
            f"{name} can't be made: types that low need an importance matrix", "Q2_K is the lowest without"
        )
    if name not in FILE_TYPES:
        raise UsageError(f"type '{text}' is unknown; choose one of {', '.join(FILE_TYPES)}")
    return name


def layers_to_skip(text: str, n_layer: int) -> tuple[int, ...]:
    """The layers that ``text`` names, sorted: a number of middle ones (4), or a list (9-11,14 or 9,).

    Layers count from 0. The first and the last are never skipped. Raises UsageError.
    """
    text = text.replace(" ", "")
    if n_layer < 3:
        raise UsageError(
            f"no layer can be skipped: this model has {n_layer}, and the first and the last stay"
        )
    if _NUMBER.fullmatch(text):
        return middle_layers(int(text), n_layer)
    if not _LIST.fullmatch(text):
        raise UsageError(f"layers to skip '{text}' is neither a number (4) nor a list of layers (9-11,14)")
    spans = [part.partition("-") for part in text.removesuffix(",").split(",")]
    ends = [(int(first), int(last or first)) for first, _, last in spans]
    if any(first < 1 or last > n_layer - 2 or first > last for first, last in ends):
        raise UsageError(
            f"layers to skip '{text}': of this model's {n_layer} layers those from 1 to {n_layer - 2} "
            "can be skipped, not the first or the last"
        )
    return tuple(sorted({layer for first, last in ends for layer in range(first, last + 1)}))


def middle_layers(count: int, n_layer: int) -> tuple[int, ...]:
    """``count`` layers around the middle. Raises UsageError where there are not as many inner ones."""
    if not 1 <= count <= n_layer - 2:
        raise UsageError(
            f"{count} layers can't be skipped: this model has {n_layer}, and the first and the last stay"
        )
    start = (n_layer - count) // 2
    return tuple(range(start, start + count))


def layers_text(layers: Sequence[int]) -> str:
    """Sorted layers as ``layers_to_skip`` reads them: 9-11,14."""
    spans: list[list[int]] = []
    for layer in layers:
        if spans and layer == spans[-1][1] + 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def pass_bytes(tensors: Iterable[TensorSize], experts: int, experts_used: int) -> int:
    """Bytes of weights that a pass over one token reads; of a mixture's experts, those that it uses."""
    tensors = list(tensors)
    looked_up = set(_LOOKED_UP)
    if not any(tensor.name == "output.weight" for tensor in tensors):
        looked_up.remove("token_embd.weight")
    part = experts_used / experts if experts else 1.0
    return round(
        sum(
            tensor.size * (part if "_exps." in tensor.name else 1)
            for tensor in tensors
            if tensor.name not in looked_up
        )
    )
