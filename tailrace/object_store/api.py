"""The interface of the object store, with only the operations that Tailrace needs.

An object is written once, completely, under a key that no other writer uses, and never changes. Keys are `/`-separated
ASCII paths. Every implementation passes `tests/contracts/test_object_store.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.buffers import Buffer


class StoreError(Exception):
    """The store did not execute the call; the message names the key and the cause."""


class ObjectMissing(StoreError):
    """No object has this key."""


class StoreUnavailable(StoreError):
    """The store failed, timed out or refused temporarily; the same call may succeed later."""


class StoreFull(StoreError):
    """No space is left (a full disk, a quota)."""


class StoreRefused(StoreError):
    """The store refuses this call permanently: wrong credentials, no permission, a missing bucket."""


class BucketMissing(StoreRefused):
    """The store has no bucket of this name."""


class NotDeleted(StoreUnavailable):
    """Some objects could not be deleted (a lock of S3's, another user's file); all others of the call are deleted.

    Args:
        causes: why, for each key that is left.
        asked: how many objects were to be deleted.
    """

    def __init__(self, causes: Mapping[str, str], asked: int) -> None:
        key, cause = next(iter(causes.items()))
        super().__init__(f"{len(causes)} of {asked} objects not deleted; {key}: {cause}")
        self.keys = list(causes)
        """The objects that are left."""


class ObjectExists(StoreError):
    """`put(..., if_absent=True)` found an object under this key."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a listing. `size`: bytes. `modified_ms`: ms since the Unix epoch."""

    key: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """Whole-object writes, ranged reads, listing and deletion."""

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Write one object from the concatenated parts, durably and atomically.

        Raises ObjectExists (only with `if_absent`), StoreFull, StoreUnavailable, StoreRefused.
        After StoreUnavailable, the object may or may not exist.
        """

    async def get(self, key: str) -> bytes:
        """Read a whole object. Raises ObjectMissing, StoreUnavailable, StoreRefused."""

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        """Read `length` bytes from `start`, fewer only at the end of the object. Raises the same as `get`.

        If the result is a bytearray, the caller owns it.
        """

    async def head(self, key: str) -> ObjectInfo:
        """Return an object's size and modification time. Raises the same as `get`."""

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield every object whose key starts with `prefix` and is after `start_after`, in ascending key order."""

    async def list_prefixes(self, prefix: str) -> Sequence[str]:
        """Return the distinct next path parts below `prefix`, with their slash. `prefix` ends in `/` or is empty."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Ignores missing keys.

        Raises NotDeleted if some or all of the objects could not be deleted, and StoreUnavailable or StoreRefused if
        the call as a whole failed.
        """

    async def close(self) -> None:
        """Release sockets and threads."""
