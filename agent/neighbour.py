"""Each agent watches the next agent of the ring, and reports it to the sequencer when it falls silent, before its lease
ends.

The sequencer decides: it ends the lease if it has not heard from the agent for a while either. So an agent that only
its neighbour can't reach keeps its lease. An agent that only the sequencer can't hear keeps its lease until the lease
expires.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from cache.peer import PeerLink
from sequencer.api.agents import AgentRef, Member, Ring
from sequencer.api.errors import SequencerError
from sequencer.api.interface import Sequencer
from sequencer.api.values import Empty
from tailrace.background_tasks import log_and_continue
from tailrace.clock import Clock
from tailrace.rpc import CallFailed, HelloRefused, RpcError

log = structlog.get_logger("agent.neighbour")

METHOD = "ping"
PAUSE_SECONDS = 0.5
PATIENCE_SECONDS = 1.0
SHORT_SILENCE_SECONDS = 15.0
LONG_PAUSE_SECONDS = 5.0
"""The pause after a longer silence of an agent that is still in the ring: the sequencer can hear it."""


def neighbour_of(ring: Ring, broker_id: int) -> Member | None:
    """Return the next member in the order of broker ids, wrapping around, among those that serve peers and are not
    draining. Return None if there is none."""
    others = [
        member
        for member in ring.members
        if member.broker_id != broker_id and member.info.peer_port and not member.draining
    ]
    after = [member for member in others if member.broker_id > broker_id]
    return next(iter(after or others), None)


class NeighbourWatch:
    """Pings the neighbour. `run` until cancelled, then `close`.

    Args:
        connect: returns a link to a member's peer address; must not wait.
        refresh: gets the newest ring from the sequencer.
    """

    def __init__(
        self,
        ring: Callable[[], Ring],
        broker_id: Callable[[], int],
        connect: Callable[[Member], PeerLink],
        sequencer: Sequencer,
        refresh: Callable[[], Awaitable[object]],
        clock: Clock,
    ) -> None:
        self._ring = ring
        self._broker_id = broker_id
        self._connect = connect
        self._sequencer = sequencer
        self._refresh = refresh
        self._clock = clock
        self._watched: Member | None = None
        self._link: PeerLink | None = None
        self._heard_at = 0.0
        self._is_reported = False

    async def run(self) -> None:
        """Ping the neighbour, and report its silence to the sequencer."""
        while True:
            await self._clock.sleep(self._pause())
            with log_and_continue(log, "the sequencer could not be told of a silent agent", SequencerError):
                await self._look()

    async def _look(self) -> None:
        member = await self._neighbour()
        if member is None:
            return
        if await self._answers(member):
            self._heard_at, self._is_reported = self._clock.monotonic(), False
            return
        await self._refresh()
        left = [
            other
            for other in self._ring().members
            if (other.broker_id, other.epoch) == (member.broker_id, member.epoch)
        ]
        if not left:
            return  # it has drained
        if not left[0].draining:
            self._report(member)
        await self._sequencer.suspect_agent(AgentRef(member.broker_id, member.epoch))
        await self._refresh()

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def _pause(self) -> float:
        silence = self._clock.monotonic() - self._heard_at
        return LONG_PAUSE_SECONDS if self._is_reported and silence > SHORT_SILENCE_SECONDS else PAUSE_SECONDS

    async def _neighbour(self) -> Member | None:
        """Return the agent to watch. Each life of an agent gets a new connection."""
        member = neighbour_of(self._ring(), self._broker_id())
        before = self._watched
        if (
            before is None
            or member is None
            or (before.broker_id, before.epoch) != (member.broker_id, member.epoch)
        ):
            await self.close()
            self._watched, self._heard_at, self._is_reported = member, self._clock.monotonic(), False
        return member

    async def _answers(self, member: Member) -> bool:
        if self._link is None:
            self._link = self._connect(member)
        try:
            await self._link.call(METHOD, Empty(), Empty, PATIENCE_SECONDS)
        except (CallFailed, HelloRefused):
            return True  # it doesn't know the method, or not this agent, but it is alive
        except RpcError:
            return False
        return True

    def _report(self, member: Member) -> None:
        if self._clock.monotonic() - self._heard_at < PATIENCE_SECONDS:
            return  # it may be about to drain
        if not self._is_reported:
            log.warning(
                "an agent does not answer its neighbour; unless the sequencer hears it, its lease is over soon",
                broker_id=member.broker_id, address=f"{member.info.peer_host}:{member.info.peer_port}",
            )  # fmt: skip
        self._is_reported = True
