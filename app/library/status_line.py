"""Progress on a terminal, or in a log."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass


@dataclass(slots=True)
class StatusLine:
    """Progress on standard error: one line that changes on a terminal, else a line for every tenth."""

    _step: str = ""
    _tenth: int = -1
    _is_open: bool = False

    def show(self, step: str, fraction: float, details: str) -> None:
        """Show how far a step is; each step keeps its own line."""
        text = f"{step}: {fraction:.0%} {details}".rstrip()
        tenth = int(fraction * 10)
        is_new = step != self._step
        if sys.stderr.isatty():
            if is_new:
                self.end()
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:width].ljust(width)}", end="", file=sys.stderr, flush=True)
            self._is_open = True
        elif is_new or tenth > self._tenth:
            print(text, file=sys.stderr, flush=True)
        self._step, self._tenth = step, tenth

    def end(self) -> None:
        """Leave the line, so that the next print begins a new one."""
        if self._is_open:
            print(file=sys.stderr)
        self._is_open = False
