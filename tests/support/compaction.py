"""A log in a store and a sequencer, produced without an agent, and read back as a consumer would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

from cache.chunk_cache import ChunkCache
from cache.read_batches import ReadRequest
from cache.reader import BatchReader
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from compactor.cycle import CompactionSettings, CompactionSummary, InProcess, run_cycle
from sequencer.api.agents import AgentInfo, Ring
from sequencer.api.commits import (
    ANY_TRANSACTION,
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
    SessionRef,
)
from sequencer.api.errors import SessionClosed
from sequencer.api.interface import Sequencer
from sequencer.api.producers import InitProducer, ProducerGrant
from sequencer.api.reads import FindPartition, FindRequest, FoundPartition, Run
from sequencer.api.topics import CreateTopic, MetadataRequest, Topic
from sequencer.api.transactions import EndTransaction, TransactionRef
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from sequencer.store.sql.store import SqlRowStore
from tailrace.batches.mixed_object import BatchCoordinates, coordinates, seal
from tailrace.batches.record_batch import HEADER_BYTES, Compression, crc_of, read_header, split
from tailrace.batches.records import NewRecord, Record, decode_records, encode_batch
from tailrace.clock import Clock, SystemClock, SystemEntropy
from tailrace.ids import TopicPartition
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.memory import MemoryStore
from tailrace.object_store.open import open_store
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.consumer import JavaLikeConsumer

T0 = 1_700_000_000_000


async def compacted_here(log: Log, *, merges: bool = False) -> CompactionSummary:
    """Compact the whole log in this process. Without `merges` each call adds an object."""
    if isinstance(log.clock, ManualClock):
        log.clock.advance(0.01)  # the lease of the previous round ends
    runner = InProcess(log.store, log.clock, log.entropy)
    return await run_cycle(
        log.sequencer,
        runner,
        clock=log.clock,
        entropy=log.entropy,
        settings=CompactionSettings(min_bytes=1, min_age_ms=0, merges=merges),
        keyed=runner,
    )


def batch_of(
    values: Sequence[bytes],
    *,
    at: int = T0,
    codec: Compression = Compression.NONE,
    key: bytes = b"k",
    producer: Transacting | None = None,
) -> bytes:
    """One batch as a producer would send it; in the open transaction of `producer`, if given."""
    made = [NewRecord(key, value, (("h", value[:3]),)) for value in values]
    timestamps = [at + number for number in range(len(values))]
    if producer is None:
        return encode_batch(made, timestamps=timestamps, compression=codec)
    sequence = producer.sequence
    producer.sequence += len(values)
    return encode_batch(
        made,
        timestamps=timestamps,
        compression=codec,
        producer_id=producer.grant.producer_id,
        producer_epoch=producer.grant.producer_epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def unreadable_batch(values: Sequence[bytes], codec: Compression = Compression.NONE) -> bytes:
    """Make a batch whose CRC is right but whose records can't be decoded."""
    batch = bytearray(batch_of(values, codec=codec))
    batch[HEADER_BYTES:] = b"\xff" * (len(batch) - HEADER_BYTES)
    batch[17:21] = crc_of(batch).to_bytes(4, "big")
    return bytes(batch)


def change_log(database: str, store_url: str, change: Callable[[Log], Awaitable[None]]) -> None:
    """Open a log of a database and a folder, change it, and close it."""

    async def whole() -> None:
        clock, entropy = SystemClock(), SystemEntropy()
        sequencer = Committer(SqlRowStore(database, clock=clock, entropy=entropy), clock, entropy)
        await sequencer.start()
        store = open_store(store_url, clock=clock)
        try:
            log = Log(sequencer, store, clock, SeededEntropy(entropy.below(1 << 60)))
            known = (await log.sequencer.metadata(MetadataRequest())).topics or []
            log.topics = {topic.name: topic for topic in known}
            await change(log)
        finally:
            await sequencer.close()
            await store.close()

    asyncio.run(whole())


@asynccontextmanager
async def memory_log(settings: SequencerSettings | None = None) -> AsyncIterator[tuple[Log, ManualClock]]:
    """A log whose sequencer and store are in memory, and their clock, which starts at T0."""
    clock = ManualClock(T0)
    sequencer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1), settings or SequencerSettings())
    await sequencer.start()
    try:
        yield Log(sequencer, MemoryStore(clock), clock), clock
    finally:
        await sequencer.close()


@dataclass(slots=True)
class Transacting:
    """A producer with a transactional id (transaction version 2) that writes to one partition."""

    transactional_id: str
    grant: ProducerGrant
    sequence: int = 0


@dataclass(slots=True)
class Log:
    """Produces to and reads from one sequencer and store."""

    sequencer: Sequencer
    store: ObjectStore
    clock: Clock
    entropy: SeededEntropy = field(default_factory=lambda: SeededEntropy(77))
    topics: dict[str, Topic] = field(default_factory=dict)
    session: SessionGrant | None = None
    number: int = 0

    async def producer(self, transactional_id: str) -> Transacting:
        grant = await self.sequencer.init_producer(
            InitProducer(transactional_id=transactional_id, timeout_ms=60_000)
        )
        return Transacting(transactional_id, grant)

    async def finish(self, producer: Transacting, *, is_commit: bool) -> None:
        """End the producer's transaction."""
        named = TransactionRef(
            producer.transactional_id, producer.grant.producer_id, producer.grant.producer_epoch
        )
        producer.grant = await self.sequencer.end_transaction(EndTransaction(named, is_commit, True))
        producer.sequence = 0

    async def topic(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> Topic:
        self.topics[name] = await self.sequencer.create_topic(CreateTopic(name, partitions, configs or {}))
        return self.topics[name]

    async def produce(self, *batches: tuple[str, int, bytes]) -> ObjectDescription:
        """One mixed object of (topic, partition, batch)."""
        if self.session is not None:
            try:
                await self.sequencer.renew_session(SessionRef(self.session.session_id))
            except SessionClosed:  # a Spark job on a busy machine takes longer than a lease
                self.session, self.number = None, 0
        if self.session is None:
            info = AgentInfo("h", 1, "h", 0, 0, "a", "0", UUID(int=1))
            agent = await self.sequencer.register_agent(info)
            self.session = await self.sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))
        object_id = self.entropy.uuid()
        created_ms = self.clock.wall_ms()
        sealed = seal(
            [
                (
                    TopicPartition(self.topics[name].topic_id, partition),
                    name,
                    [(coordinates(read_header(data)), [data])],
                )
                for name, partition, data in batches
            ],
            object_id=object_id,
            session_id=self.session.session_id,
            number=self.number,
            created_ms=created_ms,
        )
        key = f"{self.session.prefix}{self.number}"
        await self.store.put(key, sealed.parts)
        described = ObjectDescription(
            object_id, ObjectKind.MIXED, key, sealed.size, sealed.crc, sealed.footer.data_length, created_ms
        )
        runs = [
            RunProposal(
                run.topic_id, run.partition, run.start, run.length, run.batches, _transactions(run.batches)
            )
            for run in sealed.footer.runs
        ]
        await self.sequencer.commit(
            CommitRequest(self.session.session_id, self.number, self.number, described, runs)
        )
        self.number += 1
        return described

    async def runs(self, name: str, partition: int = 0, offset: int = 0) -> list[Run]:
        topic_id = self.topics[name].topic_id
        found = await self.sequencer.find_batches(
            FindRequest([FindPartition(topic_id, partition, offset, 1 << 40)])
        )
        return found.partitions[0].runs

    async def found(self, name: str, partition: int = 0, offset: int = 0) -> FoundPartition:
        topic_id = self.topics[name].topic_id
        asked = FindPartition(topic_id, partition, offset, 1 << 40)
        return (await self.sequencer.find_batches(FindRequest([asked]))).partitions[0]

    async def consumed(self, name: str, partition: int = 0) -> list[Record]:
        """Return all records that a consumer with read_committed gets, fetch by fetch to the last stable offset."""
        with ThreadPoolExecutor(2) as pool:
            ring = ZoneRing(Ring(1, []), "a", 1)
            cache = ChunkCache(self.store, CacheSettings(), lambda: ring)
            reader = BatchReader(cache, self.clock, pool)
            consumer = JavaLikeConsumer(0)
            try:
                while True:
                    position = consumer.position
                    found = await self.found(name, partition, position)
                    if position == found.last_stable_offset:
                        return consumer.records
                    end_limit = found.last_stable_offset
                    request = ReadRequest(
                        offset=position, max_bytes=2_000, leader_epoch=0, end_limit=end_limit
                    )
                    got = await reader.read(found.runs, request)
                    overlapping = [
                        each
                        for each in found.aborted
                        if each.first_offset < got.end_offset and each.last_offset >= position
                    ]
                    consumer.take(b"".join(got.parts), overlapping)
                    assert consumer.position > position, "stuck"
            finally:
                await reader.close()
                await cache.close()

    async def replay(self, name: str, partition: int = 0, offset: int = 0) -> list[bytes]:
        """Return the partition's batches as a consumer gets them, with leader epoch 0."""
        with ThreadPoolExecutor(2) as pool:
            ring = ZoneRing(Ring(1, []), "a", 1)
            cache = ChunkCache(self.store, CacheSettings(), lambda: ring)
            reader = BatchReader(cache, self.clock, pool)
            try:
                request = ReadRequest(offset=offset, max_bytes=1 << 30, leader_epoch=0)
                got = await reader.read(await self.runs(name, partition, offset), request)
                assert got.is_complete
                return [bytes(batch) for _, batch in split(memoryview(b"".join(got.parts)))]
            finally:
                await reader.close()
                await cache.close()

    async def records(self, name: str, partition: int = 0) -> list[Record]:
        """Return all records of the partition."""
        return [record for batch in await self.replay(name, partition) for record in decode_records(batch)]


def _transactions(batches: Iterable[BatchCoordinates]) -> list[int]:
    asked = [ANY_TRANSACTION if batch.is_transactional else 0 for batch in batches]
    return asked if any(asked) else []
