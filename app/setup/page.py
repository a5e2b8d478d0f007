"""The page: where it runs, or may run, and what it waits for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from pathlib import Path
from typing import TextIO

from app.core.paths import PROJECT, user_data_dir
from app.setup import SetupError
from app.setup.locks import try_lock
from app.setup.processes import end_all
from app.setup.requirements import digest
from app.setup.venv import WINDOWS, read_stamp, write_stamp

FIRST_PORT = 7860


def running_page() -> str | None:
    """The address of this checkout's page where one runs and answers."""
    try:
        note = json.loads((user_data_dir() / "running.json").read_text("utf-8"))
        if Path(note["project"]).resolve() != PROJECT:
            return None
        address = f"http://127.0.0.1:{int(note['port'])}/"
        local = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with local.open(address, timeout=3) as response:
            return address if b"Headstart" in response.read() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def open_page(address: str, browser: bool) -> None:
    """Say that the page runs, and show it."""
    print(f"Headstart is already running: {address}", flush=True)
    if browser:
        webbrowser.open(address)


def has_display() -> bool:
    """Whether a browser could show anything."""
    if sys.platform.startswith("linux"):
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return True


def port_is_free(port: int) -> bool:
    """Whether the page could listen there."""
    with socket.socket() as probe:
        if not WINDOWS:
            # As servers do: a port that was in use a moment ago is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_port(wanted: int | None) -> int:
    """The wanted port, or the first free one. Raises SetupError where there is none."""
    if wanted is not None:
        if not port_is_free(wanted):
            raise SetupError(f"port {wanted} is in use; choose another with --port, or leave it out")
        return wanted
    for port in range(FIRST_PORT, FIRST_PORT + 100):
        if port_is_free(port):
            return port
    raise SetupError(f"no port from {FIRST_PORT} to {FIRST_PORT + 99} is free; choose one with --port")


def hold_page_lock() -> TextIO | str:
    """The lock of this checkout's page, or the address of the page that another start serves."""
    path = user_data_dir() / f"page-{digest([str(PROJECT)])}.lock"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if lock := try_lock(path):
            return lock
        if address := running_page():
            return address
        time.sleep(0.2)
    raise SetupError("another start of Headstart hangs; end it, then start again")


def fetch_starter() -> None:
    """Fetch the starter model; without it the page starts all the same."""
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "models", "get", "starter"],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        start_new_session=not WINDOWS,
    )
    try:
        status = process.wait()
    except BaseException:
        end_all(process)
        raise
    if status == 0:
        write_stamp({**read_stamp(), "starter": True})
    else:
        print("The starter model is not here yet; the page offers it again.", flush=True)
