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
import hashlib
import json
import os
import platform
import queue
import re
import runpy
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from app.core.paths import PROJECT, user_data_dir
from app.core.pins import pinned

VENV = PROJECT / ".venv"
STAMP = VENV / "headstart.json"
LOG = VENV / "setup.log"
WINDOWS = sys.platform == "win32"
VENV_PYTHON = VENV / ("Scripts/python.exe" if WINDOWS else "bin/python")
WHEEL_INDEX = "https://abetlen.github.io/llama-cpp-python/whl"
INDEX_PATIENCE_S = 3.0
FIRST_PORT = 7860
# Signals that end a process at once; here they end what it started as well.
ENDING_SIGNALS = [signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
BACKENDS = ("auto", "cpu", "cuda", "metal", "vulkan")


class SetupError(Exception):
    """A failure that people can do something about, in one line."""


# What llama.cpp is installed from


@dataclass(frozen=True)
class Machine:
    """What decides on the build of llama.cpp."""

    system: str  # Linux, Darwin, Windows
    arch: str  # as platform.machine() says
    cuda: tuple[int, int] | None = None  # the newest CUDA that the NVIDIA driver runs
    compute: tuple[int, int] | None = None  # the lowest compute capability of its GPUs
    nvcc: bool = False


@dataclass(frozen=True)
class Plan:
    """One way to get llama.cpp: the wheels of an index, or a build from source where there is none."""

    name: str
    gpu: bool = False
    index: str = ""
    cmake: str = ""
    libraries: str = ""  # the extra of pyproject.toml with what the wheel does not bring


CUDA_WHEELS = {
    ("Linux", "x86_64"): ("118", "121", "122", "123", "124", "125", "130", "132"),
    ("Windows", "amd64"): ("118", "124", "125", "130", "132"),
}
CPU_WHEELS = {
    ("Linux", "x86_64"),
    ("Linux", "aarch64"),
    ("Linux", "riscv64"),
    ("Windows", "amd64"),
    ("Darwin", "arm64"),
}
VULKAN_WHEELS = {("Linux", "x86_64"), ("Windows", "amd64")}
METAL_WHEELS = {("Darwin", "arm64")}


def build_plans(machine: Machine, backend: str = "auto") -> list[Plan]:
    """The ways to try on this machine, the best first; ``backend`` is one of ``BACKENDS``."""
    kind = (machine.system, machine.arch.lower())
    auto = backend == "auto"
    plans = []
    if backend == "cuda" or (auto and machine.cuda):
        plans += [_cuda_wheel(tag) for tag in _fitting_cuda(machine)]
        if machine.nvcc:
            plans.append(Plan("CUDA build", gpu=True, cmake="-DGGML_CUDA=on"))
    if backend == "vulkan":
        if kind in VULKAN_WHEELS:
            plans.append(Plan("Vulkan wheel", gpu=True, index="vulkan"))
        plans.append(Plan("Vulkan build", gpu=True, cmake="-DGGML_VULKAN=on"))
    if backend == "metal" or (auto and kind in METAL_WHEELS):
        if kind in METAL_WHEELS:
            plans.append(Plan("Metal wheel", gpu=True, index="metal"))
        if machine.system == "Darwin":
            plans.append(Plan("Metal build", gpu=True, cmake="-DGGML_METAL=on"))
    if backend == "cpu" or auto:
        if kind in CPU_WHEELS:
            plans.append(Plan("CPU wheel", index="cpu"))
        plans.append(Plan("CPU build"))
    return plans


def _fitting_cuda(machine: Machine) -> list[str]:
    """Of each major version of CUDA the newest wheels that the driver runs, newest first."""
    best: dict[int, str] = {}
    for tag in CUDA_WHEELS.get((machine.system, machine.arch.lower()), ()):
        version = (int(tag[:2]), int(tag[2:]))
        too_old = version >= (13, 0) and machine.compute is not None and machine.compute < (7, 5)
        if machine.cuda and version <= machine.cuda and not too_old:
            best[version[0]] = tag
    return [best[major] for major in sorted(best, reverse=True)]


def _cuda_wheel(tag: str) -> Plan:
    name = f"CUDA {tag[:2]}.{tag[2:]} wheel"
    return Plan(name, gpu=True, index=f"cu{tag}", libraries=f"cuda{tag[:2]}")


def parse_nvidia_smi(text: str) -> tuple[int, int] | None:
    """The CUDA version in the head of nvidia-smi's table."""
    found = re.search(r"CUDA (?:UMD )?Version:\s*(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def this_machine() -> Machine:
    """The machine that this runs on."""
    smi = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/lib/wsl/lib")
    cuda = compute = None
    if smi:
        cuda = parse_nvidia_smi(_output([smi]))
        answers = _output([smi, "--query-gpu=compute_cap", "--format=csv,noheader"])
        capabilities = [(int(a), int(b)) for a, b in re.findall(r"^(\d+)\.(\d+)\s*$", answers, re.MULTILINE)]
        compute = min(capabilities, default=None)
    return Machine(platform.system(), platform.machine(), cuda, compute, shutil.which("nvcc") is not None)


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def has_compiler() -> bool:
    """Whether this machine can build C++."""
    if WINDOWS:
        installer = Path(os.environ.get("PROGRAMFILES(X86)", "C:/Program Files (x86)"))
        vswhere = installer / "Microsoft Visual Studio" / "Installer" / "vswhere.exe"
        wanted = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
        return bool(_output([str(vswhere), "-products", "*", "-requires", wanted, "-property", "instanceId"]))
    if sys.platform == "darwin":
        # /usr/bin/cc is always there; without the tools it opens a dialog.
        return bool(_output(["xcode-select", "-p"]))
    compilers = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    return any(name and shutil.which(shlex.split(name)[0]) for name in compilers)


def compiler_remedy(system: str, os_release: str = "") -> str:
    """What to install to get a compiler; ``os_release`` is the text of /etc/os-release."""
    if system == "Windows":
        return 'install "Desktop development with C++" of the Visual Studio Build Tools'
    if system == "Darwin":
        return "run: xcode-select --install"
    families = " ".join(re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)', os_release, re.MULTILINE)).split()
    for family, command in (
        ("debian", "sudo apt install build-essential"),
        ("ubuntu", "sudo apt install build-essential"),
        ("fedora", "sudo dnf install gcc-c++ make"),
        ("rhel", "sudo dnf install gcc-c++ make"),
        ("arch", "sudo pacman -S base-devel"),
        ("suse", "sudo zypper install gcc-c++ make"),
        ("alpine", "sudo apk add build-base"),
    ):
        if family in families:
            return f"run: {command}"
    return "install a C++ compiler (g++ or clang++) and make"


def index_offers(index: str, version: str) -> bool | None:
    """Whether the index lists wheels of this version; None when it does not answer within three seconds."""
    answer: queue.Queue[bool | None] = queue.Queue()

    def ask() -> None:
        url = f"{WHEEL_INDEX}/{index}/llama-cpp-python/"
        try:
            with urllib.request.urlopen(url, timeout=INDEX_PATIENCE_S) as response:
                answer.put(f"-{version}-" in response.read().decode("utf-8", "replace"))
        except urllib.error.HTTPError:
            answer.put(False)
        except urllib.error.URLError as error:
            # A Python without root certificates: pip brings its own, so let it try.
            answer.put(True if isinstance(error.reason, ssl.SSLCertVerificationError) else None)
        except Exception:
            answer.put(None)

    # The time limit of urlopen does not cover the look-up of the name.
    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.get(timeout=INDEX_PATIENCE_S)
    except queue.Empty:
        return None


# Telling what happens


class Console:
    """Whole lines, and one line that is written over while something takes long.

    Where the output is no terminal, it is written anew every 15 seconds.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._shown_at = 0.0
        self._open = False

    def say(self, text: str) -> None:
        """Write a line."""
        self.clear()
        self._write(f"{text}\n")

    def clear(self) -> None:
        """Take away the line that is written over."""
        if self._open:
            self._write("\r\x1b[K")
        self._open = False

    def progress(self, text: str) -> None:
        """Show how far the current step is."""
        now = time.monotonic()
        if now - self._shown_at < (0.2 if self._live else 15.0):
            return
        self._shown_at = now
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\x1b[K" + f"  {text}"[:width])
            self._open = True
        else:
            self._write(f"  {text}\n")

    def begin(self, text: str) -> None:
        """Write the heading of a step, whose first progress line should not come at once."""
        self.say(text)
        self._shown_at = time.monotonic()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


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
            close_fds=False,  # hands on the lock of the set-up, see there
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
        _output(["taskkill", "/T", "/F", "/PID", str(process.pid)])
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.5)
        os.killpg(process.pid, signal.SIGKILL)


# The set-up


def pins(group: str = "dependencies") -> list[str]:
    """The pinned requirements of a list in pyproject.toml."""
    return pinned((PROJECT / "pyproject.toml").read_text("utf-8"), group)


def llama_pin() -> str:
    """The requirement of llama-cpp-python, which is installed in a way of its own."""
    return next(pin for pin in pins() if pin.startswith("llama-cpp-python=="))


def package_pins() -> list[str]:
    """The other requirements."""
    return [pin for pin in pins() if pin != llama_pin()]


def digest(requirements: Sequence[str]) -> str:
    """A short name for a list of requirements."""
    return hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:16]


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


def inside() -> bool:
    """Whether this is .venv's own Python."""
    return VENV.exists() and Path(sys.prefix).resolve() == VENV.resolve()


def venv_works(stamp: dict[str, Any]) -> bool:
    """Whether .venv is whole and its Python is the one it was made with."""
    if not stamp.get("python") or stamp.get("installing") or not VENV_PYTHON.exists():
        return False
    if inside():
        return str(stamp["python"]) == platform.python_version_tuple()[1]
    say_minor = "import encodings, sys; print(sys.version_info[1])"
    return _output([str(VENV_PYTHON), "-I", "-S", "-c", say_minor]).strip() == str(stamp["python"])


def clean_env(**more: str) -> dict[str, str]:
    """The environment without what would lead Python or pip out of .venv, and with ``more``."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET")}
    return {**env, **more}


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
                self._console.progress(f"compiled {compiled} of {to_compile}, about {_duration(left)} left")
            else:
                self._console.progress(f"{state} ({_duration(seconds)} so far)")

        command = [str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--no-input"]
        command += ["--retries", "2", *arguments]
        status = follow(command, on_line, on_tick, PIP_USER="0", **env)
        self._note(installing=None)
        return pip_failure(lines) if status else ""


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


def no_venv_remedy() -> str:
    """The line for a Python that cannot make virtual environments."""
    what = "this Python cannot make a virtual environment (ensurepip is missing)"
    if platform.system() == "Linux":
        own = "python{}.{}-venv".format(*sys.version_info)
        return f"{what}; run: sudo apt install python3-venv (or {own}), then start again"
    return f"{what}; install Python from python.org"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


# One at a time


def try_lock(path: Path) -> TextIO | None:
    """Hold a lock until the file is closed or the process ends; None where another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a", encoding="utf-8")
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


@contextlib.contextmanager
def setup_lock(console: Console) -> Iterator[None]:
    """Wait until no other start is setting up.

    What the set-up runs inherits the lock, and so holds it should this process be killed first.
    """
    path = PROJECT / ".venv.lock"
    lock = try_lock(path)
    if lock is None:
        console.begin("Another start is setting up; waiting for it")
        began = time.monotonic()
        while lock is None:
            time.sleep(0.5)
            console.progress(f"waiting for the other start ({_duration(time.monotonic() - began)} so far)")
            lock = try_lock(path)
    os.set_inheritable(lock.fileno(), True)
    try:
        yield
    finally:
        lock.close()


# The page


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


# Starting


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


def own_console() -> bool:
    """Whether the console closes with this program (Windows: a double click opened it)."""
    if sys.platform == "win32":
        import ctypes

        kernel = ctypes.windll.kernel32
        pids = (ctypes.c_ulong * 16)()
        for pid in pids[: kernel.GetConsoleProcessList(pids, 16)]:
            handle = kernel.OpenProcess(0x1000, False, pid)
            name = ctypes.create_unicode_buffer(1024)
            kernel.QueryFullProcessImageNameW(handle, 0, name, ctypes.byref(ctypes.c_ulong(1024)))
            kernel.CloseHandle(handle)
            if not Path(name.value).name.lower().startswith("py"):
                return False  # a shell, which goes on
        return True
    return False


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
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    except OSError as error:
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
