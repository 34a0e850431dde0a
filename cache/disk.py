"""The disk tier: a cache of chunks that have left memory, on a local disk. Off unless `cache.disk_path` is set.

What it takes (decision 88): a chunk that leaves the tail's share at once, because a reader that falls behind needs it
next; a chunk of old records when it leaves memory for the second time, so that a single scan writes nothing. An agent
takes only the chunks that it owns, so each chunk is on one disk of the zone.

The disk never fails a read. A chunk with a wrong checksum is a miss. A read is given up after READ_SECONDS. If no other
was answered meanwhile, or after an I/O error, the tier is not used for PAUSE_SECONDS. Threads do all I/O. Chunks wait
to be written in a queue of QUEUE_BYTES, from which they are read until then; if it is full, they are dropped.
"""

from __future__ import annotations

import asyncio
import errno

import structlog

from cache.chunk import ChunkBytes, ChunkId, ChunkRef
from cache.chunk_file import ChunkFile, open_disk_file
from cache.disk_index import DiskIndex, DiskLocation, most_entries_of
from cache.observer import CacheObserver, DiskRead, DiskWrite
from cache.settings import CacheSettings
from tailrace.background_tasks import cancel_and_wait, cause_of, log_and_continue
from tailrace.clock import Clock, wait_for

log = structlog.get_logger("cache.disk")

QUEUE_BYTES = 32 << 20
"""Limit of chunks that wait to be written, in addition to `memory_bytes`. A single chunk may exceed it."""
READ_SECONDS = 2.0
"""After this time the store is read instead."""
PAUSE_SECONDS = 60.0

_FULL = {errno.ENOSPC, errno.EDQUOT}


class DiskTier:
    """Chunks in a `ChunkFile`. Owned by one event loop; close it after the cache."""

    def __init__(
        self, file: ChunkFile, disk_bytes: int, clock: Clock, observer: CacheObserver | None = None
    ) -> None:
        self._file = file
        self._clock = clock
        self._observer = observer or CacheObserver()
        self._index = DiskIndex(disk_bytes)
        self._evicted_before = EvictionHistory(disk_bytes)
        self._queued: dict[str, ChunkBytes] = {}
        self._queued_bytes = 0
        self._writer: asyncio.Task[None] | None = None
        self._reads_from = self._writes_from = float("-inf")
        self._answered = 0
        self._is_closed = False

    @property
    def bytes_held(self) -> int:
        return self._index.bytes_held

    @property
    def is_off(self) -> bool:
        """Whether reads or writes are paused after an error."""
        return self._clock.monotonic() < max(self._reads_from, self._writes_from)

    def has(self, chunk: ChunkId) -> bool:
        """Whether the chunk can be read: it waits to be written, or is on the disk and reads are not paused."""
        name = _name(chunk)
        return name in self._queued or (self._index.get(name) is not None and self._may_read())

    def _may_read(self) -> bool:
        return not self._is_closed and self._clock.monotonic() >= self._reads_from

    async def read(self, chunk: ChunkRef) -> ChunkBytes | None:
        """Return the chunk; None if it is absent or can't be read."""
        name = _name(chunk.id)
        queued = self._queued.get(name)
        if queued is not None and queued.size == chunk.length:
            self._observer.disk_read(DiskRead.HIT)
            return queued
        location = self._index.get(name)
        if location is None or location.length != chunk.length or not self._may_read():
            self._observer.disk_read(DiskRead.MISS)
            return None
        read = await self._read(location)
        if read is None:
            self._index.remove(name)
            self._observer.disk_read(DiskRead.FAILED)
            return None
        data, checksum = read
        if len(data) == location.length and checksum == location.checksum:
            self._observer.disk_read(DiskRead.HIT)
            return ChunkBytes.fetched(data)
        if self._index.get(name) is not location:
            self._observer.disk_read(DiskRead.MISS)  # overwritten meanwhile
            return None
        self._index.remove(name)
        self._observer.disk_read(DiskRead.CORRUPT)
        log.warning("a chunk on the cache's disk was corrupt", key=chunk.id.key, number=chunk.id.number)
        return None

    def offer(self, chunk: ChunkId, data: ChunkBytes, *, is_old: bool) -> None:
        """Take a chunk that leaves memory, or not. A chunk that is taken is not patched any more."""
        name = _name(chunk)
        if self._index.get(name) is not None or name in self._queued:
            return
        if is_old and not self._evicted_before.note(name, data.size):
            return
        if self._is_closed:
            return
        is_full = bool(self._queued) and self._queued_bytes + data.size > QUEUE_BYTES
        if is_full or self._clock.monotonic() < self._writes_from:
            self._observer.disk_write(DiskWrite.DROPPED, data.size)
            return
        data.frozen()
        self._queued[name] = data
        self._queued_bytes += data.size
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_queued(), name="cache: disk")

    def remove(self, chunk: ChunkId) -> None:
        """Remove a chunk, also if it waits to be written; do nothing if it is absent."""
        name = _name(chunk)
        self._index.remove(name)
        self._unqueue(name)

    def _unqueue(self, name: str) -> None:
        data = self._queued.pop(name, None)
        if data is not None:
            self._queued_bytes -= data.size

    async def close(self) -> None:
        """Drop the chunks that wait to be written, and wait a bounded time for running calls."""
        self._is_closed = True
        await cancel_and_wait(self._writer)
        self._queued.clear()
        with log_and_continue(log, "the file of the cache's disk could not be removed", OSError):
            await self._file.close()

    async def _read(self, location: DiskLocation) -> tuple[bytearray, int] | None:
        reading = asyncio.ensure_future(self._file.read(location.start, location.length))
        answered = self._answered
        try:
            if not await wait_for(self._clock, reading, READ_SECONDS):
                if self._answered == answered:  # else it has too much to do
                    self._pause(f"no answer within {READ_SECONDS} s", reads=True)
                return None
            self._answered += 1
            return reading.result()
        except OSError as error:
            self._pause(cause_of(error), reads=True)
            return None
        finally:
            reading.cancel()

    async def _write_queued(self) -> None:
        while self._queued:
            name, data = next(iter(self._queued.items()))
            try:
                with log_and_continue(log, "a chunk could not be written to the cache's disk"):
                    await self._write(name, data)
            finally:
                if self._queued.get(name) is data:
                    self._unqueue(name)

    async def _write(self, name: str, data: ChunkBytes) -> None:
        start = self._index.reserve(data.size)
        if start is None or self._clock.monotonic() < self._writes_from:
            self._observer.disk_write(DiskWrite.DROPPED, data.size)
            return
        try:
            checksum = await self._file.write(start, data.views(0, data.size))
        except OSError as error:
            if error.errno in _FULL:
                self._index.wrap_around()  # use the space that there is
            self._observer.disk_write(DiskWrite.FAILED, data.size)
            self._pause(cause_of(error), reads=False)
            return
        self._observer.disk_write(DiskWrite.WRITTEN, data.size)
        if self._queued.get(name) is data:  # it was not removed meanwhile
            self._index.add(DiskLocation(name, start, data.size, checksum))

    def _pause(self, cause: str, *, reads: bool) -> None:
        """Pause writes after an error, and reads too if a read failed."""
        now = self._clock.monotonic()
        if not self.is_off:
            log.warning(
                "the cache does not use its disk for a while",
                cause=cause, seconds=PAUSE_SECONDS, reads_go_on=not reads,
            )  # fmt: skip
        self._writes_from = now + PAUSE_SECONDS
        if reads:
            self._reads_from = now + PAUSE_SECONDS


class EvictionHistory:
    """Remembers which chunks were evicted from memory, among the last `reach_bytes` to twice as many.

    It keeps hashes in two sets, the older of which is dropped as a whole. A collision only writes a chunk too early.
    """

    def __init__(self, reach_bytes: int) -> None:
        self._reach_bytes = reach_bytes
        self._most = most_entries_of(reach_bytes)
        self._noted_bytes = 0
        self._now: set[int] = set()
        self._before: set[int] = set()

    def note(self, name: str, size: int) -> bool:
        """Record that the chunk is evicted; return whether it was evicted before."""
        known = hash(name)
        if known in self._now:
            return True
        if self._noted_bytes + size > self._reach_bytes or len(self._now) >= self._most:
            self._before, self._now, self._noted_bytes = self._now, set(), 0
        self._now.add(known)
        self._noted_bytes += size
        return known in self._before


def open_disk_tier(settings: CacheSettings, clock: Clock, observer: CacheObserver) -> DiskTier | None:
    """Open the tier that the settings describe; None if they name no folder. Blocks. Raises CacheFolderUnusable."""
    if settings.disk_path is None:
        return None
    folder = settings.disk_path.expanduser().absolute()
    return DiskTier(open_disk_file(folder, clock), settings.disk_bytes, clock, observer)


def _name(chunk: ChunkId) -> str:
    return f"{chunk.key}/{chunk.number}"
