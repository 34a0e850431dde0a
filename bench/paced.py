"""Time to the acknowledgement on a folder, at a steady rate: `python -m bench.paced [--seconds 10] [--rounds 3]`.

`tailrace serve` on SQLite and a folder, 16 partitions, four connections. Each request is sent when it is due, whatever
is answered, and its latency counts from then. The driver (bench.replay) and the server need a core each: where other
work has them, the figures are of that work.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench.replay import compiled, replayed, write_script
from bench.small_batches import PARTITIONS, Load, produce_requests
from tailrace_cli.demo.embedded import serving

CONNECTIONS, IN_FLIGHT = 4, 64
CASES = (
    ("1 MiB/s of 16 KiB", 16, 64.0),
    ("20 MiB/s of 16 KiB", 16, 1280.0),
    ("20 MiB/s of 64 KiB", 64, 320.0),
)
"""Name, KiB of a request, requests a second."""
WARM_UP_SECONDS = 2.0


def main() -> None:
    """Run the cases and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each load (default 10)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load runs (default 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        place = Path(folder)
        driver, script = compiled(place), place / "script"
        with serving(place / "tailrace") as server:
            admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(30)
            for name, kib, rate in CASES:
                write_script(script, produce_requests("t", Load(name, kib, 1024, CONNECTIONS, IN_FLIGHT)))
                run = partial(replayed, driver, script, server.bootstrap, in_flight=IN_FLIGHT, rate=rate)
                run(seconds=WARM_UP_SECONDS)
                for _ in range(options.rounds):
                    print(_line(name, run(seconds=options.seconds)), flush=True)


def _line(name: str, counted: dict[str, Any]) -> str:
    return (
        f"{name:20} {counted['requests']:7,} acks  p50 {counted['p50_ms']:.1f}  p99 {counted['p99_ms']:.1f} ms  "
        f"load average {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
