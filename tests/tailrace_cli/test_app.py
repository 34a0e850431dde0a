"""Commands without a broker."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import structlog
import typer

from tailrace.batches.mixed_object import seal
from tailrace.clock import SystemClock
from tailrace.object_store.open import open_store
from tailrace.telemetry.logs import configure_logging, name_process
from tailrace_cli.app import app, main


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tailrace", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["serv"], 2, "No such command 'serv'. Did you mean 'serve', 'user'? See `tailrace --help`"),
        (["topic", "create"], 2, "Missing argument 'TOPIC'"),
        (["topic", "list", "-b", "nowhere"], 2, "--bootstrap 'nowhere': expected HOST:PORT"),
        (["topic", "list", "-b", "127.0.0.1:1"], 1, "no broker answers at 127.0.0.1:1"),
        (["topic", "list", "-b", "127.0.0.1:1, 127.0.0.1:2"], 1, "no broker answers at 127.0.0.1:1, 127.0.0.1:2"),
        (["topic", "list", "-b", "127.0.0.1:1,nowhere"], 2, "'127.0.0.1:1,nowhere': expected HOST:PORT"),
        (["topic", "list", "-b", ","], 2, "--bootstrap ',': expected HOST:PORT"),
        (["erase", "-t", "a"], 2, "0 keys; give 1 to"),
        (["cost", "--prices", "nowhere"], 2, "--prices: prices 'nowhere': "),
        (["cost", "--set", "nothing=1"], 2, "a workload says: "),
        (["acl", "add", "--principal", "User:a", "--operation", "x", "--topic", "t"], 2, "--operation 'x': expected"),
        (["acl", "add", "--operation", "read", "--topic", "t"], 2, "--principal, --operation and a resource"),
        (["acl", "list", "--principal", "a"], 2, "--principal 'a': expected TYPE:NAME, such as User:a"),
        (["acl", "remove", "--principal", "a"], 2, "--principal 'a': expected TYPE:NAME"),
        (["bundle", ""], 2, "DIR is empty; give a folder"),
        (["topic", "create", "a", "-c", "x"], 2, "--config 'x': expected NAME=VALUE"),
        (["topic", "alter", "a"], 2, "nothing to alter; give --partitions"),
        (["object", "list", "--store", "/no/such"], 1, "there is no such folder"),
        (["object", "list", "--store", "ftp://x"], 1, "store 'ftp://x': allowed are"),
    ],
)  # fmt: skip
def test_one_line_says_what_was_given_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    assert call(monkeypatch, *arguments) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize("arguments", [["version"], ["object", "list"], ["--help"]], ids=" ".join)
def test_a_command_whose_output_nobody_reads_ends_quietly_as_by_sigpipe(
    arguments: list[str], tmp_path: Path
) -> None:
    (tmp_path / "object").write_bytes(b"x")
    if "list" in arguments:
        arguments = [*arguments, "--store", str(tmp_path)]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "tailrace_cli", *arguments], stdout=writing, stderr=subprocess.PIPE
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_connection_that_broke_is_an_error_although_stdout_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("tailrace_cli.commands.processes.version", broken)
    assert call(monkeypatch, "--version") == 1
    assert "Broken pipe" in capsys.readouterr().err


@pytest.mark.parametrize("has_file", [False, True])
@pytest.mark.parametrize("command", [["compact"], ["table", "list"]], ids=" ".join)
@pytest.mark.parametrize(
    ("url", "said"),
    [("nonsense", "URL can't be read"), ("postgresql://u@h:port/n", "a port that is no number")],
)
def test_a_command_that_reads_a_log_explains_a_database_that_is_no_url(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    *,
    url: str,
    said: str,
    command: list[str],
    has_file: bool,
) -> None:
    if has_file:
        (file := tmp_path / "password").write_text("secret")
        file.chmod(0o600)
        monkeypatch.setenv("TAILRACE_DATABASE_PASSWORD_FILE", str(file))
    status = 2 if command == ["compact"] else 1
    assert call(monkeypatch, *command, "--store", "memory:", "--database", url) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def groups(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The commands that hold others, by the words that name them; the first is `tailrace` itself."""
    if inner := getattr(command, "commands", {}):
        yield path
        for name, each in inner.items():
            yield from groups(each, (*path, name))


@pytest.mark.parametrize("arguments", groups(typer.main.get_command(app)), ids=" ".join)
def test_a_command_that_only_holds_others_prints_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert call(monkeypatch, *arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("Usage: ")
    assert "Commands:\n" in printed.out


def helps(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, (*path, name))


@pytest.mark.parametrize("path", helps(typer.main.get_command(app)), ids=" ".join)
def test_no_help_is_cut_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert call(monkeypatch, *path, "--help") == 0
    commands = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []


def test_an_object_is_listed_shown_and_audited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sealed = seal([], object_id=uuid4(), session_id=uuid4(), number=7, created_ms=1)
    data = b"".join(bytes(part) for part in sealed.parts)

    async def put() -> None:
        store = open_store(str(tmp_path), clock=SystemClock())
        await store.put("aa/whole", [data])
        await store.put("aa/rotten", [data[:3] + b"?" + data[4:]])
        await store.close()

    asyncio.run(put())
    store = ["--store", str(tmp_path), "--json"]
    assert call(monkeypatch, "object", "list", *store) == 0
    assert [one["key"] for one in json.loads(capsys.readouterr().out)] == ["aa/rotten", "aa/whole"]
    assert call(monkeypatch, "object", "show", "aa/whole", *store) == 0
    assert json.loads(capsys.readouterr().out)["number"] == 7
    assert call(monkeypatch, "object", "audit", "aa/whole", *store) == 0
    assert json.loads(capsys.readouterr().out)["sound"] is True
    assert call(monkeypatch, "object", "audit", "aa/rotten", *store) == 1
    assert "is corrupt" in capsys.readouterr().err


def test_the_command_line_starts_without_spark_or_servers() -> None:
    code = (
        "import sys, tailrace_cli.app; "
        "print([name for name in ('pyspark', 'pyarrow', 'numba', 'aiohttp', 'sqlalchemy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_lines_of_a_command_name_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = io.StringIO()
    assert call(monkeypatch, "table", "list", "--data", str(tmp_path / "nowhere")) == 1
    configure_logging("warning", "json", stream=stream)
    try:
        structlog.get_logger("a.part").warning("loud")
    finally:
        structlog.reset_defaults()
        name_process(lambda: "")
    assert json.loads(stream.getvalue())["process"] == "table"


def test_logs_are_json_with_level_and_logger_and_filtered() -> None:
    stream = io.StringIO()
    configure_logging("warning", "json", stream=stream)
    try:
        structlog.get_logger("a.part").info("quiet")
        structlog.get_logger("a.part").warning("loud", size=3)
    finally:
        structlog.reset_defaults()
    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    assert (said["event"], said["level"], said["logger"], said["size"]) == ("loud", "warning", "a.part", 3)
