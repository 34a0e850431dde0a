"""The CPU and memory of another process, and the machine's free memory, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 2**20


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def precise_cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads that exist now, with a precision of nanoseconds."""
    return sum(scheduled_seconds(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir())


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def peak_rss_mib(pid: int) -> float:
    """Return the highest resident memory since the start of the process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def free_memory_mib() -> int:
    """Return the memory that nothing uses, not even the page cache."""
    return _memory_mib("MemFree:")


def total_memory_mib() -> int:
    """Return the machine's memory."""
    return _memory_mib("MemTotal:")


def _memory_mib(name: str) -> int:
    return int(Path("/proc/meminfo").read_text().split(name)[1].split()[0]) // 1024


def scheduled_seconds(pid: int) -> float:
    """Return the CPU time of a process with one thread, with a precision of nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
