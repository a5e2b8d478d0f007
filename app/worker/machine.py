"""The cores and the memory that this process may use."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Physical cores that the affinity mask and the cgroup's CPU quota leave, at least 1."""
    logical = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    physical = psutil.cpu_count(logical=False) or logical
    # With two hardware threads a core, half of what the mask allows are cores of their own.
    cores = max(1, min(allowed, round(allowed * physical / logical)))
    return min(cores, _cgroup_cores() or cores)


def _cgroup_cores() -> int | None:
    """The quota in whole cores, rounded up; None without one. Version 2 first, then version 1."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            folder = Path("/sys/fs/cgroup/cpu")
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or period == "0":
        return None
    return math.ceil(int(quota) / int(period))


def usable_memory() -> tuple[int, int]:
    """Bytes of RAM that can still be had, and all there are, both within the limits of the cgroups.

    Pages of files that the system may drop count as free.
    """
    machine = psutil.virtual_memory()
    free, total = machine.available, machine.total
    for limit, used in _cgroup_memory():
        free, total = min(free, max(limit - used, 0)), min(total, limit)
    return free, total


def private_memory(pid: int) -> int:
    """Bytes of RAM that come free when a process ends, pages of files left out; 0 once it has ended."""
    try:
        process = psutil.Process(pid)
        if sys.platform == "darwin":
            return int(process.memory_full_info().uss)
        memory: Any = process.memory_info()
        return int(memory.private if sys.platform == "win32" else memory.rss - memory.shared)
    except psutil.Error:
        return 0


def _cgroup_memory() -> Iterator[tuple[int, int]]:
    """Limit and use of this process's memory cgroups, from its own up to the root."""
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if controllers == "":  # version 2
            names, root = ("memory.max", "memory.current", ""), CGROUPS
        elif "memory" in controllers.split(","):
            names, root = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"), CGROUPS / "memory"
        else:
            continue
        # In a container the own cgroup may be mounted as the root, while its path is the host's.
        own_folder = root / own.lstrip("/")
        for folder in (own_folder, *own_folder.parents):
            if folder.is_relative_to(root) and (found := _limit_and_use(folder, *names)):
                yield found


def _limit_and_use(folder: Path, limit: str, usage: str, prefix: str) -> tuple[int, int] | None:
    """A cgroup's limit, and what it uses, droppable pages of files left out; None without a limit."""
    try:
        most, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
        facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        droppable = sum(int(facts[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
        return (int(most), max(used - droppable, 0)) if most.isdigit() else None
    except (OSError, ValueError, KeyError):
        return None
