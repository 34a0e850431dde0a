"""Prints the figures of a bench run as the table of docs/figures.md: `python -m bench.figures bench/results/FILE.json`.

Each figure is the median of all rounds of a load.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

COLUMNS = (
    ("MiB/s", "mib_per_second", "{:,.0f}"),
    ("MiB per server CPU-second", "mib_per_server_cpu_second", "{:,.0f}"),
    ("server CPU-seconds per GiB", "server_cpu_seconds_per_gib", "{:.2f}"),
    ("p50 ms", "latency_p50_ms", "{:,.0f}"),
    ("p99 ms", "latency_p99_ms", "{:,.0f}"),
    ("KiB a request", "kib_per_request", "{:,.0f}"),
    ("others' cores", "cores_used_by_others", "{:.1f}"),
)


def table(result: dict[str, Any]) -> str:
    """Return a Markdown table with a line for each load, profile and record size, in the order of the run."""
    rounds: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        rounds.setdefault((row["load"], row["profile"], row["record_bytes"]), []).append(row)
    lines = [
        f"| load | client | record | {' | '.join(title for title, _, _ in COLUMNS)} |",
        f"|---|---|---|{'---|' * len(COLUMNS)}",
    ]
    for (load, profile, size), rows in rounds.items():
        cells = [
            shown.format(statistics.median(values))
            if (values := [row[name] for row in rows if name in row])
            else ""
            for _, name, shown in COLUMNS
        ]
        lines.append(f"| {load} | {profile} | {size} B | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print machine, memory and table of the named file."""
    result = json.loads(Path(sys.argv[1]).read_text())
    machine, memory = result["machine"], result["memory"]
    print(
        f"{machine['cpus']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, {machine['system']}, Python "
        f"{machine['python']}; commit {machine['commit']}, {machine['measured_at']}.\n"
    )
    print(table(result))
    print(
        f"\nResident memory: {memory['first_mib']:,.0f} MiB after the first round, "
        f"{memory['last_mib']:,.0f} MiB after the last, peak {memory['peak_mib']:,.0f} MiB."
    )


if __name__ == "__main__":
    main()
