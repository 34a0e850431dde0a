"""A process ends when it is told to, whatever it waits for."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

NEVER_DRAINED = """
import asyncio
from tailrace_cli.running.process import ShutdownSignals

async def main():
    shutdown = ShutdownSignals(0.1, last_resort_seconds=0.2)
    print("ready", flush=True)
    await shutdown.wait()
    await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, input))

asyncio.run(main())
"""


def test_a_process_that_hangs_on_shutdown_is_ended_with_its_stacks_logged() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", NEVER_DRAINED],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
        assert process.stderr is not None and "Timeout" in (told := process.stderr.read())
        assert "most recent call first" in told
    finally:
        process.kill()
        process.communicate()
