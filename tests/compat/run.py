"""`python -m tests.compat.run`: every client against a broker; a table of what holds; exit 1 if anything fails."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from rich.console import Console
from rich.table import Table

from tests.compat import (
    with_aiokafka,
    with_confluent,
    with_connect,
    with_java,
    with_java3,
    with_kafka_python,
    with_kcat,
    with_mirror,
    with_programs,
    with_spark,
    with_streams,
    with_tools,
)
from tests.compat.areas import AREAS, Check, Client
from tests.compat.broker import Broker, running_broker


def all_clients() -> list[Client]:
    """Every client there is a check for, also those that this machine lacks."""
    return [
        with_confluent.CLIENT,
        with_kafka_python.CLIENT,
        with_aiokafka.CLIENT,
        with_java.client(),
        with_java3.client(),
        with_tools.client(),
        with_streams.client(),
        with_connect.client(),
        with_mirror.client(),
        with_spark.client(),
        with_kcat.client(),
        *with_programs.clients(),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the checks; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat.run", description=__doc__)
    parser.add_argument(
        "words", nargs="*", metavar="CLIENT", help="a part of a client's name; default: all clients"
    )
    words = parser.parse_args(arguments).words
    table = Table("client", *AREAS, title="Kafka clients against tailrace")
    failures = 0
    with running_broker() as broker:
        for client in all_clients():
            if words and not any(word in client.name for word in words):
                continue
            cells = []
            for area in AREAS:
                check = client.checks.get(area)
                cell = "skipped" if client.skipped else _tried(client, area, check, broker)
                failures += cell.startswith("fails")
                cells.append(cell)
            if client.skipped:
                print(f"{client.name}: skipped: {client.skipped}", flush=True)
            table.add_row(client.name, *cells)
        died = not broker.is_alive
        if failures or died:
            print("--- the broker's last words\n" + broker.log.read_text(errors="replace")[-4000:])
    Console(width=120).print(table)
    if died:
        print("the broker died")
    print(f"compat: {failures} failures" if failures else "compat: all hold")
    return 1 if failures or died else 0


def _tried(client: Client, area: str, check: Check | None, broker: Broker) -> str:
    if check is None:
        return "-"
    started = time.monotonic()
    try:
        check(broker)
    except Exception:
        print(f"--- {client.name}: {area} fails\n{traceback.format_exc()}", flush=True)
        return "fails"
    seconds = time.monotonic() - started
    print(f"{client.name}: {area} ok ({seconds:.1f} s)", flush=True)
    return "ok"


if __name__ == "__main__":
    sys.exit(main())
