"""Complete reads and writes of open files: one system call may do only a part."""

from __future__ import annotations

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
