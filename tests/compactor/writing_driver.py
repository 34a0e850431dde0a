"""A driver that writes a stream of files to Tailrace, and kills itself where it is told: see test_spark_writes.py.

    python -m tests.compactor.writing_driver FOLDER DATA SEQUENCER WHEN

WHEN: `before` or `after` the commit of epoch 1 (after it Spark has not noted in its checkpoint that the epoch is done);
`never`: the stream comes to its end, then a batch is written, and what the source reads of it is written to FOLDER.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from compactor.on_spark.session import spark_session
from compactor.spark_sink.sink import StreamSink
from compactor.spark_source.source import DefaultSource

WHEN, PIDS = "WRITING_DRIVER_DIES", "WRITING_DRIVER_PIDS"
EPOCH_OF_DEATH = 1


def die() -> None:
    """Kill the driver at once: its Python, its JVM, and this process, in which Spark has the sink commit."""
    for pid in [*json.loads(Path(os.environ[PIDS]).read_text()), os.getpid()]:
        os.kill(pid, signal.SIGKILL)


class MortalSink(StreamSink):
    """The sink, whose commit kills its driver."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        is_time = batchId == EPOCH_OF_DEATH
        if is_time and os.environ[WHEN] == "before":
            die()
        super().commit(messages, batchId)
        if is_time and os.environ[WHEN] == "after":
            die()


class MortalSource(DefaultSource):
    """The data source, with that sink."""

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return MortalSink(self._sink_options(schema, overwrite))


def main(folder: Path, data: str, sequencer: str, when: str) -> None:
    """Write all that there is, or die."""
    os.environ[WHEN], os.environ[PIDS] = when, str(folder / "pids")
    spark = spark_session("local[2]")
    jvm = spark._jvm.ProcessHandle.current().pid()
    (folder / "pids").write_text(json.dumps([jvm, os.getpid()]))
    spark.dataSource.register(MortalSource)
    served = {"store": f"{data}/objects", "sequencer": sequencer, "rpc_secret_file": f"{data}/rpc.secret"}
    lines = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    query = (
        lines.json(str(folder / "in"))
        .writeStream.format("mortal")
        .options(**served, topic="t", checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    headers = "array(named_struct('key', 'h', 'value', cast(value as binary))) headers"
    given = spark.range(1_000).selectExpr("cast(id % 50 as string) key", "concat('v', id) value", "id")
    rows = given.selectExpr("key", "value", "cast(if(id < 10, 2, null) as int) partition", headers)
    rows.write.format("tailrace").options(**served, topic="batch", compression="zstd").mode("append").save()
    read = spark.read.format("tailrace").options(**served, subscribe="batch", includeHeaders="true")
    found = read.load().selectExpr(
        "partition", "offset", "cast(key as string) key", "cast(value as string) value", "headers"
    )
    (folder / "read.json").write_text(
        json.dumps(
            [[*row[:4], [[h.key, bytes(h.value).decode()] for h in row[4]]] for row in found.collect()]
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
