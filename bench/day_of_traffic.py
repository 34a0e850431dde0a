"""Vacuum and bloat of PostgreSQL's tables over a day of traffic, compressed into minutes.

    python -m bench.day_of_traffic [--commits 100000] [--seconds 480] [--json FILE]

A committer with a journal commits objects of four runs, with an idempotent producer per partition, and an offset after
every fourth object. Retention and collection run 200 times. Each partition keeps KEPT_RUNS runs, so almost all written
rows are removed again. PostgreSQL (with fsync) checks every second, not every minute, for tables to vacuum, because the
day is that much shorter. The tables' own settings decide what it then does.

After each tenth of the commits, it prints a line with the rows written so far, and for each table its live and dead
rows, its bytes and those of its indexes, the number of autovacuums, and the share of in-place updates (HOT). `growth`
at the end is the size of each table and its indexes in the last sample divided by that in the fifth: 1 means no growth.
The run ends early after `--seconds`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from bench.sequencer_commits import BATCH_BYTES, IN_FLIGHT, SESSIONS, Bench, opened
from bench.support.report import report
from sequencer.api.commits import CommitRequest, SessionGrant
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.topics import CreateTopic, Topic
from sequencer.api.values import Empty
from sequencer.collector import collect
from tailrace.clock import SystemClock
from tailrace.object_store.memory import MemoryStore
from tailrace_cli.running.loop import collect_rarely
from tests.support.servers import postgres_server

RUNS = 4
KEPT_RUNS = 50
GROUPS = 500
SAMPLES = 10
CLEANINGS_PER_SAMPLE = 20
OBJECTS_PER_OFFSET_COMMIT = 4
WRITTEN_BY_EVERY_COMMIT = {"runs", "partitions"}

_TABLES = """
    select relname, n_live_tup, n_dead_tup, pg_table_size(relid), pg_indexes_size(relid), autovacuum_count,
        n_tup_upd, n_tup_hot_upd
    from pg_stat_user_tables where n_tup_ins + n_tup_upd > 100 order by relname
"""


@dataclass(frozen=True, slots=True)
class Writer:
    """An agent's session, with a topic that only it writes to. `bench` has its producers' sequences."""

    bench: Bench
    session: SessionGrant
    topic: Topic

    @classmethod
    async def begin(cls, bench: Bench, number: int) -> Writer:
        """Create a writer. Its topic keeps KEPT_RUNS runs in each partition."""
        asked = CreateTopic(f"day-{number}", RUNS, {"retention.bytes": str(KEPT_RUNS * BATCH_BYTES)})
        topic = await bench.committer.create_topic(asked)
        return cls(Bench(bench.url, bench.committer), await bench.session(number), topic)

    def request(self, number: int) -> CommitRequest:
        """Return the commit of the object with this number."""
        return self.bench.request(
            self.session, number, topic=self.topic, partitions=RUNS, batches=RUNS, producers=1
        )

    async def commit_offset(self, offset: int) -> None:
        position = OffsetPosition(self.topic.topic_id, 0, offset, 0, "")
        asked = CommitOffsets(f"group-{offset % GROUPS}", -1, -1, -1, "", [position])
        await self.bench.committer.commit_offsets(asked)


class Day:
    """Traffic with retention and collection."""

    def __init__(self, bench: Bench, writers: list[Writer]) -> None:
        self._sequencer = bench.committer
        self._writers = writers
        self._objects = MemoryStore(SystemClock())
        self.committed = 0

    async def go_on(self, commits: int) -> None:
        """Make `commits` commits, then run retention and collection."""
        numbers = iter(range(self.committed, self.committed + commits))
        await asyncio.gather(*(self._write(numbers) for _ in range(SESSIONS * IN_FLIGHT)))
        self.committed += commits
        await self._sequencer.apply_retention(Empty())
        await collect(self._sequencer, self._objects, SystemClock())

    async def _write(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            writer = self._writers[number % SESSIONS]
            await writer.bench.commit(writer.request(number // SESSIONS))
            if number % OBJECTS_PER_OFFSET_COMMIT == 0:
                await writer.commit_offset(number)


async def tables(connection: Any) -> dict[str, dict[str, int]]:
    """Return PostgreSQL's statistics for each table, once they include the tables that every commit writes.

    Each connection reports its own writes. A new one does so only after it has been idle for ten seconds.
    """
    names = ("live", "dead", "bytes", "index_bytes", "autovacuums", "updates", "hot_updates")
    while True:
        told = {
            row[0]: dict(zip(names, list(row)[1:], strict=True)) for row in await connection.fetch(_TABLES)
        }
        if told.keys() >= WRITTEN_BY_EVERY_COMMIT:
            return told
        await asyncio.sleep(0.5)


async def run(url: str, commits: int, seconds: float) -> dict[str, Any]:
    """Return the samples, and the growth of each table from the middle of the run to its end."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    samples: list[dict[str, Any]] = []
    async with opened(url, keeps_journal=True, deletion_grace_ms=0) as bench:
        day = Day(bench, [await Writer.begin(bench, number) for number in range(SESSIONS)])
        give_up = time.monotonic() + seconds
        while len(samples) < SAMPLES and time.monotonic() < give_up:
            for _ in range(CLEANINGS_PER_SAMPLE):
                await day.go_on(commits // (SAMPLES * CLEANINGS_PER_SAMPLE))
            samples.append({"commits": day.committed, "tables": await tables(connection)})
            print(json.dumps(samples[-1]), flush=True)
    await connection.close()
    return {"samples": samples, "growth": growth(samples)}


def growth(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Return the bytes of each table and its indexes at the end divided by those in the middle."""
    middle, end = samples[len(samples) // 2 - 1]["tables"], samples[-1]["tables"]
    return {
        name: round((end[name]["bytes"] + end[name]["index_bytes"]) / (was["bytes"] + was["index_bytes"]), 2)
        for name, was in middle.items()
    }


def main() -> None:
    """Write, sample, print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--commits", type=int, default=100_000, help="objects of the whole day")
    asked.add_argument("--seconds", type=float, default=480.0, help="after this time no further tenth begins")
    asked.add_argument("--json", type=Path, help="where to write the figures")
    options = asked.parse_args()
    collect_rarely()
    with postgres_server(fsync=True, settings={"autovacuum_naptime": "1s"}) as server:
        result = asyncio.run(run(server.create_database(), options.commits, options.seconds))
    report(result, options.json)


if __name__ == "__main__":
    main()
