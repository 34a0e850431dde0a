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

from tests.compactor.test_iceberg import opened
from tests.support.compaction import batch_of, compacted_here

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
            return pinned

    pinned = asyncio.run(fill())
    done = subprocess.run(
        [sys.executable, str(HERE / "read_by_spark.py"), jars, str(tmp_path / "catalog.db"), str(pinned)],
        capture_output=True, text=True, timeout=SPARK_SECONDS, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "now": [[0, 3, 7, 9], [1, 5, 5, 9]],
        "then": [[0, 10, 0, 9], [1, 10, 0, 9]],
    }
