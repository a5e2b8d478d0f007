"""The commands that the set-up runs: asked, followed and ended."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from app.core.paths import PROJECT
from app.setup.venv import LOG, WINDOWS, clean_env


def output(command: Sequence[str]) -> str:
    """What a command prints; empty where it cannot run or takes longer than 20 seconds."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def follow(
    command: Sequence[str],
    on_line: Callable[[str], None],
    on_tick: Callable[[float], None] = lambda seconds: None,
    **env: str,
) -> int:
    """Run a command in a process group of its own and hand on its lines; returns its exit status.

    It writes into the log rather than a pipe, so it can finish should this process be killed. ``on_tick`` is
    called with the seconds so far a few times a second. Whatever else ends this ends all of it.
    """
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a", encoding="utf-8") as log, LOG.open(encoding="utf-8", errors="replace") as written:
        print(f"$ {shlex.join(command)}", file=log, flush=True)
        written.seek(0, os.SEEK_END)
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=not WINDOWS,
            close_fds=False,  # hands on the lock, see locks.setup_lock
            cwd=PROJECT,
            env=clean_env(PYTHONIOENCODING="utf-8", **env),
        )
        rest = ""
        try:
            ended = False
            while not ended:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
                    ended = True
                *lines, rest = (rest + written.read()).split("\n")
                for line in lines:
                    on_line(line.rstrip())
                on_tick(time.monotonic() - started)
        except BaseException:
            end_all(process)
            raise
        if rest:
            on_line(rest)
        return process.returncode


def end_all(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started."""
    if sys.platform == "win32":
        output(["taskkill", "/T", "/F", "/PID", str(process.pid)])
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.5)
        os.killpg(process.pid, signal.SIGKILL)
