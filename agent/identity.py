"""Who an agent is, to the ring and to clients."""

from __future__ import annotations

from dataclasses import dataclass

from sequencer.api import AgentInfo


@dataclass(slots=True)
class Identity:
    """Who this agent is in the ring, as the last renewed lease says. `valid_until`: on the monotonic clock."""

    broker_id: int
    lease_epoch: int
    info: AgentInfo
    valid_until: float

    @property
    def zone(self) -> str:
        return self.info.zone
