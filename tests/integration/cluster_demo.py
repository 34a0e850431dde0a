"""`make demo-cluster`: the demo's job on S3, PostgreSQL, two sequencers and four agents in two zones.

An agent is killed at a third of the load and one is added at two thirds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from tailrace.clock import SystemClock
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.open import open_store
from tailrace.rpc import RpcSecurity
from tailrace_cli.demo import job
from tailrace_cli.demo.embedded_cluster import compact_all
from tests.support.cluster import IMPATIENT, RPC_SECRET, Cluster, running_cluster

KILL_AT, ADD_AT = 1 / 3, 2 / 3


@dataclass
class DemoedCluster:
    """The running cluster as the demo's job wants it."""

    cluster: Cluster
    console: Console
    copies: Path
    """Where Parquet objects are copied for Spark SQL: PySpark alone has no file system for S3."""
    killed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def metrics_urls(self) -> list[str]:
        parts = (*self.cluster.live_agents, *self.cluster.sequencers)
        return [f"http://{part.http}/metrics" for part in parts if part.is_running]

    def open_store(self) -> ObjectStore:
        return open_store(self.cluster.store_url, clock=SystemClock())

    async def compact(self) -> None:
        security = RpcSecurity((RPC_SECRET.encode(),))
        await compact_all(self.cluster.store_url, self.cluster.sequencer_addresses, security)

    def parquet_paths(self, keys: list[str]) -> list[str]:
        return asyncio.run(self._copy(keys))

    async def _copy(self, keys: list[str]) -> list[str]:
        store, paths = self.open_store(), []
        try:
            for key in keys:
                path = self.copies / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(await store.get(key))
                paths.append(str(path))
        finally:
            await store.close()
        return paths

    def during_load(self, share: float) -> None:
        if share >= KILL_AT and not self.killed:
            victim = self.cluster.live_agents[0]
            self.cluster.kill(victim)
            self.killed.append(victim.name)
            self.console.print(
                f"  [bold]{victim.name} ({victim.address}) was killed[/] at {share:.0%} of the load"
            )
        if share >= ADD_AT and not self.added:
            newcomer = self.cluster.add_agent("az-a")
            self.added.append(newcomer.name)
            self.console.print(
                f"  [bold]{newcomer.name} ({newcomer.address}) was added[/] at {share:.0%} of the load"
            )


def main() -> int:
    """Run the demo on a cluster. Returns the exit status."""
    console = Console()
    console.print(
        "starting S3 (MinIO where it is at hand, else moto), PostgreSQL, two sequencers, four agents"
    )
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-demo-copies-") as copies,
        running_cluster(is_minio_wanted=True, environ=IMPATIENT) as cluster,
    ):
        os.environ.update(cluster.s3.environ)  # for the compactor, and for Spark's workers
        console.print(f"store {cluster.store_url}, database {cluster.database}")
        for part in (*cluster.sequencers, *cluster.agents):
            console.print(f"  {part.name} at {part.address}, metrics at http://{part.http}/metrics")
        demoed = DemoedCluster(cluster, console, Path(copies))
        status = job.run(demoed, console)
        console.print(f"killed under load: {', '.join(demoed.killed)}; added: {', '.join(demoed.added)}")
        if status:
            console.print(cluster.report(), markup=False, highlight=False)
        return status


if __name__ == "__main__":
    sys.exit(main())
