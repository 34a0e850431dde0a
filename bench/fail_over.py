"""The cost of a take-over: a cold start that loads every hot row, or a follower that reads the end of the journal.

    python -m bench.fail_over [--partitions 10000,100000] [--each 1] [--behind 200] [--json FILE]

For each size, a new PostgreSQL database gets that many partitions, each with `--each` producers and committed offsets.
Then, in one process, without RPC and clients:

- `cold`: a committer starts and loads the rows that it keeps in memory (no producers, no offsets);
- `follow`: a follower loads them, once in the life of a standby;
- `behind`: the committer creates topics in `--behind` transactions, which the follower does not read;
- `take_over`: the committer ends, and the next one starts with the follower's copy.

`cpu_s` is this process's CPU time. `seconds` is wall-clock time, which means little on a shared machine. `rss_mib` is
the resident memory that a step adds to this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import time
from collections.abc import Awaitable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.support.process_figures import rss_mib
from sequencer.api.topics import CreateTopic
from sequencer.engine.committer import Committer
from sequencer.engine.follower import Follower
from sequencer.store.rows import (
    Changes,
    GroupOffsetRow,
    GroupRow,
    LogEpoch,
    PartitionRow,
    ProducerRow,
    RememberedBatch,
    Row,
    TopicRow,
)
from sequencer.store.sql.store import SqlRowStore
from tailrace.clock import SystemClock, SystemEntropy
from tests.support.servers import postgres_server

PARTITIONS_OF_A_TOPIC = 1_000
OFFSETS_OF_A_GROUP = 100
WRITTEN_AT_ONCE = 10_000
REMEMBERED = [RememberedBatch(number, number, number) for number in range(5)]


def rows_of(count: int, each: int, now_ms: int) -> Iterator[Row]:
    """Yield `count` partitions with their producers and positions, and the topics and groups that they belong to."""
    for number in range(count):
        topic_id, partition = UUID(int=1 + number // PARTITIONS_OF_A_TOPIC), number % PARTITIONS_OF_A_TOPIC
        if partition == 0:
            yield TopicRow(topic_id, f"topic-{topic_id.int}", PARTITIONS_OF_A_TOPIC, {}, now_ms)
        yield PartitionRow(topic_id, partition, 0, 0, -1, [LogEpoch(0, 0)])
        for place in range(each):
            group_id = f"group-{place}-{number // OFFSETS_OF_A_GROUP}"
            if number % OFFSETS_OF_A_GROUP == 0:
                positions = min(OFFSETS_OF_A_GROUP, count - number)
                yield GroupRow(group_id, -1, -1, 0, "Empty", "", [], b"", now_ms, positions=positions)
            producer_id = number * each + place
            yield ProducerRow(topic_id, partition, producer_id, 0, REMEMBERED, now_ms, now_ms)
            yield GroupOffsetRow(group_id, topic_id, partition, 0, 0, "", now_ms, None)


async def fill(store: SqlRowStore, count: int, each: int) -> None:
    await store.open()
    epoch = await store.take_committer_lease("fill", "", 600_000)
    assert epoch is not None, "the database is new"
    rows = rows_of(count, each, await store.now_ms())
    while some := list(islice(rows, WRITTEN_AT_ONCE)):
        changes = Changes()
        for row in some:
            changes.put(row)
        await store.write(changes, epoch)
    await store.release_committer_lease(epoch)


async def measured(step: Awaitable[Any]) -> dict[str, float]:
    """Run one step. Return its CPU, time and memory."""
    memory, cpu, began = rss_mib(os.getpid()), time.process_time(), time.perf_counter()
    await step
    return {
        "cpu_s": round(time.process_time() - cpu, 3),
        "seconds": round(time.perf_counter() - began, 3),
        "rss_mib": round(rss_mib(os.getpid()) - memory, 1),
    }


async def create(committer: Committer, name: str, count: int) -> None:
    for number in range(count):
        await committer.create_topic(CreateTopic(f"{name}-{number}", 1, {}))


async def measure(url: str, count: int, each: int, behind: int) -> dict[str, Any]:
    clock, entropy = SystemClock(), SystemEntropy()
    store = SqlRowStore(url, clock=clock, entropy=entropy)
    try:
        await fill(store, count, each)
        first = Committer(store, clock, entropy, keeps_journal=True, reads=store.reads())
        figures: dict[str, Any] = {"partitions": count, "producers": count * each, "offsets": count * each}
        figures["cold"] = await measured(first.start())
        await create(first, "first", 1)  # the journal begins
        follower = Follower(store.reads(), clock, pause_s=3600.0)
        figures["follow"] = await measured(follower.load())
        await create(first, "behind", behind)
        await first.close()
        second = Committer(store, clock, entropy, keeps_journal=True, reads=store.reads(), follower=follower)
        figures["take_over"] = await measured(second.start())
        await second.close()
        return figures
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", default="10000,100000")
    parser.add_argument("--each", type=int, default=1, help="producers, and offsets, of each partition")
    parser.add_argument("--behind", type=int, default=200)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    results = []
    with postgres_server() as server:
        for count in map(int, asked.partitions.split(",")):
            url = server.create_database()
            results.append(asyncio.run(measure(url, count, asked.each, asked.behind)))
            print(json.dumps(results[-1]), flush=True)
            server.drop_database(url)
    if asked.json is not None:
        machine = {
            "python": platform.python_version(),
            "machine": platform.platform(),
            "load": os.getloadavg(),
        }
        asked.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
