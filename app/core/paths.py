"""Where things live: the checkout, its models and presets, and what must last."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def models_dir() -> Path:
    """The folder for GGUF files."""
    return PROJECT / "models"


def presets_dir() -> Path:
    """The folder of the presets that ship with the program."""
    return PROJECT / "presets"


def user_data_dir() -> Path:
    """The folder of what must last (settings, caches, history); ``HEADSTART_HOME`` moves it.

    It need not exist yet: whoever writes makes it.
    """
    if home := os.environ.get("HEADSTART_HOME"):
        return Path(home).expanduser().absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "Headstart"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "Headstart"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "headstart"
