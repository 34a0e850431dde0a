"""Commits and look-ups while the table of runs grows, on PostgreSQL.

    python -m bench.run_rows [--rows 100000,1000000,10000000] [--json FILE]

Fills the table up to each size with runs of 1,000 partitions (one object for a run on each), and measures there, by
CPU time (see `bench.sequencer_commits`): commits of 320 partitions, `find_batches` of 64 partitions from random
offsets on, and a removal of old runs as retention makes it. Prints each figure and its ratio to that of the smallest
table; then the sizes of tables and indexes, and how the tables that are updated did with vacuum.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import asyncpg

from bench.process_figures import scheduled_seconds
from bench.report import report
from bench.sequencer_commits import BATCH_BYTES, OLD_PARTITIONS, RECORDS, Bench, opened
from sequencer.api import FindPartition, FindRequest, Topic
from tailrace_cli.running.loop import collect_rarely
from tests.support.servers import postgres_server

PARTITIONS = 1_000
COMMITS = 40
REMOVED_AT_ONCE = 1_000
OBJECTS_AT_ONCE = 200

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


async def fill(connection: Any, topic: Topic, first: int, end: int) -> None:
    """Add the runs of these objects, and move the partitions' ends."""
    now_ms = int(time.time() * 1000)
    for number in range(first, end, OBJECTS_AT_ONCE):
        last = min(end, number + OBJECTS_AT_ONCE)
        await connection.execute(_FILL, topic.topic_id, PARTITIONS, number, last, BATCH_BYTES, now_ms)
    await connection.execute(_ENDS, topic.topic_id, end * RECORDS, now_ms + end)
    await connection.execute("vacuum analyze runs")


async def find(bench: Bench, topic: Topic, end: int) -> dict[str, Any]:
    """Look-ups of four runs of each partition, anywhere in the log."""
    chosen = random.Random(end)

    async def call() -> None:
        asked = [
            FindPartition(topic.topic_id, partition, chosen.randrange(end * RECORDS - 40), 4 * BATCH_BYTES)
            for partition in chosen.sample(range(PARTITIONS), OLD_PARTITIONS)
        ]
        await bench.committer.find_batches(FindRequest(asked))

    return await bench.measured([call] * COMMITS, 1)


async def removal(connection: Any, topic: Topic) -> float:
    """The database's CPU in microseconds for each run that is removed, the oldest of ten partitions."""
    before = scheduled_seconds(connection.get_server_pid())
    removed = 0
    for partition in range(10):
        status = await connection.execute(_REMOVE, topic.topic_id, partition, REMOVED_AT_ONCE // 10)
        removed += int(status.split()[1])
    return round((scheduled_seconds(connection.get_server_pid()) - before) / removed * 1e6, 1)


async def run(url: str, sizes: list[int]) -> dict[str, Any]:
    """The figures at each size."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    rows: list[dict[str, Any]] = []
    filled = 0
    async with opened(url) as bench:
        topic = await bench.topic("filled", PARTITIONS)
    for size in sizes:
        await fill(connection, topic, filled, size // PARTITIONS)
        filled = size // PARTITIONS
        async with opened(url) as bench:  # it loads the ends of the partitions
            commit = await bench.commits(320, COMMITS, name=f"at-{size}")
            found = await find(bench, topic, filled)
        row = {
            "rows": size,
            **{
                f"commit_{name}": commit[name]
                for name in ("own_cpu_ms", "database_cpu_ms", "p50_ms", "p99_ms")
            },
            **{f"find_{name}": found[name] for name in ("own_cpu_ms", "database_cpu_ms", "p50_ms", "p99_ms")},
            "removal_us_of_a_run": await removal(connection, topic),
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    ratios = {name: round(rows[-1][name] / value, 2) for name, value in rows[0].items()}
    relations = {row[0]: row[1] for row in await connection.fetch(_SIZES)}
    names = ("updates", "hot_updates", "live", "dead", "bytes", "autovacuums")
    updated = {
        row[0]: dict(zip(names, list(row)[1:], strict=True)) for row in await connection.fetch(_UPDATED)
    }
    await connection.close()
    return {"rows": rows, "ratios": ratios, "bytes": relations, "updated": updated}


def main() -> None:
    """Fill, measure, print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument(
        "--rows", type=lambda text: list(map(int, text.split(","))), default=[100_000, 1_000_000, 10_000_000]
    )
    asked.add_argument("--json", type=Path, help="where to write the figures")
    options = asked.parse_args()
    collect_rarely()
    with postgres_server(fsync=True, settings={"shared_buffers": "256MB"}) as server:
        result = asyncio.run(run(server.create_database(), options.rows))
    report(result, options.json)


if __name__ == "__main__":
    main()
