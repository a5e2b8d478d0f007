"""What was costly to learn about a file, remembered until the file changes."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

from app.core.paths import user_data_dir
from app.worker import store

FILE = "facts.json"
_lock = threading.Lock()
_loaded: tuple[str, dict[str, Any]] = ("", {})


def stamp(path: Path) -> str:
    """A file's size and time of change; whatever was remembered under another stamp no longer holds.

    Raises OSError where the file is gone.
    """
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"


def recall(path: Path, key: str) -> Any:
    """The JSON value remembered under ``key`` for the file as it is now, or None."""
    entry = _load().get(str(path))
    with contextlib.suppress(OSError):
        if isinstance(entry, dict) and entry.get("stamp") == stamp(path):
            return entry.get(key)
    return None


def remember(path: Path, key: str, value: Any) -> None:
    """Remember a JSON value for the file as it is now. A folder that can't be written costs only time."""
    with _lock, contextlib.suppress(OSError):
        entries = {known: entry for known, entry in _load().items() if Path(known).exists()}
        entry = entries.get(str(path))
        if not isinstance(entry, dict) or entry.get("stamp") != stamp(path):
            entry = {"stamp": stamp(path)}
        entries[str(path)] = entry | {key: value}
        store.write(FILE, entries)


def _load() -> dict[str, Any]:
    """All entries; parsed anew only when the file has changed, since a long list asks for each file."""
    global _loaded
    file = user_data_dir() / FILE
    try:
        state = f"{file} {file.stat().st_ino} {stamp(file)}"
    except OSError:
        return {}
    if _loaded[0] != state:
        entries = store.read(FILE)
        _loaded = (state, entries if isinstance(entries, dict) else {})
    return _loaded[1]
