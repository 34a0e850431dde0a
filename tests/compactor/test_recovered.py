"""A log that was compacted, lost, recovered and compacted again: readers pass its hole, and the audit finds nothing."""

from __future__ import annotations

import asyncio
import re

from compactor.cycle import CompactionSettings, InProcess, run_cycle
from sequencer.api.commits import ObjectKind
from sequencer.api.retention import GarbageRequest
from sequencer.checkpoint.checkpointer import Checkpointer
from sequencer.collector import collect
from sequencer.engine.committer import Committer
from sequencer.recovery.audit import AuditSettings, audit
from sequencer.recovery.recover import recover
from sequencer.store.memory import MemoryRowStore
from sequencer.store.rows import ObjectRow
from tailrace.clock import SystemClock
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import Log, batch_of
from tests.support.patience import PATIENCE_SECONDS

ALL = CompactionSettings(min_bytes=1, min_age_ms=0)
RESERVATION = 10_000


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.rows = MemoryRowStore(self.clock, cluster_id="c")
        self.entropy = SeededEntropy(1)
        self.log: Log
        self.checkpointer: Checkpointer

    async def lead(self) -> None:
        self.checkpointer = Checkpointer(
            self.store, self.rows, self.clock, interval_ms=1_000, reservation=RESERVATION
        )
        sequencer = Committer(self.rows, self.clock, self.entropy, checkpointer=self.checkpointer)
        await sequencer.start()
        await self.checkpointer.export()
        topics = self.log.topics if hasattr(self, "log") else {}
        self.log = Log(sequencer, self.store, self.clock, SeededEntropy(self.entropy.below(1 << 30)), topics)

    async def make_topic(self) -> None:
        """Make the topic `t`, which waits for a checkpoint."""
        made = asyncio.ensure_future(self.log.topic("t"))
        while not made.done():
            await asyncio.sleep(0)
            await self.checkpointer.export()

    async def checkpoint(self) -> None:
        for _ in range(4):
            await self.checkpointer.export()
            for _ in range(20):
                await asyncio.sleep(0)

    async def compact(self) -> int:
        log = self.log
        summary = await run_cycle(
            log.sequencer,
            InProcess(log.store, log.clock, log.entropy),
            clock=log.clock,
            entropy=log.entropy,
            settings=ALL,
            holder="this one",
        )
        assert not summary.failures and not summary.refused
        self.clock.advance(120)  # its lease ends
        return summary.objects

    async def check(self) -> None:
        report = await audit(self.rows, self.store, SystemClock(), self.entropy, AuditSettings(1.0))
        assert report.findings == []
        assert report.checked["objects opened"] > 0

    async def lose(self) -> None:
        self.rows = MemoryRowStore(self.clock, cluster_id="new")
        await recover(self.store, self.rows, self.clock, holder="r", is_watched=False)
        await self.lead()


async def test_the_audit_names_a_corrupt_parquet_object_by_its_crc_without_parsing_it() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        world = World()
        await world.lead()
        await world.make_topic()
        await world.log.produce(("t", 0, batch_of([b"a"])))
        assert await world.compact() == 1
        [run] = await world.log.runs("t")
        data = bytearray(await world.store.get(run.key))
        data[-100:-8] = bytes(92)  # of Parquet's footer, which has no checksum and can crash Arrow
        await world.store.put(run.key, [bytes(data)])
        report = await audit(world.rows, world.store, SystemClock(), world.entropy, AuditSettings(1.0))
        [finding] = report.findings
        assert (finding.kind, finding.subject) == ("corrupt_object", run.key)
        assert re.fullmatch(r"CRC 0x[0-9a-f]{8}, its row says 0x[0-9a-f]{8}", finding.detail)
        await world.log.sequencer.close()


async def test_a_recovered_log_is_read_over_its_hole_and_compacted_with_it() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        world = World()
        await world.lead()
        await world.make_topic()
        for number in range(3):
            await world.log.produce(("t", 0, batch_of([b"a%d" % number] * 2)))
        producer = await world.log.producer("x")
        await world.log.produce(("t", 0, batch_of([b"in", b"tx"], producer=producer)))
        await world.log.finish(producer, is_commit=True)
        assert await world.compact() == 1
        await world.checkpoint()
        await world.check()
        await world.log.produce(("t", 0, batch_of([b"before"])))
        await world.checkpoint()
        await world.log.produce(("t", 0, batch_of([b"after", b"wards"])))
        assert await world.compact() == 1  # what the checkpoint names is needed still

        garbage = await world.log.sequencer.garbage(GarbageRequest(100))
        assert len(garbage.objects) == 4, "but not the objects that the checkpoint names"
        await collect(world.log.sequencer, world.store, SystemClock(), pause_s=0)
        before = [(record.offset, record.value) for record in await world.log.consumed("t")]
        assert [value for _, value in before][-3:] == [b"before", b"after", b"wards"]

        await world.lose()

        await world.check()
        now = [(record.offset, record.value) for record in await world.log.consumed("t")]
        assert now == before[:-2] + [(offset + RESERVATION, value) for offset, value in before[-2:]]
        assert await world.compact() == 1
        assert [(record.offset, record.value) for record in await world.log.consumed("t")] == now
        assert {run.kind for run in await world.log.runs("t")} == {ObjectKind.PARQUET}
        await world.check()
        objects = await world.rows.objects_after("", 100)
        assert any(isinstance(row, ObjectRow) and row.kind is ObjectKind.PARQUET for row in objects)
        await world.log.sequencer.close()
