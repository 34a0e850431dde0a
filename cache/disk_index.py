"""The index of the disk tier: where each chunk is in the file, which is a ring of pages.

Invariants:
- the places of two chunks never overlap, and no place ends after the ring's end;
- a place is in the index only after its bytes were written;
- the index has at most `most_entries` entries; each takes some 290 bytes of memory.

First in, first out, which suits flash: the file is written from start to end, then again from the start. A write
removes the chunks that it overwrites from the index, whether they were read or not.

Pure: a data structure, owned by one event loop.
"""

from __future__ import annotations

from collections import deque

import msgspec

PAGE_BYTES = 4096
"""Chunks begin at multiples of it: the kernel reads a page before it overwrites a part of it."""
ENTRIES = 131_072
BYTES_AN_ENTRY = 4 << 20
"""The index has at most ENTRIES entries (38 MB), or one per BYTES_AN_ENTRY of the ring if that is more."""


def most_entries_of(capacity_bytes: int) -> int:
    """Return how many entries the index of a ring of this size may have."""
    return max(ENTRIES, capacity_bytes // BYTES_AN_ENTRY)


class DiskLocation(msgspec.Struct, frozen=True, gc=False):
    """Where a chunk is in the file, and the CRC-32C of its bytes."""

    name: str
    start: int
    length: int
    checksum: int


class DiskIndex:
    """The ring. Chunks are written one at a time: `reserve` a place, write the bytes, `add` the place."""

    def __init__(self, capacity_bytes: int, most_entries: int | None = None) -> None:
        self._capacity = capacity_bytes
        self._most_entries = most_entries or most_entries_of(capacity_bytes)
        self._head = 0
        self._reserved = (0, 0)
        self._by_name: dict[str, DiskLocation] = {}
        self._by_age: deque[DiskLocation] = deque()
        """In the order of the ring from the head on. Removed entries stay here until the head reaches them."""
        self.bytes_held = 0
        """Bytes of all chunks in the index."""

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> DiskLocation | None:
        """Return the chunk's place; None if absent."""
        return self._by_name.get(name)

    def reserve(self, length: int) -> int | None:
        """Return where to write the next chunk, and remove what is there. None if the chunk exceeds the ring."""
        taken = whole_pages(length)
        if taken > self._capacity:
            return None
        if self._head + taken > self._capacity:
            self.wrap_around()
        start, self._head = self._head, self._head + taken
        while self._by_age and start <= self._by_age[0].start < self._head:
            self._remove_oldest()
        self._reserved = start, length
        return start

    def wrap_around(self) -> None:
        """Let the next chunk be written at the start of the file."""
        while self._by_age and self._by_age[0].start >= self._head:
            self._remove_oldest()
        self._head = 0

    def add(self, location: DiskLocation) -> None:
        """Add the place that was reserved last, after its bytes were written."""
        assert (location.start, location.length) == self._reserved, (
            f"{location} in the place {self._reserved}"
        )
        self._reserved = (0, 0)
        self.remove(location.name)
        while len(self._by_age) >= self._most_entries:
            self._remove_oldest()
        self._by_age.append(location)
        self._by_name[location.name] = location
        self.bytes_held += location.length

    def remove(self, name: str) -> None:
        """Remove a chunk; do nothing if it is absent."""
        location = self._by_name.pop(name, None)
        if location is not None:
            self.bytes_held -= location.length

    def _remove_oldest(self) -> None:
        location = self._by_age.popleft()
        if self._by_name.get(location.name) is location:
            self.remove(location.name)


def whole_pages(length: int) -> int:
    """Round a length up to whole pages."""
    return -(-length // PAGE_BYTES) * PAGE_BYTES
