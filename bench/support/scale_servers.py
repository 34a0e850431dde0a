"""The committer and the follower that `bench.scale` measures: one process each, on one PostgreSQL and a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.support.process_figures import precise_cpu_seconds
from tailrace_cli.demo.ports import free_port

Outage = Literal["stopped", "killed"]
"""Both processes are stopped for some time, like a suspended machine, or killed and started again."""
START_SECONDS = 150.0
LIMITS = {
    "TAILRACE_SEQUENCER__MAX_TOPICS": "100000",
    "TAILRACE_SEQUENCER__MAX_PARTITIONS": "10000000",
    "TAILRACE_SEQUENCER__MAX_GROUPS": "10000000",
}


@dataclass(slots=True)
class SequencerProcess:
    """One `tailrace sequencer`, which can be killed and started again at its addresses."""

    database: str
    folder: Path
    rpc: int = field(default_factory=free_port)
    http: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.rpc}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "start comes first"
        return self.process.pid

    def start(self) -> None:
        with (self.folder / f"{self.rpc}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tailrace_cli.app", "sequencer", "--database", self.database,
                 "--store", f"file://{self.folder}/bucket",
                 "--rpc", self.address, "--http", f"127.0.0.1:{self.http}"],
                stdout=log, stderr=log, env={**os.environ, **LIMITS},
            )  # fmt: skip
        _wait_for(f"http://127.0.0.1:{self.http}/livez", f"http://127.0.0.1:{self.http}/readyz")

    @property
    def is_committer(self) -> bool:
        """Whether the process says that it is the committer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=30) as answer:
            return b"\ntailrace_sequencer_is_committer 1.0" in answer.read()

    def cpu(self) -> float:
        """Return the CPU seconds of all its threads."""
        return precise_cpu_seconds(self.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process, like a crash."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)


@dataclass(slots=True)
class Servers:
    """The measured processes. `fail_over` makes the follower the committer."""

    committer: SequencerProcess
    follower: SequencerProcess

    @property
    def addresses(self) -> list[str]:
        return [self.committer.address, self.follower.address]

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of the committer and of the follower."""
        return self.committer.cpu(), self.follower.cpu()

    @property
    def both(self) -> tuple[SequencerProcess, SequencerProcess]:
        """The committer and the follower."""
        return self.committer, self.follower

    def look_for_committer(self) -> None:
        """Update which process is the committer: on a busy machine, the other one may have taken over."""
        if self.follower.is_committer:
            self.committer, self.follower = self.follower, self.committer

    def begin_outage(self, kind: Outage) -> None:
        """Stop or kill both servers."""
        for server in self.both:
            server.signal(signal.SIGSTOP) if kind == "stopped" else server.kill()

    def end_outage(self, kind: Outage) -> None:
        """Continue both servers, or start new ones and wait until they serve."""
        for server in self.both:
            server.signal(signal.SIGCONT) if kind == "stopped" else server.start()

    def fail_over(self) -> None:
        """Kill the committer. The other process counts as the committer from now on."""
        self.committer.kill()
        self.committer, self.follower = self.follower, self.committer


@contextmanager
def sequencers(database: str) -> Iterator[Servers]:
    """Run a committer and a follower inside the block."""
    with tempfile.TemporaryDirectory(prefix="tailrace-scale-") as folder:
        (Path(folder) / "bucket").mkdir()
        servers = Servers(*(SequencerProcess(database, Path(folder)) for _ in range(2)))
        try:
            for server in servers.both:
                server.start()
            yield servers
        finally:
            for server in servers.both:
                server.kill()


def _wait_for(*urls: str) -> None:
    give_up = time.monotonic() + START_SECONDS
    while True:
        for url in urls:
            try:
                with urllib.request.urlopen(url, timeout=1) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
        if time.monotonic() > give_up:
            raise RuntimeError(f"a sequencer did not start within {START_SECONDS:g} s")
        time.sleep(0.2)
