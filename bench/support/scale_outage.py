"""How all agents recover after a time in which no sequencer answered: `bench.scale --outage`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from statistics import median

from bench.support.scale_agents import SimulatedAgent, until_all
from bench.support.scale_servers import Outage, Servers


async def outage(
    servers: Servers, agents: Sequence[SimulatedAgent], connects: list[float], kind: Outage, seconds: float
) -> dict[str, float | str]:
    """Stop or kill both servers for `seconds`, then wait until all agents have leases, and their consumers windows.

    `connects`: the times of the agents' attempts to connect. Seconds count from the servers' return. CPU is that of
    both servers until all agents have recovered (for new processes including their start), and that of the agents, all
    of which are in this process.
    """
    await asyncio.to_thread(servers.begin_outage, kind)
    connects.clear()
    await asyncio.sleep(seconds)
    attempts = len(connects)
    lost = _lost(agents)
    spent = sum(servers.cpu()) if kind == "stopped" else 0.0
    own, back = time.process_time(), time.monotonic()
    returning = asyncio.create_task(asyncio.to_thread(servers.end_outage, kind))
    renewed = await until_all(agents, lambda agent: agent.renewed_at > back, "have no lease")
    subscribed = await until_all(agents, lambda agent: agent.is_served, "have no windows")
    await returning
    spent = sum(servers.cpu()) - spent
    leases, sessions, members = (now - then for now, then in zip(_lost(agents), lost, strict=True))
    return {
        "outage": kind,
        "outage_s": seconds,
        "connects_per_agent_and_second": round(attempts / len(agents) / seconds, 2),
        "first_renewed_s": round(renewed[0], 2),
        "half_renewed_s": round(median(renewed), 2),
        "all_renewed_s": round(renewed[-1], 2),
        "all_subscribed_s": round(renewed[-1] + subscribed[-1], 2),
        "connects_of_the_busiest_tenth": _busiest(connects[attempts:]),
        "leases_lost": leases,
        "sessions_lost": sessions,
        "members_told": members,
        "servers_cpu_s": round(spent, 3),
        "agents_cpu_s": round(time.process_time() - own, 2),
    }


def _lost(agents: Sequence[SimulatedAgent]) -> tuple[int, int, int]:
    """Return the new leases, the new sessions, and the ring members that were sent to agents."""
    return (
        sum(agent.lost_leases for agent in agents),
        sum(agent.lost_sessions for agent in agents),
        sum(agent.told_members for agent in agents),
    )


def _busiest(times: Sequence[float]) -> int:
    """Return the most of these times within a tenth of a second."""
    return max(Counter(int(at * 10) for at in times).values(), default=0)
