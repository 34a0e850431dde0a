"""`tailrace audit` and `tailrace recover` on a folder and SQLite: exit statuses, tables and JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sequencer.store.sql.store import SqlRowStore
from tailrace.object_store.open import open_store
from tailrace_cli.app import main
from tests.support.losable_cluster import Batch, LosableCluster
from tests.support.patience import PATIENCE_SECONDS


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tailrace", *arguments])
    monkeypatch.setattr("tailrace.telemetry.logs.configure_logging", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def make_cluster(folder: Path, *, is_stopped: bool = False) -> None:
    """In `serve`'s places: three records checkpointed, two after."""

    async def make() -> None:
        world = LosableCluster(interval_ms=10)
        rows: Any = SqlRowStore(f"sqlite:///{folder}/tailrace.db", clock=world.clock, entropy=world.entropy)
        bucket: Any = open_store(str(folder / "objects"), clock=world.clock)
        world.rows, world.bucket = rows, bucket
        await world.lead()
        await world.make_topic("t")
        await world.write("t", Batch("a", 3))
        world.checkpointer._begin_scan()
        while not world.checkpointer._scan or not world.checkpointer._scan.task.done():
            await asyncio.sleep(0.001)
        await world.checkpoint()
        await world.write("t", Batch("b", 2))
        if is_stopped:
            await world.sequencer.close()
        await rows.close()
        await bucket.close()

    folder.mkdir()
    asyncio.run(asyncio.wait_for(make(), PATIENCE_SECONDS))


def test_a_lost_database_is_recovered_and_the_audit_is_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    make_cluster(data)
    assert call(monkeypatch, "audit", "--data", str(data), "--full") == 0
    assert "no findings" in capsys.readouterr().out

    assert call(monkeypatch, "recover", "--data", str(data)) == 1
    assert "not empty" in capsys.readouterr().err
    for file in data.glob("tailrace.db*"):
        file.unlink()

    assert call(monkeypatch, "recover", "--data", str(data), "--dry-run", "--json") == 0
    dry = json.loads(capsys.readouterr().out)
    assert dry["is_dry_run"] and dry["certain"]["offsets"] == 3 and dry["resequenced"]["records"] == 2
    assert not (data / "tailrace.db").exists()

    assert call(monkeypatch, "recover", "--data", str(data)) == 0
    said = capsys.readouterr().out
    assert (
        "incarnation 2" in said
        and "2 records in 1 batches of 1 objects" in said
        and "lost: group offsets" in said
    )

    assert call(monkeypatch, "audit", "--data", str(data), "--full", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["clean"] and report["incarnation"] == 2 and report["checked"]["objects opened"] == 2


def test_findings_are_exit_status_1_and_what_cannot_be_looked_at_is_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    make_cluster(data, is_stopped=True)
    [first, *_] = sorted(
        path for path in (data / "objects").rglob("*") if "mixed" in str(path) and path.is_file()
    )
    first.unlink()
    assert (
        call(
            monkeypatch,
            "audit",
            "--store",
            str(data / "objects"),
            "--database",
            f"sqlite:///{data}/tailrace.db",
        )
        == 1
    )
    said = capsys.readouterr().out
    assert "missing_object" in said and "missing_bytes" in said and "findings" in said
    assert call(monkeypatch, "audit", "--data", str(tmp_path / "nowhere")) == 2
    assert "the audit could not run" in capsys.readouterr().err
    assert call(monkeypatch, "audit", "--store", str(data / "objects")) == 2
    (tmp_path / "empty").mkdir()
    assert (
        call(
            monkeypatch,
            "recover",
            "--store",
            str(tmp_path / "empty"),
            "--database",
            "sqlite:///x",
            "--dry-run",
        )
        == 1
    )
    assert "nothing to recover from" in capsys.readouterr().err


@pytest.mark.parametrize("hours", ["inf", "nan", "-1", "1e300"])
def test_an_age_that_is_none_is_wrong_usage(
    hours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "audit", "--data", str(tmp_path), "--overdue-hours", hours) == 2
    assert "--overdue-hours" in capsys.readouterr().err
