"""docs/cluster.md starts a cluster with ten commands: they run as they are written there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.pages import ROOT, page_environment, put_command
from tests.support.servers import PostgresServer, S3Server, end_with_parent, own_network

PAGE = (ROOT / "docs" / "cluster.md").read_text()
SECONDS = 600.0
"""For one command, from its beginning to the next one's: a machine may be busy."""
BEGINS = "--- command "
THE_MACHINE = '"event": "the event loop was held"'
"""A warning that says how busy the machine is on which tests run."""


def commands(section: str) -> list[str]:
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\$ (.+)$", text, flags=re.M)


def wait_command_by_command(shell: subprocess.Popen[bytes], log: Path) -> None:
    """Until the shell has ended. Raises TimeoutError when a command takes longer than SECONDS."""
    begun = -1
    while shell.poll() is None:
        before, begun = begun, log.read_text(errors="replace").count(BEGINS)
        if begun == before:
            said = log.read_text(errors="replace")[-5_000:]
            raise TimeoutError(f"command {begun} takes longer than {SECONDS} s:\n{said}")
        with suppress(subprocess.TimeoutExpired):
            shell.wait(SECONDS)


def complaints(said: str) -> list[str]:
    """The lines of the processes' logs above 'info'."""
    logged = [line for line in said.splitlines() if '"level": ' in line and THE_MACHINE not in line]
    return [line for line in logged if not re.search(r'"level": "(debug|info)"', line)]


def test_a_command_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SECONDS", 0.2)
    (tmp_path / "log").write_text(f"{BEGINS}1\n{BEGINS}2\n")
    shell = subprocess.Popen(["sleep", "600"], preexec_fn=end_with_parent(signal.SIGTERM, os.getpid()))
    try:
        with pytest.raises(TimeoutError, match="command 2 takes longer"):
            wait_command_by_command(shell, tmp_path / "log")
    finally:
        shell.kill()
        shell.wait()


def test_there_are_ten_commands() -> None:
    assert len(commands("Ten commands")) == 10
    assert len(commands("Looking and stopping")) == 2


def test_the_commands_start_a_cluster_that_takes_gives_and_compacts_a_record(
    tmp_path: Path, postgres: PostgresServer, moto: S3Server
) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, command in (("tailrace", f"{sys.executable} -m tailrace_cli.app"), ("python", sys.executable)):
        put_command(bin_folder, name, f'{command} "$@"')
    end_all = "trap 'kill -KILL 0' TERM"  # ends the shell's process group if these tests are killed
    asked = [*commands("Ten commands"), *commands("Looking and stopping")]
    numbered = [f"echo '{BEGINS}{number}'\n{command}" for number, command in enumerate(asked, 1)]
    script = "\n".join([end_all, "set -e", *numbered])
    database = postgres.create_database()
    environment = page_environment(
        bin_folder,
        STORE=moto.url(moto.create_bucket(), "tailrace"),
        DATABASE=database,
        PGPASSWORD="not asked for here",
        **moto.environ,
    )
    # The page's ports are fixed, and may be in use at 127.0.0.1.
    script = script.replace("127.0.0.1", f"{own_network()}.1")
    with (tmp_path / "log").open("wb") as log:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=end_with_parent(signal.SIGTERM, os.getpid()),
        )  # fmt: skip
        try:
            wait_command_by_command(shell, tmp_path / "log")
        finally:
            with suppress(ProcessLookupError):  # processes that a failed command left running
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    said = (tmp_path / "log").read_text()
    assert shell.returncode == 0, said
    assert "not delivered: 0" in said
    assert "b'hello'" in said
    assert re.search(r"^ *records +1 *$", said, flags=re.M), said
    assert said.count('"event": "drained"') == 3, said
    assert complaints(said) == []


def test_lines_above_info_are_complaints_but_for_the_machines() -> None:
    lines = [
        f'{{"event": "e", "level": "{level}"}}' for level in ("debug", "info", "warning", "error", "critical")
    ]
    busy = f'{{{THE_MACHINE}, "level": "warning"}}'
    assert complaints("\n".join(["plain", *lines, busy])) == lines[2:]
