"""How much memory there is, and how it is said."""

from __future__ import annotations

import os


def in_words(count: int) -> str:
    """Bytes with a unit, ``1.5 GB``."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:,} bytes"


def available_memory() -> int:
    """Bytes that can be allocated without swapping: what the kernel estimates, less where the process or its control
    group is limited; a large number where nothing says."""
    return max(0, min(_of_the_machine(), _of_the_process(), _of_the_group()))


_UNKNOWN = 1 << 62


def _of_the_machine() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _UNKNOWN


def _of_the_process() -> int:
    """What ``ulimit -v`` leaves."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return _UNKNOWN
        with open("/proc/self/statm", encoding="ascii") as file:
            return limit - int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):
        return _UNKNOWN


def _of_the_group() -> int:
    """What a container leaves; files that the kernel only keeps for later do not count as taken."""
    folder = "/sys/fs/cgroup"
    try:
        with open(f"{folder}/memory.max", encoding="ascii") as file:
            limit = int(file.read())
        with open(f"{folder}/memory.current", encoding="ascii") as file:
            taken = int(file.read())
        with open(f"{folder}/memory.stat", encoding="ascii") as lines:
            kept = next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
    except (OSError, ValueError):
        return _UNKNOWN
    return limit - taken + kept
