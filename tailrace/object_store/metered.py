"""Counts the requests to a store with their bytes, seconds and failures. It does not depend on Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tailrace.buffers import Buffer
from tailrace.clock import Clock
from tailrace.object_store.api import ObjectExists, ObjectInfo, ObjectMissing, ObjectStore, StoreError

T = TypeVar("T")

LIST_PAGE = 1000
"""Keys in one LIST response and one DELETE request of S3. Determines how many requests a long call makes."""


class StoreObserver(Protocol):
    """Called at the end of each call, on the event loop. Must not block."""

    def observe(
        self,
        operation: str,
        *,
        requests: int,
        sent_bytes: int,
        received_bytes: int,
        seconds: float,
        error: str | None,
    ) -> None:
        """Note that a call has ended.

        Args:
            operation: "put", "get", "head", "list" or "delete".
            requests: how many requests S3 would bill.
            error: None, or the name of the error's type. ObjectMissing and ObjectExists are responses of a working
                store. The observer decides which errors count as failures.
        """


@dataclass(slots=True)
class StoreCounts:
    """The requests so far. HEADs are counted separately from GETs; S3 bills both as GET."""

    puts: int = 0
    gets: int = 0
    heads: int = 0
    lists: int = 0
    deletes: int = 0
    deleted_objects: int = 0
    put_bytes: int = 0
    got_bytes: int = 0
    errors: int = 0


class MeteredStore:
    """Counts the calls of `inner` in `counts` and reports them to `observer`.

    `counts.errors` counts each StoreError except ObjectMissing and ObjectExists. Retries inside a library are not
    counted.
    """

    def __init__(self, inner: ObjectStore, clock: Clock, observer: StoreObserver | None = None) -> None:
        self._inner = inner
        self._clock = clock
        self._observer = observer
        self.counts = StoreCounts()

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        size = sum(memoryview(part).nbytes for part in parts)
        self.counts.puts += 1
        await self._timed("put", self._inner.put(key, parts, if_absent=if_absent), sent_bytes=size)
        self.counts.put_bytes += size

    async def get(self, key: str) -> bytes:
        self.counts.gets += 1
        data = await self._timed("get", self._inner.get(key))
        self.counts.got_bytes += len(data)
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        self.counts.gets += 1
        data = await self._timed("get", self._inner.get_range(key, start, length))
        self.counts.got_bytes += len(data)
        return data

    async def head(self, key: str) -> ObjectInfo:
        self.counts.heads += 1
        return await self._timed("head", self._inner.head(key))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """List objects. The call is reported at its end, with the time that the store took but not the reader."""
        listing = self._inner.list(prefix, start_after=start_after)
        listed = 0
        seconds = 0.0
        error: str | None = None
        self.counts.lists += 1
        try:
            while True:
                began = self._clock.monotonic()
                try:
                    info = await anext(listing)
                except StopAsyncIteration:
                    break
                finally:
                    seconds += self._clock.monotonic() - began
                listed += 1
                if listed > LIST_PAGE and listed % LIST_PAGE == 1:
                    self.counts.lists += 1
                yield info
        except StoreError as failure:
            error = self._count_error(failure)
            raise
        finally:
            self._report(
                operation="list",
                requests=max(1, -(-listed // LIST_PAGE)),
                sent=0,
                received=0,
                seconds=seconds,
                error=error,
            )

    async def list_prefixes(self, prefix: str) -> Sequence[str]:
        self.counts.lists += 1
        return await self._timed("list", self._inner.list_prefixes(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        requests = -(-len(keys) // LIST_PAGE)
        self.counts.deletes += requests
        await self._timed("delete", self._inner.delete(keys), requests=requests)
        self.counts.deleted_objects += len(keys)

    async def close(self) -> None:
        await self._inner.close()

    async def _timed(
        self, operation: str, call: Awaitable[T], *, requests: int = 1, sent_bytes: int = 0
    ) -> T:
        began = self._clock.monotonic()
        received = 0
        error: str | None = "cancelled"
        try:
            answer = await call
            received = len(answer) if isinstance(answer, bytes | bytearray) else 0
            error = None
            return answer
        except StoreError as failure:
            error = self._count_error(failure)
            raise
        finally:
            self._report(
                operation=operation,
                requests=requests,
                sent=sent_bytes,
                received=received,
                seconds=self._clock.monotonic() - began,
                error=error,
            )

    def _count_error(self, failure: StoreError) -> str:
        if not isinstance(failure, ObjectMissing | ObjectExists):
            self.counts.errors += 1
        return type(failure).__name__

    def _report(
        self, operation: str, requests: int, sent: int, received: int, seconds: float, error: str | None
    ) -> None:
        if self._observer is not None:
            self._observer.observe(
                operation,
                requests=requests,
                sent_bytes=sent,
                received_bytes=received,
                seconds=seconds,
                error=error,
            )
