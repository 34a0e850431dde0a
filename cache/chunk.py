"""Chunks: an object cut at multiples of the chunk size, the unit that is fetched, cached and owned.

Pure. The last chunk of an object is short; an object's size is known from its run, so no chunk is ever asked
for past its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tailrace.buffers import Buffer
from tailrace.object_store.api import StoreError


class ObjectCorrupt(StoreError):
    """Bytes of an object are not those that were committed, and a second look at the store didn't help."""

    def __init__(self, key: str, start: int, length: int, seen: str) -> None:
        super().__init__(
            f"{key}: bytes {start} to {start + length} are corrupt: {seen}. "
            "Restore the object from another copy; `tailrace audit` names all that is damaged"
        )
        self.key = key
        self.start = start
        self.length = length


VIEW_BYTES = 400
"""What a part of a chunk takes beside its bytes."""
_WASTE = 8
"""One in so many bytes of memory may be of no use to the chunk that keeps it."""


class ChunkId(NamedTuple):
    """Chunk `number` of the object `key`."""

    key: str
    number: int


class ChunkRef(NamedTuple):
    """A chunk and where it stands: bytes [start, start + length) of its object."""

    id: ChunkId
    start: int
    length: int


def chunk_at(key: str, index: int, object_size: int, chunk_bytes: int) -> ChunkRef:
    """Chunk `index` of an object of `object_size` bytes."""
    start = index * chunk_bytes
    assert 0 <= start < object_size, f"chunk {index} of {key} begins at {start}; it has {object_size} bytes"
    return ChunkRef(ChunkId(key, index), start, min(chunk_bytes, object_size - start))


def chunks_of(key: str, start: int, end: int, object_size: int, chunk_bytes: int) -> list[ChunkRef]:
    """The chunks that bytes [start, end) of an object touch, in order."""
    assert 0 <= start <= end <= object_size, f"bytes {start} to {end} of {key}, which has {object_size}"
    if start == end:
        return []
    first, last = start // chunk_bytes, (end - 1) // chunk_bytes
    return [chunk_at(key, index, object_size, chunk_bytes) for index in range(first, last + 1)]


class SentRun(NamedTuple):
    """A run of large batches as it was sent: a head of its own for each batch, and views of the chunk."""

    base_offset: int
    length: int
    leader_epoch: int
    parts: list[Buffer]


class ChunkBytes:
    """A chunk's bytes, as one buffer or as the parts that an upload was made of; what CRCs cover is never changed.

    `is_trusted`: the bytes are this agent's own, seen before they were uploaded. Of others, `checked` holds
    the places (in the object) of the batches whose CRC was found right, so that each is summed once.
    `memory`: the bytes, while they may be written to. `ready`: of the runs that were made ready there
    (`cache.in_place`), by their first byte in the chunk: base offset, length and leader epoch.
    `sent`: of the runs of large batches that were sent out of it, by their first byte in the chunk. It takes little
    beside such batches.
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
        self.sent: dict[int, SentRun] = {}

    @classmethod
    def fetched(cls, data: Buffer) -> ChunkBytes:
        """A chunk that the store gave; a bytearray is its own from now on."""
        chunk = cls([data])
        chunk.memory = memoryview(data) if isinstance(data, bytearray) else None
        return chunk

    def for_peer(self) -> list[memoryview]:
        """All of it, to be sent to a peer. Nothing is written to it any more: the frame's MAC covers each byte, and is
        computed before the last of them leaves."""
        self.memory = None
        return self.views(0, self.size)

    def own_view(self, start: int, length: int) -> memoryview:
        """So many bytes of a chunk whose memory is, or was, its own."""
        return self._parts[0][start : start + length]

    def views(self, start: int, end: int) -> list[memoryview]:
        """Bytes [start, end), counted from the chunk's beginning, as views: one where they stand together."""
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
        """The chunk as it may stay in memory: copied, unless its bytes are nearly all that its parts keep alive.

        A part keeps the whole buffer that it is a view of: a frame as it was received, or an object in one piece.
        """
        buffers = {id(part.obj): part.obj for part in self._parts}
        kept = VIEW_BYTES * len(self._parts) + sum(memoryview(buffer).nbytes for buffer in buffers.values())
        if kept <= self.size + self.size // _WASTE:
            return self
        return ChunkBytes([b"".join(self._parts)], is_trusted=self.is_trusted)


def cut(parts: Sequence[Buffer], chunk_bytes: int) -> list[ChunkBytes]:
    """The chunks of an object that is, or soon will be, uploaded from `parts`: views, no copies."""
    whole = ChunkBytes(parts, is_trusted=True)
    if whole.size <= chunk_bytes:
        return [whole] if whole.size else []
    starts = range(0, whole.size, chunk_bytes)
    return [
        ChunkBytes(whole.views(start, min(start + chunk_bytes, whole.size)), is_trusted=True)
        for start in starts
    ]
