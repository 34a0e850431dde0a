"""Each agent watches the next one of the ring: a process that has died refuses connections long before its lease ends.

Only a refused connection counts: nothing listens at the address that clients are told. A process that is paused, or
cut off, refuses nothing; its lease has to end. An agent that drains lets its groups go before it could be suspected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from sequencer.api import AgentRef, Member, Ring, Sequencer, SequencerError
from tailrace.clock import Clock

log = structlog.get_logger("agent.neighbour")

PAUSE_SECONDS = 1.0
PATIENCE_SECONDS = 1.0
REFUSALS = 2
"""So many refused connections in a row make a suspicion: a restart may take the port for a moment."""

IsRefused = Callable[[str, int], Awaitable[bool]]


async def is_refused(host: str, port: int) -> bool:
    """Whether connections to the address are refused; no answer is not a refusal."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


def neighbour_of(ring: Ring, broker_id: int) -> Member | None:
    """The member after this one, in the order of broker ids and round; None for one that is alone."""
    others = [member for member in ring.members if member.broker_id != broker_id]
    after = [member for member in others if member.broker_id > broker_id]
    return next(iter(after or others), None)


async def watch_neighbour(
    ring: Callable[[], Ring],
    broker_id: Callable[[], int],
    sequencer: Sequencer,
    clock: Clock,
    refused: IsRefused = is_refused,
) -> None:
    """Tell the sequencer of a neighbour that has died. Runs until it is cancelled."""
    seen: tuple[int, int] | None = None
    refusals = 0
    while True:
        await clock.sleep(PAUSE_SECONDS)
        member = neighbour_of(ring(), broker_id())
        if member is None:
            continue
        if seen != (member.broker_id, member.epoch):
            seen, refusals = (member.broker_id, member.epoch), 0
        refusals = refusals + 1 if await refused(member.info.host, member.info.port) else 0
        if refusals != REFUSALS:
            continue
        log.warning(
            "an agent refuses connections; its lease is cut short",
            broker_id=member.broker_id, address=f"{member.info.host}:{member.info.port}",
        )  # fmt: skip
        try:
            await sequencer.suspect_agent(AgentRef(member.broker_id, member.epoch))
        except SequencerError as error:
            refusals = 0  # said again after as many refusals
            log.warning("the sequencer could not be told of a dead agent", error=str(error))
