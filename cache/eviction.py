"""Eviction policies: S3-FIFO, by age, and by turn. Budgets are in bytes.

S3-FIFO follows Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023). A new key enters a small
queue (a tenth of the budget). It moves to the main queue only if it is read again there, so a scan passes through the
small queue and evicts nothing that is in use. The main queue gives a second chance to keys that were read since. Keys
that left the small queue unread are remembered for a while (ghosts); a ghost that returns goes straight to the main
queue. Differences from the paper: sizes are in bytes, and one hit is enough to stay, because the small queue of a byte
budget with large chunks holds only a few of them.

Pure: data structures, owned by one event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

SMALL_SHARE = 0.1
MAX_HITS = 3


class _Entry(Generic[V]):
    __slots__ = ("hits", "size", "value")

    def __init__(self, value: V, size: int) -> None:
        self.value = value
        self.size = size
        self.hits = 0


class S3Fifo(Generic[K, V]):
    """A map that holds values of at most `budget_bytes` in total. `on_evicted` receives what is evicted for others."""

    def __init__(self, budget_bytes: int, on_evicted: Callable[[K, V], None] | None = None) -> None:
        self.budget_bytes = budget_bytes
        self._on_evicted = on_evicted
        self._small: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._main: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._ghosts: OrderedDict[K, int] = OrderedDict()
        self._small_bytes = 0
        self._main_bytes = 0
        self._ghost_bytes = 0

    @property
    def bytes_held(self) -> int:
        """Total size of the values."""
        return self._small_bytes + self._main_bytes

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def __contains__(self, key: K) -> bool:
        return key in self._small or key in self._main

    def __iter__(self) -> Iterator[K]:
        yield from self._small
        yield from self._main

    def get(self, key: K) -> V | None:
        """Return the value and count a hit; None if it is absent."""
        entry = self._small.get(key) or self._main.get(key)
        if entry is None:
            return None
        if entry.hits < MAX_HITS:
            entry.hits += 1
        return entry.value

    def put(self, key: K, value: V, size: int) -> bool:
        """Add a value and evict others to make room. Return False, without a change to other keys, if it alone exceeds
        the budget."""
        assert size >= 0
        self.remove(key)
        if size > self.budget_bytes:
            return False
        ghost = self._ghosts.pop(key, None)
        if ghost is not None:
            self._ghost_bytes -= ghost
        self.shrink_to(self.budget_bytes - size)
        entry = _Entry(value, size)
        if ghost is None:
            self._small[key] = entry
            self._small_bytes += size
        else:
            self._main[key] = entry
            self._main_bytes += size
        return True

    def remove(self, key: K) -> None:
        """Remove a value; do nothing if it is absent."""
        entry = self._small.pop(key, None)
        if entry is not None:
            self._small_bytes -= entry.size
            return
        entry = self._main.pop(key, None)
        if entry is not None:
            self._main_bytes -= entry.size

    def shrink_to(self, most_bytes: int) -> None:
        """Evict until at most `most_bytes` are held."""
        while self.bytes_held > most_bytes:
            self._evict_one()

    def _evict_one(self) -> None:
        if self._small and (self._small_bytes > self.budget_bytes * SMALL_SHARE or not self._main):
            self._evict_small()
        else:
            self._evict_main()

    def _evict_small(self) -> None:
        """Evict the oldest key that was never read; move keys that were read to the main queue on the way."""
        while self._small:
            key, entry = self._small.popitem(last=False)
            self._small_bytes -= entry.size
            if not entry.hits:
                self._remember(key, entry.size)
                if self._on_evicted is not None:
                    self._on_evicted(key, entry.value)
                return
            entry.hits = 0
            self._main[key] = entry
            self._main_bytes += entry.size
        self._evict_main()

    def _evict_main(self) -> None:
        while True:
            key, entry = self._main.popitem(last=False)
            if not entry.hits:
                self._main_bytes -= entry.size
                if self._on_evicted is not None:
                    self._on_evicted(key, entry.value)
                return
            entry.hits -= 1
            self._main[key] = entry

    def _remember(self, key: K, size: int) -> None:
        self._ghosts[key] = size
        self._ghost_bytes += size
        while self._ghost_bytes > self.budget_bytes:
            _, forgotten = self._ghosts.popitem(last=False)
            self._ghost_bytes -= forgotten


class FifoCache(Generic[K, V]):
    """A map that evicts its oldest values first, read or not: for values that are wanted only while they are new."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.bytes_held = 0
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """Return the value; None if it is absent."""
        entry = self._entries.get(key)
        return entry.value if entry is not None else None

    def put(self, key: K, value: V, size: int) -> list[tuple[K, V, int]]:
        """Add a value. Return the values that were evicted to make room, oldest first (the value itself if it is too
        large)."""
        self.remove(key)
        self._entries[key] = _Entry(value, size)
        self.bytes_held += size
        gone: list[tuple[K, V, int]] = []
        while self.bytes_held > self.budget_bytes:
            old, entry = self._entries.popitem(last=False)
            self.bytes_held -= entry.size
            gone.append((old, entry.value, entry.size))
        return gone

    def remove(self, key: K) -> None:
        """Remove a value; do nothing if it is absent."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes_held -= entry.size


class FirstReadFifo(Generic[K, V]):
    """A map for readers that read the log in order: it evicts the value whose first read is longest ago.

    Many partitions read a chunk at about the same time, and then none does. Policies for recent or frequent use (LRU,
    `S3Fifo`) would keep the chunks that the slowest partition has just passed, and evict those that it needs next.

    Values may be added before their first read (`is_read=False`); they are evicted last. `on_evicted` receives what
    is evicted for others.
    """

    def __init__(self, budget_bytes: int, on_evicted: Callable[[K, V], None] | None = None) -> None:
        self.budget_bytes = budget_bytes
        self._on_evicted = on_evicted
        self.unread_bytes = 0
        self._read_bytes = 0
        self._read: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._unread: OrderedDict[K, _Entry[V]] = OrderedDict()

    @property
    def bytes_held(self) -> int:
        """Total size of the values."""
        return self._read_bytes + self.unread_bytes

    def __len__(self) -> int:
        return len(self._read) + len(self._unread)

    def __contains__(self, key: K) -> bool:
        return key in self._read or key in self._unread

    def is_unread(self, key: K) -> bool:
        """Whether the value has not been read yet."""
        return key in self._unread

    def get(self, key: K) -> V | None:
        """Return the value and mark it as read; None if it is absent."""
        entry = self._read.get(key)
        if entry is not None:
            return entry.value
        entry = self._unread.pop(key, None)
        if entry is None:
            return None
        self.unread_bytes -= entry.size
        self._read_bytes += entry.size
        self._read[key] = entry
        return entry.value

    def put(self, key: K, value: V, size: int, *, is_read: bool = True) -> bool:
        """Add a value and evict others to make room. Return False, without a change to other keys, if it alone exceeds
        the budget."""
        self.remove(key)
        if size > self.budget_bytes:
            return False
        self.shrink_to(self.budget_bytes - size)
        if is_read:
            self._read[key] = _Entry(value, size)
            self._read_bytes += size
        else:
            self._unread[key] = _Entry(value, size)
            self.unread_bytes += size
        return True

    def shrink_to(self, most_bytes: int) -> None:
        """Evict until at most `most_bytes` are held."""
        while self.bytes_held > most_bytes:
            key, entry = next(iter((self._read or self._unread).items()))
            self.remove(key)
            if self._on_evicted is not None:
                self._on_evicted(key, entry.value)

    def remove(self, key: K) -> None:
        """Remove a value; do nothing if it is absent."""
        entry = self._read.pop(key, None)
        if entry is not None:
            self._read_bytes -= entry.size
            return
        entry = self._unread.pop(key, None)
        if entry is not None:
            self.unread_bytes -= entry.size
