"""Runs commands from the docs' pages in bash, exactly as they are written there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.servers import end_with_parent

ROOT = Path(__file__).parents[2]


def put_command(folder: Path, name: str, line: str) -> None:
    """Add a command to the folder that runs this line with the arguments that it gets."""
    (folder / name).write_text(f"#!/bin/sh\nexec {line}\n")
    (folder / name).chmod(0o755)


def page_environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a page's commands: no settings, and the folder's commands first on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), **more}


def run_script(script: str, folder: Path, seconds: float) -> str:
    """Run a script whose server writes to `serve.log`, and return what it prints. It ends with these tests: on TERM
    `kill 0` ends everything that it has started."""
    shell = subprocess.Popen(
        ["bash", "-c", f"trap 'kill -KILL 0' TERM\n{script}"],
        cwd=folder, env=page_environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
        preexec_fn=end_with_parent(signal.SIGTERM, os.getpid()),
    )  # fmt: skip
    try:
        printed, _ = shell.communicate(timeout=seconds)
    finally:
        shell.terminate()
        shell.wait()
    assert shell.returncode == 0, printed + (folder / "serve.log").read_text()
    return printed
