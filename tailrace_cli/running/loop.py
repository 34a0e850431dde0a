"""Starts the event loop, and sets up the process for it. No other module starts one."""

from __future__ import annotations

import ctypes
import gc
import platform
import resource
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MIB = 1 << 20


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end on uvloop."""
    answer: T = uvloop.run(coroutine)
    return answer


def collect_rarely() -> None:
    """Exclude all existing objects from garbage collection, and collect new ones less often. Call it after set-up.

    Reference counts free an agent's garbage, so a collection every 700 objects, the default, only costs time. But a
    collection scans all new objects in one turn of the loop, and a request of 20,000 elements can create 100,000
    objects. So the collector runs every 5,000 objects, and its second generation every ten times. This function does
    not collect first: that would block the loop for 0.1 s to find some twenty objects.
    """
    gc.freeze()
    gc.set_threshold(5_000, 10, 40)


def keep_freed_memory() -> None:
    """Make glibc reuse large buffers. Call it before starting threads.

    By default glibc maps each buffer above 128 KiB and unmaps it when it is freed. Every frame and object would then
    page-fault again, which takes a large part of a broker's CPU. All threads share one heap. With a heap per thread,
    only the allocating thread could reuse memory that a store's thread allocated and the loop freed, and memory grew
    for as long as the bench ran.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 256 * _MIB)
    libc.mallopt(_M_TRIM_THRESHOLD, 512 * _MIB)
    libc.mallopt(_M_ARENA_MAX, 1)


def allow_open_files() -> None:
    """Raise the soft limit of open files to the hard limit. A broker has more connections than the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
