"""`tailrace cost`: a workload's load and bill, and a month out of what processes counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from agent.topic_counters import TopicCounts
from agent.topic_usage import ProcessCounts
from tailrace.cost import GIB, MONTH_SECONDS, Usage, bill_of, read_prices
from tailrace_cli.app import app
from tailrace_cli.commands.cost import STORED, usage_a_month
from tailrace_cli.running.checks import open_prices
from tailrace_cli.settings import Settings
from tailrace_cli.workload import (
    BadWorkload,
    Workload,
    load_of,
    objects_per_second,
    read_workload,
    usage_of,
)


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (Workload(mib_per_second=1), 5.0),
        (Workload(mib_per_second=1, puts_per_second=0), 1 / (0.25 + 1 / 64)),
        (Workload(mib_per_second=1, agents=10), 50.0),
        (Workload(mib_per_second=100), 12.5),
        (Workload(mib_per_second=0), 0.0),
        (Workload(mib_per_second=1 / 1024, batch_kib=1), 1.0),
    ],
)
def test_buffers_are_sealed_early_by_linger_or_by_size_and_not_more_often_than_batches_come(
    workload: Workload, expected: float
) -> None:
    assert objects_per_second(workload) == pytest.approx(expected, rel=0.01)


def test_a_budget_of_rows_makes_objects_fewer() -> None:
    many = Workload(mib_per_second=20, partitions=10_000, batch_kib=4)
    assert objects_per_second(many) < 5.0
    assert load_of(many).rows < 10_000 * 5


def test_tail_readers_of_the_writers_zone_cost_no_request() -> None:
    assert load_of(Workload(consumers=10)).tail_gets == 0
    assert load_of(Workload(consumers=10, zones=3)).tail_gets == pytest.approx(10.0)


def test_only_consumers_in_other_zones_catching_up_and_compaction_read_bytes_from_the_store() -> None:
    nothing = Workload(consumers=0, zones=3, parquet_ratio=0)
    assert usage_of(nothing).got_bytes == 0
    of_month = (1 << 20) * MONTH_SECONDS
    assert usage_of(replace(nothing, consumers=1)).got_bytes == pytest.approx(2 * of_month)
    assert usage_of(replace(nothing, parquet_ratio=0.5)).got_bytes == pytest.approx(of_month)
    caught_up = Workload(consumers=2, catch_up=0.5, parquet_ratio=0)
    assert usage_of(caught_up).got_bytes == pytest.approx(of_month)


def test_clients_that_name_no_zone_pay_for_crossing_zones() -> None:
    prices = read_prices()
    blind = bill_of(usage_of(Workload(zones=3, is_zone_aware=False)), prices)
    aware = bill_of(usage_of(Workload(zones=3)), prices)
    assert aware.cross_zone == 0
    assert blind.cross_zone == pytest.approx(2 / 3 * 2 * MONTH_SECONDS / 1024 * 0.02)


def test_storage_is_what_retention_keeps() -> None:
    assert usage_of(Workload(mib_per_second=1, retention_hours=24)).storage_gib_months == pytest.approx(
        84.375
    )


@pytest.mark.parametrize("text", ["mib_per_second = -1", "speed = 3", "mib_per_second ="])
def test_a_workload_that_is_not_one_says_what_a_workload_says(text: str) -> None:
    with pytest.raises(BadWorkload, match="retention_hours"):
        read_workload(text, {})


def test_a_month_is_made_of_each_process_own_time() -> None:
    topic = {"t": TopicCounts(objects=1, stored_bytes=1)}
    old = ProcessCounts(Usage(puts=100), topic, object_bytes=GIB)
    young = ProcessCounts(Usage(puts=10), topic, object_bytes=2 * GIB)
    month = usage_a_month([(old, 100.0), (young, 10.0)])
    assert month["t"].puts == pytest.approx(2 * MONTH_SECONDS)
    assert month[STORED].storage_gib_months == 2, "every process says the same of the cluster: not a sum"


def test_the_command_bills_a_workload(tmp_path: Path) -> None:
    file = tmp_path / "workload.toml"
    file.write_text("mib_per_second = 50\nagents = 3\n")
    shown = CliRunner().invoke(
        app, ["cost", "--workload", str(file), "--set", "mib_per_second=1", "--set", "agents=1", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    said = json.loads(shown.output)
    assert said["topics"]["(workload)"]["dollars"]["put"] == pytest.approx(64.8 * 1.05, rel=0.01)
    assert said["dollars_a_month"] > 64.8


USED = Usage(puts=1e6, gets=1e6, storage_gib_months=10, database_months=1, cpu_seconds=1e6)


@pytest.mark.parametrize(
    ("store", "database", "table", "put", "sql"),
    [
        ("file:///data/objects", "sqlite:////data/tailrace.db", "own machine", 0.0, 0.0),
        ("/data/objects", "postgresql://u@h/n", "own store", 0.0, 229.0),
        ("/data/objects", "postgresql+asyncpg://u@h/n", "own store", 0.0, 229.0),
        ("/data/objects", None, "own store", 0.0, 229.0),
        ("s3://bucket", "postgresql://u@h/n", "S3 Standard, us-east-1", 5.0, 229.0),
    ],
)
def test_only_a_folder_as_a_store_and_sqlite_are_free(
    store: str, database: str | None, table: str, put: float, sql: float
) -> None:
    prices = open_prices(Settings(), store, database)
    bill = bill_of(USED, prices)
    assert (prices.name, bill.put, bill.sql) == (table, put, sql)
    assert (bill.total == 0) == (table == "own machine")


@pytest.mark.parametrize(
    ("databases", "months"), [(["sqlite"], 0), (["", "sqlite"], 0), ([""], 1), (["postgresql", ""], 1)]
)
def test_sqlite_is_no_database_to_pay_for(databases: list[str], months: float) -> None:
    month = usage_a_month([(ProcessCounts(database=database), 1.0) for database in databases])
    assert month[STORED].database_months == months
