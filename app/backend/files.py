"""GGUF files read without their weights."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp import _ctypes_extensions

from app.backend.model import vocabulary_of
from app.core.errors import HeadstartError
from app.core.models import ModelFacts

_ggml_base = _ctypes_extensions.load_shared_library("ggml-base", Path(llama_cpp.__file__).parent / "lib")


class _GgufInitParams(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("tensors", ctypes.POINTER(ctypes.c_void_p))]


def bind(name: str, result: type | None, *arguments: type) -> Any:
    """A function of ggml's that the bindings leave out."""
    function = getattr(_ggml_base, name)
    function.restype, function.argtypes = result, arguments
    return function


_open = bind("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _GgufInitParams)
close_header = bind("gguf_free", None, ctypes.c_void_p)
_find = bind("gguf_find_key", ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p)
_kind_of = bind("gguf_get_kv_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_string = bind("gguf_get_val_str", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
_n_tensors = bind("gguf_get_n_tensors", ctypes.c_int64, ctypes.c_void_p)
_GGUF_STRING = 8


def open_header(path: Path, tensors: ctypes.c_void_p | None = None) -> int:
    """A GGUF file's header, to be closed with ``close_header``; ``tensors`` becomes ggml's context of them.

    Raises HeadstartError where it cannot be read.
    """
    params = _GgufInitParams(True, ctypes.pointer(tensors) if tensors is not None else None)
    header = _open(str(path).encode(), params)
    if not header:
        raise HeadstartError(f"{path.name} is not a whole GGUF file")
    return int(header)


def read_facts(path: Path) -> ModelFacts:
    """What a GGUF file is, without loading its weights.

    Raises HeadstartError where it cannot be read. Adapters, projectors and bare vocabularies are told
    apart from models by their header, which llama.cpp would refuse to load.
    """
    header = open_header(path)
    try:
        architecture = _text(header, b"general.architecture") or "unknown"
        role = _text(header, b"general.type")
        name = _text(header, b"general.name")
        n_tensors = _n_tensors(header)
    finally:
        close_header(header)
    kind = None
    if role == "adapter":
        kind = "adapter"
    elif role in ("mmproj", "projector") or architecture == "clip":
        kind = "projector"
    if kind:
        return ModelFacts(kind, architecture, name, 0, "unknown", 0, 0, "none", 0, False, None)
    with vocabulary_of(path) as model:
        facts = model.facts()
    if n_tensors == 0:
        return ModelFacts(
            "vocabulary", facts.architecture, facts.name, 0, "none", facts.n_ctx_train,
            facts.n_vocab, facts.vocab_type, facts.n_layer, facts.has_chat_template, facts.licence,
        )  # fmt: skip
    return facts


def _text(header: int, key: bytes) -> str | None:
    place = _find(header, key)
    if place < 0 or _kind_of(header, place) != _GGUF_STRING:
        return None
    value: bytes = _string(header, place)
    return value.decode("utf-8", "replace")
