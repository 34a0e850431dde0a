"""docs/lakehouse.md: the notebook is made of it, and its cells run, in order, against `tailrace serve`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace_cli.doc_pages.notebook import NOTEBOOK, PAGE, notebook
from tests.support.servers import end_with_parent, own_network

ROOT = Path(__file__).parents[2]
PAGE_TEXT = (ROOT / PAGE).read_text()
NOTEBOOK_TEXT = (ROOT / NOTEBOOK).read_text()
SERVE, FOLLOW = re.findall(r"^```sh terminal\n(.+?)^```$", PAGE_TEXT, flags=re.M | re.S)
SECONDS = 300


def test_the_notebook_is_the_page() -> None:
    assert notebook(PAGE_TEXT) == NOTEBOOK_TEXT, "run: python -m tailrace_cli.doc_pages.notebook"


def code_cells() -> list[str]:
    """The notebook's code."""
    cells = json.loads(NOTEBOOK_TEXT)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@contextmanager
def terminal(command: str, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a terminal of its own."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command.strip().splitlines()[-1]}"],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=end_with_parent(signal.SIGKILL, os.getpid()),
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(what: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(SECONDS * 5):
        if what():
            return
        assert process.poll() is None, log.read_text()
        time.sleep(0.2)
    raise AssertionError(f"{SECONDS} s: {log.read_text()}")


def install(folder: Path, host: str) -> None:
    """A `tailrace` command that serves and asks at an address that no other test has."""
    run = f'exec {sys.executable} -m tailrace_cli.app "$@"'
    (folder / "tailrace").write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"serve) {run} --listen {host}:9092 --http {host}:0 ;;\n"
        f"topic|consume) {run} --bootstrap {host}:9092 ;;\n"
        f"*) {run} ;;\nesac\n"
    )
    (folder / "tailrace").chmod(0o755)


def test_the_walk_runs_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    host = f"{own_network()}.3"
    install(tmp_path, host)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))
    names: dict[str, Any] = {}
    printed: dict[str, str] = {}

    def run(cell: str) -> str:
        capfd.readouterr()
        if cell.startswith("%%bash\n"):
            done = subprocess.run(["bash", "-ec", cell.partition("\n")[2]], timeout=SECONDS, check=False)
            assert done.returncode == 0, f"{cell}\n{capfd.readouterr()}"
        else:
            exec(cell.replace("127.0.0.1", host), names)
        return capfd.readouterr().out

    def follows(cell: str) -> bool:
        run(cell)
        return follow_log.read_text().count("\n") > 1

    serve_log, follow_log = tmp_path / "serve.log", tmp_path / "follow.log"
    with terminal(SERVE, tmp_path, serve_log) as serving:
        until((tmp_path / "data" / "serve.json").exists, serving, serve_log)
        for cell in code_cells():
            if "2_310" in cell:
                with terminal(FOLLOW, tmp_path, follow_log) as following:
                    # What comes before it has looked is not new to it: so the cell runs until it shows some.
                    until(partial(follows, cell), following, follow_log)
                    following.send_signal(signal.SIGINT)
                    assert following.wait(SECONDS) == 0, follow_log.read_text()
            else:
                printed[cell.splitlines()[-1]] = run(cell)

    def of(end: str) -> str:
        (found,) = [text for last, text in printed.items() if last.startswith(end)]
        return found

    counted, *by_carrier = of('tailrace query \'select "partition"').splitlines()
    assert counted == '{"records": 2300}'
    assert [json.loads(line)["n"] for line in by_carrier[:3]] == [8, 8, 7]
    assert {json.loads(line)["partition"] for line in by_carrier[3:]} == {0, 1}
    assert set(json.loads(follow_log.read_text().splitlines()[-1])) == {"offset", "carrier"}
    assert names["delays"] == [(43.5,)]
    assert sorted(line[:2] for line in of("tailrace consume").splitlines()) == ["AA", "DL", "UA"]
    assert of('tailrace query "select count(*) n').splitlines()[-1] == '{"n": 0}'
    assert (names["now"], names["then"]) == (0, 20)
    assert "request 17" in of("tailrace erase --topic flights --log")
    names.clear()  # its producer would go on looking for the broker
