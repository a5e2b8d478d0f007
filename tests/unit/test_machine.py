"""The cores that a process may use, on machines that are only told of."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

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
