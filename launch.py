"""Starts Headstart: makes .venv, installs the pinned packages and llama.cpp, then runs `python -m app`.

    python launch.py                    set up what is missing, then open the page
    python launch.py COMMAND ...        generate, compare, models, doctor
    python launch.py test ...           run the tests

Standard library only. It runs itself a second time with .venv's own Python; what was installed is noted
in .venv/headstart.json after each step, so an interrupted set-up goes on from there.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit("error: Headstart needs Python 3.10 or newer; this is {}.{}".format(*sys.version_info))

import argparse
import contextlib
import os
import runpy
import signal
import subprocess
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from app.core.paths import PROJECT
from app.setup import SetupError
from app.setup.console import Console, own_console
from app.setup.page import (
    FIRST_PORT,
    choose_port,
    fetch_starter,
    has_display,
    hold_page_lock,
    open_page,
    running_page,
)
from app.setup.plans import BACKENDS
from app.setup.shortcut import write_shortcut
from app.setup.steps import Setup
from app.setup.venv import VENV_PYTHON, WINDOWS, clean_env, inside, read_stamp

# Signals that end a process at once; here they end what it started as well.
ENDING_SIGNALS = [signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see launch.py --help\n")


def make_parser() -> argparse.ArgumentParser:
    """The options of launch.py itself; whatever follows a command is the command's own."""
    parser = _Parser(
        prog="launch.py",
        description="Sets up what is missing, then opens the page, or runs a command.",
        epilog="Each command has its own --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--backend", choices=BACKENDS, help="the build of llama.cpp to install")
    parser.add_argument("--port", type=int, help=f"the page's port (default: first free from {FIRST_PORT})")
    parser.add_argument("--no-browser", action="store_true", help="do not open the browser")
    parser.add_argument("--shortcut", action="store_true", help="put a shortcut on the desktop, and end")
    parser.add_argument("--pause-on-error", action="store_true", help="wait for Enter when something failed")
    return parser


def main(arguments: list[str]) -> int:
    """Set up, then run the command; returns the exit status."""
    parser = make_parser()
    parser.add_argument(
        "command",
        nargs="?",
        default="gui",
        metavar="COMMAND",
        help="gui (default), generate, compare, models, doctor, test",
    )
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="what the command takes")
    options = parser.parse_args(arguments)
    if options.command == "gui":
        rest = make_parser().parse_known_args(options.rest, options)[1]
    else:
        rest = options.rest
    stay = options.pause_on_error or own_console()
    try:
        status = start(options, arguments, rest, stay)
    except (SetupError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    if status not in (0, 130) and stay and not inside():
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            input("Press Enter to close this window. ")
    return status


def start(options: argparse.Namespace, arguments: list[str], rest: Sequence[str], stay: bool) -> int:
    """The way from the command line to the running command. Raises SetupError."""
    if options.shortcut:
        print(f"The shortcut is {write_shortcut()}")
        return 0
    page = options.command == "gui"
    if page and not inside() and (address := running_page()):
        open_page(address, not options.no_browser and has_display())
        return 0
    console = Console(sys.stdout if page else sys.stderr)
    Setup(console, options.backend, with_tests=options.command == "test").run()
    if not inside():
        return run_inside([a for a in arguments if a != "--pause-on-error"], stay)
    if page:
        return start_page(options, rest)
    if options.command == "test":
        os.chdir(PROJECT)
        return run_module("pytest", rest)
    return run_module("app", [options.command, *rest])


def start_page(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Serve the page in this process; returns where another start already does."""
    if not read_stamp().get("starter"):
        fetch_starter()
    held = hold_page_lock()
    browser = not options.no_browser and has_display()
    if isinstance(held, str):
        open_page(held, browser)
        return 0
    arguments = ["gui", "--port", str(choose_port(options.port)), *rest]
    print("Starting the page (a few seconds)", flush=True)
    with held:
        return run_module("app", arguments if browser else [*arguments, "--no-browser"])


def run_inside(arguments: Sequence[str], stay: bool) -> int:
    """Run this file again with .venv's Python; in place of this process, unless it has to ``stay``."""
    command = [str(VENV_PYTHON), str(PROJECT / "launch.py"), *arguments]
    if not (WINDOWS or stay):
        os.execve(command[0], command, clean_env())
    child = subprocess.Popen(command, env=clean_env())
    if not WINDOWS:
        signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    while True:
        # Ctrl-C reaches the child as well, which ends in its own time.
        with contextlib.suppress(KeyboardInterrupt):
            return child.wait()


def run_module(name: str, arguments: Sequence[str]) -> int:
    """Run a module as ``python -m`` does, in this process; returns its exit status."""
    sys.argv = [name, *arguments]
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    for number in ENDING_SIGNALS:
        signal.signal(number, _end)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nInterrupted; the next start goes on from here.", file=sys.stderr)
        sys.exit(130)
