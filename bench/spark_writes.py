"""Writing from Spark, compared with Spark's Kafka sink: CPU of whole `df.write`s, in turn in one session.

    python -m bench.spark_writes [--records 2000000] [--rounds 4] [--json FILE]

It writes a frame in memory to `noop`, with Spark's Kafka sink (defaults) to Tailrace and, if Kafka's jars are
installed, to Kafka, and with Tailrace's sink. Each write goes to a topic with 12 partitions, in 4 tasks on `local[2]`.
Spark's CPU is that of the driver's Python, the JVM and all Python workers; the broker's CPU is printed next to it. The
smallest sum of each counts. The first round, in which classes load and workers start, is printed but does not count.

bench.spark_sink measures the task of Tailrace's sink alone.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench.broker import machine
from bench.support import kafka_peer
from bench.support.process_figures import cpu_seconds
from tailrace_cli.demo.embedded_cluster import serving
from tests.compat import with_spark

BY_KAFKAS_SINK, BY_OURS, PARTITIONS, TASKS = "by-kafkas-sink", "by-ours", 12, 4
SIZES = (100, 1_000)
SETTLE_SECONDS = 0.5
"""Work that follows a write, such as a producer's last responses, is done after this time."""


def processes_below(pid: int) -> set[int]:
    """Return the process and all its descendants."""
    found = {pid}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            for child in task.read_text().split():
                found |= processes_below(int(child))
    return found


def frame_of(spark: Any, records: int, size: int) -> Any:
    """Return a frame in memory, with keys of 8 bytes and values of hexadecimal digits."""
    digests = f"transform(sequence(0, {size // 40}), n -> sha1(cast(id * 1000 + n as string)))"
    rows = spark.range(0, records, numPartitions=TASKS).selectExpr(
        "cast(lpad(cast(id * 7919 % 100000 as string), 8, '0') as binary) as key",
        f"cast(substring(concat_ws('', {digests}), 1, {size}) as binary) as value",
    )
    rows = rows.persist()
    rows.count()
    return rows


class Measured:
    """Measures writes."""

    def __init__(self, spark: Any, brokers: dict[str, int]) -> None:
        self._jvm = int(spark._jvm.ProcessHandle.current().pid())
        self._brokers = brokers

    def cost(self, write: Callable[[], None], broker: str) -> dict[str, float]:
        """Run a write. Return the CPU seconds of Spark and of the broker, and the wall-clock time."""
        before, broker_before, began = self._spark_seconds(), self._broker_seconds(broker), time.monotonic()
        write()
        wall = time.monotonic() - began
        time.sleep(SETTLE_SECONDS)
        after = self._spark_seconds()
        # The CPU of a worker that has ended is lost, but Spark keeps workers for a minute.
        spent = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
        return {"spark": spent, "broker": self._broker_seconds(broker) - broker_before, "wall": wall}

    def _spark_seconds(self) -> dict[int, float]:
        return {pid: cpu_seconds(pid) for pid in processes_below(self._jvm) | {os.getpid()}}

    def _broker_seconds(self, name: str) -> float:
        return cpu_seconds(self._brokers[name]) if name else 0.0


def main() -> None:
    """Print each round, and write the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000, help="of 100 B; of 1,000 B a sixth of them")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    missing = with_spark.unavailable()
    if missing:
        raise SystemExit(missing)
    from compactor.on_spark.session import spark_session
    from compactor.spark_source.source import DefaultSource

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-bench-")))
        served = stack.enter_context(serving(folder / "data", environ={}))
        bootstraps, brokers = {"Tailrace": served.bootstrap}, {"Tailrace": served.pid}
        if kafka_peer.unavailable() is None:
            peer = stack.enter_context(kafka_peer.kafka(folder / "kafka"))
            bootstraps["Kafka"], brokers["Kafka"] = peer.bootstrap, peer.pid
        for bootstrap in bootstraps.values():
            topics = [NewTopic(name, PARTITIONS, 1) for name in (BY_KAFKAS_SINK, BY_OURS)]
            admin = AdminClient({"bootstrap.servers": bootstrap})
            for made in admin.create_topics(topics).values():
                made.result()
        jars = ",".join(sorted(map(str, with_spark.JARS.glob("*.jar"))))
        settings = {
            "spark.jars": jars,
            "spark.driver.memory": "3g",
            "spark.ui.showConsoleProgress": "false",
        }
        spark = spark_session("local[2]", settings=settings)
        stack.callback(spark.stop)
        spark.dataSource.register(DefaultSource)
        measured = Measured(spark, brokers)
        best: dict[str, dict[str, float]] = {}
        for size in SIZES:
            records = options.records if size == SIZES[0] else options.records // 6
            frame = frame_of(spark, records, size)
            ways = ways_of(frame, bootstraps, served.rpc, served.data)
            for turn in range(options.rounds + 1):
                for name, (write, broker) in ways.items():
                    cost = measured.cost(write, broker)
                    row = f"{name}, {size} B"
                    print(f"{turn} {row}: {json.dumps(cost)}", flush=True)
                    of_record = {key: seconds / records * 1e6 for key, seconds in cost.items()}
                    if turn and (row not in best or _cpu(of_record) < _cpu(best[row])):
                        best[row] = of_record
            frame.unpersist()
    print("| | Spark's CPU, microseconds a record | the broker's | wall |\n|---|---|---|---|")
    for row, cost in best.items():
        print(f"| {row} | {cost['spark']:.2f} | {cost['broker']:.2f} | {cost['wall']:.2f} |")
    if options.json:
        figures = {"machine": machine(), "records": options.records, "microseconds_a_record": best}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def ways_of(
    frame: Any, bootstraps: dict[str, str], rpc: str, data: Path
) -> dict[str, tuple[Callable[[], None], str]]:
    """Return the ways to write the frame by name: a function and the broker whose CPU counts."""

    def by_kafkas_sink(bootstrap: str) -> Callable[[], None]:
        to = {"kafka.bootstrap.servers": bootstrap, "topic": BY_KAFKAS_SINK}
        return lambda: frame.write.format("kafka").options(**to).save()

    to = {
        "store": f"{data}/objects", "sequencer": rpc, "rpc_secret_file": f"{data}/rpc.secret", "topic": BY_OURS,
    }  # fmt: skip
    return {
        "noop": (lambda: frame.write.format("noop").mode("overwrite").save(), ""),
        **{
            f"Kafka's sink to {name}": (by_kafkas_sink(address), name) for name, address in bootstraps.items()
        },
        "Tailrace's sink": (
            lambda: frame.write.format("tailrace").options(**to).mode("append").save(),
            "Tailrace",
        ),
    }


def _cpu(cost: dict[str, float]) -> float:
    return cost["spark"] + cost["broker"]


if __name__ == "__main__":
    main()
