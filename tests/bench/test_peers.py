"""The bench beside Kafka: its cases, its stores, and what its table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.end_to_end import at
from bench.peers import started
from bench.serve_over import NullStore
from bench.support.peer_cases import DAILY, KAFKA, NULL, PROGRAMS, S3, WHOLE
from bench.support.peer_page import page, with_figures
from tailrace.clock import SystemClock
from tailrace.object_store.api import ObjectMissing

MACHINE = {
    "cpus": 2, "cpu": "c", "memory_gib": 1, "system": "s", "python": "3", "commit": "x", "measured_at": "now",
    "load_average_1m": 0.0,
}  # fmt: skip


def test_a_case_is_distinct_and_runs_on_servers_that_can_be_started() -> None:
    told = [(case.kind, case.name) for case in WHOLE]
    assert len(set(told)) == len(told) and set(DAILY) < set(WHOLE)
    assert {server for case in WHOLE for server in case.servers} == {*PROGRAMS, KAFKA}


@pytest.mark.parametrize("name", [NULL, S3])
def test_a_server_over_a_store_of_the_bench_starts(name: str, tmp_path: Path) -> None:
    with started(name, tmp_path) as server:
        assert server.pid


async def test_the_null_store_forgets_mixed_objects_alone() -> None:
    store = NullStore(SystemClock())
    await store.put("c1/mixed/ab/1", [b"records"])
    await store.put("c1/meta/head", [b"rows"])
    assert (await store.head("c1/mixed/ab/1")).size == 0
    assert await store.get("c1/meta/head") == b"rows"
    with pytest.raises(ObjectMissing):
        await store.get("c1/meta/other")


def row(server: str, cpu: float, p99: float, load: str = "produce") -> dict[str, object]:
    return {
        "server": server, "load": load, "batch": "1 x 1 KiB", "requests": 1_000, "mib": 10.0, "seconds": 2.0,
        "server_cpu_seconds": cpu, "p50_ms": 1.0, "p99_ms": p99, "p999_ms": 9.0,
    }  # fmt: skip


def test_the_table_compares_medians_with_kafkas() -> None:
    rows = [row("Tailrace", cpu, 5.0) for cpu in (1.0, 2.0, 4.0)] + [row(KAFKA, 1.0, 3.0)]
    rows += [row("Tailrace, modelled S3", 1.0, 400.0, "paced")]
    lines = page({"machine": MACHINE, "rows": rows}).splitlines()
    assert (
        "| produce | 1 x 1 KiB | Tailrace | requests per cpu second | 500.0 | 1,000.0 | 0.50 |" in lines[-2]
    )
    assert "| paced | 1 x 1 KiB | modelled S3 | p99 ms | 400.0 | - | - | 1.0 / 400.0 / 9.0 | - |" in lines[-1]


def test_figures_are_per_cpu_second_of_the_server_and_per_second() -> None:
    figures = with_figures(row("Tailrace", 0.5, 5.0))
    assert (figures["requests_per_cpu_second"], figures["mib_per_second"]) == (2_000, 5)


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(1, 1_001)]
    assert [at(values, share) for share in (0.5, 0.99, 0.999)] == [500.0, 990.0, 999.0]
