"""GGUF files read without their weights, and re-quantised."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp import _ctypes_extensions

from app.backend.llama import LOG_TO_STDERR, vocabulary_of
from app.core.errors import HeadstartError, UsageError
from app.core.models import ModelFacts

_ggml_base = _ctypes_extensions.load_shared_library("ggml-base", Path(llama_cpp.__file__).parent / "lib")


class _GgufInitParams(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


def _bind(name: str, result: type | None, *arguments: type) -> Any:
    function = getattr(_ggml_base, name)
    function.restype, function.argtypes = result, arguments
    return function


_open = _bind("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _GgufInitParams)
_close = _bind("gguf_free", None, ctypes.c_void_p)
_find = _bind("gguf_find_key", ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p)
_kind_of = _bind("gguf_get_kv_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_string = _bind("gguf_get_val_str", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
_n_tensors = _bind("gguf_get_n_tensors", ctypes.c_int64, ctypes.c_void_p)
_GGUF_STRING = 8


def read_facts(path: Path) -> ModelFacts:
    """What a GGUF file is, without loading its weights.

    Raises HeadstartError where it cannot be read. Adapters, projectors and bare vocabularies are told
    apart from models by their header, which llama.cpp would refuse to load.
    """
    header = _open(str(path).encode(), _GgufInitParams(True, None))
    if not header:
        raise HeadstartError(f"{path.name} is not a whole GGUF file")
    try:
        architecture = _text(header, b"general.architecture") or "unknown"
        role = _text(header, b"general.type")
        name = _text(header, b"general.name")
        n_tensors = _n_tensors(header)
    finally:
        _close(header)
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
    "Q4_0": 2,
    "Q4_1": 3,
    "Q3_K_M": 12,
    "Q2_K": 10,
}
_TENSOR_LINE = re.compile(rb"\[\s*(\d+)/\s*(\d+)\]")


def requantize(
    source: Path, destination: Path, file_type: str, threads: int, on_progress: Callable[[int, int], None]
) -> None:
    """Write a copy of ``source`` with its weights stored as ``file_type``.

    ``on_progress`` is told the tensors done and to do. Raises UsageError for an unknown type and
    HeadstartError where llama.cpp fails; a part of the destination may then be left.
    """
    if file_type not in FILE_TYPES:
        raise UsageError(f"type '{file_type}' is unknown; choose one of {', '.join(FILE_TYPES)}")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[file_type]
    params.nthread = threads
    params.allow_requantize = True

    # llama.cpp tells its progress in its log alone.
    def read_log(level: int, line: bytes, _: object) -> None:
        if match := _TENSOR_LINE.search(line):
            on_progress(int(match[1]), int(match[2]))

    callback = llama_cpp.llama_log_callback(read_log)
    llama_cpp.llama_log_set(callback, None)
    try:
        status = llama_cpp.llama_model_quantize(str(source).encode(), str(destination).encode(), params)
    finally:
        llama_cpp.llama_log_set(LOG_TO_STDERR, None)
    if status != 0:
        raise HeadstartError(
            f"llama.cpp could not write {source.name} as {file_type}",
            "check the free disk space and the file",
        )
