"""Drive the embedded broker with librdkafka: produce and fetch rates, server CPU, latencies, memory.

    python -m bench.broker [--seconds 8] [--json FILE]

Per record size (1 KiB, 100 B) it produces twice, with librdkafka's default settings and with large batches,
then fetches what was produced (from the agent's cache). The server is `tailrace serve` in a process of its own;
its CPU is user + system time of that process while the load ran. The producer is Python over librdkafka; both
clients share the machine's cores with the server: where it is the slower of the two, MiB per server CPU-second
is the figure to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.librdkafka import CountingConsumer
from tailrace.cli.demo.embedded import serving

MIB = 2**20
PARTITIONS = 16
PROFILES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "large batches": {
        "batch.size": 1_000_000,
        "linger.ms": 50,
        "batch.num.messages": 100_000,
        "queue.buffering.max.kbytes": 512 * 1024,
        "queue.buffering.max.messages": 2_000_000,
    },
}


def main() -> None:
    """Run all loads and print a table line for each, then the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each produce load")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder, serving(Path(folder)) as server:
        for size in (1024, 100):
            for name, settings in PROFILES.items():
                topic = f"bench-{size}-{name.replace(' ', '-')}"
                admin = AdminClient({"bootstrap.servers": server.bootstrap})
                admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
                rows.append(
                    _measured(server.pid, produce, server.bootstrap, topic, size, settings, options.seconds)
                )
                rows[-1].update(load="produce", profile=name, record_bytes=size)
                _show(rows[-1])
                rows.append(_measured(server.pid, fetch, server.bootstrap, topic, rows[-1]["records"], size))
                rows[-1].update(load="fetch", profile=name, record_bytes=size)
                _show(rows[-1])
    result = {"machine": machine(), "rows": rows}
    text = json.dumps(result, indent=1)
    if options.json is not None:
        options.json.write_text(text + "\n")
    print(text)


def produce(
    bootstrap: str, topic: str, size: int, settings: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Send random-looking records as fast as librdkafka takes them; acks=all."""
    latencies: list[float] = []
    failures = 0

    def on_delivery(error: object, message: Any) -> None:
        nonlocal failures
        if error is not None:
            failures += 1
        elif len(latencies) < 1_000_000:
            latencies.append(message.latency())

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **settings})
    value = os.urandom(size)
    sent = 0
    started = time.monotonic()
    end = started + seconds
    while time.monotonic() < end:
        for _ in range(500):
            try:
                # A callback per record would measure Python: one in 64 is asked for its latency.
                if sent % 64:
                    producer.produce(topic, value)
                else:
                    producer.produce(topic, value, on_delivery=on_delivery)
                sent += 1
            except BufferError:
                producer.poll(0.005)
        producer.poll(0)
    left = producer.flush(60)
    elapsed = time.monotonic() - started
    if left or failures:
        raise RuntimeError(f"{left} records were not acknowledged within 60 s, {failures} failed")
    return {
        "records": sent,
        "seconds": elapsed,
        "mib_per_second": sent * size / MIB / elapsed,
        "mib": sent * size / MIB,
        "latency_p50_ms": 1000 * statistics.median(latencies),
        "latency_p99_ms": 1000 * statistics.quantiles(latencies, n=100)[98],
    }


def fetch(bootstrap: str, topic: str, records: int, size: int) -> dict[str, Any]:
    """Read the topic from its start, all partitions by one consumer, out of the agent's cache."""
    consumer = CountingConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 8 * MIB,
            "queued.max.messages.kbytes": 256 * 1024,
            "fetch.queue.backoff.ms": 10,
            "check.crcs": False,
        },
        topic,
        PARTITIONS,
    )
    seen = 0
    started = time.monotonic()
    while seen < records:
        came = consumer.consume(records - seen, 30_000)
        if not came:
            raise RuntimeError(f"nothing came for 30 s after {seen} of {records} records")
        seen += came
    elapsed = time.monotonic() - started
    consumer.close()
    return {
        "records": seen,
        "seconds": elapsed,
        "mib_per_second": seen * size / MIB / elapsed,
        "mib": seen * size / MIB,
    }


def _measured(pid: int, load: Any, *arguments: Any) -> dict[str, Any]:
    before = _cpu_seconds(pid)
    figures: dict[str, Any] = load(*arguments)
    figures["server_cpu_seconds"] = _cpu_seconds(pid) - before
    figures["mib_per_server_cpu_second"] = figures["mib"] / max(figures["server_cpu_seconds"], 0.01)
    figures["server_rss_mib"] = _rss_mib(pid)
    return figures


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average_1m": os.getloadavg()[0],
    }


def _show(row: dict[str, Any]) -> None:
    latency = (
        f"p50 {row['latency_p50_ms']:.0f} ms  p99 {row['latency_p99_ms']:.0f} ms"
        if "latency_p50_ms" in row
        else ""
    )
    print(
        f"{row['load']:8} {row['profile']:14} {row['record_bytes']:5} B  {row['mib_per_second']:7.1f} MiB/s  "
        f"{row['mib_per_server_cpu_second']:7.1f} MiB/CPU-s  rss {row['server_rss_mib']:5.0f} MiB  {latency}",
        flush=True,
    )


if __name__ == "__main__":
    main()
