"""CPU and memory that another process has used so far, and the machine's free memory, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 2**20


def cpu_seconds(pid: int) -> float:
    """User and system time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def precise_cpu_seconds(pid: int) -> float:
    """The time on a CPU of all threads that live now, in nanoseconds' precision."""
    return sum(scheduled_seconds(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir())


def rss_mib(pid: int) -> float:
    """Resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def peak_rss_mib(pid: int) -> float:
    """The highest resident memory since the process began."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def free_memory_mib() -> int:
    """Memory that nothing uses, not even the page cache."""
    return _memory_mib("MemFree:")


def total_memory_mib() -> int:
    """The machine's memory."""
    return _memory_mib("MemTotal:")


def _memory_mib(name: str) -> int:
    return int(Path("/proc/meminfo").read_text().split(name)[1].split()[0]) // 1024


def scheduled_seconds(pid: int) -> float:
    """The time on a CPU of a process of one thread, in nanoseconds' precision."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
