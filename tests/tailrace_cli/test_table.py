"""`tailrace table`, and the Python of docs/compactor.md that reads what it names."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from compactor.cycle import CompactionSettings, InProcess, run_cycle
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import AlterConfig, ConfigChange, ConfigOperation, ConfigScope
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.sql.store import SqlRowStore
from tailrace.clock import SystemClock
from tailrace.object_store.folder import FolderStore
from tests.support.clocks import SeededEntropy
from tests.support.compaction import T0, Log, batch_of
from tests.support.rest_catalog import rest_catalog

PATIENT = SequencerSettings(session_lease_ms=3_600_000, agent_lease_ms=3_600_000)
ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs/compactor.md").read_text().partition("\n## Reading the Parquet objects directly\n")[2]
LISTING, IN_DUCKDB, IN_SPARK, IN_PYICEBERG = re.findall(
    r"^```python\n(.+?)^```$", SECTION, flags=re.M | re.S
)[:4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with `data`: topic flights, two partitions of 40 records, of which 30 are compacted and 7 of
    these deleted."""
    folder = tmp_path_factory.mktemp("table")
    asyncio.run(_fill(folder / "data"))
    (folder / "tailrace").write_text(f'#!/bin/sh\nexec {sys.executable} -m tailrace_cli.app "$@"\n')
    (folder / "tailrace").chmod(0o755)
    return folder


async def _fill(data: Path) -> None:
    clock, entropy = SystemClock(), SeededEntropy(1)
    with ThreadPoolExecutor(2) as executor:
        store = FolderStore(data / "objects", clock, executor)
        sequencer = Committer(
            SqlRowStore(f"sqlite:///{data / 'tailrace.db'}", clock=clock, entropy=entropy),
            clock,
            entropy,
            PATIENT,
        )
        await sequencer.start()
        log = Log(sequencer, store, clock)
        topic = await log.topic("flights", 2)
        for number in range(4):
            batches = [
                ("flights", partition, batch_of([b'{"carrier": "UA"}'] * 10, at=T0)) for partition in (0, 1)
            ]
            await log.produce(*batches)
            if number == 2:
                await run_cycle(
                    sequencer, InProcess(store, clock, entropy), clock=clock, entropy=entropy,
                    settings=CompactionSettings(min_bytes=1, min_age_ms=0),
                )  # fmt: skip
        await log.topic("carriers")
        await log.produce(("carriers", 0, batch_of([b'{"carrier": "UA"}', b"?"])))
        await run_cycle(
            sequencer, InProcess(store, clock, entropy), clock=clock, entropy=entropy,
            settings=CompactionSettings(min_bytes=1, min_age_ms=0, topics=frozenset(["carriers"])),
        )  # fmt: skip
        table = ConfigChange("tailrace.table", ConfigOperation.SET, "iceberg")
        schema = ConfigChange("tailrace.schema", ConfigOperation.SET, "json")
        await sequencer.alter_config(AlterConfig(ConfigScope.TOPIC, "flights", [table]))
        await sequencer.alter_config(AlterConfig(ConfigScope.TOPIC, "carriers", [table, schema]))
        await sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(topic.topic_id, 1, 7)]))
        await sequencer.close()


def run(folder: Path, *arguments: str) -> str:
    done = tailrace(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tailrace(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(folder / "tailrace"), *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def example(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch, **given: Any) -> dict[str, Any]:
    """The names that a piece of the page's Python leaves behind."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    names = dict(given)
    exec(LISTING + code, names)
    return names


def test_files_are_named_with_their_live_rows(folder: Path) -> None:
    found = json.loads(run(folder, "table", "files", "flights", "--data", "data", "--json"))
    (file,) = found["files"]
    assert Path(file["path"].removeprefix("file://")).stat().st_size == file["bytes"]
    assert (file["rows"], file["live_rows"]) == (60, 53)
    assert file["live"] == [
        {"partition": 0, "start": 0, "end": 30, "rows": 30},
        {"partition": 1, "start": 7, "end": 30, "rows": 23},
    ]
    assert [each["uncompacted_offsets"] for each in found["partitions"]] == [10, 10]
    shown = run(folder, "table", "files", "flights", "--data", "data")
    assert "1 files (1 below 64 MiB), 53 live rows; 20 offsets are in no Parquet file yet" in shown


def test_duckdb_reads_the_live_rows_as_the_page_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = example(folder, IN_DUCKDB, monkeypatch)
    assert sorted(names["records"].aggregate("partition, count(*)").fetchall()) == [(0, 30), (1, 23)]
    assert "count_star()" in capsys.readouterr().out


def test_spark_reads_the_live_rows_as_the_page_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from compactor.on_spark.session import spark_session

    spark = spark_session("local[1]")
    try:
        names = example(folder, IN_SPARK, monkeypatch, spark=spark)
        assert names["records"].count() == 53
        assert "UA" in capsys.readouterr().out
    finally:
        spark.stop()


def test_a_repaired_table_is_read_as_the_page_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = json.loads(run(folder, "table", "repair", "flights", "--data", "data", "--json"))
    assert (done["files"], done["added"], done["deletes_added"]) == (1, 1, 1)
    listed = json.loads(run(folder, "table", "list", "--data", "data", "--json"))
    assert {each["topic"]: each["wanted"] for each in listed} == {"flights": True, "carriers": True}
    assert "total position deletes" in run(folder, "table", "show", "flights", "--data", "data")
    monkeypatch.chdir(folder)
    exec(IN_PYICEBERG, {})
    assert capsys.readouterr().out == "53\n"


def test_a_catalog_that_refuses_is_one_line(folder: Path, tmp_path: Path) -> None:
    with rest_catalog(tmp_path) as address:
        for command in ("show", "repair"):
            told = ("table", command, "carriers", "--data", "data")
            done = tailrace(folder, *told, TAILRACE_TABLES__CATALOG=address)
            assert (done.returncode, done.stdout) == (1, "")
            says = "tailrace: the tables' catalog can't be used: NotAuthorizedException: no token\n"
            assert done.stderr == says


def test_a_table_with_columns_shows_them_and_its_quarantine(folder: Path) -> None:
    done = json.loads(run(folder, "table", "repair", "carriers", "--data", "data", "--json"))
    assert (done["files"], done["quarantined_files"]) == (1, 1)
    shown = run(folder, "table", "show", "carriers", "--data", "data").splitlines()
    assert shown[0] == "table: tailrace.carriers"
    assert shown[2:4] == ["quarantine: tailrace.carriers__quarantine", "columns: carrier string"]
    catalog = load_catalog("tailrace", type="sql", uri=f"sqlite:///{folder}/data/tailrace.db")
    typed = catalog.load_table("tailrace.carriers").scan().to_arrow()
    assert typed["carrier"].to_pylist() == ["UA"]
    unfit = catalog.load_table("tailrace.carriers__quarantine").scan().to_arrow()
    assert unfit["value"].to_pylist() == [b"?"]
    tried = json.loads(run(folder, "table", "replay", "carriers", "--data", "data", "--json"))
    assert (tried["added"], tried["removed"], tried["quarantined_files"]) == (1, 1, 1)


def test_a_query_sees_files_and_tail_as_one(folder: Path) -> None:
    by_partition = 'select "partition", count(*) n, min("offset") low from flights group by 1 order by 1'
    lines = run(folder, "query", by_partition, "--data", "data").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"partition": 0, "n": 40, "low": 0},
        {"partition": 1, "n": 33, "low": 7},
    ]
    newest = 'select "offset", value from flights where "partition" = 1 order by "offset" desc limit 2'
    lines = run(folder, "query", newest, "--data", "data").splitlines()
    assert json.loads(lines[0]) == {"offset": 39, "value": '{"carrier": "UA"}'}
    assert len(lines) == 2


def test_a_query_of_a_damaged_object_says_what_is_damaged_and_what_to_do(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for file in (tmp_path / "data/objects").rglob("*"):
        if file.is_file() and file.suffix != ".parquet":
            file.write_bytes(bytes(file.stat().st_size))
    done = tailrace(tmp_path, "query", "select count(value) from flights", "--data", "data")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        r"tailrace: topic 'flights', partition [01]: offsets 30 to 39 are damaged in the store: [^\n]+\."
        r" Restore the object; `tailrace audit --full` lists all damaged objects\n",
        done.stderr,
    ), done.stderr
