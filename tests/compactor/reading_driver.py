"""A driver that reads a stream from Tailrace, and kills itself where it is told: see test_spark_reads.py.

    python -m tests.compactor.reading_driver FOLDER WHEN

WHEN: `reading`: in a task of the first batch; `never`: the stream comes to its end. FOLDER/out has the offsets.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from compactor.on_spark.session import spark_session
from compactor.spark_source.options import SourceOptions
from compactor.spark_source.source import DefaultSource, StreamSource, TaskPartition
from tests.compactor.writing_driver import PIDS, WHEN, die


class MortalStream(StreamSource):
    """The stream, of which a task kills the driver after its first rows."""

    def read(self, partition: TaskPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            yield batch
            if os.environ[WHEN] == "reading":
                die()


class MortalReading(DefaultSource):
    """The data source, with that stream."""

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return MortalStream(SourceOptions.of(self.options))


def main(folder: Path, when: str) -> None:
    """Read all that there is, or die."""
    os.environ[WHEN], os.environ[PIDS] = when, str(folder / "pids")
    spark = spark_session("local[2]")
    jvm = spark._jvm.ProcessHandle.current().pid()
    (folder / "pids").write_text(json.dumps([jvm, os.getpid()]))
    spark.dataSource.register(MortalReading)

    def note(rows: Any, batch: int) -> None:
        found = sorted([row.partition, row.offset] for row in rows.select("partition", "offset").collect())
        (folder / "out" / f"{batch}.json").write_text(json.dumps(found))

    source = spark.readStream.format("mortal").options(
        store=f"{folder}/objects",
        database=f"sqlite:///{folder}/rows.db",
        subscribe="t",
        startingOffsets="earliest",
    )
    query = (
        source.load()
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
