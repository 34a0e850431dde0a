"""Random histories of a cluster that loses its database again and again: an offset that was told stays its record's."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from sequencer.api.errors import SequencerError
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.values import Empty
from sequencer.checkpoint.chain import Phase
from sequencer.collector import collect
from sequencer.recovery.audit import AuditSettings, audit
from sequencer.recovery.bucket_scan import read_checkpoints, reserved_ends
from tailrace.buffers import Buffer
from tailrace.object_store.api import StoreUnavailable
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.losable_cluster import Batch, LosableCluster
from tests.support.patience import PATIENCE_SECONDS

SEEDS = 40
STEPS = 60


class QuickClock(ManualClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Bucket(MemoryStore):
    """Puts of metadata fail when told so; before or after they took effect."""

    failing = ""

    async def put(self, key: str, parts: list[Buffer], *, if_absent: bool = False) -> None:  # type: ignore[override]
        if self.failing and "/meta/" in key:
            failing, self.failing = self.failing, ""
            if failing == "after":
                await super().put(key, parts, if_absent=if_absent)
            raise StoreUnavailable("made to fail")
        await super().put(key, parts, if_absent=if_absent)


class History:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = LosableCluster(entropy=SeededEntropy(seed))
        self.bucket = self.world.bucket = Bucket(self.world.clock)
        self.names = 0
        self.lives = 0
        self.sequences: dict[tuple[int, int], int] = {}
        self.told: dict[
            tuple[int, int], str
        ] = {}  # all that was ever acknowledged: (partition, offset) -> name
        self.placed: dict[str, set[tuple[int, int]]] = {}
        self.trimmed = [0, 0]

    def batch(self, partition: int) -> tuple[Batch, int]:
        self.names += 1
        producer = self.random.choice([-1, 1, 2])
        records = self.random.randint(1, 3)
        if producer < 0:
            return Batch(f"n{self.names}", records), -1
        producer += 10 * self.lives
        sequence = self.sequences.get((partition, producer), 0)
        return Batch(f"n{self.names}", records, producer, sequence), producer

    async def write(self) -> None:
        partition = self.random.randrange(2)
        batch, producer = self.batch(partition)
        try:
            await self.world.write("t", batch, partition=partition)
        except SequencerError:
            await self.rejoin()
            if producer < 0 or self.random.random() < 0.3:
                self.begin_producers_anew()  # whether it was stored, its client never learns
                return
            # Its client sends it again, to another agent.
            try:
                await self.world.write("t", batch, partition=partition)
            except SequencerError:
                self.begin_producers_anew()
                await self.rejoin()
                return
        offset = self.world.told.get(("t", partition, batch.name))
        if offset is None:
            self.begin_producers_anew()
            return
        if producer >= 0:
            self.sequences[partition, producer] = batch.sequence + batch.records
        for place in ((partition, at) for at in range(offset, offset + batch.records)):
            assert place not in self.told, f"{place} was told of {self.told[place]}, now of {batch.name}"
            self.told[place] = batch.name
        self.placed[batch.name] = {(partition, offset)}

    def begin_producers_anew(self) -> None:
        """Under new ids, as clients do that don't know what became of a batch."""
        self.lives += 1

    async def rejoin(self) -> None:
        world = self.world
        for _ in range(40):
            try:
                await world.checkpointer.export()
                await world.join()
                return
            except (SequencerError, StoreUnavailable) as error:
                failure: Exception = error
        raise AssertionError(f"the committer did not come back: {failure}")

    async def step(self) -> None:
        world, random = self.world, self.random
        action = random.choice(
            ["write"] * 8
            + ["export"] * 4
            + ["snapshot", "orphan", "fail put", "fail write", "trim", "collect", "term"]
        )
        if action == "write":
            await self.write()
        elif action == "export":
            await self.export()
        elif action == "snapshot":
            if world.checkpointer._chain.phase is Phase.OPEN and world.checkpointer._scan is None:
                world.checkpointer._begin_scan()
        elif action == "orphan":
            # Its agent dies before it can commit.
            self.names += 1
            await world.upload([("t", random.randrange(2), [Batch(f"o{self.names}")])])
            await self.rejoin()
        elif action == "fail put":
            self.bucket.failing = random.choice(["before", "after"])
        elif action == "fail write":
            world.rows.fail_next_write(random.choice(["before", "after"]))
        elif action == "trim":
            await self.trim()
        elif action == "collect":
            world.clock.advance(120)
            try:
                await world.sequencer.apply_retention(Empty())
                await collect(world.sequencer, world.bucket, QuickClock(), pause_s=0)
            except SequencerError:
                await self.rejoin()
        elif action == "term":
            await world.sequencer.close()
            world.clock.advance(30)
            await self.lead()

    async def export(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            try:
                await self.world.checkpointer.export()
            except StoreUnavailable:
                return
            for _ in range(self.random.randint(0, 20)):
                await asyncio.sleep(0)

    async def trim(self) -> None:
        partition = self.random.randrange(2)
        topic = self.world.topics["t"]
        try:
            done = await self.world.sequencer.delete_records(
                DeleteRecords([DeleteRecordsPartition(topic.topic_id, partition, -1)])
            )
        except SequencerError:
            # Perhaps they are gone.
            ends = [offset + 1 for at, offset in self.told if at == partition]
            self.trimmed[partition] = max([self.trimmed[partition], *ends])
            await self.rejoin()
            return
        self.trimmed[partition] = max(self.trimmed[partition], done.log_start_offsets[0])

    async def lead(self) -> None:
        for _ in range(40):
            try:
                await self.world.lead()
                return
            except (StoreUnavailable, SequencerError):
                await self.world.sequencer.close()
                self.world.clock.advance(30)
        raise AssertionError("nobody leads")

    async def lose(self) -> None:
        """Lose the database, recover, and compare with all that was ever told."""
        world = self.world
        self.bucket.failing = ""
        found = await read_checkpoints(world.bucket, "c")
        reserved = reserved_ends(found)
        topic_id = world.topics["t"].topic_id
        for partition in (0, 1):
            highest = max((offset for at, offset in self.told if at == partition), default=-1)
            assert highest < reserved(topic_id, partition), "an offset that was not reserved was told"
        if found.chain is None:
            return
        await world.lose_database()
        report = await world.recover()
        world.clock.advance(30)
        await self.lead()
        self.begin_producers_anew()
        for one in report.partitions:
            there = await world.read("t", one.partition)
            for name, offset in there.items():
                was_told = self.told.get((one.partition, offset))
                assert was_told in (None, name), f"{one.partition}-{offset} was {was_told}, is {name} now"
                self.told.setdefault((one.partition, offset), name)
            for name, places in self.placed.items():
                mine = {offset for partition, offset in places if partition == one.partition}
                if mine and min(mine) >= self.trimmed[one.partition]:
                    assert name in there, f"{name}, acknowledged at {mine}, is gone"
                    if min(mine) < one.certain_end and len(mine) == 1:
                        assert there[name] in mine or there[name] >= one.resumed_at
                    places.add((one.partition, there[name]))
            self.trimmed[one.partition] = max(self.trimmed[one.partition], one.log_start_offset)
        seen = await audit(world.rows, world.bucket, QuickClock(), SeededEntropy(1), AuditSettings(1.0))
        assert [finding for finding in seen.findings if finding.kind != "overdue_garbage"] == []


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_offset_means_two_records_and_nothing_acknowledged_is_lost(first: int) -> None:
    async def whole(seed: int) -> None:
        history = History(seed)
        await history.lead()
        await history.world.make_topic("t", 2)
        for _ in range(3):
            for _ in range(STEPS):
                await history.step()
            await history.lose()

    for seed in range(first, first + 10):
        try:
            asyncio.run(asyncio.wait_for(whole(seed), PATIENCE_SECONDS))
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error
