"""Log lines about agents whose leases end because they are silent.

Each agent gets its own line, with its id and address for the operator. If very many agents fall silent together, the
first are named and the others are only counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from sequencer.store.rows import AgentRow
from sequencer.store.state import address_of
from tailrace.clock import Clock

_log = structlog.get_logger(__name__)

NAMED_AT_ONCE = 20
WINDOW_S = 30.0
"""At most NAMED_AT_ONCE agents are named within this time."""


class SilentAgentsLog:
    """See the module; a committer has one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._named = 0

    def leases_end(self, agents: Sequence[AgentRow], silent_s: Callable[[AgentRow], float]) -> None:
        """Log that the leases of these agents end, and how long each agent was silent."""
        now = self._clock.monotonic()
        if now - self._began >= WINDOW_S:
            self._began, self._named = now, 0
        named = agents[: NAMED_AT_ONCE - self._named]
        self._named += len(named)
        for agent in named:
            host, port = address_of(agent)
            _log.warning(
                f"agent {agent.broker_id} is silent: its lease ends",
                address=f"{host}:{port}",
                silent_s=round(silent_s(agent), 1),
            )
        if more := len(agents) - len(named):
            _log.warning("more agents are silent: their leases end", agents=more)
