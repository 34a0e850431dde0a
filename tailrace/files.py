"""Complete reads and writes of open files, where one system call may do only a part; and lock files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence

from tailrace.buffers import Buffer, uninitialized

_IOV_MAX = 1024  # Linux's limit for one writev


def write_all(descriptor: int, parts: Sequence[Buffer]) -> None:
    """Write all bytes of the parts at the file's position. Raises OSError."""
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    at = 0
    while at < len(views):
        written = os.writev(descriptor, views[at : at + _IOV_MAX])
        while at < len(views) and written >= len(views[at]):
            written -= len(views[at])
            at += 1
        if written:
            views[at] = views[at][written:]


def read_at(descriptor: int, start: int, length: int) -> bytearray:
    """Return bytes [start, start + length) of the file, fewer if it ends earlier. Raises OSError."""
    data = uninitialized(length)
    filled = 0
    while filled < length:
        came = os.preadv(descriptor, [memoryview(data)[filled:]], start + filled)
        if not came:
            break
        filled += came
    del data[filled:]
    return data


class LockHeld(Exception):
    """Another process holds the lock. The text is its pid, or says that it is just starting."""


def lock_for_this_process(descriptor: int) -> None:
    """Lock the file until the descriptor is closed, and write this process's pid into it. Raises LockHeld at once."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        raise LockHeld(pid or "(just starting)") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
