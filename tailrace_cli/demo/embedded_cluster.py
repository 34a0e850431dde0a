"""The demo on the embedded default: a `tailrace serve` process with SQLite and a folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.folder import FolderStore
from tailrace.rpc import RpcSecurity
from tailrace.rpc.loaded_security import LoadedSecurity, SecurityFiles
from tailrace_cli.demo import job
from tailrace_cli.demo.ports import free_port
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.data_folder import SECRET

READY_SECONDS = 120.0
"""An idle machine needs three seconds."""

IMPATIENT = {
    "TAILRACE_SEQUENCER__DELETION_GRACE_MS": "2000",
    "TAILRACE_MAINTENANCE_SECONDS": "1",
}
"""Settings that delete old objects sooner than in production, so that the demo need not wait."""


@dataclass
class EmbeddedCluster:
    """A running `tailrace serve` process and its data folder."""

    bootstrap: str
    rpc: str
    metrics_urls: list[str]
    data: Path
    pid: int

    @property
    def objects(self) -> Path:
        return self.data / "objects"

    def open_store(self) -> ObjectStore:
        return FolderStore(str(self.objects), SystemClock(), ThreadPoolExecutor(1))

    async def compact(self) -> None:
        security = LoadedSecurity(SecurityFiles(secret_file=self.data / SECRET)).rpc
        await compact_all(str(self.objects), [self.rpc], security)

    def parquet_paths(self, keys: list[str]) -> list[str]:
        return [str(self.objects / key) for key in keys]

    def during_load(self, share: float) -> None:
        """Do nothing: there is only one process."""


async def compact_all(store_url: str, sequencers: list[str], security: RpcSecurity | None = None) -> None:
    """Run the Spark compactor until nothing is left to compact, with no lower limit on age or size."""
    from compactor.cycle import CompactionSettings, run_cycle
    from compactor.on_spark.job import spark_runner
    from sequencer.client import SequencerClient

    clock, entropy = SystemClock(), SystemEntropy()
    remote = SequencerClient(sequencers, clock=clock, entropy=entropy, security=security)
    try:
        settings = CompactionSettings(min_bytes=1, min_age_ms=0)
        async with spark_runner(store_url) as runner:
            await run_cycle(remote, runner, clock=clock, entropy=entropy, settings=settings, keyed=runner)
    finally:
        await remote.close()


def main(data: Path | None = None) -> int:
    """Run the demo in `data`, or in a temporary folder if it is None. Return the exit status."""
    console = Console()
    if data is not None:
        with serving(data) as cluster:
            return job.run(cluster, console)
    made = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    try:
        with serving(made) as cluster:
            return job.run(cluster, console)
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def serving(
    data: Path, *, program: tuple[str, ...] = ("tailrace_cli.app",), environ: Mapping[str, str] = IMPATIENT
) -> Iterator[EmbeddedCluster]:
    """Run a `tailrace serve` on free ports inside the block. It is ready at the start and drained at the end.

    `program`: a module that runs the command line, and its first arguments. `environ`: settings as variables.
    """
    kafka, http, rpc = (free_port() for _ in range(3))
    command = [
        sys.executable, "-m", *program, "serve", "--data", str(data),
        "--listen", f"127.0.0.1:{kafka}", "--http", f"127.0.0.1:{http}", "--rpc", f"127.0.0.1:{rpc}",
        "--log-level", "warning",
    ]  # fmt: skip
    process = subprocess.Popen(command, env={**os.environ, **environ})
    try:
        until_ready(process, f"http://127.0.0.1:{http}/readyz")
        yield EmbeddedCluster(
            bootstrap=f"127.0.0.1:{kafka}",
            rpc=f"127.0.0.1:{rpc}",
            metrics_urls=[f"http://127.0.0.1:{http}/metrics"],
            data=data,
            pid=process.pid,
        )
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until_ready(process: subprocess.Popen[bytes], url: str, seconds: float = READY_SECONDS) -> None:
    """Wait until the process answers at `url`. Raises CommandFailed if it exits or takes too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CommandFailed(
                f"the server exited with status {process.returncode} before it was ready; see its output above"
            )
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise CommandFailed(f"the server was not ready within {seconds:.0f} s")
