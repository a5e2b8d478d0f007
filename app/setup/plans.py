"""What llama.cpp is installed from: the ways to try on this machine."""

from __future__ import annotations

import os
import platform
import queue
import re
import shlex
import shutil
import ssl
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from app.setup.processes import output
from app.setup.venv import WINDOWS

BACKENDS = ("auto", "cpu", "cuda", "metal", "vulkan")
WHEEL_INDEX = "https://abetlen.github.io/llama-cpp-python/whl"
INDEX_PATIENCE_S = 3.0


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
        cuda = parse_nvidia_smi(output([smi]))
        answers = output([smi, "--query-gpu=compute_cap", "--format=csv,noheader"])
        capabilities = [(int(a), int(b)) for a, b in re.findall(r"^(\d+)\.(\d+)\s*$", answers, re.MULTILINE)]
        compute = min(capabilities, default=None)
    return Machine(platform.system(), platform.machine(), cuda, compute, shutil.which("nvcc") is not None)


def has_compiler() -> bool:
    """Whether this machine can build C++."""
    if WINDOWS:
        installer = Path(os.environ.get("PROGRAMFILES(X86)", "C:/Program Files (x86)"))
        vswhere = installer / "Microsoft Visual Studio" / "Installer" / "vswhere.exe"
        wanted = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
        return bool(output([str(vswhere), "-products", "*", "-requires", wanted, "-property", "instanceId"]))
    if sys.platform == "darwin":
        # /usr/bin/cc is always there; without the tools it opens a dialog.
        return bool(output(["xcode-select", "-p"]))
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
