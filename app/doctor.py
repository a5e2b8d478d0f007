"""What this machine has, and what is broken: ``launch.py doctor [--json]``."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from app.core.errors import HeadstartError
from app.core.models import LlamaFacts
from app.core.paths import PROJECT, models_dir
from app.core.pins import pinned
from app.worker.machine import usable_cores
from app.worker.tasks import llama_cpp_facts

_LITTLE_DISK = 500_000_000
_GIB = 2**30
_INSTALL_ANEW = f"remove {PROJECT / '.venv'} and start launch.py"


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package beside the version that the program asks for."""

    name: str
    installed: str | None
    pinned: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that ``doctor`` says; sizes in bytes, each problem with its remedy."""

    ok: bool
    problems: tuple[str, ...]
    python: str
    os: str
    cpu: str
    cores: int
    logical_cores: int
    ram_bytes: int
    free_ram_bytes: int
    llama_cpp: LlamaFacts | None
    layers: str
    packages: tuple[Package, ...]
    models_dir: str
    models: int
    free_disk_bytes: int


def examine() -> Report:
    """Look at the machine, the packages, llama.cpp and the models folder."""
    problems: list[str] = []
    packages = installed_packages(pinned((PROJECT / "pyproject.toml").read_text("utf-8")))
    for package in packages:
        if package.installed != package.pinned:
            found = package.installed or "missing"
            problems.append(f"{package.name} is {found}, not {package.pinned}; {_INSTALL_ANEW}")
    facts = None
    try:
        facts = llama_cpp_facts()
    except HeadstartError as error:
        problems.append(f"llama.cpp does not run: {error.what}; {_INSTALL_ANEW}")
    folder = models_dir()
    if not os.access(folder, os.W_OK):
        problems.append(f"{folder} is missing or cannot be written; make it, or change who may write there")
    free_disk = shutil.disk_usage(folder if folder.exists() else PROJECT).free
    if free_disk < _LITTLE_DISK:
        problems.append(f"only {free_disk / 1e6:.0f} MB of disk are free; free some, models need more")
    memory = psutil.virtual_memory()
    return Report(
        ok=not problems,
        problems=tuple(problems),
        python=f"{platform.python_version()} ({sys.executable})",
        os=f"{platform.system()} {platform.release()} ({platform.machine()})",
        cpu=cpu_name(),
        cores=usable_cores(),
        logical_cores=os.cpu_count() or 1,
        ram_bytes=memory.total,
        free_ram_bytes=memory.available,
        llama_cpp=facts,
        layers=where_layers_go(facts, shutil.which("nvidia-smi") is not None) if facts else "nowhere",
        packages=packages,
        models_dir=str(folder),
        models=len(list(folder.rglob("*.gguf"))),
        free_disk_bytes=free_disk,
    )


def installed_packages(requirements: Sequence[str]) -> tuple[Package, ...]:
    """The installed version of each pinned package; of two pins for one name the one that is installed."""
    packages: dict[str, Package] = {}
    for requirement in requirements:
        name, _, version = requirement.partition(";")[0].strip().partition("==")
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = None
        if name not in packages or installed == version:
            packages[name] = Package(name, installed, version)
    return tuple(packages.values())


def where_layers_go(facts: LlamaFacts, nvidia_driver: bool) -> str:
    """Where the layers of a model go by default."""
    gpus = [device for device in facts.devices if device.kind in ("gpu", "igpu")]
    if gpus:
        room = sum(device.memory_free for device in gpus) / _GIB
        names = " and ".join(device.name for device in gpus)
        return f"to {names} as far as they fit ({room:.1f} GiB free), the rest to the CPU"
    if nvidia_driver:
        return "all to the CPU; an NVIDIA driver is here, start launch.py --backend cuda to use its GPU"
    return "all to the CPU"


def cpu_name() -> str:
    """The processor's name as its maker writes it."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)):
        return found[1]
    return platform.processor() or platform.machine()


def as_lines(report: Report) -> list[str]:
    """The report for people."""
    lines = [
        f"Python     {report.python}",
        f"System     {report.os}",
        f"CPU        {report.cpu}; {report.cores} cores to use, {report.logical_cores} logical",
        f"RAM        {report.ram_bytes / _GIB:.1f} GiB, {report.free_ram_bytes / _GIB:.1f} GiB free",
    ]
    if report.llama_cpp:
        lines.append(f"llama.cpp  {report.llama_cpp.version}; {report.llama_cpp.features}")
        lines += [
            f"           {device.name} ({device.kind}): {device.description}, "
            f"{device.memory_free / _GIB:.1f} of {device.memory_total / _GIB:.1f} GiB free"
            for device in report.llama_cpp.devices
        ]
        lines.append(f"Layers     {report.layers}")
    lines.append("Packages   " + ", ".join(f"{p.name} {p.installed or 'missing'}" for p in report.packages))
    lines.append(f"Models     {report.models} in {report.models_dir}")
    lines.append(f"Disk       {report.free_disk_bytes / 1e9:.1f} GB free")
    lines += [f"Problem    {problem}" for problem in report.problems] or ["Nothing is broken."]
    return lines


def main(json_output: bool) -> int:
    """Print the report; returns 0, or 1 when something is broken."""
    report = examine()
    if json_output:
        print(json.dumps(asdict(report), ensure_ascii=False))
    else:
        print("\n".join(as_lines(report)))
    return 0 if report.ok else 1
