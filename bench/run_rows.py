"""Commits and look-ups with tables of runs of several sizes, on PostgreSQL.

    python -m bench.run_rows [--rows 100000,1000000,10000000] [--rounds 10] [--shared-buffers 256MB]
                             [--json FILE]

Fills a database for each size with runs of 1,000 partitions (one object has a run of each; oldest first, like commits),
and builds the indexes at the end. Then it measures all sizes in turn, `--rounds` times: commits of 16 and of 320
partitions to the filled topic, `find_batches` of 64 partitions from random offsets on, and at the end the removal of
old runs as by retention. Prints for each size the CPU time of a call, its p50 and p99, and their ratios to the smallest
table's; then the sizes of tables and indexes, and what vacuum did.

100,000,000 rows need about 30 GB in the folder for temporary files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from bench.sequencer_commits import BATCH_BYTES, OLD_PARTITIONS, RECORDS, Bench, opened
from bench.support.process_figures import scheduled_seconds
from bench.support.report import report
from sequencer.api.commits import SessionGrant
from sequencer.api.reads import FindPartition, FindRequest
from sequencer.api.topics import Topic
from tailrace_cli.running.loop import collect_rarely
from tests.support.servers import postgres_server

PARTITIONS = 1_000
CALLS = 40
"""Calls of each kind in a round."""
REMOVALS = 4
REMOVED_FROM = 100
"""The partitions from which a removal takes runs."""
REMOVED_OF_EACH = 10
OBJECTS_AT_ONCE = 1_000
SETTINGS = {"max_wal_size": "8GB", "maintenance_work_mem": "1GB"}

_INDEXES = """
    select i.indexrelid::regclass::text, c.conname, pg_get_constraintdef(c.oid), pg_get_indexdef(i.indexrelid)
    from pg_index i left join pg_constraint c on c.conindid = i.indexrelid and c.contype = 'p'
    where i.indrelid = 'runs'::regclass
"""
_FILL = """
    with made as (
        insert into objects
        select gen_random_uuid(), 0, 'fill/' || number, 1000000, 1, 1000000, 0, 1, $2, null, 0
        from generate_series($3::bigint, $4::bigint - 1) number
        returning object_id, substr("key", 6)::bigint as number
    )
    insert into runs
    select $1, partition, number * 10, number * 10 + 10, object_id, 0, $5, $6 + number, $6 + number, 1, $6, 0,
        '\\x91950a0a000000', ''
    from made, generate_series(0, $2 - 1) partition order by number, partition
"""
_ENDS = "update partitions set end_offset = $2, running_max_timestamp = $3 where topic_id = $1"
_REMOVE = """
    delete from runs r using (
        select topic_id, partition, base_offset from runs where topic_id = $1 and partition = $2
        order by base_offset limit $3
    ) old
    where (r.topic_id, r.partition, r.base_offset) = (old.topic_id, old.partition, old.base_offset)
"""
_SIZES = """
    select relname, pg_relation_size(oid) from pg_class
    where relname in ('runs', 'objects', 'runs_pkey', 'runs_by_object', 'objects_by_key')
"""
_UPDATED = """
    select relname, n_tup_upd, n_tup_hot_upd, n_live_tup, n_dead_tup, pg_relation_size(relid), autovacuum_count
    from pg_stat_user_tables where n_tup_upd > 0
"""


async def fill(connection: Any, topic: Topic, objects: int) -> None:
    """Add the runs of `objects` objects, and move the partitions' ends."""
    now_ms = int(time.time() * 1000) - objects
    indexes = await connection.fetch(_INDEXES)
    for name, constraint, _, _ in indexes:
        await connection.execute(
            f"alter table runs drop constraint {constraint}" if constraint else f"drop index {name}"
        )
    await connection.execute("set synchronous_commit = off")
    for number in range(0, objects, OBJECTS_AT_ONCE):
        last = min(objects, number + OBJECTS_AT_ONCE)
        await connection.execute(_FILL, topic.topic_id, PARTITIONS, number, last, BATCH_BYTES, now_ms)
    for _, constraint, definition, statement in indexes:
        await connection.execute(
            f"alter table runs add constraint {constraint} {definition}" if constraint else statement
        )
    await connection.execute(_ENDS, topic.topic_id, objects * RECORDS, now_ms + objects)
    await connection.execute("vacuum analyze runs")
    await connection.execute("vacuum analyze objects")
    await connection.execute("checkpoint")


@dataclass
class Filled:
    """A database with `rows` rows of runs."""

    rows: int
    bench: Bench
    topic: Topic
    session: SessionGrant
    connection: Any
    chosen: random.Random = field(default_factory=lambda: random.Random(0))
    commits: int = 0
    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    figures: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    async def round(self) -> None:
        """Make each kind of call `CALLS` times."""
        for partitions in (16, 320):
            requests = []
            for _ in range(CALLS):
                requests.append(
                    self.bench.request(
                        self.session,
                        self.commits,
                        topic=self.topic,
                        partitions=partitions,
                        batches=partitions,
                        producers=0,
                    )
                )
                self.commits += 1
            await self._measured(
                f"commit_{partitions}", [lambda asked=asked: self.bench.commit(asked) for asked in requests]
            )
        await self._measured("find_64", [self._find] * CALLS)

    async def _measured(self, name: str, calls: list[Callable[[], Awaitable[None]]]) -> None:
        def timed(call: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
            async def run() -> None:
                before = time.perf_counter()
                await call()
                self.took[name].append(time.perf_counter() - before)

            return run

        self.figures[name].append(await self.bench.measured([timed(call) for call in calls], 1))

    async def _find(self) -> None:
        """Look up four runs of each of 64 partitions, anywhere in the log."""
        end = self.rows // PARTITIONS * RECORDS
        asked = [
            FindPartition(
                self.topic.topic_id, partition, self.chosen.randrange(end - 4 * RECORDS), 4 * BATCH_BYTES
            )
            for partition in self.chosen.sample(range(PARTITIONS), OLD_PARTITIONS)
        ]
        found = await self.bench.committer.find_batches(FindRequest(asked))
        assert all(len(partition.runs) == 4 for partition in found.partitions), "each has four runs"

    async def remove(self) -> None:
        """Remove the oldest runs of some partitions. Records the database's CPU seconds per run."""
        before = scheduled_seconds(self.connection.get_server_pid())
        removed = 0
        for partition in range(REMOVED_FROM):
            status = await self.connection.execute(_REMOVE, self.topic.topic_id, partition, REMOVED_OF_EACH)
            removed += int(status.split()[1])
        spent = scheduled_seconds(self.connection.get_server_pid()) - before
        self.took["removal"].append(spent / removed)

    async def result(self) -> dict[str, Any]:
        """Return the figures of all rounds. The CPU of a call is the median of the rounds."""
        row: dict[str, Any] = {"rows": self.rows}
        for name, rounds in self.figures.items():
            took = sorted(self.took[name])
            for cpu in ("own_cpu_ms", "database_cpu_ms"):
                row[f"{name}_{cpu}"] = sorted(of_one[cpu] for of_one in rounds)[len(rounds) // 2]
            row[f"{name}_p50_ms"] = round(took[len(took) // 2] * 1000, 2)
            row[f"{name}_p99_ms"] = round(took[int(len(took) * 0.99)] * 1000, 2)
        removals = sorted(self.took["removal"])
        row["removal_us_of_a_run"] = round(removals[len(removals) // 2] * 1e6, 1)
        return row

    async def sizes(self) -> dict[str, Any]:
        """Return the bytes of tables and indexes, and what vacuum did."""
        names = ("updates", "hot_updates", "live", "dead", "bytes", "autovacuums")
        updated = await self.connection.fetch(_UPDATED)
        return {
            "bytes": {row[0]: row[1] for row in await self.connection.fetch(_SIZES)},
            "updated": {row[0]: dict(zip(names, list(row)[1:], strict=True)) for row in updated},
        }


async def filled(stack: AsyncExitStack, url: str, rows: int) -> Filled:
    """Fill the database and open it."""
    began = time.monotonic()
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    stack.push_async_callback(connection.close)
    async with opened(url) as bench:
        topic = await bench.topic("filled", PARTITIONS)
    await fill(connection, topic, rows // PARTITIONS)
    bench = await stack.enter_async_context(opened(url))  # it loads the ends of the partitions
    print(json.dumps({"filled": rows, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    return Filled(rows, bench, topic, await bench.session(0), connection)


async def run(urls: list[str], sizes: list[int], rounds: int) -> dict[str, Any]:
    """Return the figures at each size."""
    async with AsyncExitStack() as stack:
        tables = [await filled(stack, url, rows) for url, rows in zip(urls, sizes, strict=True)]
        for _ in range(rounds):
            for table in tables:
                await table.round()
        for _ in range(REMOVALS):
            for table in tables:
                await table.remove()
        rows = [await table.result() for table in tables]
        for row in rows:
            print(json.dumps(row), flush=True)
        ratios = [{name: round(row[name] / value, 2) for name, value in rows[0].items()} for row in rows[1:]]
        return {"rows": rows, "ratios": ratios, "sizes": [await table.sizes() for table in tables]}


def main() -> None:
    """Fill, measure, print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument(
        "--rows", type=lambda text: list(map(int, text.split(","))), default=[100_000, 1_000_000, 10_000_000]
    )
    asked.add_argument("--rounds", type=int, default=10, help="how often each size has its turn")
    asked.add_argument("--shared-buffers", default="256MB", help="PostgreSQL's own cache")
    asked.add_argument("--json", type=Path, help="where to write the figures")
    options = asked.parse_args()
    collect_rarely()
    settings = {**SETTINGS, "shared_buffers": options.shared_buffers}
    with postgres_server(fsync=True, settings=settings) as server:
        urls = [server.create_database() for _ in options.rows]
        result = asyncio.run(run(urls, options.rows, options.rounds))
    report(result, options.json)


if __name__ == "__main__":
    main()
