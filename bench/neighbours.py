"""How much another client increases a client's latency.

    python -m bench.neighbours [--seconds 4] [--rounds 2] [--gib 1] [--own]

The server is a `tailrace serve` on SQLite and a folder, with a cache of 256 MiB. Two probes run at a steady rate that
keeps the server at a fraction of a core: produce requests of 1 KiB, and fetches of the newest records. One neighbour
runs at the same time:

    consumer     reads the newest 48 MiB again and again, 9 MiB per response, as fast as it can
    catch-up     reads a log of --gib GiB from its start, once, as fast as it can
    tiny         16 connections send batches of one 1-byte record, 64 requests in flight on each
    large        8 connections send batches of 480 KiB, 4 in flight on each

All clients are C programs (bench.support.replay), each a process. It prints the probes' p50 and p99, and their ratio
to the same without a neighbour. A neighbour at full speed takes all that is left of the server's core, so the ratios
show whether it gets more than its share. `--own`: the server has one core and all clients the other, both with
priority over other work on the machine (a niceness of -20, which needs root). Without it, that work is part of the
figures.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench.support.raw_fetch import RawFetcher
from bench.support.raw_load import FETCH_ERROR_AT, MIB, PARTITIONS, Bench, Load, Server, produce_requests
from bench.support.replay import RawRequest, compiled, replayed, write_script
from tailrace_cli.demo.embedded_cluster import serving

HOT_MIB = 48
PROBES_A_SECOND = 200.0
PROBE_FETCH_MIB = 0.0625
PROBE = Load("probe", 1, 1024, 4, 64)
LARGE = Load("480 x 1 KiB", 480, 1024, 8, 4)
TINY = Load("1 x 1 B", 1, 1, 16, 64)
LOG, PROBE_LOG = "log", "probe"
FIRST = -20
LEAD_SECONDS = 1.0
"""A neighbour starts this long before the probes, and ends after them."""


@dataclass(frozen=True, slots=True)
class Scripts:
    """Writes the requests of the probes and the neighbours, each to a file."""

    folder: Path
    bootstrap: str

    def produce(self, name: str, topic: str, load: Load) -> Path:
        """Write produce requests with batches of one shape."""
        path = self.folder / name
        write_script(path, produce_requests(topic, load))
        return path

    def fetch(self, name: str, topic: str, newest_mib: float, connections: int) -> Path:
        """Write fetches of the newest MiB of a topic, or of all of it, by `connections` consumers."""
        fetcher = RawFetcher(self.bootstrap, topic, max_bytes=50 * MIB, partition_max_bytes=MIB)
        ends = fetcher.ends(PARTITIONS)
        of_each = newest_mib * MIB / PARTITIONS / 1024
        starts = {partition: max(0, int(end - of_each)) for partition, end in ends.items()}
        frames = [RawRequest(frame, FETCH_ERROR_AT) for frame, _, _ in fetcher.walk(starts, ends)]
        fetcher.close()
        path = self.folder / name
        write_script(path, [frames] * connections)
        return path


@contextmanager
def own(core: int, is_wanted: bool) -> Iterator[None]:
    """Run processes that start inside the block only on this core, with priority over most others on the machine."""
    cores, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    if is_wanted:
        os.sched_setaffinity(0, {sorted(cores)[core]})
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        os.sched_setaffinity(0, cores)


def main() -> None:
    """Print the probes' latencies alone and with each neighbour."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each load (default 4)")
    parser.add_argument("--rounds", type=int, default=2, help="how often all of it runs (default 2)")
    parser.add_argument("--gib", type=float, default=1.0, help="size of the log that is read (default 1)")
    parser.add_argument("--own", action="store_true", help="cores of their own, as root")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        place = Path(folder)
        driver = compiled(place)
        with own(0, options.own):
            opened = serving(place / "tailrace")
            server = opened.__enter__()
        try:
            bench = Bench(
                Server("Tailrace", server.bootstrap, server.pid), driver, place, options.seconds, sums=False
            )
            admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
            for future in admin.create_topics(
                [NewTopic(name, PARTITIONS, 1) for name in (LOG, PROBE_LOG)]
            ).values():
                future.result(30)
            bench.fill(LARGE, LOG, int(options.gib * 1024))
            with own(1, options.own):
                for _ in range(options.rounds):
                    compare(Scripts(place, server.bootstrap), driver, options.seconds)
        finally:
            opened.__exit__(None, None, None)


def compare(scripts: Scripts, driver: Path, seconds: float) -> None:
    """Print one line for each neighbour."""

    def run(script: Path, length: float, in_flight: int, rate: float = 0) -> dict[str, Any]:
        return replayed(
            driver, script, scripts.bootstrap, seconds=length, in_flight=in_flight, rate=rate, sums=False
        )

    produced = scripts.produce("probe", PROBE_LOG, PROBE)
    run(produced, LEAD_SECONDS, PROBE.in_flight, PROBES_A_SECOND)
    fetched = scripts.fetch("fetch-probe", PROBE_LOG, PROBE_FETCH_MIB, 4)
    neighbours: dict[str, Callable[[], Path] | None] = {
        "nobody": None,
        "consumer": lambda: scripts.fetch("n", LOG, HOT_MIB, 2),
        "catch-up": lambda: scripts.fetch("n", LOG, 1 << 20, 1),
        "tiny": lambda: scripts.produce("n", LOG, TINY),
        "large": lambda: scripts.produce("n", LOG, LARGE),
    }
    windows = {"tiny": TINY.in_flight, "large": LARGE.in_flight}
    quiet: list[dict[str, Any]] = []
    with ThreadPoolExecutor(3) as threads:
        for name, made in neighbours.items():
            beside: Future[dict[str, Any]] | None = None
            if made is not None:
                beside = threads.submit(run, made(), seconds + 2 * LEAD_SECONDS, windows.get(name, 1))
                run(produced, LEAD_SECONDS, PROBE.in_flight, PROBES_A_SECOND)
            probes = [
                threads.submit(run, script, seconds, PROBE.in_flight, PROBES_A_SECOND)
                for script in (produced, fetched)
            ]
            figures = [probe.result() for probe in probes]
            quiet = quiet or figures
            print(_line(name, figures, quiet, beside.result() if beside else None), flush=True)


def _line(
    name: str, figures: list[dict[str, Any]], quiet: list[dict[str, Any]], beside: dict[str, Any] | None
) -> str:
    words = [
        f"{kind} p50 {got['p50_ms']:6.1f} p99 {got['p99_ms']:6.1f} ms (x {got['p99_ms'] / alone['p99_ms']:5.2f})"
        for kind, got, alone in zip(("produce", "fetch"), figures, quiet, strict=True)
    ]
    moved = (
        0.0 if beside is None else (beside["received_bytes"] + beside["sent_bytes"]) / MIB / beside["seconds"]
    )
    return f"{name:10} {'   '.join(words)}   the neighbour {moved:,.0f} MiB/s"


if __name__ == "__main__":
    main()
