"""A cluster in one process whose database can be lost: real objects, a committer with checkpoints, and the acknowledged
batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from sequencer.api.agents import AgentInfo
from sequencer.api.commits import (
    BatchStatus,
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
)
from sequencer.api.reads import FindPartition, FindRequest, Run
from sequencer.api.topics import CreateTopic, Topic
from sequencer.checkpoint.checkpointer import Checkpointer
from sequencer.engine.committer import Committer
from sequencer.recovery.recover import recover
from sequencer.recovery.report import RecoveryReport
from sequencer.settings import SequencerSettings
from sequencer.store.rows import Row
from tailrace.batches.mixed_object import SealedObject, coordinates, seal
from tailrace.batches.record_batch import assemble, read_header
from tailrace.ids import TopicPartition
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.hooked_rows import HookedRowStore
from tests.support.row_samples import changes

SETTINGS = SequencerSettings(
    session_lease_ms=10_000_000, checkpoint_interval_ms=1_000, default_retention_ms=-1
)
AGENT = AgentInfo("h", 1, "h", 0, 0, "z", "1", SeededEntropy(1).uuid())
RESERVATION = 1_000


@dataclass(frozen=True)
class Batch:
    """A producer's batch; `name` identifies its records."""

    name: str
    records: int = 1
    producer_id: int = -1
    sequence: int = -1
    epoch: int = 0
    is_transactional: bool = False

    @property
    def bytes(self) -> bytes:
        return assemble(
            self.name.encode().ljust(8, b"."),
            attributes=0x10 if self.is_transactional else 0,
            record_count=self.records,
            last_offset_delta=self.records - 1,
            base_timestamp=5,
            max_timestamp=5,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if self.producer_id >= 0 else -1,
            base_sequence=self.sequence,
        )


@dataclass
class LosableCluster:
    """`told` has the acknowledged batches, by (topic, partition, name)."""

    clock: ManualClock = field(default_factory=ManualClock)
    entropy: SeededEntropy = field(default_factory=lambda: SeededEntropy(5))
    interval_ms: int = 1_000
    number: int = 0
    told: dict[tuple[str, int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = HookedRowStore(self.clock, cluster_id="c")
        self.bucket = MemoryStore(self.clock)
        self.session: SessionGrant
        self.sequencer: Committer
        self.checkpointer: Checkpointer
        self.topics: dict[str, Topic] = {}

    async def lead(self) -> None:
        self.checkpointer = Checkpointer(
            self.bucket, self.rows, self.clock, interval_ms=self.interval_ms, reservation=RESERVATION
        )
        self.sequencer = Committer(
            self.rows, self.clock, self.entropy, SETTINGS, checkpointer=self.checkpointer
        )
        await self.sequencer.start()
        await self.checkpointer.export()
        await self.join()

    async def join(self) -> None:
        """Register the agent and open its upload session."""
        agent = await self.sequencer.register_agent(AGENT)
        self.session = await self.sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))
        self.number = 0

    async def make_topic(self, name: str, partitions: int = 1) -> Topic:
        made = asyncio.ensure_future(self.sequencer.create_topic(CreateTopic(name, partitions, {"a": name})))
        while not made.done():
            await asyncio.sleep(0)
            await self.checkpointer.export()
        self.topics[name] = await made
        return self.topics[name]

    async def checkpoint(self) -> None:
        for _ in range(4):
            await self.checkpointer.export()
            for _ in range(20):
                await asyncio.sleep(0)

    async def upload(self, runs: Sequence[tuple[str, int, Sequence[Batch]]]) -> tuple[SealedObject, str]:
        sealed = seal(
            [
                (
                    TopicPartition(self.topics[topic].topic_id, partition),
                    topic,
                    [(coordinates(read_header(batch.bytes)), [batch.bytes]) for batch in batches],
                )
                for topic, partition, batches in runs
            ],
            object_id=self.entropy.uuid(),
            session_id=self.session.session_id,
            number=self.number,
            created_ms=self.clock.wall_ms(),
        )
        key = f"{self.session.prefix}{self.number:012d}"
        await self.bucket.put(key, sealed.parts)
        self.number += 1
        return sealed, key

    async def write(
        self, topic: str, *batches: Batch, partition: int = 0, transactions: Sequence[int] = ()
    ) -> None:
        sealed, key = await self.upload([(topic, partition, batches)])
        described = ObjectDescription(
            sealed.footer.object_id, ObjectKind.MIXED, key, sealed.size, sealed.crc, sealed.footer.data_length,
            sealed.footer.created_ms,
        )  # fmt: skip
        proposals = [
            RunProposal(run.topic_id, run.partition, run.start, run.length, run.batches, list(transactions))
            for run in sealed.footer.runs
        ]
        answer = await self.sequencer.commit(
            CommitRequest(self.session.session_id, sealed.footer.number, 0, described, proposals)
        )
        for batch, outcome in zip(batches, answer.runs[0].outcomes, strict=True):
            if outcome.base_offset >= 0:
                self.told[topic, partition, batch.name] = outcome.base_offset

    async def lose_database(self) -> None:
        """Kill the committer together with its database."""
        self.rows = HookedRowStore(self.clock, cluster_id="new")

    async def recover(self, *, is_watched: bool = False) -> RecoveryReport:
        return await recover(
            self.bucket, self.rows, self.clock, holder="r", settings=SETTINGS, is_watched=is_watched
        )

    async def runs(self, topic: str, partition: int = 0) -> list[Run]:
        """Return the runs of a partition, and check that they cover it from the log start to the end without holes."""
        topic_id = self.topics[topic].topic_id
        ends = await self.sequencer.find_batches(
            FindRequest([FindPartition(topic_id, partition, 0, 1 << 30)])
        )
        at = ends.partitions[0].log_start_offset
        answer = await self.sequencer.find_batches(
            FindRequest([FindPartition(topic_id, partition, at, 1 << 30)])
        )
        found = answer.partitions[0]
        for run in found.runs:
            assert run.base_offset == at, f"{run.base_offset} follows {at}"
            at = run.end_offset
        assert at == found.high_watermark
        return found.runs

    async def read(self, topic: str, partition: int = 0) -> dict[str, int]:
        """Return the offset of every stored batch, by name."""
        found: dict[str, int] = {}
        for run in await self.runs(topic, partition):
            if run.kind is ObjectKind.MARKERS:
                continue
            data, start = await self.bucket.get(run.key), run.start
            for batch in run.batches:
                if batch.status is BatchStatus.STORED:
                    name = data[start + 61 : start + 69].decode().rstrip(".")
                    assert name not in found, f"{name} twice"
                    found[name] = batch.base_offset
                start += batch.length
        return found

    async def plant(self, *rows: Row) -> None:
        """Write rows directly, without the committer."""
        await self.rows.write(changes(*rows), self.sequencer.epoch)
