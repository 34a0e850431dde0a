"""Print what Spark SQL reads of a table: `read_by_spark.py JARS CATALOG_DATABASE SNAPSHOT_ID`.

A process of its own: jars are read when the JVM starts.
"""

from __future__ import annotations

import json
import sys

from compactor.on_spark.java import find_java  # noqa: F401 - fails early where there is no Java
from compactor.on_spark.session import spark_session

jars, database, snapshot_id = sys.argv[1:]
CATALOG = "spark.sql.catalog.tailrace"
spark = spark_session(
    "local[1]",
    settings={
        "spark.jars": jars,
        CATALOG: "org.apache.iceberg.spark.SparkCatalog",
        f"{CATALOG}.type": "jdbc",
        f"{CATALOG}.uri": f"jdbc:sqlite:{database}",
        f"{CATALOG}.jdbc.schema-version": "V1",
        f"{CATALOG}.warehouse": "file:///unused",
    },
)


def rows(query: str) -> list[list[object]]:
    """The query's rows."""
    return [list(row) for row in spark.sql(query).collect()]


def refusal(statement: str) -> str:
    """Why Iceberg does not execute the statement."""
    try:
        spark.sql(statement)
    except Exception as error:
        return str(error).partition("ValidationException: ")[2].partition("\n")[0]
    return ""


TABLE = "tailrace.tailrace.a"
TIMES = "select unix_micros(timestamp) from {} order by offset"
spark.read.parquet(
    *(path for (path,) in rows("select file_path from tailrace.tailrace.times.files"))
).createOrReplaceTempView("plain_times")
SUMS = "select partition, count(*), min(offset), max(offset)"
print(
    json.dumps(
        {
            "now": rows(f"{SUMS} from {TABLE} group by 1 order by 1"),
            "typed": rows(
                "select id, value_offset, at.lat, tags[0], value is null from tailrace.tailrace.typed"
                " where id > 1 order by id"
            ),
            "quarantine": rows("select offset, reason from tailrace.tailrace.typed__quarantine"),
            "times": rows(TIMES.format("tailrace.tailrace.times")),
            "earlier": rows(
                "select count(*) from tailrace.tailrace.times where timestamp < timestamp '2023-01-01'"
            ),
            "plain times": rows(TIMES.format("plain_times")),
            "purge": refusal("drop table tailrace.tailrace.typed purge"),
            "then": rows(f"{SUMS} from {TABLE} version as of {snapshot_id} group by 1 order by 1"),
        }
    )
)
spark.stop()
