"""A whole cluster on loopback: S3, PostgreSQL, sequencer servers and agents in zones, each a process of its own.

`running_cluster` starts all processes and ends them by process id. Each process has its own log; a failure shows the
end of each log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tailrace_cli.demo.ports import free_port
from tests.support.patience import PATIENCE_SECONDS
from tests.support.servers import (
    PostgresServer,
    S3Server,
    end_process,
    end_with_parent,
    minio_server,
    moto_server,
    postgres_server,
)

ZONES = ("az-a", "az-a", "az-b", "az-b")
RPC_SECRET = "shared by all processes of a test's cluster"
_SHOWN_OF_A_LOG = 6_000

IMPATIENT = {
    "TAILRACE_SEQUENCER__DELETION_GRACE_MS": "2000",
    "TAILRACE_MAINTENANCE_SECONDS": "1",
}
"""For runs that wait until garbage is deleted: a short grace."""


class ClusterFailed(Exception):
    """A process of the cluster did not do what it should; the message contains the end of its log."""


@dataclass(eq=False)
class Part:
    """One process of the cluster."""

    name: str
    address: str
    """HOST:PORT: the Kafka address of an agent, the RPC address of a sequencer."""
    http: str
    log: Path
    process: subprocess.Popen[bytes]
    zone: str = ""

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def said(self, most: int = _SHOWN_OF_A_LOG) -> str:
        """Return the end of the process's log."""
        return self.log.read_text(errors="replace")[-most:]

    def get(self, path: str) -> str:
        """Return the body of the process's HTTP answer, also of an error. Raises OSError if it doesn't answer."""
        try:
            with _DIRECT.open(f"http://{self.http}{path}", timeout=PATIENCE_SECONDS) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()


@dataclass
class Cluster:
    """The running processes, and methods to kill and add some. Threads may call it, one at a time."""

    s3: S3Server
    bucket: str
    postgres: PostgresServer
    database: str
    logs: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    sequencers: list[Part] = field(default_factory=list)
    agents: list[Part] = field(default_factory=list)
    """Every process that was ever started, including killed ones."""

    @property
    def store_url(self) -> str:
        return self.s3.url(self.bucket)

    @property
    def live_agents(self) -> list[Part]:
        return [agent for agent in self.agents if agent.is_running]

    @property
    def bootstrap(self) -> str:
        """The bootstrap addresses of the agents that run now."""
        return ",".join(agent.address for agent in self.live_agents)

    @property
    def sequencer_addresses(self) -> list[str]:
        return [sequencer.address for sequencer in self.sequencers]

    @property
    def committer(self) -> Part:
        """The sequencer whose metrics say that it is the committer. Raises ClusterFailed if there is none."""
        for sequencer in self.sequencers:
            if sequencer.is_running and "tailrace_sequencer_is_committer 1.0" in sequencer.get("/metrics"):
                return sequencer
        raise ClusterFailed("no sequencer says that it is the committer")

    def wait_for_committer(self) -> Part:
        """Wait until there is a committer, and return it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.committer
            except (ClusterFailed, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def add_agent(self, zone: str) -> Part:
        """Start another agent and wait until it serves."""
        agent = self.launch_agent(zone)
        self.wait_until_ready([agent])
        return agent

    def launch_agent(self, zone: str) -> Part:
        """Start another agent without waiting."""
        kafka, rpc, http = free_port(), free_port(), free_port()
        agent = self._start(
            f"agent-{len(self.agents)}-{zone}",
            f"127.0.0.1:{kafka}",
            f"127.0.0.1:{http}",
            [
                *("agent", "--store", self.store_url, "--sequencer", ",".join(self.sequencer_addresses)),
                *("--listen", f"127.0.0.1:{kafka}", "--rpc", f"127.0.0.1:{rpc}"),
                *("--http", f"127.0.0.1:{http}", "--zone", zone),
            ],
            zone,
        )
        self.agents.append(agent)
        return agent

    def launch_sequencer(self, rpc: int | None = None) -> Part:
        """Start another sequencer server without waiting. `rpc`: the port of one that has ended, to reuse it."""
        rpc, http = rpc or free_port(), free_port()
        sequencer = self._start(
            f"sequencer-{len(self.sequencers)}",
            f"127.0.0.1:{rpc}",
            f"127.0.0.1:{http}",
            [
                *("sequencer", "--database", self.database, "--store", self.store_url),
                *("--rpc", f"127.0.0.1:{rpc}", "--http", f"127.0.0.1:{http}"),
            ],
        )
        self.sequencers.append(sequencer)
        return sequencer

    def kill(self, part: Part) -> None:
        """End a process as a power cut would: SIGKILL."""
        part.process.kill()
        part.process.wait(10)

    def drain(self, part: Part) -> None:
        """Send SIGTERM, and wait until the process has ended with status 0."""
        part.process.send_signal(signal.SIGTERM)
        try:
            status = part.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ClusterFailed(
                f"{part.name} did not end within {PATIENCE_SECONDS} s: {part.said()}"
            ) from error
        if status:
            raise ClusterFailed(f"{part.name} ended with status {status}: {part.said()}")

    def wait_until_ready(self, parts: Sequence[Part]) -> None:
        """Wait until each process answers /readyz with 200. Raises ClusterFailed."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for part in parts:
            while not _is_ready(part.http):
                if not part.is_running:
                    raise ClusterFailed(
                        f"{part.name} ended with status {part.process.returncode}: {part.said()}"
                    )
                if time.monotonic() > deadline:
                    raise ClusterFailed(
                        f"{part.name} was not ready within {PATIENCE_SECONDS:.0f} s: {part.said()}"
                    )
                time.sleep(0.05)

    def report(self) -> str:
        """Return the end of every log, for a failure's message."""
        shown = []
        for part in (*self.sequencers, *self.agents):
            state = "running" if part.is_running else f"ended with {part.process.returncode}"
            shown.append(f"--- {part.name} at {part.address}, {state}\n{part.said()}")
        shown.append(f"--- postgres\n{self.postgres.log.read_text(errors='replace')[-2000:]}")
        return "\n".join(shown)

    def end(self) -> None:
        """Drain the agents, then stop the sequencers, by process id."""
        for parts in (self.agents, self.sequencers):
            running = [part for part in parts if part.is_running]
            for part in running:
                part.process.send_signal(signal.SIGTERM)
            for part in running:
                try:
                    part.process.wait(10)
                except subprocess.TimeoutExpired:
                    end_process(part.process, signal.SIGKILL)

    def _start(self, name: str, address: str, http: str, arguments: Sequence[str], zone: str = "") -> Part:
        log = self.logs / f"{name}.log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tailrace_cli.app", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    **self.s3.environ,
                    "TAILRACE_LOG_FORMAT": "json",
                    "TAILRACE_RPC_SECRET": RPC_SECRET,
                    **self.environ,
                },
                preexec_fn=end_with_parent(signal.SIGKILL, os.getpid()),
            )
        return Part(name, address, http, log, process, zone)


@contextmanager
def running_cluster(
    *,
    zones: Sequence[str] = ZONES,
    sequencers: int = 2,
    is_minio_wanted: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """A ready cluster on free ports of loopback. It ends with the block; after an exception its logs are printed.

    Args:
        zones: each gets one agent.
        is_minio_wanted: use MinIO if its binary is installed, else moto.
        environ: `TAILRACE_*` settings for every process of Tailrace.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-cluster-")))
        s3 = stack.enter_context(minio_server()) if is_minio_wanted else None
        s3 = s3 or stack.enter_context(moto_server())
        postgres = stack.enter_context(postgres_server())
        cluster = Cluster(
            s3, s3.create_bucket(), postgres, postgres.create_database(), folder, dict(environ or {})
        )
        stack.callback(cluster.end)
        try:
            cluster.wait_until_ready([cluster.launch_sequencer() for _ in range(sequencers)])
            cluster.wait_until_ready([cluster.launch_agent(zone) for zone in zones])
            yield cluster
        except BaseException:
            print(cluster.report(), file=sys.stderr)
            raise


# -- below: details ------------------------------------------------------------------------------------

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _is_ready(http: str) -> bool:
    try:
        with _DIRECT.open(f"http://{http}/readyz", timeout=2) as response:
            return bool(json.load(response)["ready"])
    except (OSError, ValueError, KeyError):
        return False
