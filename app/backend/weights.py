"""The tensors of a GGUF file, and what ggml would make of each on the processor.

llama.cpp puts a weight where the first buffer type that supports its operation is. This asks ggml the same
question, for the one operation that has buffer types of its own on a processor: matrix multiplication.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from llama_cpp import _ggml

from app.backend.files import bind, close_header, open_header
from app.core.split import parts

# Rows of these are looked up, never multiplied; the first is the output too where a file has no other.
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_LOOKED_UP = (_EMBEDDING, "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight")
_F32, _I32 = 0, 26
_CPU = 0
_ROOM_FOR_TENSORS = 8


class _Tensor(ctypes.Structure):
    """The beginning of ggml_tensor."""

    _fields_ = [("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4)]


class _InitParams(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_init = bind("ggml_init", _pointer, _InitParams)
_free = bind("ggml_free", None, _pointer)
_overhead = bind("ggml_tensor_overhead", _size)
_first_tensor = bind("ggml_get_first_tensor", _pointer, _pointer)
_next_tensor = bind("ggml_get_next_tensor", _pointer, _pointer, _pointer)
_name = bind("ggml_get_name", ctypes.c_char_p, _pointer)
_n_bytes = bind("ggml_nbytes", _size, _pointer)
_n_dims = bind("ggml_n_dims", _int, _pointer)
_new_2d = bind("ggml_new_tensor_2d", _pointer, _pointer, _int, ctypes.c_int64, ctypes.c_int64)
_new_3d = bind("ggml_new_tensor_3d", _pointer, _pointer, _int, *[ctypes.c_int64] * 3)
_multiply = bind("ggml_mul_mat", _pointer, _pointer, _pointer, _pointer)
_multiply_expert = bind("ggml_mul_mat_id", _pointer, _pointer, _pointer, _pointer, _pointer)
_empty_buffer = bind("ggml_backend_buft_alloc_buffer", _pointer, _pointer, _size)
_free_buffer = bind("ggml_backend_buffer_free", None, _pointer)
_size_in = bind("ggml_backend_buft_get_alloc_size", _size, _pointer, _pointer)
_supports = bind("ggml_backend_dev_supports_op", ctypes.c_bool, _pointer, _pointer)
_registry_of = bind("ggml_backend_dev_backend_reg", _pointer, _pointer)
_function_of = bind("ggml_backend_reg_get_proc_address", _pointer, _pointer, ctypes.c_char_p)
_host_memory_of = bind("ggml_backend_dev_host_buffer_type", _pointer, _pointer)
_n_devices = _ggml.libggml.ggml_backend_dev_count
_n_devices.restype = _size
_device = _ggml.libggml.ggml_backend_dev_get
_device.restype, _device.argtypes = _pointer, (_size,)
_device_of_kind = _ggml.libggml.ggml_backend_dev_by_type
_device_of_kind.restype, _device_of_kind.argtypes = _pointer, (_int,)


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of a model; ``repacked`` are the bytes of the copy that ggml makes for the processor, or 0.

    One that ``shares`` is another's data once more: on the processor it takes no bytes of its own.
    """

    name: str
    bytes: int
    repacked: int
    shares: bool = False


def weights_of(path: Path) -> list[Weight]:
    """What a model is made of, in all its files. Raises HeadstartError where one is missing or no GGUF."""
    found = {weight.name: weight for weight in _tensors_of(path)}
    weights = [
        replace(weight, repacked=0) if name in _LOOKED_UP else weight for name, weight in found.items()
    ]
    if _EMBEDDING in found and _OUTPUT not in found:
        weights.append(replace(found[_EMBEDDING], name=_OUTPUT, shares=True))
    return weights


def _tensors_of(path: Path) -> Iterator[Weight]:
    packers = _repacking_buffers()
    for file in parts(path):
        tensors = ctypes.c_void_p()
        header = open_header(file, tensors)
        try:
            tensor = _first_tensor(tensors)
            while tensor:
                name = _name(tensor).decode("utf-8", "replace")
                yield Weight(name, _n_bytes(tensor), _repacked(tensor, name, packers))
                tensor = _next_tensor(tensors, tensor)
        finally:
            _free(tensors)
            close_header(header)


def _repacking_buffers() -> list[int]:
    """The processor's buffer types for repacked weights, in the order of preference.

    Where a graphics device brings memory of its own on the host's side, llama.cpp prefers that, and
    nothing is repacked.
    """
    if any(_host_memory_of(_device(index)) for index in range(_n_devices())):
        return []
    address = _function_of(_registry_of(_device_of_kind(_CPU)), b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return []
    kinds = ctypes.CFUNCTYPE(ctypes.POINTER(_pointer), _pointer)(address)(_device_of_kind(_CPU))
    found: list[int] = []
    while kinds and (kind := kinds[len(found)]):
        found.append(kind)
    return found


def _repacked(tensor: int, name: str, packers: list[int]) -> int:
    weight = ctypes.cast(tensor, ctypes.POINTER(_Tensor)).contents
    if _n_dims(tensor) not in (2, 3) or not name.endswith(".weight"):
        return 0
    scratch = _init(_InitParams(_ROOM_FOR_TENSORS * _overhead(), None, True))
    try:
        if _n_dims(tensor) == 2:
            operation = _multiply(scratch, tensor, _new_2d(scratch, _F32, weight.ne[0], 512))
        else:
            column = _new_3d(scratch, _F32, weight.ne[0], 1, 512)
            operation = _multiply_expert(scratch, tensor, column, _new_2d(scratch, _I32, 1, 512))
        for kind in packers:
            weight.buffer = _empty_buffer(kind, 0)
            is_supported = _supports(_device_of_kind(_CPU), operation)
            _free_buffer(weight.buffer)
            weight.buffer = None
            if is_supported:
                return int(_size_in(kind, tensor))
        return 0
    finally:
        _free(scratch)
