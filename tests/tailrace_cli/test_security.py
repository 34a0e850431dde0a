"""Settings that would open a process to others are refused with advice."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tailrace.rpc.exposure import is_loopback
from tailrace.rpc.loaded_security import LoadedSecurity, SecurityFiles
from tailrace.settings import load_settings
from tailrace_cli.app import main
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.data_folder import SECRET, open_data_folder
from tailrace_cli.running.security import (
    REFRESH_SECONDS,
    DatabasePassword,
    kept_current,
    open_security,
)
from tailrace_cli.settings import Settings
from tests.support.clocks import ManualClock, SeededEntropy

LONG = "0123456789abcdef"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tailrace", *arguments])
    monkeypatch.setattr("tailrace.telemetry.logs.configure_logging", lambda *_: None)  # it outlives the test
    for name in [name for name in os.environ if name.startswith(("TAILRACE_", "PG"))]:
        monkeypatch.delenv(name)
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.8.0.1:1", True),
        ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
    ],
)
def test_loopback_is_reported_by_the_address(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["sequencer", "--database", "sqlite:///x.db", "--rpc", "0.0.0.0:1", "--rpc-advertise", "a:1"],
        ["agent", "--store", "x", "--database", "sqlite:///x.db", "--rpc", "10.0.0.1:1"],
        ["agent", "--store", "x", "--sequencer", "127.0.0.1:1", "--rpc", "[::]:1"],
        ["agent", "--store", "x", "--sequencer", "127.0.0.1:1", "--rpc", "[::]:1", "--processes", "2"],
        ["agent", "--store", "x", "--sequencer", "127.0.0.1:1,s.example:1"],
        ["compact", "--store", "x", "--sequencer", "s.example:1"],
    ],
)
def test_rpc_off_this_machine_without_a_secret_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert call(monkeypatch, *arguments) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert "make a secret" in line and "TAILRACE_RPC_SECRET_FILE" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("serve", 3),
        ("agent", 5),
        ("agent --processes 2", 5),
        ("sequencer", 3),
        ("compact", 2),
        ("compact --sequencer s.example:1", 4),
    ],
)
def test_a_process_tells_all_mistakes_of_its_file_before_it_makes_anything(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
    count: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tailrace.toml"
    file.write_text('prices = "no.toml"\nhttp = "x"\n[tls]\nhttp_key_file = "no.pem"\n')

    assert call(monkeypatch, *command.split(), "--config", str(file)) == 2

    assert len(capsys.readouterr().err.splitlines()) == count
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sequencer", "--database", "postgresql://u:hushhush@h/n"], "PGPASSWORD"),
        (["agent", "--database", "postgresql://u:hush/hush@h/n"], "--database-password-file"),
        (["serve", "--database", "postgresql://h/n?user=u&password=hushhush"], "TAILRACE_DATABASE"),
        (["audit", "--store", "x", "--database", "postgresql://u:hushhush@h/n"], "PGPASSWORD"),
        (["recover", "--store", "x", "--database", "postgresql://u:hushhush@h/n"], "PGPASSWORD"),
    ],
)
def test_a_password_in_a_command_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], said: str
) -> None:
    assert call(monkeypatch, *command) in (1, 2)

    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and "hush" not in line


def test_settings_show_no_secret_in_their_text_or_their_errors() -> None:
    settings = load_settings(
        Settings,
        flags={"rpc_secret": LONG},
        environ={"TAILRACE_DATABASE": "postgresql://u:hushhush@h/n"},
    )
    assert LONG not in repr(settings) and "hush" not in repr(settings)

    with pytest.raises(ValueError, match="at least 16 characters") as refused:
        load_settings(Settings, environ={"TAILRACE_RPC_SECRET": "hushhush"})
    assert "hush" not in str(refused.value)


def test_a_secret_comes_from_the_settings_or_a_file_or_serves_folder(tmp_path: Path) -> None:
    def settings_of(**flags: object) -> Settings:
        return load_settings(Settings, flags=flags, environ={})

    file = tmp_path / SECRET
    file.touch(0o600)
    file.write_text(LONG * 2)

    def secrets(data: Path | None = None, **flags: object) -> tuple[bytes, ...]:
        return open_security(settings_of(**flags), data=data).rpc.secrets

    assert secrets() == ()
    assert secrets(tmp_path, rpc_secret=LONG) == (LONG.encode(),)
    assert secrets(rpc_secret_file=str(file)) == (LONG.encode() * 2,)
    assert secrets(tmp_path) == (LONG.encode() * 2,)
    with pytest.raises(CommandFailed, match="rpc_secret and rpc_secret_file were both given"):
        secrets(rpc_secret=LONG, rpc_secret_file=str(file))
    file.write_text("hushhush")
    with pytest.raises(CommandFailed, match="has 8 characters, at least 16") as refused:
        secrets(rpc_secret_file=str(file))
    assert "hush" not in str(refused.value)


def test_the_database_password_is_read_again_and_a_bad_file_keeps_the_last(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("one\n")
    password = DatabasePassword(file)
    assert password() == "one" and "one" not in repr(password)

    file.write_text("two\n")
    assert password() == "two"

    file.chmod(0o644)
    assert password() == "two"


# --- serve's folder


def test_serves_folder_and_all_in_it_are_its_owners_alone(tmp_path: Path, umask: object) -> None:
    data = tmp_path / "data"
    open_data_folder(data, SeededEntropy(1))
    secret = (data / SECRET).read_text()
    (data / "file").touch()
    (data / "folder").mkdir()
    open_data_folder(data, SeededEntropy(2))

    assert (data / SECRET).read_text() == secret
    assert mode(data) == 0o700 and mode(data / "folder") == 0o700
    assert mode(data / SECRET) == 0o600 and mode(data / "file") == 0o600


def test_a_folder_of_before_is_closed_and_a_folder_of_others_is_left_alone(
    tmp_path: Path, umask: object
) -> None:
    before, empty, others = tmp_path / "before", tmp_path / "empty", tmp_path / "others"
    for folder in (before, empty, others):
        folder.mkdir(mode=0o755)
    (before / "tailrace.db").touch()
    (others / "objects-of-mine").touch()

    for folder in (before, empty, others):
        open_data_folder(folder, SeededEntropy(1))
    (others / "tailrace.db").touch()
    open_data_folder(others, SeededEntropy(1))

    assert [mode(folder) for folder in (before, empty, others)] == [0o700, 0o700, 0o755]
    assert mode(others / SECRET) == 0o600


async def test_files_are_looked_at_again_after_an_unforeseen_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = ManualClock(), 0

    def look(_: LoadedSecurity) -> None:
        nonlocal looks
        looks += 1
        raise KeyError("a bug")

    monkeypatch.setattr(LoadedSecurity, "refresh", look)
    async with kept_current(clock, CollectorRegistry(), LoadedSecurity(SecurityFiles())):
        for _ in range(3):
            await asyncio.sleep(0)
            clock.advance(REFRESH_SECONDS)
        await asyncio.sleep(0)
    assert looks == 3
