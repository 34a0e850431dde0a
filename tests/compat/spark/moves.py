"""What Spark's own Kafka source and sink do: `moves.py JARS ADDRESS FOLDER NAME`. Prints what it read, as JSON.

A process of its own: jars are read when the JVM starts.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from compactor.on_spark.session import spark_session

jars, address, folder, name = sys.argv[1:]
WRITTEN, ADDED, WHOLE, COPY = 2_000, 500, f"{name}-in", f"{name}-out"
spark = spark_session("local[2]", name="compat", settings={"spark.jars": jars})


def rows(first: int, end: int) -> Any:
    """Records with keys, values and headers, in which each value occurs once."""
    numbers = spark.range(first, end, numPartitions=2)
    return numbers.selectExpr(
        "cast(id % 100 as string) as key",
        "cast(id as string) as value",
        "array(named_struct('key', 'h', 'value', cast('x' as binary))) as headers",
    )


def write(frame: Any, topic: str) -> None:
    """The sink, of a batch."""
    sink = frame.write.format("kafka").option("kafka.bootstrap.servers", address)
    sink.option("topic", topic).option("includeHeaders", "true").save()


def source(reader: Any, topic: str, **options: str) -> Any:
    """The source, of a batch or of a stream."""
    reader = reader.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
    return reader.option("includeHeaders", "true").options(**options)


def read(topic: str, **options: str) -> Any:
    """A batch of all that there is."""
    bounds = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    return source(spark.read, topic, **bounds | options).load()


def counts(frame: Any) -> list[int]:
    """How many records, and how many different values."""
    found = frame.selectExpr("count(*)", "count(distinct value)").collect()[0]
    return [found[0], found[1]]


def copy() -> None:
    """A stream that takes up what there is, from where its checkpoint ends, and ends."""
    stream = source(spark.readStream, WHOLE, startingOffsets="earliest", maxOffsetsPerTrigger="700").load()
    sink = stream.select("key", "value", "headers").writeStream.format("kafka")
    sink = sink.option("kafka.bootstrap.servers", address).option("topic", COPY)
    sink = sink.option("includeHeaders", "true").option("checkpointLocation", f"{folder}/checkpoint")
    sink.trigger(availableNow=True).start().awaitTermination()


write(rows(0, WRITTEN), WHOLE)
copied = []
for end in (WRITTEN, WRITTEN + ADDED):
    copy()
    copied.append(counts(read(COPY)))
    if end == WRITTEN:
        write(rows(WRITTEN, WRITTEN + ADDED), WHOLE)
of_a_key = read(WHOLE, minPartitions="8").groupBy("key").agg({"partition": "min", "*": "count"}).collect()
print(
    json.dumps(
        {
            "written": counts(read(WHOLE)),
            "copied": copied,
            "keys": [len(of_a_key), max(row["count(1)"] for row in of_a_key)],
            "headers": read(COPY).where("headers[0].key = 'h'").count(),
            "since then": read(WHOLE, startingTimestamp="0").count(),
            "committed": counts(read(f"{name}-tx", **{"kafka.isolation.level": "read_committed"})),
        }
    )
)
spark.stop()
