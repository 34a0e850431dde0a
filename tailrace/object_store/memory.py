"""Objects in memory: the reference implementation of the object store."""

from __future__ import annotations

import bisect
from collections.abc import AsyncIterator, Sequence

from tailrace.buffers import Buffer
from tailrace.clock import Clock
from tailrace.object_store.api import ObjectExists, ObjectInfo, ObjectMissing
from tailrace.object_store.keys import check_key, check_prefix, check_range, distinct_next_parts


class MemoryStore:
    """A complete, deterministic store. It never suspends, so each call is one step of a simulation."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._keys: list[str] = []  # the keys of _objects, in ascending order

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        check_key(key)
        if key in self._objects:
            if if_absent:
                raise ObjectExists(f"{key}: exists already")
        else:
            bisect.insort(self._keys, key)
        self._objects[key] = (b"".join(parts), self._clock.wall_ms())

    async def get(self, key: str) -> bytes:
        return self._find(key)[0]

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        check_range(start, length)
        return bytearray(memoryview(self._find(key)[0])[start : start + length])

    async def head(self, key: str) -> ObjectInfo:
        data, modified_ms = self._find(key)
        return ObjectInfo(key, len(data), modified_ms)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        last = start_after
        at = (
            bisect.bisect_left(self._keys, prefix) if prefix > last else bisect.bisect_right(self._keys, last)
        )
        while at < len(self._keys) and self._keys[at].startswith(prefix):
            last = self._keys[at]
            data, modified_ms = self._objects[last]
            yield ObjectInfo(last, len(data), modified_ms)
            at = bisect.bisect_right(self._keys, last)  # the caller may have written or deleted since

    async def list_prefixes(self, prefix: str) -> Sequence[str]:
        check_prefix(prefix)
        first = bisect.bisect_left(self._keys, prefix)
        below = []
        for key in self._keys[first:]:
            if not key.startswith(prefix):
                break
            below.append(key)
        return distinct_next_parts(below, prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for key in keys:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect.bisect_left(self._keys, key)]

    async def close(self) -> None:
        """Do nothing. The objects stay, so that a restarted agent finds them."""

    def _find(self, key: str) -> tuple[bytes, int]:
        check_key(key)
        stored = self._objects.get(key)
        if stored is None:
            raise ObjectMissing(f"{key}: no such object")
        return stored
