"""The committer's CPU per request, with few idle partitions and groups and with ten times as many.

    python -m bench.scale [--agents 20] [--partitions 1000] [--groups 1000] [--factor 10] [--calls 1000] [--json FILE]

A real committer and a follower (`tailrace sequencer`, a process each) on PostgreSQL with fsync. Agents are simulated
here: each has its own connection, lease, upload session and windows, and sends an agent's requests, without clients or
objects. The bench makes each kind of call `--calls` times; an agent has one call in flight (eight for offset commits).
The figure is the CPU time of the committer and of the follower (user + system, from /proc) per call, less the
committer's CPU in as long a time with heartbeats and subscriptions only. It does not include PostgreSQL's CPU.

Then it measures again with `--factor` times the idle partitions and groups, and prints the ratio of each figure. CPU
time comes in ticks of 10 ms, so a figure from few calls, or a ratio of two small figures, means little. On a busy
machine caches and clock rates vary by some tens of percent; compare ratios, not times.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from agent.fetch.tail import Tail
from agent.telemetry import AgentTelemetry
from bench.process_figures import cpu_seconds, rss_mib
from sequencer.api import (
    AgentInfo,
    AgentLease,
    CommitOffsets,
    CommitRequest,
    CreateTopic,
    Empty,
    FindPartition,
    FindRequest,
    MetadataRequest,
    ObjectDescription,
    ObjectKind,
    OffsetPosition,
    OpenSession,
    RenewAgent,
    RunProposal,
    Sequencer,
    SequencerUnavailable,
    SessionGrant,
    SessionRef,
    Topic,
    WatchAnswer,
    WatchRequest,
)
from sequencer.client import SequencerClient
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.ids import TopicPartition
from tailrace.mixed_object import BatchCoordinates
from tailrace.rpc import encode_body
from tailrace_cli.demo.ports import free_port
from tests.support.servers import postgres_server

RUNS_PER_OBJECT = 4
RECORDS = 10
GROUPS_OF_AN_AGENT = 8
"""Whose members commit at once."""
PARTITIONS_PER_TOPIC = 1_000
START_SECONDS = 60.0
HEARTBEAT_SECONDS = 1.0
SUBSCRIBED_SECONDS = 1.0
"""Within this time an agent has its windows."""
AT_ONCE = 64
"""Calls in flight while the bench creates idle partitions and groups."""


@dataclass(slots=True)
class SimulatedAgent:
    """One simulated agent: its connection, lease, session, and the windows of the partitions that it writes to."""

    number: int
    sequencer: SequencerClient
    lease: AgentLease
    session: SessionGrant
    next_commit: int = 0
    offset: int = 0
    position: int = 0
    fetch_calls: int = 0
    watched_bytes: int = 0
    watch_answers: int = 0
    tail: Tail = field(init=False)
    beating: asyncio.Task[None] | None = None

    @classmethod
    async def join(cls, number: int, addresses: list[str]) -> SimulatedAgent:
        clock, entropy = SystemClock(), SystemEntropy()
        sequencer = SequencerClient(addresses, clock=clock, entropy=entropy, patience_s=60.0, timeout_s=30.0)
        info = AgentInfo(
            f"agent-{number}", 9092, f"agent-{number}", 0, 9644, f"zone-{number % 3}", "0", entropy.uuid()
        )
        lease = await sequencer.register_agent(info)
        session = await sequencer.open_session(OpenSession(lease.broker_id, lease.epoch))
        return cls(number, sequencer, lease, session)

    def start(self) -> None:
        called = cast(Sequencer, self)
        self.tail = Tail(called, SystemClock(), SystemEntropy(), AgentTelemetry())
        self.tail.start()
        self.beating = asyncio.create_task(self._beat())

    async def close(self) -> None:
        if self.beating is not None:
            self.beating.cancel()
            await asyncio.gather(self.beating, return_exceptions=True)
            await self.tail.close()
        await self.sequencer.close()

    async def watch(self, request: WatchRequest) -> WatchAnswer:
        """A call of the subscription, as the agent's tail makes it."""
        answer = await self.sequencer.watch(request)
        self.watched_bytes += len(encode_body(answer))
        self.watch_answers += 1
        return answer

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            with suppress(SequencerUnavailable):
                await self.sequencer.renew_agent(RenewAgent(self.lease.broker_id, self.lease.epoch, False))
                await self.sequencer.renew_session(SessionRef(self.session.session_id))

    async def commit_object(self, topic: Topic) -> None:
        """Commit an object with a run of one batch on each of four partitions."""
        number = self.next_commit
        self.next_commit += 1
        size = 1_000 * RUNS_PER_OBJECT
        described = ObjectDescription(
            SystemEntropy().uuid(),
            ObjectKind.MIXED,
            f"{self.session.prefix}{number:012d}",
            size + 100,
            0,
            size,
            0,
        )
        batch = BatchCoordinates(1_000, RECORDS, 1, 1, -1, -1, -1, 0)
        first = self.number * RUNS_PER_OBJECT
        runs = [
            RunProposal(topic.topic_id, (first + place) % topic.partitions, place * 1_000, 1_000, [batch])
            for place in range(RUNS_PER_OBJECT)
        ]
        await self.sequencer.commit(
            CommitRequest(self.session.session_id, number, number, described, sorted(runs, key=_partition_of))
        )

    async def fetch(self, topic: Topic) -> None:
        """A fetch at a partition's end, without the wait for more: from its window, or from the sequencer."""
        place = TopicPartition(topic.topic_id, self.number * RUNS_PER_OBJECT % topic.partitions)
        known = self.tail.find(place, self.position, 1 << 20)
        if known is None:
            self.fetch_calls += 1
            asked = FindPartition(*place, self.position, 1 << 20)
            answer = await self.sequencer.find_batches(FindRequest([asked], 1 << 20))
            found, number = answer.partitions[0], answer.commit_number
            end = found.runs[-1].end_offset if found.runs else self.position
            self.tail.note_found(place, number, is_at_end=end >= found.high_watermark)
        else:
            found, number = known
            await asyncio.sleep(0)
        self.position = found.high_watermark

    async def commit_offset(self, topic: Topic, group_id: str) -> None:
        self.offset += 1
        position = OffsetPosition(topic.topic_id, self.number % topic.partitions, self.offset, 0, "")
        await self.sequencer.commit_offsets(CommitOffsets(group_id, -1, -1, -1, "", [position]))


def _partition_of(run: RunProposal) -> int:
    return run.partition


@dataclass(frozen=True, slots=True)
class Servers:
    """The measured processes."""

    committer: int
    follower: int
    addresses: list[str]


@contextmanager
def sequencers(database: str) -> Iterator[Servers]:
    """A committer, then a follower."""
    started: list[subprocess.Popen[bytes]] = []
    addresses: list[str] = []
    environ = {
        **os.environ,
        "TAILRACE_SEQUENCER__MAX_TOPICS": "1000000",
        "TAILRACE_SEQUENCER__MAX_PARTITIONS": "10000000",
        "TAILRACE_SEQUENCER__MAX_GROUPS": "10000000",
    }
    with tempfile.TemporaryDirectory(prefix="tailrace-scale-") as folder:
        try:
            for number in range(2):
                rpc, http = free_port(), free_port()
                with (Path(folder) / f"{number}.log").open("wb") as log:
                    started.append(
                        subprocess.Popen(
                            [sys.executable, "-m", "tailrace_cli.app", "sequencer", "--database", database,
                             "--rpc", f"127.0.0.1:{rpc}", "--http", f"127.0.0.1:{http}"],
                            stdout=log, stderr=log, env=environ,
                        )
                    )  # fmt: skip
                addresses.append(f"127.0.0.1:{rpc}")
                _wait_for(f"http://127.0.0.1:{http}/livez", f"http://127.0.0.1:{http}/readyz")
            yield Servers(started[0].pid, started[1].pid, addresses)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)


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


class Scale:
    """The agents, and the loads on one pair of servers."""

    def __init__(self, servers: Servers, agents: list[SimulatedAgent], calls: int) -> None:
        self._servers = servers
        self._agents = agents
        self._calls = calls
        self._names = itertools.count()
        self.idle_partitions = 0
        self.idle_groups = 0
        self.topic: Topic | None = None

    async def add_idle(self, partitions: int, groups: int) -> None:
        """Create that many partitions and groups, which nobody uses again."""
        asker = self._agents[0].sequencer
        if self.topic is None:
            self.topic = await asker.create_topic(
                CreateTopic("used", max(len(self._agents) * RUNS_PER_OBJECT, 1), {})
            )
        topic = self.topic
        while self.idle_partitions < partitions:
            some = min(PARTITIONS_PER_TOPIC, partitions - self.idle_partitions)
            await asker.create_topic(CreateTopic(f"idle-{next(self._names)}", some, {}))
            self.idle_partitions += some
        while self.idle_groups < groups:
            some = min(AT_ONCE, groups - self.idle_groups)
            names = [f"idle-{next(self._names)}" for _ in range(some)]
            await asyncio.gather(*(self._agents[0].commit_offset(topic, name) for name in names))
            self.idle_groups += some

    async def figures(self) -> dict[str, float]:
        """The committer's CPU in microseconds for each kind of call, and the bytes that subscribers are sent."""
        topic = self.topic
        assert topic is not None, "idle things come first"
        await self._watch_ends(topic)
        idle = await self._idle_share()
        found: dict[str, float] = {"idle_percent_of_a_core": round(idle * 100, 2)}
        told = (
            sum(agent.watched_bytes for agent in self._agents),
            sum(each.watch_answers for each in self._agents),
        )
        found.update(await self._measured("object", idle, lambda agent: agent.commit_object(topic)))
        after = (
            sum(agent.watched_bytes for agent in self._agents),
            sum(each.watch_answers for each in self._agents),
        )
        found["watched_bytes_per_agent_and_object"] = round(
            (after[0] - told[0]) / len(self._agents) / self._calls, 1
        )
        found["watch_answers_per_object"] = round((after[1] - told[1]) / self._calls, 2)
        calls = sum(agent.fetch_calls for agent in self._agents)
        found.update(await self._measured("fetch", idle, lambda agent: agent.fetch(topic)))
        calls = sum(agent.fetch_calls for agent in self._agents) - calls
        found["calls_per_fetch"] = round(calls / self._calls, 3)
        found.update(
            await self._measured(
                "offset_commit",
                idle,
                lambda agent: agent.commit_offset(topic, f"busy-{agent.number}"),
                GROUPS_OF_AN_AGENT,
            )
        )
        known = await self._agents[0].sequencer.metadata(MetadataRequest())
        asked = MetadataRequest(known.version, -1 if known.ring is None else known.ring.generation, True)

        async def heartbeat(agent: SimulatedAgent) -> None:
            await agent.sequencer.renew_agent(RenewAgent(agent.lease.broker_id, agent.lease.epoch, False))
            await agent.sequencer.renew_session(SessionRef(agent.session.session_id))
            await agent.sequencer.metadata(asked)

        found.update(await self._measured("heartbeat", idle, heartbeat))

        async def statistics(agent: SimulatedAgent) -> None:
            await agent.sequencer.statistics(Empty())

        found.update(await self._measured("statistics", idle, statistics))
        found["committer_rss_mib"] = round(rss_mib(self._servers.committer), 1)
        found["follower_rss_mib"] = round(rss_mib(self._servers.follower), 1)
        return found

    async def _watch_ends(self, topic: Topic) -> None:
        """Have each agent read to the end of its partition, so that it is watched from now on."""
        await asyncio.gather(*(agent.fetch(topic) for agent in self._agents))
        await asyncio.sleep(SUBSCRIBED_SECONDS)

    async def _idle_share(self) -> float:
        """Cores that the committer uses while agents only renew their leases and keep their subscriptions."""
        before, began = cpu_seconds(self._servers.committer), time.monotonic()
        await asyncio.sleep(5.0)
        return (cpu_seconds(self._servers.committer) - before) / (time.monotonic() - began)

    async def _measured(
        self, name: str, idle: float, call: Callable[[SimulatedAgent], Awaitable[None]], at_once: int = 1
    ) -> dict[str, float]:
        calls = iter(range(self._calls))

        async def some(agent: SimulatedAgent) -> None:
            for _ in calls:
                await call(agent)

        pids = (self._servers.committer, self._servers.follower)
        before, began = [cpu_seconds(pid) for pid in pids], time.monotonic()
        await asyncio.gather(*(some(agent) for agent in self._agents for _ in range(at_once)))
        took = time.monotonic() - began
        committer, follower = (cpu_seconds(pid) - then for pid, then in zip(pids, before, strict=True))
        return {
            f"{name}_committer_us": round(max(0.0, committer - idle * took) / self._calls * 1e6, 1),
            f"{name}_follower_us": round(follower / self._calls * 1e6, 1),
            f"{name}_per_second": round(self._calls / took, 1),
        }


async def measure(options: argparse.Namespace, servers: Servers) -> dict[str, Any]:
    """The figures with few idle partitions and groups, and with many."""
    joined = time.monotonic()
    agents = list(
        await asyncio.gather(
            *(SimulatedAgent.join(number, servers.addresses) for number in range(options.agents))
        )
    )
    joined = time.monotonic() - joined
    try:
        for agent in agents:
            agent.start()
        scale = Scale(servers, agents, options.calls)
        rows: list[dict[str, float]] = []
        for factor in (1, options.factor):
            began = time.monotonic()
            await scale.add_idle(options.partitions * factor, options.groups * factor)
            made = time.monotonic() - began
            figures = await scale.figures()
            rows.append({"idle_partitions": scale.idle_partitions, "idle_groups": scale.idle_groups,
                         "seconds_to_make_them": round(made, 1), **figures})  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
        ratios = {
            name: round(rows[1][name] / rows[0][name], 2)
            for name in rows[0]
            if rows[0][name] and (name.endswith(("_us", "_object", "_core")))
        }
        print(json.dumps({"ratios": ratios}), flush=True)
        return {"agents": options.agents, "seconds_to_join": round(joined, 2), "rows": rows, "ratios": ratios}
    finally:
        await asyncio.gather(*(agent.close() for agent in agents))


def main() -> None:
    """Start the servers, measure, print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--agents", type=int, default=20, help="simulated agents (the full size: 1000)")
    asked.add_argument("--partitions", type=int, default=1_000, help="idle partitions at first (100000)")
    asked.add_argument("--groups", type=int, default=1_000, help="idle groups at first (100000)")
    asked.add_argument("--factor", type=int, default=10, help="how many times as many the second time")
    asked.add_argument("--calls", type=int, default=1_000, help="calls of each kind (20000)")
    asked.add_argument("--json", type=Path, help="where to write the figures")
    options = asked.parse_args()
    with postgres_server(fsync=True) as server, sequencers(server.create_database()) as servers:
        result = asyncio.run(measure(options, servers))
    load = os.getloadavg()
    result["machine"] = {"platform": platform.platform(), "cores": os.cpu_count(), "load_at_the_end": load}
    text = json.dumps(result, indent=1)
    if options.json is not None:
        options.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
