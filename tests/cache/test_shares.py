"""The cache's shares of memory: lent while they are not used, taken back when they are; and the bench of its policy."""

from __future__ import annotations

import asyncio
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cache_traces import CHUNK_BYTES, OLD, TAIL, UPLOAD, Event, hits_of_lru, hits_of_ours, most_hits
from cache.chunk import ChunkId, ChunkRef
from cache.chunk_cache import ChunkCache
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import AgentInfo, Member, Ring
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock

CHUNKS = 20
ALONE = ZoneRing(
    Ring(1, [Member(1, 1, AgentInfo("", 0, "", 0, 0, "a", "0", UUID(int=1)), False)]), zone="a", broker_id=1
)
EVENTS = st.lists(st.builds(Event, st.sampled_from([UPLOAD, TAIL, OLD]), st.integers(0, 60)), max_size=150)


class Bodies(MemoryStore):
    """A store that has every object."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return bytes(length)


class Watched:
    """A cache with room for CHUNKS, and the events of a trace."""

    def __init__(self) -> None:
        settings = CacheSettings(
            memory_bytes=CHUNKS * CHUNK_BYTES, chunk_bytes=CHUNK_BYTES, fresh_share=0.25, catch_up_share=0.35
        )
        self.cache = ChunkCache(Bodies(ManualClock()), settings, lambda: ALONE)

    async def do(self, kind: str, *chunks: int) -> None:
        for chunk in chunks:
            if kind == UPLOAD:
                self.cache.write_through(str(chunk), [bytes(CHUNK_BYTES)])
            else:
                await self.cache.get(ref(chunk), is_catch_up=kind == OLD)
            assert self.cache.bytes_held <= CHUNKS * CHUNK_BYTES

    def held(self, chunks: range) -> int:
        return sum(self.cache.peek(ref(chunk).id) is not None for chunk in chunks)


def ref(chunk: int) -> ChunkRef:
    return ChunkRef(ChunkId(str(chunk), 0), 0, CHUNK_BYTES)


async def test_readers_of_old_records_alone_have_all_of_the_memory() -> None:
    watched = Watched()
    await watched.do(OLD, *range(100))
    assert watched.held(range(80, 100)) == CHUNKS


async def test_exactly_the_borrowed_bytes_are_taken_back() -> None:
    watched = Watched()
    await watched.do(OLD, *range(100))
    await watched.do(UPLOAD, *range(1_000, 1_005))  # a quarter: the fresh share
    assert watched.held(range(100)) == 15
    await watched.do(TAIL, *range(2_000, 2_100))
    assert watched.held(range(100)) == 7, "the share of readers of old records is theirs"
    assert watched.held(range(1_000, 1_005)) == 5
    await watched.do(OLD, *range(100, 200))
    assert watched.held(range(2_000, 2_100)) == 8, "and that of the tail the tail's"


@settings(max_examples=50, deadline=None)
@given(events=EVENTS)
def test_whatever_is_read_and_uploaded_the_memory_is_never_exceeded(events: list[Event]) -> None:
    async def scenario() -> None:
        watched = Watched()
        for event in events:
            await watched.do(event.kind, event.chunk)

    asyncio.run(scenario())


@settings(max_examples=30, deadline=None)
@given(events=EVENTS, chunks=st.integers(4, 30))
def test_no_policy_hits_more_often_than_the_optimum(events: list[Event], chunks: int) -> None:
    most = most_hits(events, chunks)
    assert hits_of_lru(events, chunks) <= most
    assert asyncio.run(hits_of_ours(events, chunks)) <= most


def test_the_optimum_and_lru_of_a_loop_that_does_not_fit() -> None:
    loop = [Event(OLD, chunk) for _ in range(10) for chunk in range(4)]
    assert hits_of_lru(loop, 3) == 0
    # Three of the four stay, and hit in each of the nine rounds after the first.
    assert most_hits(loop, 3) == 27
