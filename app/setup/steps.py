"""The steps of the set-up: .venv, the packages, llama.cpp."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from app.core.paths import PROJECT
from app.setup import SetupError
from app.setup.console import Console, duration
from app.setup.locks import setup_lock
from app.setup.plans import (
    WHEEL_INDEX,
    Plan,
    build_plans,
    compiler_remedy,
    has_compiler,
    index_offers,
    this_machine,
)
from app.setup.processes import follow, output
from app.setup.requirements import digest, llama_pin, package_pins, pins
from app.setup.venv import LOG, VENV, VENV_PYTHON, WINDOWS, inside, read_stamp, write_stamp


class Setup:
    """The steps of the set-up; each notes in the stamp that it is done."""

    def __init__(self, console: Console, backend: str | None, with_tests: bool) -> None:
        self._console = console
        self._backend = backend
        self._with_tests = with_tests
        self._stamp: dict[str, Any] = {}

    def run(self) -> None:
        """Do what is missing. Raises SetupError."""
        if not self._missing():
            return
        try:
            with setup_lock(self._console):
                for step in self._missing():
                    step()
        finally:
            self._console.clear()

    def _missing(self) -> list[Callable[[], None]]:
        self._stamp = read_stamp()
        steps: list[Callable[[], None]] = []
        if not venv_works(self._stamp):
            steps.append(self._make_venv)
            self._stamp = {"backend": self._stamp.get("backend")}
        if self._stamp.get("packages") != digest(package_pins()):
            steps.append(self._install_packages)
        other_backend = self._backend not in (None, self._stamp.get("backend"))
        if self._stamp.get("llama") != llama_pin() or other_backend:
            steps.append(self._install_llama)
        if self._with_tests and self._stamp.get("test") != digest(pins("test")):
            steps.append(self._install_test_packages)
        return steps

    def _note(self, **done: Any) -> None:
        self._stamp = {k: v for k, v in {**self._stamp, **done}.items() if v is not None}
        write_stamp(self._stamp)

    def _make_venv(self) -> None:
        if inside():
            raise SetupError(f"{VENV} is not whole; deactivate it, and start launch.py with your own Python")
        if not (find_spec("venv") and find_spec("ensurepip")):
            raise SetupError(no_venv_remedy())
        self._console.begin(f"Making {VENV} (about 10 seconds)")
        self._remove_venv()
        lines: list[str] = []
        command = [sys.executable, "-m", "venv", str(VENV)]
        status = follow(command, lines.append, lambda s: self._console.progress(f"{s:.0f} s"))
        if status:
            self._remove_venv()
            if "ensurepip" in "\n".join(lines):
                raise SetupError(no_venv_remedy())
            raise SetupError(f"{VENV} could not be made: {lines[-1] if lines else f'exit status {status}'}")
        self._note(python=platform.python_version_tuple()[1])

    def _remove_venv(self) -> None:
        if VENV.is_symlink() or VENV.is_file():
            VENV.unlink()
        elif VENV.exists():
            try:
                shutil.rmtree(VENV)
            except OSError as error:
                raise SetupError(
                    f"{VENV} is broken and cannot be removed ({error}); end what uses it and remove it"
                ) from error

    def _install_packages(self) -> None:
        self._console.begin("Installing the packages (about a minute, 150 MB to download)")
        self._pip_or_stop("the packages", package_pins())
        self._note(packages=digest(package_pins()))

    def _install_test_packages(self) -> None:
        self._console.begin("Installing the test packages (about half a minute, 80 MB to download)")
        self._pip_or_stop("the test packages", pins("test"))
        self._note(test=digest(pins("test")))

    def _install_llama(self) -> None:
        backend = self._backend or self._stamp.get("backend") or "auto"
        plans = build_plans(this_machine(), backend)
        if not plans:
            raise SetupError(
                f"the {backend} build of llama.cpp does not run on this machine; use --backend auto"
            )
        self._note(llama=None, backend=None)
        reachable = True
        for plan in plans:
            reason = ""
            if plan.index:
                offers = index_offers(plan.index, llama_pin().partition("==")[2]) if reachable else None
                reachable = reachable and offers is not None
                if not offers:
                    reason = "its index " + ("does not have this version" if reachable else "does not answer")
            reason = reason or self._try_plan(plan)
            if not reason:
                self._note(llama=llama_pin(), backend=backend, build=plan.name)
                return
            if plan is plans[-1]:
                raise SetupError(f"llama.cpp could not be installed ({plan.name}): {reason}")
            self._console.say(f"Not the {plan.name} of llama.cpp: {reason}")

    def _try_plan(self, plan: Plan) -> str:
        """Install llama.cpp this way and prove it; returns why not, or nothing."""
        if plan.index:
            self._console.begin(f"Installing the {plan.name} of llama.cpp (a minute or more)")
            index = ["--index-url", f"{WHEEL_INDEX}/{plan.index}", "--only-binary", ":all:"]
            if reason := self._pip(["--force-reinstall", "--no-deps", *index, llama_pin()]):
                return reason
        elif reason := self._build(plan, fresh=plan.gpu):
            return reason
        if plan.libraries and (reason := self._add_cuda_libraries(plan.libraries)):
            return reason
        if reason := self._pip([llama_pin()]):  # what it depends on
            return reason
        reason = self._prove(plan)
        if reason and not plan.index and not plan.gpu:
            self._console.say(f"Not the build of llama.cpp in pip's cache: {reason}")
            reason = self._build(plan, fresh=True) or self._prove(plan)
        return reason

    def _build(self, plan: Plan, fresh: bool) -> str:
        """Build from PyPI's source; unless ``fresh``, a wheel that pip has built before will do."""
        # pip knows a built wheel by its name alone, not by what it was built with.
        pip = ["--force-reinstall", "--no-deps", llama_pin()]
        if fresh:
            pip += ["--no-cache-dir", "--no-binary", "llama-cpp-python"]
        if not has_compiler():
            release = Path("/etc/os-release")
            os_release = release.read_text("utf-8") if release.exists() else ""
            if fresh or self._pip([*pip, "--only-binary", ":all:"]):
                return f"no C++ compiler was found; {compiler_remedy(platform.system(), os_release)}"
            return ""
        self._console.begin(f"Building llama.cpp from its source ({plan.name}, once, 2 to 10 minutes)")
        # The multimodal part is a quarter of the work and nothing here uses it.
        cmake = " ".join(filter(None, [os.environ.get("CMAKE_ARGS"), "-DLLAVA_BUILD=OFF", plan.cmake]))
        return self._pip(["--verbose", *pip], CMAKE_ARGS=cmake)

    def _add_cuda_libraries(self, extra: str) -> str:
        """NVIDIA's runtime, which the wheels leave to the system, beside the libraries that ask for it."""
        self._console.begin("Installing NVIDIA's CUDA libraries (about 600 MB to download)")
        if reason := self._pip(pins(extra)):
            return reason
        site = next(VENV.glob("Lib/site-packages" if WINDOWS else "lib/python*/site-packages"))
        for library in (site / "nvidia").rglob("*.dll" if WINDOWS else "lib*.so*"):
            beside = site / "llama_cpp" / "lib" / library.name
            beside.unlink(missing_ok=True)
            try:
                os.link(library, beside)
            except OSError:
                shutil.copy2(library, beside)
        return ""

    def _prove(self, plan: Plan) -> str:
        """Decode two tokens in a process of its own; returns why that failed, or nothing."""
        lines: list[str] = []
        command = [str(VENV_PYTHON), "-m", "app.backend.selfcheck", *(["--gpu"] if plan.gpu else [])]
        self._console.begin("Checking that llama.cpp runs here (a few seconds)")
        status = follow(command, lines.append)
        if status == 0:
            return ""
        crashed = status < 0 or status > 255  # a signal, or an exception code of Windows
        if status == -4 or status == 0xC000001D:
            return "it uses instructions that this processor lacks"
        return f"it crashed (exit status {status})" if crashed or not lines else lines[-1]

    def _pip_or_stop(self, what: str, requirements: Sequence[str]) -> None:
        if reason := self._pip(requirements):
            raise SetupError(f"{what} could not be installed; {reason}")

    def _pip(self, arguments: Sequence[str], **env: str) -> str:
        """Install; returns why that failed, or nothing."""
        lines: list[str] = []
        state = "asking the package index"
        compiled, to_compile, build_started = 0, 0, 0.0

        def on_line(line: str) -> None:
            nonlocal state, compiled, to_compile, build_started
            lines.append(line)
            text = line.strip()
            if step := re.match(r"\[(\d+)/(\d+)\] ", text):
                compiled, to_compile = int(step[1]), int(step[2])
                build_started = build_started or time.monotonic()
            elif line.startswith("Installing collected packages:"):  # indented it is about a build's own
                # From here to the end .venv is half made: should this be cut off, it is made anew.
                self._note(installing=True)
                state = f"installing {text.count(',') + 1} packages"
                compiled = 0
            elif text.startswith(("Collecting ", "Downloading ", "Using cached ")):
                state = re.sub(r"Collecting ([^ ]+).*", r"looking for \1", text)
                state = state.replace("Downloading", "downloading").replace("Using cached", "taking")

        def on_tick(seconds: float) -> None:
            if compiled:
                left = (time.monotonic() - build_started) / compiled * (to_compile - compiled)
                self._console.progress(f"compiled {compiled} of {to_compile}, about {duration(left)} left")
            else:
                self._console.progress(f"{state} ({duration(seconds)} so far)")

        command = [str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--no-input"]
        command += ["--retries", "2", *arguments]
        status = follow(command, on_line, on_tick, PIP_USER="0", **env)
        self._note(installing=None)
        return pip_failure(lines) if status else ""


def venv_works(stamp: dict[str, Any]) -> bool:
    """Whether .venv is whole and its Python is the one it was made with."""
    if not stamp.get("python") or stamp.get("installing") or not VENV_PYTHON.exists():
        return False
    if inside():
        return str(stamp["python"]) == platform.python_version_tuple()[1]
    say_minor = "import encodings, sys; print(sys.version_info[1])"
    return output([str(VENV_PYTHON), "-I", "-S", "-c", say_minor]).strip() == str(stamp["python"])


def no_venv_remedy() -> str:
    """The line for a Python that cannot make virtual environments."""
    what = "this Python cannot make a virtual environment (ensurepip is missing)"
    if platform.system() == "Linux":
        own = "python{}.{}-venv".format(*sys.version_info)
        return f"{what}; run: sudo apt install python3-venv (or {own}), then start again"
    return f"{what}; install Python from python.org"


def pip_failure(lines: Sequence[str]) -> str:
    """Why pip failed, with the remedy, in one line."""
    text = "\n".join(lines)
    if "No space left on device" in text or "not enough space" in text:
        return f"the disk is full; free some space beside {PROJECT} and start again"
    missing = re.search(r"No matching distribution found for (\S+)", text)
    offline = re.search(
        r"NewConnectionError|NameResolutionError|ProxyError|Max retries exceeded|ConnectTimeout|"
        r"Failed to establish a new connection|Read timed out|Network is unreachable|SSLError",
        text,
    )
    if offline:
        what = f" ({missing[1]} is missing)" if missing else ""
        return f"the package index cannot be reached{what}; connect to the network, then start again"
    if missing:
        return f"no package index offers {missing[1]} for the Python in {VENV}"
    # The first error is the cause; what follows is pip saying so again. CMake's goes on in the next lines.
    cause = re.search(r"CMake Error[^\n]*:\s*[^\n]+|[^\n]*\berror: (?!subprocess)[^\n]+|ERROR: [^\n]+", text)
    said = re.sub(r"\s+", " ", cause[0]).strip() if cause else (lines or ["pip said nothing"])[-1]
    return f"{said} (all of it is in {LOG})"
