"""README.md's first record: its commands and its Python run against `tailrace serve`, as they are written there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import end_with_parent, own_network

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text()
SECTION = PAGE.partition("\n## A first record\n")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^(tailrace .+?)(?:\s+# .*)?$", SECTION, flags=re.M)
PYTHON = re.findall(r"^```python\n(.+?)^```$", SECTION, flags=re.M | re.S)
SECONDS = 300
pytestmark = pytest.mark.xdist_group("cluster page")


def test_the_section_has_four_commands_and_a_piece_of_python() -> None:
    assert [command.split()[1] for command in COMMANDS] == ["topic", "produce", "consume", "consume"]
    assert COMMANDS[-1].endswith(" --follow")
    assert len(PYTHON) == 1


def test_the_commands_and_the_python_write_records_that_a_group_reads(tmp_path: Path) -> None:
    host = f"{own_network()}.1"
    (tmp_path / "first.py").write_text(PYTHON[0].replace("127.0.0.1", host))
    (tmp_path / "tailrace").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m tailrace_cli.app "$@" --bootstrap {host}:9092\n'
    )
    (tmp_path / "tailrace").chmod(0o755)
    script = f"""
        set -e
        trap 'kill -KILL 0' TERM
        {sys.executable} -m tailrace_cli.app serve --data data --listen {host}:9092 --http {host}:0 2>serve.log &
        until tailrace topic list >/dev/null 2>&1; do kill -0 $!; sleep 1; done
        {COMMANDS[0]}
        {COMMANDS[1]}
        {sys.executable} first.py
        {COMMANDS[2]}
        {COMMANDS[3]} --count 3 --json
        kill $!
        wait $!
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")} | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True, preexec_fn=end_with_parent(signal.SIGTERM, os.getpid()),
    )  # fmt: skip
    try:
        printed, _ = shell.communicate(timeout=SECONDS)
    finally:
        shell.terminate()
        shell.wait()

    assert shell.returncode == 0, printed + (tmp_path / "serve.log").read_text()
    for record in ("ann: hello", "ann: world", "ann: from Python"):
        assert len(re.findall(rf"^\d@\d {record}$", printed, flags=re.M)) == 1, printed
    for value in ("hello", "world", "from Python"):
        assert len(re.findall(rf'^{{.*"value": "{value}"', printed, flags=re.M)) == 1, printed
