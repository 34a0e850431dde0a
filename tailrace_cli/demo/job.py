"""The demo's job: produce, consume in a group, compact, collect garbage, query, replay and expire, with checks.

It drives any cluster that implements the `DemoCluster` protocol.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.table import Table

from tailrace.object_store.api import ObjectInfo, ObjectStore
from tailrace_cli.demo import clients, source
from tailrace_cli.demo.checks import Checks

PARTITIONS = {plan.name: plan.partitions for plan in source.TOPICS}
COLLECTED_WITHIN_SECONDS = 60.0
PUT_DOLLARS, GET_DOLLARS, STORED_GIB_MONTH_DOLLARS = 0.005 / 1000, 0.0004 / 1000, 0.023
"""S3 standard's list prices in us-east-1 (2026): per request, and per GiB and month."""

_Content = tuple[str, bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]


class DemoCluster(Protocol):
    """What the job needs from a running cluster."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def metrics_urls(self) -> list[str]: ...

    def open_store(self) -> ObjectStore:
        """Open the store for the current event loop; the caller closes it."""

    async def compact(self) -> None:
        """Run the Spark compactor until nothing is left to compact."""

    def parquet_paths(self, keys: list[str]) -> list[str]:
        """Return the paths by which Spark reads these objects."""

    def during_load(self, share: float) -> None:
        """Called during the load, with the share that is done. A cluster may kill and add agents here."""


@dataclass
class Elapsed:
    """How long a step took; `_timed` sets it."""

    seconds: float = 0.0


@contextmanager
def _timed() -> Iterator[Elapsed]:
    elapsed, started = Elapsed(), time.monotonic()
    yield elapsed
    elapsed.seconds = time.monotonic() - started


@dataclass
class Figures:
    """The figures that the demo prints at the end."""

    records: int
    source_bytes: int
    produce_time: Elapsed = field(default_factory=Elapsed)
    consume_time: Elapsed = field(default_factory=Elapsed)
    compact_time: Elapsed = field(default_factory=Elapsed)
    replay_time: Elapsed = field(default_factory=Elapsed)


def run(cluster: DemoCluster, console: Console) -> int:
    """Run the whole job. Return the exit status: 0 if every check holds."""
    checks = Checks(console)
    rows = source.tables()
    records = list(source.records(rows))
    figures = Figures(len(records), sum(len(record.key) + len(record.value) for record in records))

    console.rule("produce")
    clients.create_topics(cluster.bootstrap)
    with _timed() as figures.produce_time:
        _produce(cluster, console, checks, records)

    console.rule("consume in a group of three; one stops half-way, one joins")
    with _timed() as figures.consume_time:
        reading = _read_in_group(cluster, len(records), console)
    _check_reading(checks, reading, records)
    log = {partition: _once_each(read) for partition, read in reading.records.items()}
    seeks = _seek_points(log)
    _check_seeks(checks, cluster, seeks, "before compaction")

    console.rule("compact with Spark")
    parquet = _compact(cluster, checks, figures)

    console.rule("query the Parquet with Spark SQL, no broker in the path")
    _check_delays(checks, source.mean_delays(rows["flights"]), cluster.parquet_paths(parquet))

    console.rule("replay from the Parquet")
    with _timed() as figures.replay_time:
        replayed = clients.replay(cluster.bootstrap, "flights", PARTITIONS["flights"])
    wrong = [partition for partition, read in replayed.items() if read != log.get(partition, [])]
    checks.that(
        not wrong,
        "the replayed flights equal the first reading, record for record",
        f"partitions {wrong} differ",
    )
    _check_seeks(checks, cluster, seeks, "after compaction")

    console.rule("retention")
    _expire(cluster, checks)
    _show(cluster, console, figures)
    return _print_result(checks, console)


def _produce(
    cluster: DemoCluster, console: Console, checks: Checks, records: list[source.SourceRecord]
) -> None:
    sent = Counter(record.topic for record in records)

    def progress(count: int) -> None:
        cluster.during_load(count / len(records))
        if count % 50_000 == 0:
            console.print(f"  {count:,} of {len(records):,} records sent")

    acknowledged = clients.produce(cluster.bootstrap, records, progress)
    checks.that(
        acknowledged == sent, f"all {len(records):,} records were acknowledged", f"{acknowledged} of {sent}"
    )


def _once_each(read: list[clients.ReadRecord]) -> list[clients.ReadRecord]:
    """Return a partition's records once each, by offset: a member that takes over may read some again."""
    return sorted({record.offset: record for record in read}.values(), key=lambda record: record.offset)


def _compact(cluster: DemoCluster, checks: Checks, figures: Figures) -> list[str]:
    """Compact everything, wait until the mixed objects are deleted, and return the Parquet objects' keys."""
    mixed = asyncio.run(_keys(cluster, is_parquet=False))
    checks.that(bool(mixed), f"mixed objects are on the store ({len(mixed)})")
    with _timed() as figures.compact_time:
        asyncio.run(cluster.compact())
    parquet = asyncio.run(_keys(cluster, is_parquet=True))
    checks.that(bool(parquet), f"Parquet objects are on the store ({len(parquet)})")
    left = _wait_until_gone(cluster, set(mixed))
    checks.that(
        not left, "the mixed objects that were compacted are gone from the store", f"{len(left)} are left"
    )
    return parquet


def _check_delays(checks: Checks, expected: source.Delays, paths: list[str]) -> None:
    seen = _mean_delays_by_spark(paths)
    same = expected.keys() == seen.keys() and all(
        expected[group][0] == seen[group][0] and abs(expected[group][1] - seen[group][1]) < 1e-9
        for group in expected
    )
    checks.that(
        same,
        f"mean departure delays of {len(expected)} (carrier, month) equal the source's",
        f"{len(seen)} seen",
    )


def _print_result(checks: Checks, console: Console) -> int:
    for failure in checks.failed:
        console.print(f"does not hold: {failure}", style="red", highlight=False)
    if checks.failed:
        console.print(
            f"demo: {len(checks.failed)} of {len(checks.held) + len(checks.failed)} checks do not hold"
        )
        return 1
    console.print(f"demo: {len(checks.held)} checks hold", highlight=False)
    return 0


def _read_in_group(cluster: DemoCluster, total: int, console: Console) -> clients.GroupReading:
    reading = clients.GroupReading()
    members = [clients.DemoConsumer(f"reader-{index}", cluster.bootstrap, reading) for index in range(3)]
    for member in members:
        member.start()
    _until(lambda: reading.total >= total // 2 or _any_failed(members), 120, "half of the records were read")
    console.print(f"  {reading.total:,} records read; reader-0 stops, reader-3 joins")
    members[0].stop()
    late = clients.DemoConsumer("reader-3", cluster.bootstrap, reading)
    late.start()
    members = [*members[1:], late]
    _until(lambda: reading.total >= total or _any_failed(members), 120, "every record was read")
    for member in members:
        member.stop()
    return reading


def _any_failed(members: list[clients.DemoConsumer]) -> bool:
    for member in members:
        if member.failure is not None:
            raise member.failure
    return False


def _check_reading(checks: Checks, reading: clients.GroupReading, records: list[source.SourceRecord]) -> None:
    twice = [partition for partition, count in reading.processed.items() if count > 1]
    checks.that(not twice, "no record was read twice by committed position", f"{len(twice)} were")
    expected: Counter[_Content] = Counter(
        (record.topic, record.key, record.value, record.timestamp_ms, record.headers) for record in records
    )
    seen: Counter[_Content] = Counter(
        (topic, read.key, read.value, read.timestamp[1], read.headers)
        for (topic, _), log in reading.records.items()
        for read in log
    )
    missing = expected - seen
    extra = seen - expected
    checks.that(
        not missing and not extra,
        "every record was read, with its key, value, timestamp and headers",
        f"{sum(missing.values())} missing, {sum(extra.values())} not asked for",
    )
    gaps = [
        partition
        for partition, log in reading.records.items()
        if sorted({read.offset for read in log}) != list(range(len({read.offset for read in log})))
    ]
    checks.that(not gaps, "offsets are contiguous from 0 in every partition", f"{gaps} are not")


def _seek_points(log: clients.Log) -> list[tuple[str, int, int, int]]:
    """Return (topic, partition, time, the offset that a seek must reach), for some times in the log and one past it."""
    points = []
    for (topic, partition), read in sorted(log.items()):
        if topic != "flights" or not read:
            continue
        for position in (0, len(read) // 3, len(read) - 1):
            time_ms = read[position].timestamp[1]
            points.append(
                (topic, partition, time_ms, next(r.offset for r in read if r.timestamp[1] >= time_ms))
            )
    return points


def _check_seeks(
    checks: Checks, cluster: DemoCluster, seeks: list[tuple[str, int, int, int]], when: str
) -> None:
    wrong = [
        (topic, partition, time_ms, expected, offset)
        for topic, partition, time_ms, expected in seeks
        if (offset := clients.offset_at_time(cluster.bootstrap, topic, partition, time_ms)) != expected
    ]
    checks.that(not wrong, f"{len(seeks)} seeks by timestamp land on the right record {when}", f"{wrong[:3]}")


def _mean_delays_by_spark(paths: list[str]) -> source.Delays:
    from compactor.on_spark.session import spark_session

    spark = spark_session()
    spark.read.parquet(*paths).createOrReplaceTempView("records")
    rows = spark.sql(
        """
        SELECT carrier, month, count(*) AS flights, avg(dep_delay) AS mean_delay
        FROM (SELECT from_json(CAST(value AS STRING), 'carrier STRING, month INT, dep_delay DOUBLE') AS flight
              FROM records WHERE topic = 'flights')
             LATERAL VIEW inline(array(flight)) AS carrier, month, dep_delay
        WHERE dep_delay IS NOT NULL
        GROUP BY carrier, month
        """
    ).collect()
    return {(row["carrier"], row["month"]): (row["flights"], row["mean_delay"]) for row in rows}


def _expire(cluster: DemoCluster, checks: Checks) -> None:
    topic = source.EXPIRED_TOPIC
    before = asyncio.run(_sizes(cluster))
    clients.set_retention(cluster.bootstrap, topic, 1)

    def is_empty() -> bool:
        return all(
            low == high
            for low, high in (
                clients.watermarks(cluster.bootstrap, topic, p) for p in range(PARTITIONS[topic])
            )
        )

    try:
        _until(is_empty, COLLECTED_WITHIN_SECONDS, "the topic expired")
        expired = True
    except TimeoutError:
        expired = False
    checks.that(expired, f"retention moved the log start of {topic!r} to its end")
    kept = clients.watermarks(cluster.bootstrap, "flights", 0)
    checks.that(kept[0] == 0 and kept[1] > 0, "retention left 'flights' alone", f"{kept}")
    try:
        _until(lambda: asyncio.run(_sizes(cluster)) < before, COLLECTED_WITHIN_SECONDS, "bytes went")
        gone = True
    except TimeoutError:
        gone = False
    checks.that(gone, "the expired bytes are gone from the store")


async def _keys(cluster: DemoCluster, *, is_parquet: bool) -> list[str]:
    """Return the keys of all Parquet objects or of all mixed objects, whose names are numbers. Skip checkpoints."""
    return [
        item.key
        for item in await _objects(cluster)
        if (item.key.endswith(".parquet") if is_parquet else item.key.rpartition("/")[2].isdigit())
    ]


async def _sizes(cluster: DemoCluster) -> int:
    return sum(item.size for item in await _objects(cluster) if item.key.endswith(".parquet"))


def _wait_until_gone(cluster: DemoCluster, keys: set[str]) -> set[str]:
    left = keys
    deadline = time.monotonic() + COLLECTED_WITHIN_SECONDS
    while left and time.monotonic() < deadline:
        left = keys & set(asyncio.run(_keys(cluster, is_parquet=False)))
        time.sleep(0.2)
    return left


def _until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s until {what}")
        time.sleep(0.05)


def _show(cluster: DemoCluster, console: Console, figures: Figures) -> None:
    metrics = _metrics(cluster)
    mib = figures.source_bytes / 2**20
    puts = _sum(metrics, "tailrace_object_store_requests_total", 'operation="put"')
    gets = _sum(metrics, "tailrace_object_store_requests_total", 'operation="get"')
    runs = _sum(metrics, "tailrace_sequencer_rows", 'kind="runs"')
    stored = asyncio.run(_stored(cluster))
    dollars = (puts * PUT_DOLLARS + gets * GET_DOLLARS) / (mib / 1024)
    table = Table(title="Tailrace demo")
    table.add_column("what")
    table.add_column("figure", justify="right")
    rows: list[tuple[str, str]] = [
        ("records", f"{figures.records:,}"),
        ("source, MiB of keys and values", f"{mib:.1f}"),
        ("produce, MiB/s", f"{mib / figures.produce_time.seconds:.1f}"),
        ("consume in a group, MiB/s", f"{mib / figures.consume_time.seconds:.1f}"),
        ("compact, s (with Spark's start)", f"{figures.compact_time.seconds:.1f}"),
        ("replay of flights from Parquet, s", f"{figures.replay_time.seconds:.1f}"),
        ("objects on the store at the end", f"{stored[0]:,}"),
        ("bytes on the store at the end, MiB", f"{stored[1] / 2**20:.1f}"),
        ("agents' PUTs", f"{puts:,.0f}"),
        ("agents' GETs", f"{gets:,.0f}"),
        ("rows of runs at the sequencer", f"{runs:,.0f}"),
        ("estimated $ of requests per GiB produced", f"{dollars:.4f}"),
        (
            "estimated $ per GiB stored and month",
            f"{STORED_GIB_MONTH_DOLLARS * stored[1] / figures.source_bytes:.4f}",
        ),
    ]
    for what, figure in rows:
        table.add_row(what, figure)
    console.print(table)


async def _stored(cluster: DemoCluster) -> tuple[int, int]:
    objects = await _objects(cluster)
    return len(objects), sum(item.size for item in objects)


async def _objects(cluster: DemoCluster) -> list[ObjectInfo]:
    store = cluster.open_store()
    try:
        return [item async for item in store.list("")]
    finally:
        await store.close()


def _metrics(cluster: DemoCluster) -> str:
    texts = []
    for url in cluster.metrics_urls:
        with urllib.request.urlopen(url, timeout=10) as response:
            texts.append(response.read().decode())
    return "\n".join(texts)


def _sum(metrics: str, name: str, label: str) -> float:
    pattern = re.compile(
        rf"^{re.escape(name)}\{{[^}}]*{re.escape(label)}[^}}]*\}} ([0-9.e+]+)$", re.MULTILINE
    )
    return sum(float(value) for value in pattern.findall(metrics))
