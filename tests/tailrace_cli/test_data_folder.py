"""A data folder that no `serve` uses: commands find what it served, or refuse."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tailrace_cli.app import main
from tailrace_cli.connections.connecting import check_exists
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.data_folder import ServedStores, ServerInfo, last_served, shown_as_serving

SERVING = ServerInfo(pid=1, kafka_port=9092, http_port=9644, rpc="127.0.0.1:1", store="memory:")


@pytest.mark.parametrize(
    "command",
    [
        ["compact"],
        ["table", "list"],
        ["query", "select 1"],
        ["erase", "--topic", "t", "--key", "k"],
        ["audit"],
    ],
    ids=" ".join,
)
def test_a_folder_without_a_database_is_refused_and_stays_empty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tailrace", *command, "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, list(tmp_path.iterdir())) == (2 if command == ["audit"] else 1, [])
    assert str(tmp_path / "objects") in line and "no such folder" in line


@pytest.mark.parametrize(
    "database", ["sqlite:///{}/no.db", "sqlite://", "sqlite:///:memory:", "sqlite:///{}"]
)
def test_a_database_that_opening_would_create_is_refused(tmp_path: Path, database: str) -> None:
    with pytest.raises(CommandFailed, match=re.escape("give the sequencer's database")):
        check_exists(str(tmp_path), database.format(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (ServedStores(), ServedStores("{data}/objects", "sqlite:///{data}/tailrace.db")),
        (ServedStores("records", "sqlite:///rows.db"), ServedStores("{here}/records", "sqlite:///{here}/rows.db")),
        (ServedStores("s3://b/p?region=r", "sqlite:////var/rows.db"), ServedStores("s3://b/p?region=r", "sqlite:////var/rows.db")),
        (
            ServedStores("memory:", "postgresql://u:hush@h:1/n?password=hush&sslpassword=hush&sslmode=require"),
            ServedStores("memory:", "postgresql://u@h:1/n?sslmode=require"),
        ),
    ],
)  # fmt: skip
def test_the_served_stores_are_found_after_the_stop_from_any_folder_and_without_a_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: ServedStores, found: ServedStores
) -> None:
    data, here = tmp_path / "data", tmp_path / "here"
    data.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    with shown_as_serving(data, SERVING, given):
        pass
    assert "hush" not in (data / "served.json").read_text()
    monkeypatch.chdir("/")
    assert last_served(data) == ServedStores(
        found.store.format(data=data, here=here), found.database.format(data=data, here=here)
    )


def test_a_folder_that_was_moved_is_found_where_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with shown_as_serving(
        data, SERVING, ServedStores(str(data / "objects"), f"sqlite:///{data}/tailrace.db")
    ):
        pass
    moved = tmp_path / "moved"
    os.rename(data, moved)
    assert last_served(moved) == ServedStores(str(moved / "objects"), f"sqlite:///{moved}/tailrace.db")


def test_an_unreadable_record_of_the_served_stores_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "served.json").write_text("{")
    with pytest.raises(CommandFailed, match=r"served\.json"):
        last_served(tmp_path)
