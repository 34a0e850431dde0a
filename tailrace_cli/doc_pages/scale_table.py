"""Print the extrapolation in docs/scale.md from the workload model: `python -m tailrace_cli.doc_pages.scale_table`."""

from __future__ import annotations

import msgspec

from tailrace.cost import bill_of, read_prices
from tailrace_cli.workload import Workload, load_of, usage_of

ONE_GIB = Workload(
    mib_per_second=1024,
    batch_kib=64,
    partitions=1_000,
    consumers=3,
    catch_up=0.05,
    parquet_ratio=0.5,
    agents=16,
    zones=3,
)
HUNDRED_GIB = msgspec.structs.replace(
    ONE_GIB, mib_per_second=102_400, agents=1_600, partitions=100_000, databases=87
)
CASES = {
    "1 GiB/s": ONE_GIB,
    "100 GiB/s": HUNDRED_GIB,
    "100 GiB/s, objects of 64 MiB": msgspec.structs.replace(
        HUNDRED_GIB, databases=12, max_object_mib=64, puts_per_second=0, linger_ms=1_000
    ),
}
"""64 MiB/s per agent; 64 KiB batches; three groups, of whose reads 5 % are old records; a week of retention."""
COMMITTER_CORES = 0.7
"""The share of its one core that a committer's loop may use."""


def table() -> str:
    prices = read_prices()
    loads = [load_of(workload) for workload in CASES.values()]
    bills = [bill_of(usage_of(workload), prices) for workload in CASES.values()]
    rows = [
        ("agents, partitions", [f"{case.agents:,}, {case.partitions:,}" for case in CASES.values()]),
        ("objects a second", [f"{load.objects:,.0f}" for load in loads]),
        ("rows a second", [f"{load.rows:,.0f}" for load in loads]),
        (
            "GETs a second",
            [f"{load.tail_gets + load.catch_up_gets + load.compaction_gets:,.0f}" for load in loads],
        ),
        ("cores of agents", [f"{load.agent_cpu:,.0f}" for load in loads]),
        ("cores of the committer", [f"{load.sequencer_cpu:,.1f}" for load in loads]),
        (f"committers at {COMMITTER_CORES:.0%}", [f"{_committers(load.sequencer_cpu)}" for load in loads]),
        ("cores of compactors", [f"{load.compactor_cpu:,.0f}" for load in loads]),
        *(
            (f"$ a month: {item.replace('_', ' ')}", [f"{bill.items[item]:,.0f}" for bill in bills])
            for item in bills[0].items
        ),
        ("$ a month: all", [f"{bill.total:,.0f}" for bill in bills]),
    ]
    lines = [f"| | {' | '.join(CASES)} |", "|---|" + "---|" * len(CASES)]
    return "\n".join(lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows])


def _committers(cores: float) -> int:
    return max(1, round(cores / COMMITTER_CORES + 0.5))


if __name__ == "__main__":
    print(table())
