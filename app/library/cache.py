"""What was costly to learn about a file, remembered until the file changes."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from app.core.paths import user_data_dir

_lock = threading.Lock()


def stamp(path: Path) -> str:
    """A file's size and time of change; whatever was remembered under another stamp no longer holds."""
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"


def recall(path: Path, key: str) -> Any:
    """The JSON value remembered under ``key`` for the file as it is now, or None."""
    entry = _load().get(str(path))
    if not isinstance(entry, dict) or entry.get("stamp") != stamp(path):
        return None
    return entry.get(key)


def remember(path: Path, key: str, value: Any) -> None:
    """Remember a JSON value for the file as it is now. A folder that can't be written costs only time."""
    with _lock:
        entries = {known: entry for known, entry in _load().items() if Path(known).exists()}
        entry = entries.get(str(path))
        if not isinstance(entry, dict) or entry.get("stamp") != stamp(path):
            entry = {"stamp": stamp(path)}
        entries[str(path)] = entry | {key: value}
        with contextlib.suppress(OSError):
            _store(entries)


def _file() -> Path:
    return user_data_dir() / "facts.json"


def _load() -> dict[str, Any]:
    try:
        entries = json.loads(_file().read_text("utf-8"))
    except (OSError, ValueError):  # none yet, or broken: everything is learnt again
        return {}
    return entries if isinstance(entries, dict) else {}


def _store(entries: dict[str, Any]) -> None:
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    beside.write_text(json.dumps(entries, ensure_ascii=False, indent=1), "utf-8")
    beside.replace(file)
