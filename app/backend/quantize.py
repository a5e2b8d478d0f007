"""Copies of GGUF files in another type or with fewer layers, by llama.cpp's quantiser.

It tells nothing but through its log, so that is where its progress and its plans are read.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import llama_cpp

from app.backend.files import bind
from app.backend.llama import LOG_TO_STDERR
from app.backend.model import Model, vocabulary_of
from app.core.copies import FILE_TYPES, CopyPlan, ModelCopy, TensorSize, check_type, layers_text, pass_bytes
from app.core.errors import HeadstartError

_TENSOR_BEGINS = re.compile(rb"\[\s*(\d+)/\s*\d+\]")
# [   1/ 272] output.weight - [ 1536, 151936, 1, 1], type = f16, size = 445.11 MiB -> 182.57 MiB (q6_K)
_TENSOR = re.compile(
    rb"\[\s*\d+/\s*\d+\]\s+(?P<name>\S+)\s+- \[(?P<shape>[\d\s,]+)\], type =\s*(?P<type>\w+), "
    rb"size = [^\n]*?(?:-> [^\n]*\((?P<new_type>\w+)\))?\n"
)
_REASON = re.compile(rb"failed to quantize: ([^\n]+)")
_STRING = 3  # kind of a metadata value

_row_size = bind("ggml_row_size", ctypes.c_size_t, ctypes.c_int, ctypes.c_int64)
_type_name = bind("ggml_type_name", ctypes.c_char_p, ctypes.c_int)
_TYPES = {_type_name(number): number for number in range(43)}  # all that this ggml has; more would crash


def plan_copy(source: Path, copy: ModelCopy) -> CopyPlan:
    """What the copy will be, without writing it; well under a second. Raises HeadstartError."""
    with vocabulary_of(source) as model:
        arch = model.metadata("general.architecture")
        experts = [int(model.metadata(f"{arch}.{key}") or 0) for key in ("expert_count", "expert_used_count")]
    whole = ModelCopy(copy.file_type)
    before, after = _tensors(source, whole)
    if copy.skipped_layers:
        after = _tensors(source, copy)[1]
    header = source.stat().st_size - sum(tensor.size for tensor in before)
    return CopyPlan(
        len(after),
        max(header, 0) + sum(tensor.size for tensor in after),
        pass_bytes(after, *experts),
        pass_bytes(before, *experts),
    )


def write_copy(
    source: Path, destination: Path, copy: ModelCopy, threads: int, on_progress: Callable[[int], None]
) -> None:
    """Write the copy; ``on_progress`` is told the number of each tensor as it begins, from 1.

    Raises UsageError for an unknown type and HeadstartError where llama.cpp fails; a part of the destination
    may then be left.
    """

    def follow(line: bytes) -> None:
        if match := _TENSOR_BEGINS.search(line):
            on_progress(int(match[1]))

    _quantize(source, destination, copy, follow, threads)


def require_loading(made: Path, copy: ModelCopy) -> None:
    """Raises HeadstartError where a copy that lacks layers can't be loaded: its kind may need them."""
    try:
        Model(made).close()
    except HeadstartError:
        raise HeadstartError(
            f"this kind of model can't be loaded without its layers {layers_text(copy.skipped_layers)}",
            "choose a smaller type instead",
        ) from None


def _tensors(source: Path, copy: ModelCopy) -> tuple[list[TensorSize], list[TensorSize]]:
    """The tensors that go into the copy, as they are and as they will be."""
    lines: list[bytes] = []
    _quantize(source, source.with_name("unwritten"), copy, lines.append, dry_run=True)
    before, after = [], []
    for match in _TENSOR.finditer(b"".join(lines)):
        columns, *others = map(int, match["shape"].split(b","))
        rows = 1
        for other in others:
            rows *= other
        name = match["name"].decode("utf-8", "replace")
        old, new = match["type"], match["new_type"] or match["type"]
        before.append(TensorSize(name, rows * _row_size(_TYPES[old], columns)))
        after.append(TensorSize(name, rows * _row_size(_TYPES[new], columns)))
    return before, after


def _quantize(
    source: Path,
    destination: Path,
    copy: ModelCopy,
    on_log: Callable[[bytes], None],
    threads: int = 1,
    dry_run: bool = False,
) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = threads
    params.allow_requantize = True
    params.dry_run = dry_run
    if copy.file_type is None:
        params.only_copy = True
    else:
        params.ftype = FILE_TYPES[check_type(copy.file_type)]
    if copy.skipped_layers:
        ends = (*sorted(copy.skipped_layers), -1)
        params.prune_layers = (ctypes.c_int32 * len(ends))(*ends)
    metadata = (llama_cpp.llama_model_kv_override * (len(copy.metadata) + 1))()  # the last one stays empty
    for entry, (key, value) in zip(metadata, copy.metadata, strict=False):
        entry.tag, entry.key, entry.value.val_str = _STRING, key.encode(), value.encode()
    params.kv_overrides = metadata

    reason = b""

    def read_log(level: int, line: bytes, _: object) -> None:
        nonlocal reason
        if match := _REASON.search(line):
            reason = match[1]
        on_log(line)

    callback = llama_cpp.llama_log_callback(read_log)
    llama_cpp.llama_log_set(callback, None)
    try:
        status = llama_cpp.llama_model_quantize(str(source).encode(), str(destination).encode(), params)
    finally:
        llama_cpp.llama_log_set(LOG_TO_STDERR, None)
    if status != 0:
        why = f" ({reason.decode('utf-8', 'replace').strip()})" if reason else ""
        raise HeadstartError(
            f"llama.cpp could not write {source.name} as {copy.file_type or 'a copy'}{why}",
            "check the free disk space and the file",
        )
