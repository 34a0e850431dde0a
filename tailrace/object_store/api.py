"""The object store: as little of it as Tailrace needs.

An object is written once, whole, under a key that no other writer uses, and never changes. Keys are `/`-separated ASCII
paths. Every implementation passes `tests/contracts/test_object_store.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.buffers import Buffer


class StoreError(Exception):
    """The store did not carry out the call; the message names the key and the cause."""


class ObjectMissing(StoreError):
    """No object has this key."""


class StoreUnavailable(StoreError):
    """The store failed, timed out or refused for now; the same call may succeed later."""


class StoreFull(StoreError):
    """No room is left (a full disk, a quota)."""


class StoreRefused(StoreError):
    """The store refuses this call for good: credentials, rights, a missing bucket."""


class ObjectExists(StoreError):
    """`put(..., if_absent=True)` found an object under this key."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a listing. `size` in bytes, `modified_ms` since the Unix epoch."""

    key: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """Whole-object writes, ranged reads, listing and deletion."""

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Write one object from the concatenated parts, durably, all or nothing.

        Raises ObjectExists (only with `if_absent`), StoreFull, StoreUnavailable, StoreRefused.
        After StoreUnavailable the object may or may not exist.
        """
        ...

    async def get(self, key: str) -> bytes:
        """Read a whole object. Raises ObjectMissing, StoreUnavailable, StoreRefused."""
        ...

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        """Read `length` bytes from `start`; shorter only where the object ends. Raises as `get`.

        A bytearray is memory of the caller's own.
        """
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Describe an object. Raises as `get`."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in ascending key order, after `start_after`."""
        ...

    async def list_prefixes(self, prefix: str) -> Sequence[str]:
        """The distinct next path parts below `prefix` (which ends in `/` or is empty), with their slash."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing keys are fine. Raises StoreUnavailable if any object is left."""
        ...

    async def close(self) -> None:
        """Release sockets and threads."""
        ...
