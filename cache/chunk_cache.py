"""The chunk cache: get a chunk from memory, else from this agent's disk if it has one (`cache.disk`), else from the
agent of the zone that owns it, else from the store.

Each chunk costs one GET per zone, however many readers want it, as long as the agents of the zone agree on the ring and
the owner keeps the chunk. If they disagree or a peer does not answer, a reader pays with its own GET, never with an
error.

Memory has three shares, so that no kind of reader starves another:

    fresh     objects that this agent uploaded, by age; its tail readers find them here without a request
    tail      S3-FIFO: chunks of young runs, fetched or owned
    catch-up  chunks of old runs and of Parquet objects that were read last; at most half of it is read-ahead

Tail and catch-up borrow memory that the other shares do not use. The lender takes it back chunk by chunk when it needs
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from cache.chunk import ChunkBytes, ChunkId, ChunkRef, ObjectCorrupt, cut
from cache.disk import DiskTier
from cache.eviction import FifoCache, FirstReadFifo, S3Fifo
from cache.gate import Gate
from cache.observer import CacheObserver, Tier
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from cache.single_flight import SingleFlight
from sequencer.api.agents import Member
from tailrace.background_tasks import cancel_and_wait
from tailrace.buffers import Buffer
from tailrace.object_store.api import ObjectMissing, ObjectStore, StoreError


class PeerUnavailable(Exception):
    """A peer did not return the chunk (unreachable, slow, bypassed or confused); the message says why."""


class ChunkPeers(Protocol):
    """The other agents of the zone, as a source of chunks."""

    async def read(self, member: Member, chunk: ChunkRef, *, is_catch_up: bool) -> Buffer:
        """Read the whole chunk from its owner. Raises PeerUnavailable, ObjectMissing."""


_Loaded = tuple[ChunkBytes, Tier]


class ChunkCache:
    """One agent's part of the zone's cache. Owned by one event loop; close it before the store and the disk.

    Args:
        ring: returns the ring as this agent sees it now; called on every miss.
        peers: None for an agent without peers.
        disk: takes the chunks that leave memory; None for an agent without a disk.
    """

    def __init__(
        self,
        store: ObjectStore,
        settings: CacheSettings,
        ring: Callable[[], ZoneRing],
        peers: ChunkPeers | None = None,
        observer: CacheObserver | None = None,
        disk: DiskTier | None = None,
    ) -> None:
        self.settings = settings
        self._store = store
        self._disk = disk
        self._ring = ring
        self._peers = peers
        self._observer = observer or CacheObserver()
        fresh = int(settings.memory_bytes * settings.fresh_share)
        self._catch_up_share = int(settings.memory_bytes * settings.catch_up_share)
        self._tail_share = settings.memory_bytes - fresh - self._catch_up_share
        self._fresh: FifoCache[ChunkId, ChunkBytes] = FifoCache(fresh)
        on_old = partial(self._offer, is_old=True) if disk is not None else None
        on_young = partial(self._offer, is_old=False) if disk is not None else None
        self._catch_up: FirstReadFifo[ChunkId, ChunkBytes] = FirstReadFifo(self._catch_up_share, on_old)
        self._tail: S3Fifo[ChunkId, ChunkBytes] = S3Fifo(self._tail_share, on_young)
        self._from_store: SingleFlight[ChunkId, _Loaded] = SingleFlight()
        self._from_peer: SingleFlight[ChunkId, _Loaded] = SingleFlight()
        self._again: SingleFlight[ChunkId, ChunkBytes] = SingleFlight()
        self._tail_gets = Gate(settings.tail_gets)
        self._catch_up_gets = Gate(settings.catch_up_gets)
        self._catch_up_peer_reads = Gate(settings.catch_up_gets)
        self._ahead: dict[ChunkId, asyncio.Task[ChunkBytes]] = {}
        self._prefetched: dict[ChunkId, int] = {}

    @property
    def bytes_held(self) -> int:
        """Total size of the chunks in memory."""
        return self._fresh.bytes_held + self._tail.bytes_held + self._catch_up.bytes_held

    def held(self, chunk: ChunkRef, *, is_catch_up: bool = False) -> ChunkBytes | None:
        """Return the chunk if it is in memory, without waiting, and count it as read."""
        chunk_bytes = self._fresh.get(chunk.id)
        if chunk_bytes is not None:
            self._observer.chunk_read(Tier.FRESH, chunk_bytes.size, is_catch_up=is_catch_up)
            return chunk_bytes
        chunk_bytes = self._tail.get(chunk.id)
        if chunk_bytes is None:
            chunk_bytes = self._catch_up.get(chunk.id)
        if chunk_bytes is not None:
            self._observer.chunk_read(Tier.MEMORY, chunk_bytes.size, is_catch_up=is_catch_up)
        return chunk_bytes

    def peek(self, chunk: ChunkId, *, is_catch_up: bool = False) -> ChunkBytes | None:
        """Return the chunk if it is in memory, without counting it as read. A caller that gives it to a reader calls
        `held` or `note_read`."""
        if is_catch_up:
            return self._catch_up.get(chunk) or self._tail.get(chunk) or self._fresh.get(chunk)
        return self._fresh.get(chunk) or self._tail.get(chunk) or self._catch_up.get(chunk)

    def note_read(self, chunks: Collection[ChunkBytes], *, is_catch_up: bool) -> None:
        """Count chunks that `peek` returned and a reader got. None of them may be one that this agent uploaded
        recently."""
        if chunks:
            size = sum(chunk.size for chunk in chunks)
            self._observer.chunk_read(Tier.MEMORY, size, is_catch_up=is_catch_up, chunks=len(chunks))

    async def get(self, chunk: ChunkRef, *, is_catch_up: bool = False) -> ChunkBytes:
        """Return the chunk from the nearest tier that has it.

        Raises ObjectMissing, StoreUnavailable, StoreRefused; ObjectCorrupt if the object ends before the chunk does.
        """
        held = self.held(chunk, is_catch_up=is_catch_up)
        if held is not None:
            return held
        loaded = await self.get_all([(chunk, is_catch_up)])
        if isinstance(loaded[0], BaseException):
            raise loaded[0]
        return loaded[0]

    async def get_all(self, missing: Sequence[tuple[ChunkRef, bool]]) -> list[ChunkBytes | BaseException]:
        """Fetch chunks that are not in memory, concurrently. Each comes with whether a catch-up reader wants it. The
        result has the error in place of a chunk that could not be fetched."""
        flights = [self._load(chunk, is_catch_up) for chunk, is_catch_up in missing]
        for chunk, _ in missing:
            self._prefetched.pop(chunk.id, None)
        await asyncio.wait(flights)
        loaded: list[ChunkBytes | BaseException] = []
        for flight, (_, is_catch_up) in zip(flights, missing, strict=True):
            error = asyncio.CancelledError() if flight.cancelled() else flight.exception()
            if error is not None:
                loaded.append(error)
                continue
            chunk_bytes, tier = flight.result()
            self._observer.chunk_read(tier, chunk_bytes.size, is_catch_up=is_catch_up)
            loaded.append(chunk_bytes)
        return loaded

    def serve(self, chunk: ChunkRef, *, is_catch_up: bool) -> ChunkBytes | asyncio.Task[_Loaded]:
        """Return the chunk for a peer: from memory, or as the shared task that reads it from the store (await it
        shielded).

        The request of a peer is never passed on to another peer, so agents with different rings can't form a loop.
        """
        held = self.peek(chunk.id)
        return held if held is not None else self._load_from_store(chunk, is_catch_up)

    async def reread(self, chunk: ChunkRef) -> ChunkBytes:
        """Read the chunk from the store even if it is in memory: for bytes that turned out to be corrupt."""

        async def fetch() -> ChunkBytes:
            async with self._tail_gets.passing(("again", chunk.id)):
                fetched = await self._fetch(chunk)
            self.forget(chunk.id)
            self._put_tail(chunk.id, fetched)
            return fetched

        return await self._again.do(chunk.id, fetch)

    def write_through(self, key: str, parts: Sequence[Buffer]) -> None:
        """Add an object that was just uploaded. `parts` are kept without a copy, so they must not change any more.

        The whole object stays for a while for the readers of this agent. The chunks that this agent owns then move to
        the tail share.
        """
        for index, chunk in enumerate(cut(parts, self.settings.chunk_bytes)):
            for old, fresh, _ in self._fresh.put(ChunkId(key, index), chunk, chunk.size):
                if old not in self._tail and self._ring().is_mine(old):
                    self._put_tail(old, fresh.without_waste())
            self._take_back()

    def has(self, chunk: ChunkId) -> bool:
        """Whether the chunk is in memory or being fetched."""
        is_held = chunk in self._fresh or chunk in self._tail or chunk in self._catch_up
        return is_held or chunk in self._from_store or chunk in self._from_peer or chunk in self._ahead

    def is_fresh(self, chunk: ChunkId) -> bool:
        """Whether this agent uploaded the chunk recently, so that its readers cost no request."""
        return chunk in self._fresh

    def is_unread(self, chunk: ChunkId) -> bool:
        """Whether the chunk was or is being read ahead and no reader has asked for it yet."""
        return chunk in self._prefetched or self._catch_up.is_unread(chunk)

    def read_ahead(self, chunk: ChunkRef) -> asyncio.Task[ChunkBytes] | None:
        """Begin to fetch a chunk before a reader asks for it. Return None if there is no room, which means that readers
        are behind.

        Chunks read ahead take at most half of the catch-up share, so that a chunk stays until all partitions in it were
        read. The cache owns the task: don't cancel it.
        """
        unread = sum(self._prefetched.values()) + self._catch_up.unread_bytes
        if unread + chunk.length > self._catch_up_share // 2:
            return None
        self._prefetched[chunk.id] = chunk.length
        task = asyncio.create_task(self._fetch_ahead(chunk), name=f"read ahead {chunk.id}")
        self._ahead[chunk.id] = task
        task.add_done_callback(lambda done: self._arrived_ahead(chunk.id, done))
        return task

    def give_up(self, chunk: ChunkId) -> None:
        """Drop a chunk that was read ahead, if no reader has asked for it."""
        self._prefetched.pop(chunk, None)
        if self._catch_up.is_unread(chunk):
            self._catch_up.remove(chunk)

    def forget(self, chunk: ChunkId) -> None:
        """Drop a chunk from memory and disk."""
        if self._disk is not None:
            self._disk.remove(chunk)
        self._fresh.remove(chunk)
        self._tail.remove(chunk)
        self._catch_up.remove(chunk)

    async def close(self) -> None:
        """Cancel and await the requests in progress."""
        await cancel_and_wait(*self._ahead.values())
        await self._from_peer.close()
        await self._from_store.close()
        await self._again.close()

    def _load(self, chunk: ChunkRef, is_catch_up: bool) -> asyncio.Task[_Loaded]:
        owner = self._peer_of(chunk.id)
        if owner is None or (self._disk is not None and self._disk.has(chunk.id)):
            return self._load_from_store(chunk, is_catch_up)
        if not is_catch_up:
            self._catch_up_peer_reads.promote(chunk.id)
            self._catch_up_gets.promote(chunk.id)
        return self._from_peer.start(chunk.id, lambda: self._ask_peer(owner, chunk, is_catch_up))

    def _peer_of(self, chunk: ChunkId) -> Member | None:
        """Return the agent to ask for the chunk; None if this agent reads it from the store itself."""
        if self._peers is None:
            return None
        ring = self._ring()
        owner = ring.owner(chunk)
        return None if owner is None or owner.broker_id == ring.broker_id else owner

    def _load_from_store(self, chunk: ChunkRef, is_catch_up: bool) -> asyncio.Task[_Loaded]:
        """Start to read the chunk from this agent's disk or the store; return the flight."""
        flight = self._from_store.start(chunk.id, lambda: self._ask_store(chunk, is_catch_up))
        if not is_catch_up:
            self._catch_up_gets.promote(chunk.id)
        return flight

    async def _ask_peer(self, owner: Member, chunk: ChunkRef, is_catch_up: bool) -> _Loaded:
        try:
            data = await self._read_peer(owner, chunk, is_catch_up)
        except PeerUnavailable as error:
            self._observer.peer_failed(owner.broker_id, str(error))
            return await asyncio.shield(self._load_from_store(chunk, is_catch_up))
        except ObjectMissing as error:  # it may use another bucket by mistake
            found = await asyncio.shield(self._load_from_store(chunk, is_catch_up))
            self._observer.peer_failed(owner.broker_id, f"{error}; this agent finds it in its own store")
            return found
        loaded = ChunkBytes([data])
        self._keep(chunk.id, loaded, is_catch_up)
        return loaded, Tier.PEER

    async def _read_peer(self, owner: Member, chunk: ChunkRef, is_catch_up: bool) -> Buffer:
        assert self._peers is not None
        if is_catch_up:
            async with self._catch_up_peer_reads.passing(chunk.id):
                data = await self._peers.read(owner, chunk, is_catch_up=True)
        else:
            data = await self._peers.read(owner, chunk, is_catch_up=False)
        if len(data) != chunk.length:
            raise PeerUnavailable(
                f"agent {owner.broker_id} sent {len(data)} bytes for a chunk of {chunk.length}"
            )
        return data

    async def _ask_store(self, chunk: ChunkRef, is_catch_up: bool) -> _Loaded:
        if self._disk is not None and (found := await self._disk.read(chunk)) is not None:
            self._keep(chunk.id, found, is_catch_up)
            return found, Tier.DISK
        gate = self._catch_up_gets if is_catch_up else self._tail_gets
        async with gate.passing(chunk.id):
            fetched = await self._fetch(chunk)
        self._keep(chunk.id, fetched, is_catch_up)
        return fetched, Tier.STORE

    async def _fetch(self, chunk: ChunkRef) -> ChunkBytes:
        data = await self._store.get_range(chunk.id.key, chunk.start, chunk.length)
        if len(data) != chunk.length:  # a store may cut its answer
            data = await self._store.get_range(chunk.id.key, chunk.start, chunk.length)
        if len(data) != chunk.length:
            raise ObjectCorrupt(
                chunk.id.key, chunk.start, chunk.length, f"the object ends after {len(data)} of them"
            )
        return ChunkBytes.fetched(data)

    def _keep(self, chunk: ChunkId, data: ChunkBytes, is_catch_up: bool) -> None:
        if is_catch_up:
            is_read = self._prefetched.pop(chunk, None) is None
            free = self.settings.memory_bytes - self._fresh.bytes_held - self._tail.bytes_held
            self._catch_up.budget_bytes = max(self._catch_up_share, free)
            self._catch_up.put(chunk, data, data.size, is_read=is_read)
            self._take_back()
        else:
            self._put_tail(chunk, data)

    def _put_tail(self, chunk: ChunkId, data: ChunkBytes) -> None:
        free = self.settings.memory_bytes - self._fresh.bytes_held - self._catch_up.bytes_held
        self._tail.budget_bytes = max(self._tail_share, free)
        self._tail.put(chunk, data, data.size)
        self._take_back()

    def _offer(self, chunk: ChunkId, data: ChunkBytes, *, is_old: bool) -> None:
        """Offer the disk a chunk that leaves memory, if this agent owns the chunk."""
        if self._disk is not None and self._peer_of(chunk) is None:
            self._disk.offer(chunk, data, is_old=is_old)

    def _take_back(self) -> None:
        """Evict chunks that borrow from a share whose owner now needs its memory."""
        excess = self.bytes_held - self.settings.memory_bytes
        if excess > 0:
            self._catch_up.shrink_to(max(self._catch_up_share, self._catch_up.bytes_held - excess))
            excess = self.bytes_held - self.settings.memory_bytes
        if excess > 0:
            self._tail.shrink_to(max(self._tail_share, self._tail.bytes_held - excess))

    async def _fetch_ahead(self, chunk: ChunkRef) -> ChunkBytes:
        loaded, _ = await asyncio.shield(self._load(chunk, True))
        return loaded

    def _arrived_ahead(self, chunk: ChunkId, task: asyncio.Task[ChunkBytes]) -> None:
        del self._ahead[chunk]
        self._prefetched.pop(chunk, None)
        if not task.cancelled():
            error = task.exception()  # no reader waits for it yet: the next reader meets the error again
            assert error is None or isinstance(error, StoreError), error
