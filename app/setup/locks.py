"""One at a time: locks between the starts of the program."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from app.core.paths import PROJECT
from app.setup.console import Console, duration


def try_lock(path: Path) -> TextIO | None:
    """Hold a lock until the file is closed or the process ends; None where another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a", encoding="utf-8")
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


@contextlib.contextmanager
def setup_lock(console: Console) -> Iterator[None]:
    """Wait until no other start is setting up.

    What the set-up runs inherits the lock, and so holds it should this process be killed first.
    """
    path = PROJECT / ".venv.lock"
    lock = try_lock(path)
    if lock is None:
        console.begin("Another start is setting up; waiting for it")
        began = time.monotonic()
        while lock is None:
            time.sleep(0.5)
            console.progress(f"waiting for the other start ({duration(time.monotonic() - began)} so far)")
            lock = try_lock(path)
    os.set_inheritable(lock.fileno(), True)
    try:
        yield
    finally:
        lock.close()
