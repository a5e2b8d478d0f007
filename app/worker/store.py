"""Small JSON files in the user-data folder, written whole or not at all."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from app.core.paths import user_data_dir


def read(name: str) -> Any:
    """What a file holds; None where there is none, or a broken one."""
    try:
        return json.loads((user_data_dir() / name).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def write(name: str, value: Any) -> None:
    """Put ``value`` in the place of what the file held. Raises OSError where that can't be written."""
    file = user_data_dir() / name
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f"{name}.{os.getpid()}.{threading.get_ident()}")
    beside.write_text(json.dumps(value, ensure_ascii=False, indent=1), "utf-8")
    beside.replace(file)
