"""Formats the figures of `bench.peers`: lines while it runs, and the tables of docs/performance.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from bench.support.peer_cases import FOLDER, KAFKA, NULL, S3, SMALL_CACHE

COUNTED = {"requests": "requests", "mib": "mib", "records": "records"}


def with_figures(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its counts per CPU-second of the server, and per second."""
    used, seconds = max(row["server_cpu_seconds"], 0.01), row["seconds"]
    figures = {f"{name}_per_cpu_second": row[name] / used for name in COUNTED if name in row}
    rates = {f"{name}_per_second": row[name] / seconds for name in COUNTED if name in row}
    return {**rates, **row, **figures}


def line(row: dict[str, Any]) -> str:
    shown = with_figures(row)
    return f"{row['server']:26} {row['load']:10} {row['batch']:34} " + "  ".join(
        f"{name.replace('_', ' ')} {shown[name]:,.1f}"
        for name in ("mib_per_second", *FIGURES, "p50_ms", "p99_ms", "p999_ms")
        if name in shown
    )


FIGURES = ("requests_per_cpu_second", "mib_per_cpu_second", "records_per_cpu_second")
MAIN_FIGURE = {
    "produce": "requests_per_cpu_second", "hot": "mib_per_cpu_second", "cold": "mib_per_cpu_second",
    "librdkafka": "mib_per_cpu_second", "java": "mib_per_second", "paced": "p99_ms", "groups": "p99_ms",
}  # fmt: skip
"""The figure that the page's table compares, by kind of load."""
OURS = (FOLDER, NULL, S3, SMALL_CACHE)


def page(result: dict[str, Any]) -> str:
    """Return the page's Markdown: the machine, and a line per load with the medians of its rounds."""
    about = result["machine"]
    rows = [with_figures(row) for row in result["rows"]]
    return "\n".join([
        f"{about['cpus']} cores ({about['cpu']}), {about['memory_gib']} GiB, {about['system']}, "
        f"Python {about['python']}; commit {about['commit']}, {about['measured_at']}, "
        f"load average {about['load_average_1m']:.1f}.\n",
        "| load | batches | server | figure | Tailrace | Kafka | ratio | p50 / p99 / p99.9 ms | Kafka's |",
        "|---|---|---|---|---|---|---|---|---|",
        *_table(rows),
    ])  # fmt: skip


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    for load, batch, server in dict.fromkeys((row["load"], row["batch"], row["server"]) for row in rows):
        if server not in OURS:
            continue
        figure = MAIN_FIGURE[load]
        mine, kafkas = _medians(rows, load, batch, server), _medians(rows, load, batch, KAFKA)
        ratio = f"{mine[figure] / kafkas[figure]:.2f}" if kafkas.get(figure) else "-"
        theirs = f"{kafkas[figure]:,.1f}" if figure in kafkas else "-"
        yield (
            f"| {load} | {batch} | {server.removeprefix('Tailrace, ')} | {figure.replace('_', ' ')} | "
            f"{mine[figure]:,.1f} | {theirs} | {ratio} | {_percentiles(mine)} | {_percentiles(kafkas)} |"
        )


def _medians(rows: list[dict[str, Any]], *load: str) -> dict[str, float]:
    """Return the median of all rounds for each figure of a load on a server."""
    of_load = [row for row in rows if (row["load"], row["batch"], row["server"]) == load]
    names = [name for row in of_load for name, value in row.items() if isinstance(value, int | float)]
    return {name: statistics.median(row[name] for row in of_load) for name in dict.fromkeys(names)}


def _percentiles(figures: dict[str, float]) -> str:
    return (
        " / ".join(f"{figures[name]:,.1f}" for name in ("p50_ms", "p99_ms", "p999_ms") if name in figures)
        or "-"
    )
