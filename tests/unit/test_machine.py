"""The cores and the memory that a process may use, on machines that are only told of."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from app.worker import machine

V2 = "sys/fs/cgroup/cpu.max"
V1_QUOTA = "sys/fs/cgroup/cpu/cpu.cfs_quota_us"
V1_PERIOD = "sys/fs/cgroup/cpu/cpu.cfs_period_us"


@dataclass
class Machine:
    """``allowed`` None: a system without affinity masks."""

    logical: int | None
    physical: int | None
    allowed: int | None
    files: dict[str, str] = field(default_factory=dict)


CASES = {
    "no limits": (Machine(8, 8, 8), 8),
    "two threads a core": (Machine(16, 8, 16), 8),
    "four threads a core": (Machine(32, 8, 32), 8),
    "efficiency cores without a second thread": (Machine(20, 14, 20), 14),
    "half of the cores allowed": (Machine(16, 8, 8), 4),
    "one hardware thread allowed": (Machine(16, 8, 1), 1),
    "no affinity masks": (Machine(8, 4, None), 4),
    "physical cores unknown": (Machine(6, None, 6), 6),
    "nothing known": (Machine(None, None, None), 1),
    "more physical than logical cores told": (Machine(4, 8, 4), 4),
    "quota of two cores": (Machine(64, 32, 64, {V2: "200000 100000\n"}), 2),
    "quota of one and a half": (Machine(8, 8, 8, {V2: "150000 100000\n"}), 2),
    "quota of a tenth": (Machine(8, 8, 8, {V2: "10000 100000\n"}), 1),
    "quota above the cores": (Machine(4, 4, 4, {V2: "1600000 100000\n"}), 4),
    "quota and affinity": (Machine(16, 8, 4, {V2: "800000 100000\n"}), 2),
    "no quota": (Machine(8, 8, 8, {V2: "max 100000\n"}), 8),
    "an empty file": (Machine(8, 8, 8, {V2: ""}), 8),
    "nonsense": (Machine(8, 8, 8, {V2: "a lot\n"}), 8),
    "version 1": (Machine(8, 8, 8, {V1_QUOTA: "300000\n", V1_PERIOD: "100000\n"}), 3),
    "version 1, no quota": (Machine(8, 8, 8, {V1_QUOTA: "-1\n", V1_PERIOD: "100000\n"}), 8),
    "version 1, a file missing": (Machine(8, 8, 8, {V1_QUOTA: "300000\n"}), 8),
    "version 1, period 0": (Machine(8, 8, 8, {V1_QUOTA: "300000\n", V1_PERIOD: "0\n"}), 8),
    "version 2 comes first": (
        Machine(8, 8, 8, {V2: "max 100000\n", V1_QUOTA: "300000\n", V1_PERIOD: "100000\n"}),
        8,
    ),
}


@pytest.mark.parametrize(("told", "cores"), CASES.values(), ids=CASES.keys())
def test_usable_cores(told: Machine, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: told.logical)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: told.logical if logical else told.physical)
    if told.allowed is None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    else:
        allowed = set(range(told.allowed))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed, raising=False)
    monkeypatch.setattr(machine, "Path", lambda path: tmp_path / path.lstrip("/"))
    for name, content in told.files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert machine.usable_cores() == cores


def test_this_machine_has_a_core() -> None:
    assert 1 <= machine.usable_cores() <= (os.cpu_count() or 1)


GB = 1_000_000_000
STAT_V2 = "anon 700\nactive_file 300000000\ninactive_file 100000000\n"
STAT_V1 = (
    "cache 1\ntotal_active_file 300000000\ntotal_inactive_file 100000000\nactive_file 1\ninactive_file 1\n"
)
V1 = {"memory.limit_in_bytes": "4000000000", "memory.usage_in_bytes": "1000000000", "memory.stat": STAT_V1}
V2 = {"memory.max": "4000000000\n", "memory.current": "1000000000\n", "memory.stat": STAT_V2}

# Lines of /proc/self/cgroup, files by folder, and what is free and there in GB of a machine with 10 of 16.
MEMORY_CASES = {
    "no cgroups": (None, {}, (10, 16)),
    "version 2, own group": ("0::/user/shell", {"user/shell": V2}, (3.4, 4)),
    "version 2, a group above": ("0::/user/shell", {"user": V2, "user/shell": {}}, (3.4, 4)),
    "version 2, no limit": ("0::/user", {"user": {**V2, "memory.max": "max\n"}}, (10, 16)),
    "version 2, the tightest counts": (
        "0::/a/b",
        {"a": V2, "a/b": {**V2, "memory.max": "2000000000"}},
        (1.4, 2),
    ),
    "version 2, more used than allowed": ("0::/a", {"a": {**V2, "memory.current": "9000000000"}}, (0, 4)),
    "version 2, mounted as the root": ("0::/host/path", {"": V2}, (3.4, 4)),
    "version 1": ("4:memory:/job\n0::/", {"memory/job": V1}, (3.4, 4)),
    "version 1, without a limit": (
        "4:cpu,memory:/job",
        {"memory/job": {**V1, "memory.limit_in_bytes": "9223372036854771712"}},
        (10, 16),
    ),
    "another controller": ("1:cpu:/job", {"memory/job": V1}, (10, 16)),
    "nonsense": ("0::/a", {"a": {**V2, "memory.current": "much"}}, (10, 16)),
    "a limit above the machine's": ("0::/a", {"a": {**V2, "memory.max": "99000000000"}}, (10, 16)),
}


@pytest.mark.parametrize(("lines", "files", "told"), MEMORY_CASES.values(), ids=MEMORY_CASES.keys())
def test_usable_memory(
    lines: str | None,
    files: dict[str, dict[str, str]],
    told: tuple[float, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * GB, total=16 * GB))
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_CGROUPS", tmp_path / "own")
    if lines is not None:
        (tmp_path / "own").write_text(lines + "\n")
    for folder, contents in files.items():
        (tmp_path / "cgroup" / folder).mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (tmp_path / "cgroup" / folder / name).write_text(content)
    assert machine.usable_memory() == tuple(round(gb * GB) for gb in told)


def test_this_machine_has_memory() -> None:
    free, total = machine.usable_memory()
    assert 0 < free <= total <= psutil.virtual_memory().total


def test_private_memory_is_what_a_process_gives_back() -> None:
    assert 1_000_000 < machine.private_memory(os.getpid()) < psutil.Process().memory_info().rss
    assert machine.private_memory(2**22 + 1) == 0  # beyond any process id
