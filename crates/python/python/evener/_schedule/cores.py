"""How many cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The number of cores that this process may use: its affinity, and the quota of its control group."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:
        count = os.cpu_count() or 1
    quota = _quota()
    if quota is not None:
        count = min(count, max(1, round(quota)))
    return max(1, count)


def _quota() -> "float | None":
    """The processor time per time that the control group allows, if it is limited."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()[:2]
        return None if quota == "max" else float(quota) / float(period)
    except (OSError, ValueError):
        return None
