"""Compares Tailrace with Apache Kafka in one run, with small and large batches, few and many connections: `make bench`.

    python -m bench.peers [--whole] [--only KIND ...] [--seconds 2] [--rounds 1] [--json FILE] [--no-kafka]
                          [--sums]
    python -m bench.peers --page FILE              prints the tables of docs/performance.md

    produce     saturated: batches of 1 record of 1 KiB, 10 x 100 B, 16, 64 and 480 KiB; 1 to 1,000 connections
    hot         the newest HOT_MIB of what these wrote, again and again, from the agent's memory
    cold        a log much larger than the agent's cache, from its start to its end, from the machine's page cache
    paced       1 and 20 MiB/s: the time to the acknowledgement
    groups      100 and 1,000 records a second to three groups: the time from `produce` to each
    librdkafka  as fast as it takes records of 1 KiB, with its defaults and with batches of 1 MB
    java        kafka-producer-perf-test with its defaults and with batches of 1 MB, if Java and Maven are installed

The servers are `tailrace serve` on SQLite over a folder, over a folder as slow as S3 (modelled), and over a store that
drops objects (`bench.serve_over`), and Kafka from its jars, which does not wait for its disk. All run at once and take
turns, so that other load on the machine affects them equally. Without --whole, the daily loads run in some three
minutes.

On a shared machine, compare **requests, batches and MiB per server CPU-second**. On four or more cores, servers and
drivers run on separate cores.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.broker import machine
from bench.support import kafka_peer
from bench.support.peer_cases import DAILY, KAFKA, PROGRAMS, WARM_UP, WHOLE, Case
from bench.support.peer_loads import Loads
from bench.support.peer_page import line, page
from bench.support.raw_load import Server, fill_page_cache
from bench.support.replay import compiled
from tailrace_cli.demo.embedded_cluster import serving

OWN_CORES_FROM = 4
WARM_UP_SECONDS = 5.0
"""Kafka's JIT compiler is busy for at least this long."""


def main() -> None:
    """Run the cases and print a line for each server, then the tables; or print the tables of earlier runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--whole", action="store_true", help="all loads, not only those of every day")
    parser.add_argument(
        "--only", nargs="+", choices=sorted({case.kind for case in WHOLE}), help="these kinds"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each load (default 2)")
    parser.add_argument("--rounds", type=int, default=1, help="how often each load runs (default 1)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--no-kafka", action="store_true", help="measure without Kafka")
    parser.add_argument(
        "--sums", action="store_true", help="the driver adds up what it fetches, in place of dropping it"
    )
    parser.add_argument("--page", type=Path, help="print the tables of this result")
    options = parser.parse_args()
    if options.page:
        print(page(json.loads(options.page.read_text())))
        return
    cases = [
        case for case in (WHOLE if options.whole else DAILY) if not options.only or case.kind in options.only
    ]
    missing = "not wanted" if options.no_kafka else kafka_peer.unavailable()
    if missing is not None:
        print(f"without Kafka: {missing}")
    result = {
        "machine": machine(),
        "seconds": options.seconds,
        "sums": options.sums,
        "rows": run(cases, options, missing is None),
    }
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(page(result))


def run(cases: list[Case], options: argparse.Namespace, has_kafka: bool) -> list[dict[str, Any]]:
    """Run the cases and return their rows. A server runs as long as any case needs it."""
    names = [name for name in (*PROGRAMS, KAFKA) if any(name in case.servers for case in cases)]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder, ExitStack() as stack:
        place = Path(folder)
        fill_page_cache(place / "filler")
        driver = compiled(place)
        with cores_of("servers"):
            servers = {
                name: stack.enter_context(started(name, place / str(number)))
                for number, name in enumerate(names)
                if name != KAFKA or has_kafka
            }
        stack.enter_context(cores_of("drivers"))
        for server in servers.values():
            Loads(server, driver, place, WARM_UP_SECONDS).run(Case("warm-up", "", (), WARM_UP), "warm-up")
        for number, case in enumerate(cases):
            for round_number in range(options.rounds):
                for name in case.servers:
                    if name in servers:
                        loads = Loads(servers[name], driver, place, options.seconds, sums=options.sums)
                        came = loads.run(case, f"b{number}-{round_number}")
                        print(*map(line, came), sep="\n", flush=True)
                        rows += came
    return rows


@contextmanager
def started(name: str, folder: Path) -> Iterator[Server]:
    """Run the server of this name. It is ready at the start of the block."""
    if name == KAFKA:
        with kafka_peer.kafka(folder) as peer:
            yield Server(name, peer.bootstrap, peer.pid)
        return
    program, environ = PROGRAMS[name]
    with serving(folder, program=program, environ=environ) as ours:
        yield Server(name, ours.bootstrap, ours.pid)


@contextmanager
def cores_of(role: str) -> Iterator[None]:
    """Run processes that start inside the block on this role's half of the cores, if there are enough cores."""
    before = os.sched_getaffinity(0)
    if len(before) >= OWN_CORES_FROM:
        ordered = sorted(before)
        half = len(ordered) // 2
        os.sched_setaffinity(0, ordered[:half] if role == "servers" else ordered[half:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


if __name__ == "__main__":
    main()
