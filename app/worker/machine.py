"""The cores that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil


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
