"""llama.cpp itself, through the bindings' C functions: its log, its start, and how it is told to stop.

The high-level ``Llama`` class keeps logits for a whole context and knows one model at a time; the C
functions do neither. One thread must make every call: llama.cpp's OpenMP team belongs to it.
"""

from __future__ import annotations

import ctypes
import os
import sys

import llama_cpp

_DEBUG = 1  # level of a log line


def _write_log(level: int, line: bytes, _: object) -> None:
    # A thousand debug lines a context would push what matters out of the log's end. The bindings' own
    # callback mixes the levels up.
    if level != _DEBUG:
        os.write(2, line)


LOG_TO_STDERR = llama_cpp.llama_log_callback(_write_log)
llama_cpp.llama_log_set(LOG_TO_STDERR, None)
llama_cpp.llama_backend_init()


class CancelFlag:
    """A byte that the parent process may set at any time; non-zero means stop.

    llama.cpp asks its abort callback before every node of the graph. A Python callback there costs a
    tenth of a small model's pass, so the callback is C's own ``strlen`` over this byte and the zero after
    it: its low byte is the flag.
    """

    def __init__(self, shared: ctypes.Array[ctypes.c_char]) -> None:
        self._shared = shared
        libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
        self.callback = ctypes.cast(libc.strlen, llama_cpp.ggml_abort_callback)
        self.address = ctypes.c_void_p(ctypes.addressof(shared))

    def is_set(self) -> bool:
        """Whether the current work should stop."""
        return self._shared[0] != b"\0"


def never_cancelled() -> CancelFlag:
    """A flag that nobody sets."""
    return CancelFlag(ctypes.create_string_buffer(2))
