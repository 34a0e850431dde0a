"""What stays in memory: S3-FIFO, counted in bytes.

After Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023). A new key waits in a small
queue (a tenth of the budget); only one that was read again there moves to the main queue, so a scan passes
through the small queue and pushes out nothing that is in use. The main queue gives a second chance to what
was read since. Keys that left the small queue unread are remembered a while (the ghosts): one that comes
back goes straight to the main queue. Differences from the paper: sizes are bytes, and one hit is enough to
be kept, since a byte budget of few large chunks has a small queue of only some of them.

Pure: a data structure, owned by one event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
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
    """A map whose values' sizes never sum to more than `budget_bytes`."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._small: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._main: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._ghosts: OrderedDict[K, int] = OrderedDict()
        self._small_bytes = 0
        self._main_bytes = 0
        self._ghost_bytes = 0

    @property
    def bytes_held(self) -> int:
        """Sizes of all values together."""
        return self._small_bytes + self._main_bytes

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def __contains__(self, key: K) -> bool:
        return key in self._small or key in self._main

    def __iter__(self) -> Iterator[K]:
        yield from self._small
        yield from self._main

    def get(self, key: K) -> V | None:
        """The value, counted as a hit; None where there is none."""
        entry = self._small.get(key) or self._main.get(key)
        if entry is None:
            return None
        if entry.hits < MAX_HITS:
            entry.hits += 1
        return entry.value

    def put(self, key: K, value: V, size: int) -> bool:
        """Take a value, pushing others out. False, and nothing taken, where it alone exceeds the budget."""
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
        """Forget a value; nothing happens where there is none."""
        entry = self._small.pop(key, None)
        if entry is not None:
            self._small_bytes -= entry.size
            return
        entry = self._main.pop(key, None)
        if entry is not None:
            self._main_bytes -= entry.size

    def shrink_to(self, most_bytes: int) -> None:
        """Evict until no more than this is held."""
        while self.bytes_held > most_bytes:
            self._evict_one()

    def _evict_one(self) -> None:
        if self._small and (self._small_bytes > self.budget_bytes * SMALL_SHARE or not self._main):
            self._evict_small()
        else:
            self._evict_main()

    def _evict_small(self) -> None:
        """Evict the oldest key that was never read; those that were move to the main queue on the way."""
        while self._small:
            key, entry = self._small.popitem(last=False)
            self._small_bytes -= entry.size
            if not entry.hits:
                self._remember(key, entry.size)
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
                return
            entry.hits -= 1
            self._main[key] = entry

    def _remember(self, key: K, size: int) -> None:
        self._ghosts[key] = size
        self._ghost_bytes += size
        while self._ghost_bytes > self.budget_bytes:
            _, forgotten = self._ghosts.popitem(last=False)
            self._ghost_bytes -= forgotten


class ByAge(Generic[K, V]):
    """A map that drops its oldest values first, read or not: for what is wanted only while it is new."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.bytes_held = 0
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """The value; None where there is none."""
        entry = self._entries.get(key)
        return entry.value if entry is not None else None

    def put(self, key: K, value: V, size: int) -> list[tuple[K, V, int]]:
        """Take a value; give back what had to go for it, oldest first (itself, where it is too large)."""
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
        """Forget a value; nothing happens where there is none."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes_held -= entry.size


class ByTurn(Generic[K, V]):
    """A map for readers that go through the log in order: it evicts the value whose first read is longest ago.

    Many partitions read a chunk within moments, and then none does. Policies for recent or frequent use (LRU,
    `S3Fifo`) keep the chunks that the slowest partition has just passed, and evict those that it needs next.

    Values may be added before their first read (`is_read=False`); they are evicted last.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.unread_bytes = 0
        self._read_bytes = 0
        self._read: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._unread: OrderedDict[K, _Entry[V]] = OrderedDict()

    @property
    def bytes_held(self) -> int:
        """Sizes of all values together."""
        return self._read_bytes + self.unread_bytes

    def __len__(self) -> int:
        return len(self._read) + len(self._unread)

    def __contains__(self, key: K) -> bool:
        return key in self._read or key in self._unread

    def is_unread(self, key: K) -> bool:
        """Whether the value waits for its first reader."""
        return key in self._unread

    def get(self, key: K) -> V | None:
        """The value, which counts as read from now on; None if absent."""
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
        """Take a value, pushing others out. False, and nothing taken, where it alone exceeds the budget."""
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
        """Evict until no more than this is held."""
        while self.bytes_held > most_bytes:
            self.remove(next(iter(self._read or self._unread)))

    def remove(self, key: K) -> None:
        """Forget a value; nothing happens where there is none."""
        entry = self._read.pop(key, None)
        if entry is not None:
            self._read_bytes -= entry.size
            return
        entry = self._unread.pop(key, None)
        if entry is not None:
            self.unread_bytes -= entry.size
