"""The only module that starts an event loop."""

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
    """Call once set-up is done: existing objects are never collected, and new ones less often.

    An agent's garbage is freed by reference counts; the collector's default of every 700 objects only costs time. But
    it looks at all that is new in one turn of the loop, and a request of 20,000 elements may make 100,000 objects: so
    after 5,000, and after ten times as many once more. There is no collection before: it would hold the loop for 0.1 s,
    to find some twenty objects.
    """
    gc.freeze()
    gc.set_threshold(5_000, 10, 40)


def keep_freed_memory() -> None:
    """Have glibc reuse large buffers.

    By default it maps every buffer above 128 KiB anew and unmaps it when freed: each frame and each object would then
    be page-faulted in again, a sizeable part of a broker's CPU. All threads share one heap: with a heap per thread,
    memory that a store's thread allocated and the loop freed was reused only by that thread, and memory grew for as
    long as the bench ran. Call it before there are threads.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 256 * _MIB)
    libc.mallopt(_M_TRIM_THRESHOLD, 512 * _MIB)
    libc.mallopt(_M_ARENA_MAX, 1)


def allow_open_files() -> None:
    """Raise the soft limit of open files to the hard one: the usual 1,024 is fewer than a broker's connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
