"""An agent's identity in the ring and to clients."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sequencer.api.agents import AgentInfo, AgentLease


@dataclass(slots=True)
class AgentIdentity:
    """This agent's identity in the ring, as of the last renewed lease. Times are on the monotonic clock.

    `valid_until`: when the lease ends if it is not renewed. `coordinates_until`: no other agent can take over this
    agent's groups before then. After it the sequencer may have ended the lease because the agent was silent.
    """

    broker_id: int
    lease_epoch: int
    info: AgentInfo
    valid_until: float
    coordinates_until: float
    is_leaving: bool = False
    """Whether the agent sends its clients to other agents, because it is about to close their connections."""
    _renewal: asyncio.Future[None] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, lease: AgentLease, info: AgentInfo, asked_at: float) -> AgentIdentity:
        """Build the identity from a lease that was requested at `asked_at`."""
        identity = cls(lease.broker_id, lease.epoch, info, asked_at, asked_at)
        identity.renew(lease, asked_at)
        return identity

    def renew(self, lease: AgentLease, asked_at: float) -> None:
        """Set the identity from a lease that was taken or renewed."""
        self.broker_id, self.lease_epoch = lease.broker_id, lease.epoch
        self.valid_until = asked_at + lease.lease_ms / 1000
        self.coordinates_until = asked_at + min(lease.lease_ms, lease.silence_ms or lease.lease_ms) / 1000

        renewal, self._renewal = self._renewal, None
        if renewal is not None and not renewal.done():
            renewal.set_result(None)

    def next_renewal(self) -> asyncio.Future[None]:
        """Return a future that is done at the next renewal of the lease. It is shared: don't cancel it."""
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().create_future()
        return self._renewal

    def lapse(self, now: float) -> None:
        """End the lease at `now`."""
        self.valid_until = self.coordinates_until = now

    @property
    def zone(self) -> str:
        return self.info.zone
