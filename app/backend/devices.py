"""ggml's own list of devices, and what this build of llama.cpp can do."""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from pathlib import Path

import llama_cpp
from llama_cpp import _ctypes_extensions, _ggml

from app.core.models import Device, LlamaFacts

_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel", 4: "gpu"}
_registry = _ggml.libggml
_base = _ctypes_extensions.load_shared_library("ggml-base", Path(llama_cpp.__file__).parent / "lib")
_registry.ggml_backend_dev_count.restype = ctypes.c_size_t
_registry.ggml_backend_dev_get.restype = ctypes.c_void_p
_registry.ggml_backend_dev_get.argtypes = (ctypes.c_size_t,)
for _name in ("ggml_backend_dev_name", "ggml_backend_dev_description"):
    getattr(_base, _name).restype = ctypes.c_char_p
    getattr(_base, _name).argtypes = (ctypes.c_void_p,)
_base.ggml_backend_dev_type.argtypes = (ctypes.c_void_p,)
_base.ggml_backend_dev_memory.argtypes = (
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
)


def devices() -> tuple[Device, ...]:
    """Every device that ggml can compute on, in its order."""
    found = []
    for index in range(_registry.ggml_backend_dev_count()):
        device = _registry.ggml_backend_dev_get(index)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        found.append(
            Device(
                name=_base.ggml_backend_dev_name(device).decode(),
                description=_base.ggml_backend_dev_description(device).decode("utf-8", "replace"),
                kind=_KINDS.get(_base.ggml_backend_dev_type(device), "accel"),
                memory_free=free.value,
                memory_total=total.value,
            )
        )
    return tuple(found)


def llama_facts() -> LlamaFacts:
    """The version of the bindings, the CPU features in use, and the devices."""
    return LlamaFacts(
        version=version("llama-cpp-python"),
        features=llama_cpp.llama_print_system_info().decode().strip(),
        devices=devices(),
    )
