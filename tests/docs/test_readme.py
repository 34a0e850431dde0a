"""README.md's first record: its commands and its Python run against `tailrace serve`, as they are written there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.support.pages import ROOT, put_command, run_script
from tests.support.servers import own_network

PAGE = (ROOT / "README.md").read_text()
SECTION = PAGE.partition("\n## A first record\n")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^(tailrace .+?)(?:\s+# .*)?$", SECTION, flags=re.M)
PYTHON = re.findall(r"^```python\n(.+?)^```$", SECTION, flags=re.M | re.S)
SECONDS = 300


def test_the_section_has_four_commands_and_a_piece_of_python() -> None:
    assert [command.split()[1] for command in COMMANDS] == ["topic", "produce", "consume", "consume"]
    assert COMMANDS[-1].endswith(" --follow")
    assert len(PYTHON) == 1


def test_the_commands_and_the_python_write_records_that_a_group_reads(tmp_path: Path) -> None:
    host = f"{own_network()}.1"
    (tmp_path / "first.py").write_text(PYTHON[0].replace("127.0.0.1", host))
    put_command(tmp_path, "tailrace", f'{sys.executable} -m tailrace_cli.app "$@" --bootstrap {host}:9092')
    script = f"""
        set -e
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
    printed = run_script(script, tmp_path, SECONDS)
    for record in ("ann: hello", "ann: world", "ann: from Python"):
        assert len(re.findall(rf"^\d@\d {record}$", printed, flags=re.M)) == 1, printed
    for value in ("hello", "world", "from Python"):
        assert len(re.findall(rf'^{{.*"value": "{value}"', printed, flags=re.M)) == 1, printed
