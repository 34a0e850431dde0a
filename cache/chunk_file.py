"""The file of the disk tier: one file in a folder that a single process uses; a few threads read and write it.

The file is a cache: nothing is synced, and each start begins with an empty file. To use the file of an earlier process,
the index would have to be stored too, and bytes that never reached the disk would have to be found. The gain is small:
each chunk costs one GET after a restart. The file is removed at the end. The next start removes what a killed process
left.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fastcrc.crc32 import iscsi as crc32c

from cache.disk_index import whole_pages
from tailrace.buffers import Buffer
from tailrace.clock import Clock, wait_for
from tailrace.files import LockHeld, lock_for_this_process, read_at, write_all

T = TypeVar("T")

CHUNKS = "chunks"
LOCK = "lock"
THREADS = 4
"""At most one of them writes."""
FREE_BYTES = 1 << 30
FREE_SHARE = 16
"""The file grows only while its file system keeps so much free: FREE_BYTES, or a sixteenth if that is less. A database
may be on the same disk."""
CLOSE_SECONDS = 5.0
"""How long `close` waits for threads that a slow disk blocks."""


class CacheFolderUnusable(Exception):
    """The folder can't be used. The message says why and what to do."""


class ChunkFile(Protocol):
    """A file of chunks. The caller writes one chunk at a time."""

    async def write(self, start: int, parts: Sequence[Buffer]) -> int:
        """Write the parts one after the other; return their CRC-32C. Raises OSError."""

    async def read(self, start: int, length: int) -> tuple[bytearray, int]:
        """Return bytes [start, start + length), fewer if the file ends earlier, and their CRC-32C. Raises OSError."""

    async def close(self) -> None:
        """Wait a bounded time for running calls. Raises OSError."""


class DiskFile:
    """A `ChunkFile` in a folder. `open_disk_file` makes it."""

    def __init__(self, folder: Path, lock: int, descriptor: int, clock: Clock) -> None:
        self._folder = folder
        self._lock = lock
        self._descriptor = descriptor
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="chunk-disk")
        self._running: set[Future[Any]] = set()
        self._size = 0

    async def write(self, start: int, parts: Sequence[Buffer]) -> int:
        return await self._run(lambda: self._write(start, parts))

    async def read(self, start: int, length: int) -> tuple[bytearray, int]:
        return await self._run(lambda: self._read(start, length))

    async def close(self) -> None:
        """Wait for running calls, then remove the file and unlock the folder. May be called twice."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        running = [asyncio.wrap_future(call) for call in list(self._running)]
        if running:
            ended = asyncio.gather(*running, return_exceptions=True)
            if not await wait_for(self._clock, ended, CLOSE_SECONDS):
                ended.cancel()
                return  # threads still use the descriptor; the process's end closes it
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            await asyncio.to_thread(self._remove, descriptor)

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            running: Future[T] = self._threads.submit(call)
        except RuntimeError as error:  # the process may start no more threads
            raise OSError(errno.EAGAIN, str(error)) from error
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(running)

    # -- below: blocking, on the threads ------------------------------------------------------------------

    def _write(self, start: int, parts: Sequence[Buffer]) -> int:
        checksum, size = 0, 0
        for part in parts:
            checksum, size = crc32c(part, checksum), size + len(part)
        end = start + whole_pages(size)
        if end > self._size:
            _check_room(self._descriptor, end - self._size)
        os.lseek(self._descriptor, start, os.SEEK_SET)
        write_all(self._descriptor, [*parts, bytes(end - start - size)])
        self._size = max(self._size, end)
        return checksum

    def _remove(self, descriptor: int) -> None:
        try:
            (self._folder / CHUNKS).unlink(missing_ok=True)
        finally:
            os.close(descriptor)  # frees the blocks: a large file takes a while
            os.close(self._lock)

    def _read(self, start: int, length: int) -> tuple[bytearray, int]:
        data = read_at(self._descriptor, start, length)
        return data, crc32c(data)


def open_disk_file(folder: Path, clock: Clock) -> DiskFile:
    """Create an empty file in the folder, and the folder if it is missing. Blocks. Raises CacheFolderUnusable."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(folder / LOCK, flags, 0o600)
        try:
            _take(lock, folder)
            (folder / CHUNKS).unlink(missing_ok=True)
            descriptor = os.open(folder / CHUNKS, flags | os.O_EXCL, 0o600)
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        raise CacheFolderUnusable(
            f"cache.disk_path {str(folder)!r} can't be used: {error.strerror}; give a folder that this user may "
            "write, or leave cache.disk_path out"
        ) from error
    return DiskFile(folder, lock, descriptor, clock)


def _check_room(descriptor: int, more_bytes: int) -> None:
    """Raise OSError if a file that grows by so much leaves too little free. A file system that reports no size may be
    filled."""
    disk = os.fstatvfs(descriptor)
    kept = min(FREE_BYTES, disk.f_blocks * disk.f_frsize // FREE_SHARE)
    left = disk.f_bavail * disk.f_frsize - more_bytes
    if kept and left < kept:
        raise OSError(
            errno.ENOSPC, f"{max(0, left):,} bytes would be left on the disk, and {kept:,} are kept free"
        )


def _take(lock: int, folder: Path) -> None:
    try:
        lock_for_this_process(lock)
    except LockHeld as holder:
        raise CacheFolderUnusable(
            f"cache.disk_path {str(folder)!r} is in use by process {holder}; give each agent a folder of its own"
        ) from None
