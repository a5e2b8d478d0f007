"""A shortcut on the desktop."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import sys
from pathlib import Path

from app.core.paths import PROJECT


def write_shortcut() -> Path:
    """Put a shortcut on the desktop; returns its path."""
    folder = desktop_folder()
    folder.mkdir(parents=True, exist_ok=True)
    name, text = shortcut(platform.system(), sys.executable, str(PROJECT / "launch.py"))
    path = folder / name
    path.write_bytes(text.encode("utf-8"))
    path.chmod(0o755)
    return path


def shortcut(system: str, python: str, script: str) -> tuple[str, str]:
    """The file name and the text of a shortcut for the system."""
    if system == "Windows":
        quoted = " ".join(f'"{part}"'.replace("%", "%%") for part in (python, script))
        return "Headstart.bat", f"@echo off\r\nchcp 65001 >nul\r\n{quoted} --pause-on-error\r\n"
    if system == "Darwin":
        return "Headstart.command", f"#!/bin/sh\nexec {shlex.join([python, script, '--pause-on-error'])}\n"

    def argument(part: str) -> str:
        # Two rounds of the desktop entry specification: quoting of arguments, then of strings.
        part = re.sub(r'(["`$\\])', r"\\\1", part).replace("\\", "\\\\").replace("%", "%%")
        return f'"{part}"'

    return "headstart.desktop", (
        "[Desktop Entry]\nType=Application\nName=Headstart\nTerminal=true\n"
        f"Exec={argument(python)} {argument(script)} --pause-on-error\n"
    )


def desktop_folder() -> Path:
    """Where the person's desktop is; the home folder where there is none."""
    home = Path.home()
    desktop = home / "Desktop"
    if sys.platform == "win32":
        import ctypes

        buffer = ctypes.create_unicode_buffer(260)
        if ctypes.windll.shell32.SHGetFolderPathW(None, 0x10, None, 0, buffer) == 0:
            desktop = Path(buffer.value)
    elif sys.platform.startswith("linux"):
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "user-dirs.dirs"
        with contextlib.suppress(OSError):
            if found := re.search(r'^XDG_DESKTOP_DIR="(.*)"', config.read_text("utf-8"), re.MULTILINE):
                desktop = Path(found[1].replace("$HOME", str(home)))
    return desktop if desktop.is_dir() else home
