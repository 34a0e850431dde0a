"""Spark SQL reads the tables through their catalog. Needs Maven, once, for Iceberg's runtime."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compactor.columns.derive import ValueFormat
from compactor.tables.sync import DesiredTable
from tailrace.parquet_object.schema import GREATEST_TIME_MS, LEAST_TIME_MS
from tests.compactor.test_iceberg import LIFE_MS, World, opened
from tests.support.compaction import T0, batch_of, compacted_here

HERE = Path(__file__).parent / "iceberg"
ROOT = Path(__file__).parents[2]
JARS = Path.home() / ".cache" / "tailrace" / "iceberg-spark-1.12.0"
FETCH_SECONDS, SPARK_SECONDS = 300, 600


@pytest.fixture
def jars() -> str:
    if shutil.which("mvn") is None and not JARS.is_dir():
        pytest.skip("no Maven on PATH, which brings the runtime of Iceberg for Spark")
    fetched = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies",
         f"-DoutputDirectory={JARS}", f"-DbuildDirectory={JARS}"],
        capture_output=True, text=True, timeout=FETCH_SECONDS,
    )  # fmt: skip
    if fetched.returncode:
        pytest.skip(f"Maven could not bring the runtime of Iceberg for Spark: {fetched.stdout[-300:]}")
    return ",".join(sorted(map(str, JARS.glob("*.jar"))))


async def make_typed(world: World) -> None:
    """A table whose files are of several schemas: a column came, another one was widened."""
    topic = await world.log.topic("typed", 1)
    for value in (
        {"id": 1},
        {"id": 2, "at": {"lat": 1.5}},
        {"id": "x"},
        {"id": 3_000_000_000, "offset": 9, "tags": ["x"]},
    ):
        await world.log.produce(("typed", 0, batch_of([json.dumps(value).encode()])))
        await compacted_here(world.log)
        columns = "id long, at struct<lat double>, offset int, tags list<string>"
        if value == {"id": 1}:
            columns = "id int"
        wanted = DesiredTable(topic.topic_id, "typed", LIFE_MS, values=ValueFormat("json", columns))
        await world.syncing.sync(wanted)


async def make_times(world: World) -> None:
    """A table with times that microseconds do not hold."""
    topic = await world.log.topic("times", 1)
    for at in (T0, -(2**62), 2**62):
        await world.log.produce(("times", 0, batch_of([b"x"], at=at)))
    await compacted_here(world.log)
    await world.syncing.sync(DesiredTable(topic.topic_id, "times", LIFE_MS))


def test_spark_sql_reads_the_table_and_a_pinned_snapshot(tmp_path: Path, jars: str) -> None:
    async def fill() -> int:
        async with opened(tmp_path) as world:
            for number in range(2):
                await world.log.produce(
                    ("a", 0, batch_of([b"%d" % number] * 5)), ("a", 1, batch_of([b"x"] * 5))
                )
                await compacted_here(world.log)
            await world.sync()
            pinned = int(world.table().metadata.current_snapshot_id)
            await world.delete_below(0, 7)
            await world.delete_below(1, 5)
            await world.sync()
            await make_typed(world)
            await make_times(world)
            return pinned

    pinned = asyncio.run(fill())
    done = subprocess.run(
        [sys.executable, str(HERE / "read_by_spark.py"), jars, str(tmp_path / "catalog.db"), str(pinned)],
        capture_output=True, text=True, timeout=SPARK_SECONDS, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    times = [[at * 1000] for at in (T0, LEAST_TIME_MS, GREATEST_TIME_MS)]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "now": [[0, 3, 7, 9], [1, 5, 5, 9]],
        "typed": [[2, None, 1.5, None, True], [3_000_000_000, 9, None, "x", True]],
        "quarantine": [[2, "Expected `int | null`, got `str` - at `$.id`"]],
        "times": times,
        "earlier": [[1]],
        "plain times": times,
        "purge": "Cannot purge table: GC is disabled (deleting files may corrupt other tables)",
        "then": [[0, 10, 0, 9], [1, 10, 0, 9]],
    }
