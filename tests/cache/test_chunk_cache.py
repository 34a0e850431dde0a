"""One GET for each chunk and zone, and a way out where a peer is none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from cache.chunk import ChunkId, ChunkRef, chunks_of
from cache.chunk_cache import ChunkCache
from cache.observer import CacheObserver, Tier
from cache.peer import ChunkAnswer, ChunkStatus, PeerClients, PeerLink, PeerServer
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import AgentInfo, Member, Ring
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.api import ObjectMissing, StoreUnavailable
from tailrace.object_store.memory import MemoryStore
from tailrace.rpc import LinkDown, RpcClient, RpcServer, TcpLink, decode_body, encode_body
from tests.cache.test_chunk import bytes_of
from tests.support.clocks import ManualClock

KEY = "c/mixed/ab/1"
SETTINGS = CacheSettings(chunk_bytes=100, memory_bytes=100_000, peer_timeout_s=0.1)
OBJECT = bytes(range(256)) * 5
PATIENT = SETTINGS.changed(peer_timeout_s=60.0)
"""Where no peer is to be given up, however busy the machine."""
CHUNKS = chunks_of(KEY, 0, len(OBJECT), len(OBJECT), 100)


class CountingStore(MemoryStore):
    """Counts ranged GETs and can be held."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.gets: Counter[tuple[str, int]] = Counter()
        self.at_once = 0
        self.most_at_once = 0
        self.open = asyncio.Event()
        self.open.set()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets[key, start] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            await self.open.wait()
            return await super().get_range(key, start, length)
        finally:
            self.at_once -= 1


@dataclass
class Counted(CacheObserver):
    """Counts chunks by tier."""

    tiers: Counter[Tier] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    bypassed: int = 0

    def framed_read(self, length: int) -> None: ...

    def chunk_read(self, tier: Tier, length: int, *, is_catch_up: bool, chunks: int = 1) -> None:
        self.tiers[tier] += chunks

    def peer_failed(self, broker_id: int, reason: str) -> None:
        self.failed.append(reason)

    def peer_bypassed(self, broker_id: int) -> None:
        self.bypassed += 1


def member(broker_id: int, zone: str = "a", port: int = 7000) -> Member:
    info = AgentInfo("h", 9092, "127.0.0.1", port, 9644, zone, "1", UUID(int=broker_id))
    return Member(broker_id, 1, info, False)


@dataclass
class DirectLink:
    """A peer in the same process, through the same bytes as over a socket. `is_pending`: one answer was PENDING."""

    server: PeerServer
    is_pending: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(
        self, method: str, request: Any, response_type: type[Any], timeout_s: float
    ) -> tuple[Any, memoryview]:
        body, tail = await self.server.handle(method, memoryview(encode_body(request)))
        answer = decode_body(body, response_type)
        if answer.status is ChunkStatus.PENDING:
            self.is_pending.set()
        return answer, memoryview(b"".join(tail))

    async def close(self) -> None:
        """Nothing to close."""


@dataclass
class SilentLink:
    """A peer that never answers."""

    calls: int = 0

    async def call(
        self, method: str, request: Any, response_type: type[Any], timeout_s: float
    ) -> tuple[Any, memoryview]:
        self.calls += 1
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        """Nothing to close."""


@dataclass
class Agent:
    cache: ChunkCache
    counted: Counted


def cluster(
    store: MemoryStore,
    zones: list[str],
    of: CacheSettings = PATIENT,
    is_pending: asyncio.Event | None = None,
) -> list[Agent]:
    members = [member(number, zone) for number, zone in enumerate(zones)]
    ring = Ring(1, members)
    agents: dict[int, Agent] = {}

    def connect(to: Member) -> PeerLink:
        return DirectLink(PeerServer(agents[to.broker_id].cache), is_pending or asyncio.Event())

    for each in members:
        seen, counted = ZoneRing(ring, each.info.zone, each.broker_id), Counted()
        peers = PeerClients(connect, SystemClock(), of, counted)
        cache = ChunkCache(store, of, lambda seen=seen: seen, peers, counted)  # type: ignore[misc]
        agents[each.broker_id] = Agent(cache, counted)
    return list(agents.values())


def two_agents(
    store: MemoryStore, connect: Callable[[Member], PeerLink], clock: ManualClock | SystemClock
) -> tuple[ChunkCache, Counted, ChunkRef]:
    """The cache of agent 0, and a chunk that agent 1 owns."""
    seen, counted = ZoneRing(Ring(1, [member(0), member(1)]), "a", 0), Counted()
    cache = ChunkCache(store, SETTINGS, lambda: seen, PeerClients(connect, clock, SETTINGS, counted), counted)
    return cache, counted, next(chunk for chunk in CHUNKS if not seen.is_mine(chunk.id))


async def test_twenty_consumers_on_four_agents_in_two_zones_cost_one_get_per_chunk_and_zone() -> None:
    store = CountingStore()
    keys = [f"c/mixed/ab/{number}" for number in range(5)]
    for key in keys:
        await store.put(key, [OBJECT])
    agents = cluster(store, ["a", "a", "b", "b"])
    chunks = [chunk for key in keys for chunk in chunks_of(key, 0, len(OBJECT), len(OBJECT), 100)]

    async def consume(number: int) -> bytes:
        cache = agents[number % 4].cache
        got = [await cache.get(chunk, is_catch_up=number % 3 == 0) for chunk in chunks]
        return b"".join(map(bytes_of, got))

    assert set(await asyncio.gather(*(consume(number) for number in range(20)))) == {OBJECT * 5}
    assert sum(store.gets.values()) == len(chunks) * 2
    assert set(store.gets.values()) == {2}
    read = sum((agent.counted.tiers for agent in agents), Counter[Tier]())
    assert read.total() == 20 * len(chunks)
    assert read[Tier.PEER] > 0
    assert not any(agent.counted.failed for agent in agents)


async def test_a_peer_that_hangs_is_passed_by_with_a_direct_get_and_after_some_times_not_asked() -> None:
    store, clock, link = CountingStore(), ManualClock(), SilentLink()
    await store.put(KEY, [OBJECT])
    cache, counted, chunk = two_agents(store, lambda _: link, clock)

    for times in range(1, 6):
        cache.forget(chunk.id)
        got = await cache.get(chunk)
        assert bytes_of(got) == OBJECT[chunk.start : chunk.start + 100]
        assert link.calls == min(times, SETTINGS.peer_failures)
    assert counted.bypassed == 2

    clock.advance(SETTINGS.peer_bypass_s)
    cache.forget(chunk.id)
    await cache.get(chunk)
    assert link.calls == SETTINGS.peer_failures + 1


async def test_a_peer_whose_store_is_slow_is_waited_for_and_the_chunk_read_once() -> None:
    store = CountingStore()
    await store.put(KEY, [OBJECT])
    is_pending = asyncio.Event()
    first, second = cluster(store, ["a", "a"], SETTINGS.changed(peer_timeout_s=2.0), is_pending)
    store.open.clear()
    reads = [asyncio.create_task(agent.cache.get(chunk)) for agent in (first, second) for chunk in CHUNKS]
    await is_pending.wait()
    store.open.set()
    await asyncio.gather(*reads)

    assert set(store.gets.values()) == {1}
    assert not first.counted.failed + second.counted.failed


async def test_a_lost_connection_an_error_and_a_wrong_answer_all_end_in_a_direct_get() -> None:
    class Broken(SilentLink):
        async def call(
            self, method: str, request: Any, response_type: type[Any], timeout_s: float
        ) -> tuple[Any, memoryview]:
            self.calls += 1
            if self.calls == 1:
                raise LinkDown("refused")
            status = ChunkStatus.FAILED if self.calls == 2 else ChunkStatus.FOUND
            return ChunkAnswer(1, status, "no"), memoryview(b"short")

    store = CountingStore()
    await store.put(KEY, [OBJECT])
    cache, counted, chunk = two_agents(store, lambda _, link=Broken(): link, ManualClock())  # type: ignore[misc]  # noqa: B008
    for _ in range(3):
        cache.forget(chunk.id)
        assert (await cache.get(chunk)).size == 100
    assert len(counted.failed) == 3
    assert counted.tiers == {Tier.STORE: 3}


async def test_agents_that_each_take_the_other_for_the_owner_still_get_their_bytes() -> None:
    store = CountingStore()
    await store.put(KEY, [OBJECT])
    caches: list[ChunkCache] = []

    def connect_to(number: int) -> Callable[[Member], PeerLink]:
        return lambda _: DirectLink(PeerServer(caches[number]))

    for me, other in ((0, 1), (1, 0)):
        wrong = ZoneRing(Ring(1, [member(other)]), "a", me)
        peers = PeerClients(connect_to(other), SystemClock(), PATIENT)
        caches.append(ChunkCache(store, SETTINGS, lambda wrong=wrong: wrong, peers))  # type: ignore[misc]

    got = await asyncio.gather(*(cache.get(CHUNKS[0]) for cache in caches))
    assert [bytes_of(each) for each in got] == [OBJECT[:100]] * 2
    assert store.gets.total() <= 2


async def test_a_missing_object_is_missing_through_a_peer_too_and_is_not_remembered() -> None:
    store = CountingStore()
    agents = cluster(store, ["a", "a"])
    for agent in agents:
        with pytest.raises(ObjectMissing):
            await agent.cache.get(CHUNKS[0])
    await store.put(KEY, [OBJECT])
    for agent in agents:
        assert (await agent.cache.get(CHUNKS[0])).size == 100


async def test_an_object_that_only_a_peer_misses_is_read_from_the_store() -> None:
    agents = cluster(CountingStore(), ["a", "a"])
    store = agents[0].cache._store = CountingStore()  # the other agent has another bucket
    await store.put(KEY, [OBJECT])
    for chunk in CHUNKS:
        assert bytes_of(await agents[0].cache.get(chunk)) == OBJECT[chunk.start :][: chunk.length]
    failed = agents[0].counted.failed
    assert 0 < len(failed) < len(CHUNKS) and all("finds it in its own store" in why for why in failed)


async def test_a_fresh_object_is_read_without_a_get_and_what_is_owned_outlives_its_freshness() -> None:
    store, counted = CountingStore(), Counted()
    alone = ZoneRing(Ring(1, [member(0)]), "a", 0)
    of = SETTINGS.changed(memory_bytes=8000)
    cache = ChunkCache(store, of, lambda: alone, None, counted)
    cache.write_through(KEY, [OBJECT[:333], memoryview(OBJECT)[333:]])
    assert b"".join([bytes_of(await cache.get(chunk)) for chunk in CHUNKS]) == OBJECT
    assert counted.tiers == {Tier.FRESH: len(CHUNKS)}

    cache.write_through("c/other", [OBJECT])
    for chunk in CHUNKS:
        assert (await cache.get(chunk)).is_trusted
    assert not store.gets
    assert counted.tiers[Tier.MEMORY] > 0
    assert cache.bytes_held <= 8000


async def test_catch_up_never_pushes_out_the_tail_and_has_its_own_limit_of_gets() -> None:
    store = CountingStore()
    alone = ZoneRing(Ring(1, []), "a", 0)
    cache = ChunkCache(store, SETTINGS.changed(memory_bytes=5000, catch_up_gets=3), lambda: alone)
    await store.put(KEY, [OBJECT])
    for chunk in CHUNKS:
        await cache.get(chunk)
    await store.put("old", [OBJECT * 20])
    old = chunks_of("old", 0, len(OBJECT) * 20, len(OBJECT) * 20, 100)
    store.most_at_once = 0
    await asyncio.gather(*(cache.get(chunk, is_catch_up=True) for chunk in old))

    assert store.most_at_once == 3
    assert all(cache.held(chunk) is not None for chunk in CHUNKS)
    assert cache.bytes_held <= 5000


async def test_the_tail_does_not_wait_behind_catch_up_readers_of_the_same_chunk() -> None:
    store = CountingStore()
    await store.put(KEY, [OBJECT])
    alone = ZoneRing(Ring(1, []), "a", 0)
    cache = ChunkCache(store, SETTINGS.changed(catch_up_gets=1), lambda: alone)
    store.open.clear()
    old = [asyncio.create_task(cache.get(chunk, is_catch_up=True)) for chunk in CHUNKS]
    for _ in range(3):
        await asyncio.sleep(0)
    assert store.at_once == 1
    tail = asyncio.create_task(cache.get(CHUNKS[-1]))
    for _ in range(3):
        await asyncio.sleep(0)
    assert store.at_once == 2
    store.open.set()
    await asyncio.gather(tail, *old)
    assert set(store.gets.values()) == {1}


async def test_a_failed_get_fails_all_who_wait_and_the_next_tries_again() -> None:
    class Failing(CountingStore):
        async def get_range(self, key: str, start: int, length: int) -> bytes:
            self.gets[key, start] += 1
            await asyncio.sleep(0)
            if self.gets[key, start] == 1:
                raise StoreUnavailable("503")
            return await super().get_range(key, start, length)

    store = Failing()
    await store.put(KEY, [OBJECT])
    cache = ChunkCache(store, SETTINGS, lambda: ZoneRing(Ring(1, []), "a", 0))
    outcomes = await asyncio.gather(*(cache.get(CHUNKS[0]) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert (await cache.get(CHUNKS[0])).size == 100


async def test_an_answer_that_was_cut_is_read_once_more() -> None:
    class CuttingStore(CountingStore):
        async def get_range(self, key: str, start: int, length: int) -> bytes:
            data = await super().get_range(key, start, length)
            return data[:-1] if self.gets[key, start] == 1 else data

    store = CuttingStore()
    await store.put(KEY, [OBJECT])
    cache = ChunkCache(store, SETTINGS, lambda: ZoneRing(Ring(1, []), "a", 0))
    assert bytes_of(await cache.get(CHUNKS[0])) == OBJECT[:100]
    assert store.gets[KEY, 0] == 2
    await cache.close()


async def test_a_peer_refuses_another_chunk_size() -> None:
    store = CountingStore()
    await store.put(KEY, [OBJECT])
    other = ChunkCache(store, SETTINGS.changed(chunk_bytes=64), lambda: ZoneRing(Ring(1, []), "a", 1))
    link = DirectLink(PeerServer(other))
    cache, counted, chunk = two_agents(store, lambda _: link, SystemClock())
    assert bytes_of(await cache.get(chunk)) == OBJECT[chunk.start : chunk.start + 100]
    assert "chunk_bytes is 64" in counted.failed[0]


async def test_closing_ends_what_is_under_way() -> None:
    store = CountingStore()
    store.open.clear()
    cache = ChunkCache(store, SETTINGS, lambda: ZoneRing(Ring(1, []), "a", 0))
    waiter = asyncio.create_task(cache.get(CHUNKS[0]))
    for chunk in CHUNKS[1:]:
        cache.read_ahead(chunk)
    await asyncio.sleep(0)
    await cache.close()
    assert store.at_once == 0
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_chunks_travel_over_a_real_connection() -> None:
    store, clock, entropy = CountingStore(), SystemClock(), SystemEntropy()
    await store.put(KEY, [OBJECT])
    owner = ChunkCache(store, SETTINGS, lambda: ZoneRing(Ring(1, []), "a", 1))
    owner.write_through(KEY, [OBJECT[:150], OBJECT[150:]])
    server = RpcServer(PeerServer(owner).handle, clock=clock, entropy=entropy)
    await server.listen("127.0.0.1", 0)
    client = RpcClient(TcpLink(f"127.0.0.1:{server.port}"), clock=clock, entropy=entropy)
    peers = PeerClients(lambda _: client, clock, PATIENT)
    got = await peers.read(member(1), ChunkRef(ChunkId(KEY, 1), 100, 100), is_catch_up=False)
    assert got == OBJECT[100:200]
    assert not store.gets
    await peers.close()
    await server.close()
    await owner.close()
