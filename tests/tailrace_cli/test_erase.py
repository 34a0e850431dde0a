"""`tailrace erase` on a folder that no server uses: a preview, an erasure, its log."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.sql.store import SqlRowStore
from tailrace.clock import SystemClock
from tailrace.object_store.folder import FolderStore
from tailrace_cli.app import main
from tailrace_cli.commands.erase import _lines
from tests.support.clocks import SeededEntropy
from tests.support.compaction import Log, batch_of, compacted_here

ROOT = Path(__file__).parents[2]


async def fill(data: Path) -> None:
    """Topic t: two Parquet objects and a tail; alice's records are in the first and in the tail."""
    clock, entropy = SystemClock(), SeededEntropy(1)
    with ThreadPoolExecutor(2) as executor:
        store = FolderStore(data / "objects", clock, executor)
        rows = SqlRowStore(f"sqlite:///{data / 'tailrace.db'}", clock=clock, entropy=entropy)
        sequencer = Committer(rows, clock, entropy, SequencerSettings(session_lease_ms=3_600_000))
        await sequencer.start()
        log = Log(sequencer, store, clock)
        await log.topic("t")
        await log.produce(("t", 0, batch_of([b"1", b"2"], key=b"alice")), ("t", 0, batch_of([b"3"])))
        await compacted_here(log)
        await clock.sleep(0.01)
        await log.produce(("t", 0, batch_of([b"4"], key=b"bob")))
        await compacted_here(log)
        await log.produce(("t", 0, batch_of([b"5"], key=b"alice")))
        await sequencer.close()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tailrace_cli.app", *arguments, "--data", "data"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_an_erasure_of_a_key_is_logged_with_its_user(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "data"))
    (tmp_path / "keys").write_text("616c696365\n616c696365\n")
    keys = ("--topic", "t", "--keys-file", "keys", "--encoding", "hex")
    preview = json.loads(run(tmp_path, "erase", *keys, "--dry-run", "--json").stdout)
    assert (preview["records"], len(preview["objects"]), preview["not_compacted_offsets"]) == (2, 1, 1)
    done = json.loads(run(tmp_path, "erase", *keys, "--reason", "request 17", "--json").stdout)
    assert (done["erased_records"], done["rewritten_objects"], done["live_mixed_left"]) == (3, 2, 0)
    (logged,) = json.loads(run(tmp_path, "erase", "--topic", "t", "--log", "--json").stdout)
    assert (logged["reason"], logged["erased_records"], len(logged["key_hashes"])) == ("request 17", 3, 1)
    assert "@" in logged["by"] and logged["retired_left"] == 5
    rows = run(tmp_path, "query", 'select "offset", cast(key as varchar) k from t order by 1').stdout
    assert [json.loads(line) for line in rows.splitlines()] == [
        {"offset": 2, "k": "k"},
        {"offset": 3, "k": "bob"},
    ]
    refused = run(tmp_path, "erase", "--topic", "t")
    assert refused.returncode == 2 and "0 keys; give 1 to 10000" in refused.stderr


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a\nb", ["a", "b"]),
        ("a\u2028\x0b\n\rb\n", ["a\u2028\x0b", "\rb"]),
        ("a\r\nb\r\n", ["a", "b"]),
    ],
)
def test_a_key_in_a_file_ends_with_its_line(text: str, lines: list[str]) -> None:
    assert _lines(text) == lines


def test_an_erasure_whose_table_failed_is_shown_and_ends_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def erased(*_: object) -> dict[str, object]:
        return {"erased_records": 3, "table_failures": 2, "objects": []}

    asyncio.run(fill(tmp_path / "data"))
    monkeypatch.setattr("tailrace_cli.commands.erase._erased", erased)
    command = ["tailrace", "erase", "--topic", "t", "--key", "alice", "--data", str(tmp_path / "data")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 1 and "2 table updates failed" in shown.err and "erased records" in shown.out
