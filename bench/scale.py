"""The committer's and the follower's CPU per request, with few idle things and with ten times as many.

    python -m bench.scale [--agents 20] [--partitions 1000] [--groups 1000] [--consumers 1000] [--producers 1000]
                          [--factor 10] [--calls 1000] [--json FILE]
    python -m bench.scale --outage 60 [--agents 20] [...]

A real committer and a follower (`tailrace sequencer`, a process each) run on PostgreSQL with fsync and a folder for
checkpoints. Agents are simulated here (bench.support.scale_agents): each has its own connection, lease, upload
session and windows, and sends an agent's requests, without clients or objects. The bench makes each kind of call
`--calls` times. An agent has one call in flight (eight for offset commits). The figure is the CPU time of the
committer and of the follower per call (all threads, from /proc), minus the cost of the heartbeats and subscriptions
during the calls. It does not include PostgreSQL's CPU.

Idle things are partitions without writers, groups that committed an offset once, consumers that wait at the end of an
idle partition (several at the same one if there are fewer partitions), and producers that wrote one batch.

Then the committer is killed. `fail_over` says after how many seconds the follower executed a commit of an offset, after
how many all agents had renewed their leases and all idle consumers their windows, and the CPU that the new committer
used until then. The killed server returns as the follower, and everything is measured again with `--factor` times the
idle things, with a second fail-over. It prints the ratio of each figure.

`--outage` measures something else: both servers are stopped for so many seconds, then killed for as long. Idle things
are created once, and no calls are made. `all_renewed_s` says after how many seconds every agent has its lease,
`all_subscribed_s` after how many its idle consumers have their windows; see bench.support.scale_outage.

On a busy machine, caches and clock rates vary by some tens of percent: compare ratios, not times. The seconds of a
fail-over mean little there.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from bench.support.process_figures import rss_mib
from bench.support.report import report
from bench.support.scale_agents import SimulatedAgent, until_all
from bench.support.scale_outage import outage
from bench.support.scale_servers import Outage, Servers, sequencers
from sequencer.api.topics import CreateTopic, Topic
from sequencer.api.values import Empty
from tailrace.ids import TopicPartition
from tests.support.servers import postgres_server

GROUPS_OF_AN_AGENT = 8
"""The groups of an agent whose members commit at once."""
PARTITIONS_PER_TOPIC = 1_000
PRODUCERS_AT_ONCE = 2_000
AT_ONCE = 64
"""The calls in flight while the bench creates idle groups, and the agents that join at once."""


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of idle things."""

    partitions: int
    groups: int
    consumers: int
    producers: int

    def times(self, factor: int) -> Size:
        return Size(*(getattr(self, field.name) * factor for field in fields(self)))


class Scale:
    """The agents, and the loads on one pair of servers."""

    def __init__(self, servers: Servers, agents: list[SimulatedAgent], calls: int, idle_s: float) -> None:
        self._servers = servers
        self._agents = agents
        self._calls = calls
        self._idle_s = idle_s
        self._names = itertools.count()
        self._made = Size(0, 0, 0, 0)
        self._idle_topics: list[Topic] = []
        self.used: Topic

    async def begin(self) -> None:
        partitions = max(len(self._agents) * 4, 4)
        self.used = await self._agents[0].sequencer.create_topic(CreateTopic("used", partitions, {}))

    # --- idle things

    async def grow(self, size: Size) -> None:
        """Create idle things up to this size."""
        asker, made = self._agents[0], self._made
        for first in range(made.partitions, size.partitions, PARTITIONS_PER_TOPIC):
            count = min(PARTITIONS_PER_TOPIC, size.partitions - first)
            request = CreateTopic(f"idle-{next(self._names)}", count, {})
            self._idle_topics.append(await asker.sequencer.create_topic(request))
        for first in range(made.groups, size.groups, AT_ONCE):
            names = [f"idle-{number}" for number in range(first, min(first + AT_ONCE, size.groups))]
            await asyncio.gather(*(asker.commit_offset(self.used, name) for name in names))
        for first in range(made.producers, size.producers, PRODUCERS_AT_ONCE):
            await asker.introduce(self.used, range(first, min(first + PRODUCERS_AT_ONCE, size.producers)))
        places = itertools.cycle(self._idle_places())
        for agent in itertools.islice(itertools.cycle(self._agents), size.consumers - made.consumers):
            agent.idle.append(next(places))
        self._made = size
        await self._until_subscribed()

    def _idle_places(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic.topic_id, number)
            for topic in self._idle_topics
            for number in range(topic.partitions)
        ]

    async def _until_subscribed(self) -> None:
        """Wait until each idle consumer has its window."""
        await until_all(self._agents, lambda agent: agent.is_served, "have no windows")

    # --- loads

    async def figures(self) -> dict[str, float]:
        """Return the CPU microseconds of each kind of call, and the bytes that are sent to subscribers."""
        await asyncio.to_thread(self._servers.look_for_committer)
        await self._watch_ends()
        idle = await self._idle_cost()
        found: dict[str, float] = {
            "quiet_agent_committer_us": round(idle[0] * 1e6, 1),
            "quiet_agent_follower_us": round(idle[1] * 1e6, 1),
        }

        async def statistics(agent: SimulatedAgent) -> None:
            await agent.sequencer.statistics(Empty())

        async def offset_commit(agent: SimulatedAgent) -> None:
            await agent.commit_offset(self.used, f"busy-{agent.number}")

        watched = self._watched()
        found |= await self._measured("object", idle, lambda agent: agent.commit_object(self.used))
        sent, answers = (after - before for after, before in zip(self._watched(), watched, strict=True))
        found["watched_bytes_per_agent_and_object"] = round(sent / len(self._agents) / self._calls, 2)
        found["watch_answers_per_object"] = round(answers / self._calls, 3)
        calls = sum(agent.fetch_calls for agent in self._agents)
        found |= await self._measured("fetch", idle, lambda agent: agent.fetch(self.used))
        calls = sum(agent.fetch_calls for agent in self._agents) - calls
        found["calls_per_fetch"] = round(calls / self._calls, 3)
        found |= await self._measured("offset_commit", idle, offset_commit, GROUPS_OF_AN_AGENT)
        found |= await self._measured("heartbeat", idle, SimulatedAgent.renew)
        found |= await self._measured("statistics", idle, statistics)
        found["committer_rss_mib"] = round(rss_mib(self._servers.committer.pid), 1)
        found["follower_rss_mib"] = round(rss_mib(self._servers.follower.pid), 1)
        return found

    def _watched(self) -> tuple[int, int]:
        """Return the bytes and responses of all subscriptions."""
        agents = self._agents
        return sum(agent.watched_bytes for agent in agents), sum(agent.watch_answers for agent in agents)

    async def _watch_ends(self) -> None:
        """Let each agent read to the end of its partition, so that it watches the partition from now on."""
        await asyncio.gather(*(agent.fetch(self.used) for agent in self._agents))
        await asyncio.sleep(1.0)

    async def _idle_cost(self) -> tuple[float, float]:
        """Return the CPU seconds of committer and follower per heartbeat (one per second and agent), while agents only
        renew leases and keep their subscriptions."""
        before, beats = self._servers.cpu(), self._beats()
        await asyncio.sleep(self._idle_s)
        beats = max(1, self._beats() - beats)
        committer, follower = (now - then for now, then in zip(self._servers.cpu(), before, strict=True))
        return committer / beats, follower / beats

    def _beats(self) -> int:
        return sum(agent.beats for agent in self._agents)

    async def _measured(
        self,
        name: str,
        idle: tuple[float, float],
        call: Callable[[SimulatedAgent], Awaitable[None]],
        at_once: int = 1,
    ) -> dict[str, float]:
        calls = iter(range(self._calls))
        before, beats, began = self._servers.cpu(), self._beats(), time.monotonic()
        await asyncio.gather(*(_make(agent, calls, call) for agent in self._agents for _ in range(at_once)))
        took, beats = time.monotonic() - began, self._beats() - beats
        spent = [
            max(0.0, now - then - cost * beats) / self._calls * 1e6
            for now, then, cost in zip(self._servers.cpu(), before, idle, strict=True)
        ]
        return {
            f"{name}_committer_us": round(spent[0], 1),
            f"{name}_follower_us": round(spent[1], 1),
            f"{name}_per_second": round(self._calls / took, 1),
        }

    # --- the fail-over

    async def fail_over(self) -> dict[str, float]:
        """Kill the committer, wait until the next one serves all agents, then start its follower."""
        servers, agents = self._servers, self._agents
        await asyncio.to_thread(servers.look_for_committer)
        before = servers.follower.cpu()
        began = time.monotonic()
        await asyncio.to_thread(servers.fail_over)
        killed = time.monotonic()
        await agents[-1].commit_offset(self.used, "after the fail-over")
        first = time.monotonic() - began
        await until_all(agents, lambda agent: agent.renewed_at > killed, "have no lease")
        renewed = time.monotonic() - began
        await self._until_subscribed()
        found = {
            "fail_over_first_commit_s": round(first, 2),
            "fail_over_all_renewed_s": round(renewed, 2),
            "fail_over_all_subscribed_s": round(time.monotonic() - began, 2),
            "fail_over_cpu_s": round(servers.committer.cpu() - before, 3),
        }
        await asyncio.to_thread(servers.follower.start)
        return found


async def _make(
    agent: SimulatedAgent, calls: Iterator[int], call: Callable[[SimulatedAgent], Awaitable[None]]
) -> None:
    for _ in calls:
        await call(agent)


@asynccontextmanager
async def _joined(
    count: int, addresses: list[str], connects: list[float] | None = None
) -> AsyncIterator[list[SimulatedAgent]]:
    agents: list[SimulatedAgent] = []
    try:
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            joining = (SimulatedAgent.join(number, addresses, connects) for number in numbers)
            agents += await asyncio.gather(*joining)
            for agent in agents[first:]:
                agent.start()
        yield agents
    finally:
        await asyncio.gather(*(agent.close() for agent in agents))


async def measure(
    servers: Servers, size: Size, *, agents: int, factor: int, calls: int, idle_s: float = 5.0
) -> dict[str, Any]:
    """Return the figures with few idle things and with many, each with a fail-over."""
    spent = servers.committer.cpu()
    async with _joined(agents, servers.addresses) as joined:
        joining = {
            "join_cpu_s": round(servers.committer.cpu() - spent, 2),
            "join_members_told": sum(agent.told_members for agent in joined),
        }
        print(json.dumps(joining), flush=True)
        scale = Scale(servers, joined, calls, idle_s)
        await scale.begin()
        rows: list[dict[str, Any]] = []
        for idle in (size, size.times(factor)):
            await scale.grow(idle)
            counts = {f"idle_{field.name}": getattr(idle, field.name) for field in fields(idle)}
            rows.append({**counts, **await scale.figures()})
            print(json.dumps(rows[-1]), flush=True)
            after = await scale.fail_over()
            print(json.dumps(after), flush=True)
            rows[-1].update(after)
    return {"agents": agents, "calls": calls, **joining, "rows": rows, "ratios": ratios(*rows)}


async def measure_outages(servers: Servers, size: Size, *, agents: int, seconds: float) -> dict[str, Any]:
    """Measure how the agents recover after both servers were stopped for `seconds`, and after they were killed."""
    connects: list[float] = []
    async with _joined(agents, servers.addresses, connects) as joined:
        scale = Scale(servers, joined, calls=0, idle_s=0.0)
        await scale.begin()
        await scale.grow(size)
        outages = []
        for kind in get_args(Outage):
            outages.append(await outage(servers, joined, connects, kind, seconds))
            print(json.dumps(outages[-1]), flush=True)
    return {"agents": agents, "idle_consumers": size.consumers, "outages": outages}


def ratios(few: dict[str, Any], many: dict[str, Any]) -> dict[str, float]:
    """Return the ratio of each figure, except counts per second."""
    return {
        name: round(many[name] / few[name], 2)
        for name in few
        if few[name] and not name.endswith("_per_second") and not name.startswith("idle_")
    }


def main() -> None:
    """Start the servers, measure, print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--agents", type=int, default=20, help="simulated agents (the full size: 1000)")
    asked.add_argument("--partitions", type=int, default=1_000, help="idle partitions at first (100000)")
    asked.add_argument("--groups", type=int, default=1_000, help="idle groups at first (100000)")
    asked.add_argument("--consumers", type=int, default=1_000, help="idle consumers at first (100000)")
    asked.add_argument("--producers", type=int, default=1_000, help="idle producers at first (500000)")
    asked.add_argument("--factor", type=int, default=10, help="how many times as many the second time")
    asked.add_argument("--calls", type=int, default=1_000, help="calls of each kind (20000)")
    asked.add_argument(
        "--outage", type=float, help="measure the return from outages of so many seconds instead"
    )
    asked.add_argument("--json", type=Path, help="where to write the figures")
    options = asked.parse_args()
    size = Size(options.partitions, options.groups, options.consumers, options.producers)
    with postgres_server(fsync=True) as server, sequencers(server.create_database()) as servers:
        if options.outage is None:
            measured = measure(
                servers, size, agents=options.agents, factor=options.factor, calls=options.calls
            )
        else:
            measured = measure_outages(servers, size, agents=options.agents, seconds=options.outage)
        result = asyncio.run(measured)
    report(result, options.json)


if __name__ == "__main__":
    main()
