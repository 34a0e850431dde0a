"""Chunks: an object is cut at multiples of the chunk size; a chunk is what is fetched, cached and owned.

Pure. The last chunk of an object may be short. The run states the object's size, so no request reads past the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tailrace.buffers import Buffer
from tailrace.object_store.api import StoreError


class ObjectCorrupt(StoreError):
    """Bytes of an object differ from those that were committed, and a second read from the store did not help."""

    def __init__(self, key: str, start: int, length: int, seen: str) -> None:
        super().__init__(
            f"{key}: bytes {start} to {start + length} are corrupt: {seen}. "
            "Restore the object from another copy; `tailrace audit --full` lists all damaged objects"
        )
        self.key = key
        self.start = start
        self.length = length


VIEW_BYTES = 400
"""Memory of one part of a chunk, apart from its bytes."""
_WASTE = 8
"""A chunk may keep up to one eighth more memory alive than it needs."""


class ChunkId(NamedTuple):
    """Chunk `number` of the object `key`."""

    key: str
    number: int


class ChunkRef(NamedTuple):
    """A chunk and its place: bytes [start, start + length) of its object."""

    id: ChunkId
    start: int
    length: int


def chunk_at(key: str, index: int, object_size: int, chunk_bytes: int) -> ChunkRef:
    """Return chunk `index` of an object of `object_size` bytes."""
    start = index * chunk_bytes
    assert 0 <= start < object_size, f"chunk {index} of {key} begins at {start}; it has {object_size} bytes"
    return ChunkRef(ChunkId(key, index), start, min(chunk_bytes, object_size - start))


def chunks_of(key: str, start: int, end: int, object_size: int, chunk_bytes: int) -> list[ChunkRef]:
    """Return the chunks that contain bytes [start, end) of an object, in order."""
    assert 0 <= start <= end <= object_size, f"bytes {start} to {end} of {key}, which has {object_size}"
    if start == end:
        return []
    first, last = start // chunk_bytes, (end - 1) // chunk_bytes
    return [chunk_at(key, index, object_size, chunk_bytes) for index in range(first, last + 1)]


class PatchedRun(NamedTuple):
    """A run of large batches as it is sent: a new header for each batch, and views of the chunk."""

    base_offset: int
    length: int
    leader_epoch: int
    parts: list[Buffer]


class ChunkBytes:
    """The bytes of a chunk, as one buffer or as the parts of an upload. Bytes that a CRC covers never change.

    `is_trusted`: this agent made the bytes itself, and keeps them from its upload. For other chunks, `checked` holds
    the places (in the object) of the large batches whose CRC was correct, so that each CRC is computed once. Small
    batches are framed after their check; a note of each would take as much memory as the smallest batches.
    `memory`: the bytes, as long as they may be patched.
    `ready`: the runs that were made ready in the chunk (`cache.in_place`): base offset, length and leader epoch, by
    their first byte in the chunk.
    `sent`: the runs of large batches that were sent from the chunk, by their first byte in it. An entry is small
    compared with such batches.
    """

    __slots__ = ("_ends", "_parts", "checked", "is_trusted", "memory", "ready", "sent", "size")

    def __init__(self, parts: Iterable[Buffer], *, is_trusted: bool = False) -> None:
        self._parts = [memoryview(part).cast("B").toreadonly() for part in parts if len(part)]
        self._ends: list[int] = []
        size = 0
        for part in self._parts:
            size += len(part)
            self._ends.append(size)
        self.size = size
        self.is_trusted = is_trusted
        self.checked: set[int] = set()
        self.memory: memoryview | None = None
        self.ready: dict[int, tuple[int, int, int]] = {}
        self.sent: dict[int, PatchedRun] = {}

    @classmethod
    def fetched(cls, data: Buffer) -> ChunkBytes:
        """Wrap a chunk that the store returned. A bytearray belongs to the chunk from now on and may be patched."""
        chunk = cls([data])
        chunk.memory = memoryview(data) if isinstance(data, bytearray) else None
        return chunk

    def frozen(self) -> list[memoryview]:
        """Return the whole chunk as views for a peer or for the disk. From now on the chunk is not patched:
        the frame's MAC or the disk's checksum covers each byte and is computed before the last byte leaves."""
        self.memory = None
        return self.views(0, self.size)

    def own_view(self, start: int, length: int) -> memoryview:
        """Return `length` bytes as one view, for a chunk that is a single buffer."""
        return self._parts[0][start : start + length]

    def views(self, start: int, end: int) -> list[memoryview]:
        """Return bytes [start, end) of the chunk as views, one for each part that they lie in."""
        assert 0 <= start <= end <= self.size, f"bytes {start} to {end} of a chunk of {self.size}"
        if len(self._parts) == 1:
            return [self._parts[0][start:end]] if end > start else []
        views: list[memoryview] = []
        at = bisect_right(self._ends, start)
        while start < end:
            part, part_end = self._parts[at], self._ends[at]
            part_start = part_end - len(part)
            upto = min(end, part_end)
            views.append(part[start - part_start : upto - part_start])
            start = upto
            at += 1
        return views

    def without_waste(self) -> ChunkBytes:
        """Return the chunk in the form in which it may stay in memory: a copy, unless its parts keep little else alive.

        A part keeps the whole buffer alive that it is a view of: a received frame, or an object uploaded in one piece.
        """
        buffers = {id(part.obj): part.obj for part in self._parts}
        kept = VIEW_BYTES * len(self._parts) + sum(memoryview(buffer).nbytes for buffer in buffers.values())
        if kept <= self.size + self.size // _WASTE:
            return self
        return ChunkBytes([b"".join(self._parts)], is_trusted=self.is_trusted)


def cut(parts: Sequence[Buffer], chunk_bytes: int) -> list[ChunkBytes]:
    """Cut an object that is or will be uploaded from `parts` into chunks. They are views, not copies."""
    whole = ChunkBytes(parts, is_trusted=True)
    if whole.size <= chunk_bytes:
        return [whole] if whole.size else []
    starts = range(0, whole.size, chunk_bytes)
    return [
        ChunkBytes(whole.views(start, min(start + chunk_bytes, whole.size)), is_trusted=True)
        for start in starts
    ]
