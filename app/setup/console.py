"""The terminal: telling there what happens, and whether it closes at the end."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path
from typing import TextIO


class Console:
    """Whole lines, and one line that is written over while something takes long.

    Where the output is no terminal, it is written anew every 15 seconds.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._shown_at = 0.0
        self._open = False

    def say(self, text: str) -> None:
        """Write a line."""
        self.clear()
        self._write(f"{text}\n")

    def clear(self) -> None:
        """Take away the line that is written over."""
        if self._open:
            self._write("\r\x1b[K")
        self._open = False

    def progress(self, text: str) -> None:
        """Show how far the current step is."""
        now = time.monotonic()
        if now - self._shown_at < (0.2 if self._live else 15.0):
            return
        self._shown_at = now
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\x1b[K" + f"  {text}"[:width])
            self._open = True
        else:
            self._write(f"  {text}\n")

    def begin(self, text: str) -> None:
        """Write the heading of a step, whose first progress line should not come at once."""
        self.say(text)
        self._shown_at = time.monotonic()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def duration(seconds: float) -> str:
    """A length of time as people read it."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def own_console() -> bool:
    """Whether the console closes with this program (Windows: a double click opened it)."""
    if sys.platform == "win32":
        import ctypes

        kernel = ctypes.windll.kernel32
        pids = (ctypes.c_ulong * 16)()
        for pid in pids[: kernel.GetConsoleProcessList(pids, 16)]:
            handle = kernel.OpenProcess(0x1000, False, pid)
            name = ctypes.create_unicode_buffer(1024)
            kernel.QueryFullProcessImageNameW(handle, 0, name, ctypes.byref(ctypes.c_ulong(1024)))
            kernel.CloseHandle(handle)
            if not Path(name.value).name.lower().startswith("py"):
                return False  # a shell, which goes on
        return True
    return False
