"""A fail-over between two servers on a full database: kill -9 of the committer, in seconds and in CPU.

    python -m bench.fail_over_servers [--partitions 1000000] [--each 5] [--database URL] [--json FILE]

PostgreSQL with fsync gets that many partitions, each with `--each` producers and committed offsets. A store writes a
thousandth of the rows, and SQL copies them. Then, with two `tailrace sequencer` processes and a folder for checkpoints:

- `cold`: a committer starts on the full database and executes its first commit of an object;
- `follow`: a second server starts and loads its copy;
- `fail_over`: the committer is killed while an agent commits offsets and objects and requests a group's positions. The
  figures are the times from the kill to each response. They include the lease of the killed committer;
- `back`: the killed server starts again, as the follower.

`cpu_s` is the CPU time of the server's process in a step, `rss_mib` its memory at the end, and `peak_rss_mib` its
highest memory so far. Seconds depend on the machine's load, which is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg

from bench.fail_over import PARTITIONS_OF_A_TOPIC, fill
from bench.support.process_figures import peak_rss_mib, rss_mib
from bench.support.scale_agents import SimulatedAgent
from bench.support.scale_servers import SequencerProcess, Servers
from sequencer.api.errors import SequencerError, SequencerUnavailable
from sequencer.api.groups import FetchOffsets
from sequencer.api.topics import CreateTopic, Topic
from sequencer.store.sql.store import SqlRowStore
from tailrace.clock import SystemClock, SystemEntropy
from tests.support.servers import postgres_server

MOST_SECONDS = 900.0
QUIET_S = 5.0
QUIET_CPU_S = 0.25
QUIET_LOOKS = 8
"""A server that used almost no CPU in this many checks is quiet. Retention runs every 30 s."""

_COPIED = {
    "topics": "{id}, name || '-' || k, partitions, configs, created_ms, replication_factor",
    "partitions": "{id}, partition, log_start_offset, end_offset, running_max_timestamp, epochs",
    "producers": "{id}, partition, producer_id + k * {producers}, producer_epoch, recent, last_timestamp, updated_ms",
    "groups": "group_id || '-' || k, {rest}",
    "group_offsets": "group_id || '-' || k, {id}, {rest}",
}
"""How copy `k` of a table's rows differs from the first. `{rest}`: the other columns, unchanged."""
_ID = "('00000000-0000-0000-0000-' || lpad(to_hex(k + 1), 12, '0'))::uuid"


async def multiply(url: str, times: int, producers: int) -> None:
    """Copy the first topic with all its rows, until there are `times` of it."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        for table, chosen in _COPIED.items():
            names = await connection.fetch(
                "select column_name from information_schema.columns where table_name = $1 order by ordinal_position",
                table,
            )
            rest = ", ".join(f'"{name[0]}"' for name in names[chosen.count(",", 0, chosen.find("{rest}")) :])
            selected = chosen.format(id=_ID, producers=producers, rest=rest)
            await connection.execute(
                f'insert into "{table}" select {selected} from "{table}", generate_series(1, {times - 1}) k'
            )
            await connection.execute(f'analyze "{table}"')
    finally:
        await connection.close()


async def fill_database(url: str, partitions: int, each: int) -> None:
    store = SqlRowStore(url, clock=SystemClock(), entropy=SystemEntropy())
    try:
        await fill(store, PARTITIONS_OF_A_TOPIC, each)
    finally:
        await store.close()
    await multiply(url, partitions // PARTITIONS_OF_A_TOPIC, PARTITIONS_OF_A_TOPIC * each)


@contextmanager
def measured(server: SequencerProcess, found: dict[str, float], *, is_new: bool = False) -> Iterator[None]:
    """Record the time, CPU and memory of one step of a server. `is_new`: its process starts in this step."""
    began, cpu = time.monotonic(), 0.0 if is_new else server.cpu()
    yield
    found["seconds"] = round(time.monotonic() - began, 2)
    found["cpu_s"] = round(server.cpu() - cpu, 2)
    found["rss_mib"] = round(rss_mib(server.pid))
    found["peak_rss_mib"] = round(peak_rss_mib(server.pid))


def wait_for_copy(server: SequencerProcess) -> None:
    """Wait until the server has the rows in memory."""
    give_up = time.monotonic() + MOST_SECONDS
    while time.monotonic() < give_up:
        if copy_number(server) >= 0:
            return
        time.sleep(0.5)
    raise RuntimeError("a follower has no copy")


def wait_until_quiet(server: SequencerProcess) -> None:
    """Wait until a committer has finished the start of its term: the first snapshot and the first retention."""
    give_up, before, quiet = time.monotonic() + MOST_SECONDS, server.cpu(), 0
    while quiet < QUIET_LOOKS and time.monotonic() < give_up:
        time.sleep(QUIET_S)
        now = server.cpu()
        quiet = quiet + 1 if now - before < QUIET_CPU_S else 0
        before = now


def copy_number(server: SequencerProcess) -> float:
    """Return the journal number of the server's copy; -1 if it has none, or does not answer in time."""
    with (
        suppress(OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{server.http}/metrics", timeout=30) as page,
    ):
        for line in page.read().decode().splitlines():
            if line.startswith("tailrace_sequencer_copy_number "):
                return float(line.split()[1])
    return -1.0


@contextmanager
def servers_on(url: str, folder: Path) -> Iterator[Servers]:
    """Yield two servers that have not started, and kill them at the end."""
    (folder / "bucket").mkdir()
    both = [SequencerProcess(url, folder) for _ in range(2)]
    try:
        yield Servers(*both)
    except BaseException:
        for log in folder.glob("*.log"):
            print(log.read_text()[-5_000:], file=sys.stderr)
        raise
    finally:
        for server in both:
            server.kill()


class Asker:
    """An agent that makes each kind of call, with retries until it succeeds."""

    def __init__(self, agent: SimulatedAgent, topic: Topic) -> None:
        self.agent = agent
        self.topic = topic

    async def position(self) -> None:
        """Request the positions of a group that never requested them before."""
        answer = await self.agent.sequencer.fetch_offsets(FetchOffsets("group-0-0", None))
        assert answer.positions, "the database is full"

    async def offset(self) -> None:
        await self.agent.commit_offset(self.topic, "group-1-1")

    async def run(self) -> None:
        await self.agent.commit_object(self.topic)

    async def all_answered(self, began: float) -> dict[str, float]:
        async def noted(call: Callable[[], Awaitable[None]]) -> float:
            while True:
                try:
                    await call()
                    return round(time.monotonic() - began, 2)
                except SequencerError:
                    await self.agent.renew()

        names = ("positions_s", "offset_commit_s", "object_commit_s")
        times = await asyncio.gather(noted(self.position), noted(self.offset), noted(self.run))
        return dict(zip(names, times, strict=True))


async def joined(addresses: list[str]) -> SimulatedAgent:
    """Wait until a committer serves, and return a registered agent."""
    async with asyncio.timeout(MOST_SECONDS):
        while True:
            with suppress(SequencerUnavailable):
                return await SimulatedAgent.join(0, addresses)


async def followed(server: SequencerProcess) -> dict[str, float]:
    """Return the cost of starting a server and loading its copy."""
    found: dict[str, float] = {}
    with measured(server, found, is_new=True):
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(wait_for_copy, server)
    return found


async def measure(servers: Servers) -> AsyncIterator[tuple[str, dict[str, float]]]:
    """Yield the figures of each step at its end."""
    figures: dict[str, float] = {}
    with measured(servers.committer, figures, is_new=True):
        await asyncio.to_thread(servers.committer.start)
        agent = await joined(servers.addresses)
        asker = Asker(agent, await agent.sequencer.create_topic(CreateTopic(f"used-{os.getpid()}", 4, {})))
        figures.update(await asker.all_answered(time.monotonic()))
    yield "cold", figures
    agent.start()
    try:
        yield "follow", await followed(servers.follower)
        await asyncio.to_thread(wait_until_quiet, servers.committer)
        await agent.renew()
        await asker.all_answered(time.monotonic())
        yield "before", {"committer_rss_mib": round(rss_mib(servers.committer.pid))}
        figures = {}
        with measured(servers.follower, figures):
            began = time.monotonic()
            await asyncio.to_thread(servers.committer.kill)
            figures.update(await asker.all_answered(began))
        yield "fail_over", figures
        servers.committer, servers.follower = servers.follower, servers.committer
        yield "back", await followed(servers.follower)
        yield "after", {"committer_rss_mib": round(rss_mib(servers.committer.pid))}
    finally:
        await agent.close()


async def all_figures(servers: Servers) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async for step, figures in measure(servers):
        found[step] = {**figures, "load": round(os.getloadavg()[0], 1)}
        print(json.dumps({step: found[step]}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--each", type=int, default=5, help="producers, and offsets, of each partition")
    parser.add_argument("--database", help="one that was filled before, in place of a new one")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    count = asked.partitions * asked.each
    result: dict[str, Any] = {"partitions": asked.partitions, "producers": count, "offsets": count}
    with ExitStack() as stack:
        url = asked.database
        if url is None:
            url = stack.enter_context(postgres_server(fsync=True)).create_database()
            asyncio.run(fill_database(url, asked.partitions, asked.each))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-fail-over-"))
        servers = stack.enter_context(servers_on(url, Path(folder)))
        result.update(asyncio.run(all_figures(servers)))
    result["machine"] = {"platform": platform.platform(), "cores": os.cpu_count()}
    if asked.json is not None:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
