"""A read_committed consumer gets exactly the committed records, after any aborts, swaps and deletions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sequencer.api.agents import AgentInfo
from sequencer.api.commits import (
    BatchError,
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
)
from sequencer.api.compaction import CompactionRequest, ReplacementRun, SwapRequest, TakeLease
from sequencer.api.producers import InitProducer, ProducerGrant
from sequencer.api.reads import FindPartition, FindRequest, Run
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import CreateTopic
from sequencer.api.transactions import EndTransaction, TransactionRef
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.batches.record_batch import TRANSACTIONAL_FLAG
from tests.support.clocks import ManualClock, SeededEntropy

PRODUCERS = 3
NO_ONE = -1


@dataclass(frozen=True)
class Stored:
    """A batch in the log: `transaction` is -1 for none."""

    base_offset: int
    count: int
    producer_id: int
    transaction: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count


@dataclass
class Log:
    """A partition, what was written to it, and what became of it."""

    sequencer: Committer
    batches: list[Stored] = field(default_factory=list)
    committed: set[int] = field(default_factory=lambda: {NO_ONE})
    grants: list[ProducerGrant] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    current: list[int] = field(default_factory=list)
    parquet: dict[UUID, list[Stored]] = field(default_factory=dict)
    transactions: int = 0
    commits: int = 0
    made: int = 100

    async def prepare(self) -> None:
        agent = await self.sequencer.register_agent(AgentInfo("a", 1, "a", 0, 0, "z", "0", UUID(int=1)))
        self.session = await self.sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))
        self.lease = await self.sequencer.take_lease(TakeLease("compactor", "me", 0, 24 * 3600 * 1000))
        self.compactor = await self.sequencer.open_session(OpenSession(-1, self.lease.epoch))
        self.topic = (await self.sequencer.create_topic(CreateTopic("t", 1, {"retention.ms": "-1"}))).topic_id
        for number in range(PRODUCERS):
            self.grants.append(
                await self.sequencer.init_producer(InitProducer(-1, -1, f"tx{number}", 60_000))
            )
            self.sequences.append(0)
            self.current.append(NO_ONE)

    def described(self, kind: ObjectKind, prefix: str) -> ObjectDescription:
        self.made += 1
        return ObjectDescription(UUID(int=self.made), kind, f"{prefix}{self.made}", 10_000, 0, 9_000, 0)

    async def write(self, writers: list[int]) -> None:
        """One run with a batch of each writer (PRODUCERS: one without a producer), two records each."""
        proposed: list[BatchCoordinates] = []
        for writer in writers:
            if writer == PRODUCERS:
                proposed.append(BatchCoordinates(100, 2, 0, 0))
                continue
            grant = self.grants[writer]
            proposed.append(
                BatchCoordinates(
                    100, 2, 0, 0, grant.producer_id, grant.producer_epoch, self.sequences[writer],
                    TRANSACTIONAL_FLAG,
                )
            )  # fmt: skip
            self.sequences[writer] += 2
        run = RunProposal(self.topic, 0, 0, 100 * len(proposed), proposed)
        described = self.described(ObjectKind.MIXED, self.session.prefix)
        answer = await self.sequencer.commit(
            CommitRequest(self.session.session_id, self.commits, self.commits, described, [run])
        )
        self.commits += 1
        for writer, batch, outcome in zip(writers, proposed, answer.runs[0].outcomes, strict=True):
            assert outcome.error is BatchError.NONE
            transaction = NO_ONE
            if writer < PRODUCERS:
                if self.current[writer] == NO_ONE:
                    self.transactions += 1
                    self.current[writer] = self.transactions
                transaction = self.current[writer]
            self.batches.append(Stored(outcome.base_offset, 2, batch.producer_id, transaction))

    async def end(self, ends: list[tuple[int, bool, bool]]) -> None:
        """Together, so that some markers share a row; with or without a bump."""
        asked = []
        for writer, commit, bump in {one[0]: one for one in ends}.values():
            if self.current[writer] == NO_ONE:
                continue
            grant = self.grants[writer]
            ref = TransactionRef(f"tx{writer}", grant.producer_id, grant.producer_epoch)
            if commit:
                self.committed.add(self.current[writer])
            self.current[writer] = NO_ONE
            asked.append((writer, self.sequencer.end_transaction(EndTransaction(ref, commit, bump))))
        for (writer, _), grant in zip(asked, await asyncio.gather(*(one for _, one in asked)), strict=True):
            if grant != self.grants[writer]:
                self.sequences[writer] = 0
            self.grants[writer] = grant

    async def compact(self, max_runs: int) -> None:
        found = (await self.sequencer.compaction_candidates(CompactionRequest(0, 0, max_runs))).candidates
        if not found:
            return
        runs, aborted = found[0].runs, found[0].aborted
        end_offset = runs[-1].end_offset
        kept = [
            batch
            for run in runs
            for batch in self.of_run(run)
            if not any(
                one.producer_id == batch.producer_id
                and one.first_offset <= batch.base_offset <= one.last_offset
                for one in aborted
            )
        ]
        described = self.described(ObjectKind.PARQUET, self.compactor.prefix)
        self.parquet[described.object_id] = kept
        replacement = ReplacementRun(
            self.topic, 0, runs[0].base_offset, end_offset, min(0, len(kept) - 1), 7 * len(kept),
            [(run.base_offset, run.object_id) for run in runs],
        )  # fmt: skip
        await self.sequencer.swap(
            SwapRequest(
                UUID(int=self.made), self.lease.epoch, self.compactor.session_id, described, [replacement]
            )
        )

    async def delete(self, share: int) -> None:
        """Some of the log's beginning, in tenths of it; runs that are wholly below go."""
        end = (await self.find(0, 1)).high_watermark
        await self.sequencer.delete_records(
            DeleteRecords([DeleteRecordsPartition(self.topic, 0, end * share // 10)])
        )
        await self.sequencer.apply_retention(Empty())

    async def find(self, offset: int, max_bytes: int) -> Any:
        asked = FindRequest([FindPartition(self.topic, 0, offset, max_bytes)])
        return (await self.sequencer.find_batches(asked)).partitions[0]

    def of_run(self, run: Run) -> list[Stored]:
        if run.kind is ObjectKind.PARQUET:
            return self.parquet[run.object_id]
        return [one for one in self.batches if run.base_offset <= one.base_offset < run.end_offset]

    async def consume(self, offset: int, max_bytes: int) -> list[int]:
        """Base offsets that a Java consumer hands out (Fetcher.CompletedFetch), fetch after fetch."""
        handed: list[int] = []
        while True:
            found = await self.find(offset, max_bytes)
            if offset >= found.last_stable_offset:
                return handed
            aborted = list(found.aborted)
            assert aborted == sorted(aborted, key=lambda one: one.first_offset)
            aborting: set[int] = set()
            markers = {one.offset: one for run in found.runs for one in run.markers}
            batches = {one.base_offset: one for run in found.runs for one in self.of_run(run)}
            assert offset < found.runs[-1].end_offset
            for at in sorted({*markers, *batches}):
                last = at if at in markers else batches[at].end_offset - 1
                if last < offset or at >= found.last_stable_offset:
                    continue
                while aborted and aborted[0].first_offset <= last:
                    aborting.add(aborted.pop(0).producer_id)
                if at in markers:
                    assert markers[at].is_commit or markers[at].producer_id in aborting, (
                        "a marker without a range"
                    )
                    aborting.discard(markers[at].producer_id)
                elif batches[at].producer_id not in aborting:
                    handed.append(at)
            offset = min(found.runs[-1].end_offset, found.last_stable_offset)

    async def check(self) -> None:
        ends = await self.find(0, 1)
        for offset in {ends.log_start_offset, (ends.log_start_offset + ends.high_watermark) // 2}:
            wanted = [
                one.base_offset
                for one in self.batches
                if one.end_offset > offset
                and one.end_offset <= ends.last_stable_offset
                and one.transaction in self.committed
            ]
            for max_bytes in (1, 250, 1 << 30):
                assert await self.consume(offset, max_bytes) == wanted, (offset, max_bytes)


WRITER = st.integers(0, PRODUCERS)
END = st.tuples(st.integers(0, PRODUCERS - 1), st.booleans(), st.booleans())
STEP = st.one_of(
    st.tuples(st.just("write"), st.lists(WRITER, min_size=1, max_size=3)),
    st.tuples(st.just("write"), st.lists(WRITER, min_size=1, max_size=3)),
    st.tuples(st.just("end"), st.lists(END, min_size=1, max_size=3)),
    st.tuples(st.just("end"), st.lists(END, min_size=1, max_size=3)),
    st.tuples(st.just("compact"), st.sampled_from([1, 2, 3, 100])),
    st.tuples(st.just("delete"), st.integers(0, 9)),
)


OTHERS_MARKER_BEFORE_ITS_OWN: list[tuple[str, Any]] = [
    *[("write", [0])] * 4, ("write", [2]), ("end", [(0, False, False)]), ("end", [(2, False, False)]),
    ("write", [0]), ("end", [(0, False, False)]), ("compact", 2), ("compact", 3), ("compact", 2),
]  # fmt: skip
"""The last stretch begins with the marker of an aborted producer, all of whose records are compacted already."""


@settings(
    deadline=None, max_examples=60, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@example(OTHERS_MARKER_BEFORE_ITS_OWN)
@given(st.lists(STEP, min_size=4, max_size=30))
def test_read_committed_returns_what_was_committed(steps: list[tuple[str, Any]]) -> None:
    async def whole() -> None:
        clock = ManualClock()
        log = Log(Committer(MemoryRowStore(clock), clock, SeededEntropy(1)))
        await log.sequencer.start()
        await log.prepare()
        for name, value in steps:
            await getattr(log, name)(value)
            await log.check()
        for number in range(PRODUCERS):
            await log.end([(number, number % 2 == 0, True)])
        await log.compact(100)
        await log.check()
        await log.sequencer.close()

    asyncio.run(whole())
