"""Log lines about agents whose leases end because nothing was heard of them.

Each agent has a line of its own: whoever is woken at night wants its id and its address. Where very many fall silent
together, the first are named and the others counted.
"""

from __future__ import annotations

import structlog

from sequencer.store.rows import AgentRow
from sequencer.store.state import address_of
from tailrace.clock import Clock

_log = structlog.get_logger(__name__)

NAMED_AT_ONCE = 20
WINDOW_S = 30.0
"""So many agents are named in this time."""


class SilenceLog:
    """See the module; one for each committer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._named = 0

    def lease_ends(self, agent: AgentRow, silent_s: float) -> None:
        """Say that this agent's lease ends after it was silent for so long."""
        now = self._clock.monotonic()
        if now - self._began >= WINDOW_S:
            self._began, self._named = now, 0
        self._named += 1
        if self._named > NAMED_AT_ONCE:
            _log.warning("more agents have not been heard of: their leases end")
            return
        host, port = address_of(agent)
        _log.warning(
            f"agent {agent.broker_id} has not been heard of: its lease ends",
            address=f"{host}:{port}",
            silent_s=round(silent_s, 1),
        )
