"""The program's own Python in .venv, and the note of what was installed in it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from app.core.paths import PROJECT

VENV = PROJECT / ".venv"
STAMP = VENV / "headstart.json"
LOG = VENV / "setup.log"
WINDOWS = sys.platform == "win32"
VENV_PYTHON = VENV / ("Scripts/python.exe" if WINDOWS else "bin/python")


def inside() -> bool:
    """Whether this is .venv's own Python."""
    return VENV.exists() and Path(sys.prefix).resolve() == VENV.resolve()


def clean_env(**more: str) -> dict[str, str]:
    """The environment without what would lead Python or pip out of .venv, and with ``more``."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET")}
    return {**env, **more}


def read_stamp() -> dict[str, Any]:
    """What has been installed, as far as it was finished; empty where nothing was."""
    try:
        stamp = json.loads(STAMP.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(stamp: dict[str, Any]) -> None:
    """Note what has been installed."""
    beside = STAMP.with_suffix(".new")
    beside.write_text(json.dumps(stamp, indent=1), "utf-8")
    beside.replace(STAMP)
