"""Drive the embedded broker with librdkafka: produce and fetch rates, server CPU, latencies, memory.

    python -m bench.broker [--seconds 8] [--rounds 3] [--json FILE]

For records of 1 KiB and of 100 B, with librdkafka's default settings and with large batches:

    produce       as fast as librdkafka accepts the records; acks=all. A second producer with default settings sends
                  a record every 10 ms to the same broker; the latencies are those of its records
    fetch cached  librdkafka repeatedly reads the newest records from the agent's cache
    fetch raw     the same with a client that only reads batch headers: the broker's own limit
    fetch cold    librdkafka reads all records, many more than the cache holds

The server is a `tailrace serve` process. Its CPU is the user + system time of that process during the load. On a shared
machine, compare MiB per server CPU-second; `others` is the number of cores that other processes used during the load.
The bench repeats the loads; memory must not grow with them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.support.librdkafka import BATCH, BatchProducer, CountingConsumer
from bench.support.raw_fetch import RawFetcher
from tailrace_cli.demo.embedded_cluster import EmbeddedCluster, serving

MIB = 2**20
PARTITIONS = 16
CACHE_MIB = 1024
HOT_SHARE = 0.15
"""Bytes that the cached fetch reads: less than the cache's share for fresh objects, which is a quarter."""
RECORD_BYTES = (1024, 100)
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
CONSUMER: dict[str, object] = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "fetch.message.max.bytes": 8 * MIB,
    "queued.max.messages.kbytes": 256 * 1024,
    "fetch.queue.backoff.ms": 10,
    "check.crcs": False,
}


def main() -> None:
    """Run all loads and print a line for each, then the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each load (default 8)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load runs (default 3)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument(
        "--cache-mib", type=int, default=CACHE_MIB, help=f"memory of the cache (default {CACHE_MIB})"
    )
    parser.add_argument("--record-bytes", type=int, nargs="+", default=RECORD_BYTES, help="default: 1024 100")
    parser.add_argument(
        "--profile", choices=PROFILES, nargs="+", default=list(PROFILES), help="default: both"
    )
    options = parser.parse_args()
    cache_bytes = options.cache_mib * MIB
    os.environ["TAILRACE_CACHE__MEMORY_BYTES"] = str(cache_bytes)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder, serving(Path(folder)) as server:
        bench = Bench(server, options.seconds, int(HOT_SHARE * cache_bytes), rows)
        for size in options.record_bytes:
            for profile in options.profile:
                for _ in range(options.rounds):
                    bench.round(profile, size)
        memory = memory_of(rows, server.pid)
    print(f"memory: {memory['first_mib']:.0f} MiB after the first round, "
          f"{memory['last_mib']:.0f} MiB after the last, peak {memory['peak_mib']:.0f} MiB")  # fmt: skip
    result = {"machine": machine(), "settings": settings(options), "memory": memory, "rows": rows}
    text = json.dumps(result, indent=1)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n")
    print(text)


class Bench:
    """One server and the loads on it; each appends a row."""

    def __init__(
        self, server: EmbeddedCluster, seconds: float, hot_bytes: int, rows: list[dict[str, Any]]
    ) -> None:
        self.bootstrap = server.bootstrap
        self.seconds = seconds
        self._hot_bytes = hot_bytes
        self._server = ServerProcess(server.pid, server.metrics_urls[0])
        self._admin = AdminClient({"bootstrap.servers": server.bootstrap})
        self._rows = rows
        self._created = 0

    def round(self, profile: str, size: int) -> None:
        """Produce to a new topic, fetch from it, and delete it."""
        topic = f"bench-{self._created}"
        self._created += 1
        self._admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        settings = PROFILES[profile]
        self._measure("produce", profile, size, lambda: self._produce(topic, size, settings))
        ends = self._ends(topic)
        hot = _last_bytes(ends, size, self._hot_bytes)
        whole = dict.fromkeys(ends, 0)
        self._measure("fetch cached", profile, size, lambda: self._fetch(topic, hot, ends, size, again=True))
        self._measure("fetch raw", profile, size, lambda: self._fetch_raw(topic, hot, ends, size))
        self._measure("fetch cold", profile, size, lambda: self._fetch(topic, whole, ends, size, again=False))
        self._admin.delete_topics([topic])[topic].result(30)

    def _measure(self, load: str, profile: str, size: int, run: Callable[[], dict[str, Any]]) -> None:
        with self._server.measured() as cost:
            figures = run()
        row = {"load": load, "profile": profile, "record_bytes": size, **figures, **cost}
        row["mib_per_second"] = row["mib"] / row["seconds"]
        row["mib_per_server_cpu_second"] = row["mib"] / max(row["server_cpu_seconds"], 0.01)
        row["server_cpu_seconds_per_gib"] = 1024 * row["server_cpu_seconds"] / row["mib"]
        asked = row["requests"].get("PRODUCE" if load == "produce" else "FETCH", 0)
        row["kib_per_request"] = 1024 * row["mib"] / max(asked, 1)
        self._rows.append(row)
        _show(row)

    def _produce(self, topic: str, size: int, settings: dict[str, Any]) -> dict[str, Any]:
        """Send one value as fast as librdkafka accepts it. The end offsets show that all records arrived."""
        producer = BatchProducer(
            {"bootstrap.servers": self.bootstrap, "acks": "all", **settings}, topic, os.urandom(size)
        )
        sent, started = 0, time.monotonic()
        with latency_probe(self.bootstrap, topic) as latencies:
            while time.monotonic() - started < self.seconds:
                taken = producer.produce(BATCH)
                sent += taken
                producer.wait(0 if taken == BATCH else 2)
            left = producer.flush(60_000)
            elapsed = time.monotonic() - started
        producer.close()
        stored = sum(self._ends(topic).values())
        if left or stored < sent:
            raise RuntimeError(f"{sent} records were sent, {stored} stored, {left} not answered within 60 s")
        return {
            "records": sent,
            "mib": sent * size / MIB,
            "seconds": elapsed,
            "latency_p50_ms": 1000 * statistics.median(latencies),
            "latency_p99_ms": 1000 * statistics.quantiles(latencies, n=100)[98],
        }

    def _fetch(
        self, topic: str, starts: dict[int, int], ends: dict[int, int], size: int, *, again: bool
    ) -> dict[str, Any]:
        consumer = CountingConsumer({"bootstrap.servers": self.bootstrap, **CONSUMER}, topic, starts)
        wanted = sum(ends.values()) - sum(starts.values())
        seen, started = 0, time.monotonic()
        while True:
            of_pass = 0
            while of_pass < wanted:
                came = consumer.consume(wanted - of_pass, 30_000)
                if not came:
                    raise RuntimeError(f"nothing came for 30 s after {of_pass} of {wanted} records")
                of_pass += came
            seen += of_pass
            if not again or time.monotonic() - started >= self.seconds:
                break
            consumer.seek(starts)
        elapsed = time.monotonic() - started
        consumer.close()
        return {"records": seen, "mib": seen * size / MIB, "seconds": elapsed}

    def _fetch_raw(
        self, topic: str, starts: dict[int, int], ends: dict[int, int], size: int
    ) -> dict[str, Any]:
        fetcher = RawFetcher(self.bootstrap, topic, max_bytes=50 * MIB, partition_max_bytes=MIB)
        seen, started = 0, time.monotonic()
        while time.monotonic() - started < self.seconds:
            seen += fetcher.read(starts, ends)[1]
        elapsed = time.monotonic() - started
        fetcher.close()
        return {"records": seen, "mib": seen * size / MIB, "seconds": elapsed}

    def _ends(self, topic: str) -> dict[int, int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "bench"})
        try:
            return {
                partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)[1]
                for partition in range(PARTITIONS)
            }
        finally:
            consumer.close()


def _last_bytes(ends: dict[int, int], size: int, hot_bytes: int) -> dict[int, int]:
    """Return the offset of each partition after which `hot_bytes` of records remain in total."""
    total = sum(ends.values())
    share = min(1.0, hot_bytes / size / max(total, 1))
    return {partition: int(end * (1 - share)) for partition, end in ends.items()}


@contextmanager
def latency_probe(bootstrap: str, topic: str) -> Iterator[list[float]]:
    """Seconds from `produce` to the acknowledgement of a record sent every 10 ms, by a producer with default
    settings."""
    latencies: list[float] = []
    ended = threading.Event()

    def on_delivery(error: object, message: Any) -> None:
        if error is None:
            latencies.append(message.latency())

    def probe() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        while not ended.wait(0.01):
            producer.produce(topic, b"x" * 100, on_delivery=on_delivery)
            producer.poll(0)
        producer.flush(60)

    thread = threading.Thread(target=probe, name="latency probe")
    thread.start()
    try:
        yield latencies
    finally:
        ended.set()
        thread.join()


class ServerProcess:
    """What a process used, according to /proc."""

    def __init__(self, pid: int, metrics_url: str) -> None:
        self._pid = pid
        self._metrics_url = metrics_url

    @contextmanager
    def measured(self) -> Iterator[dict[str, Any]]:
        """Yield a dict. At the end of the block it gets the CPU that the server used in the block, and that of
        processes other than the server and this one."""
        cost: dict[str, Any] = {}
        requests = self._requests()
        started, own, busy = time.monotonic(), _own_cpu(), _busy_seconds()
        user, system = self._cpu_seconds()
        yield cost
        elapsed, (user_now, system_now) = time.monotonic() - started, self._cpu_seconds()
        cost["server_cpu_seconds"] = user_now - user + system_now - system
        cost["server_system_cpu_seconds"] = system_now - system
        cost["requests"] = {
            api: count - requests.get(api, 0)
            for api, count in self._requests().items()
            if count != requests.get(api)
        }
        cost["client_cpu_seconds"] = _own_cpu() - own
        others = _busy_seconds() - busy - cost["server_cpu_seconds"] - cost["client_cpu_seconds"]
        cost["cores_used_by_others"] = max(0.0, others / elapsed)
        cost["server_rss_mib"] = self.rss_mib()

    def _cpu_seconds(self) -> tuple[float, float]:
        """Return user and system time."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) / os.sysconf("SC_CLK_TCK"), int(fields[12]) / os.sysconf("SC_CLK_TCK")

    def _requests(self) -> dict[str, int]:
        """Requests answered so far, by API."""
        with urllib.request.urlopen(self._metrics_url, timeout=30) as answer:
            found = re.findall(
                r'^tailrace_request_duration_seconds_count{api="(\w+)"} (\S+)', answer.read().decode(), re.M
            )
        return {api: int(float(count)) for api, count in found}

    def rss_mib(self) -> float:
        """Resident memory now."""
        return int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def _own_cpu() -> float:
    times = os.times()
    return times.user + times.system


def _busy_seconds() -> float:
    """CPU seconds of the whole machine that were not idle."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def memory_of(rows: list[dict[str, Any]], pid: int) -> dict[str, Any]:
    """The server's resident memory after each load, and its peak."""
    after = [row["server_rss_mib"] for row in rows]
    peak = next(
        int(line.split()[1]) / 1024
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return {"first_mib": after[3], "last_mib": after[-1], "peak_mib": peak, "after_each_load_mib": after}


def machine() -> dict[str, Any]:
    """The machine on which the figures were measured."""
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.processor()
    )  # fmt: skip
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
        "cpu": model,
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average_1m": os.getloadavg()[0],
    }


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that differ from the defaults."""
    return {
        "server": {
            "cache.memory_bytes": options.cache_mib * MIB,
            "store": "folder",
            "database": "sqlite",
            "agents": 1,
        },
        "partitions": PARTITIONS,
        "producers": {name: PROFILES[name] for name in options.profile},
        "consumer": CONSUMER,
        "seconds": options.seconds,
        "rounds": options.rounds,
    }


def _show(row: dict[str, Any]) -> None:
    latency = (
        f"  p50 {row['latency_p50_ms']:.0f} ms  p99 {row['latency_p99_ms']:.0f} ms"
        if "latency_p50_ms" in row
        else ""
    )
    print(
        f"{row['load']:12} {row['profile']:13} {row['record_bytes']:5} B {row['mib_per_second']:7.1f} MiB/s "
        f"{row['mib_per_server_cpu_second']:7.1f} MiB/CPU-s {row['server_cpu_seconds_per_gib']:5.2f} CPU-s/GiB "
        f"({100 * row['server_system_cpu_seconds'] / max(row['server_cpu_seconds'], 0.01):2.0f} % kernel)  "
        f"{row['kib_per_request']:6.0f} KiB/request  "
        f"rss {row['server_rss_mib']:5.0f} MiB  others {row['cores_used_by_others']:.1f} cores{latency}",
        flush=True,
    )


if __name__ == "__main__":
    main()
