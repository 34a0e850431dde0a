"""Decides when a silent peer counts as dead.

A process that is stopped, or whose machine is lost, does not close its connections. Its callers would wait until their
own deadlines. So a client that receives nothing for a second while calls wait sends a probe to the peer's RPC layer
(`ALIVE`, which no handler gets). After another second without bytes it closes the connection. Any bytes are a sign of
life, also those of an error. So are bytes that the peer takes: the probe may be behind a long request.

Pure: the connection passes in what it has received and sent, and how long it slept between two checks.
"""

from __future__ import annotations

from typing import Literal

ALIVE = "rpc.alive"
"""The method of the probe, which a server answers at once with an empty body. A server that does not know it answers
with an error, which is a sign of life too."""
LOOK_SECONDS = 0.5
_ASK_AFTER = 2
_DEAD_AFTER = 4
_MOST_SECONDS = 2 * LOOK_SECONDS


class PeerLiveness:
    """Counts the checks for which a connection has been silent. `heard` is any number that grows as bytes arrive;
    `sent` grows as bytes leave."""

    def __init__(self, heard: int) -> None:
        self._heard = heard
        self._sent = 0
        self._has_unsent = False
        self._looks = 0

    def look(
        self, heard: int, sent: int, slept_seconds: float, *, has_unsent: bool
    ) -> Literal["wait", "ask", "dead"]:
        """Return what to do now. Call it about every LOOK_SECONDS.

        `has_unsent`: whether bytes wait to leave. The system takes bytes for a dead peer, too, until its buffers are
        full; so only bytes that had to wait are a sign of life. `slept_seconds`: if it is much more than requested,
        this process itself was stopped, and bytes from the peer may be unread.
        """
        is_taken = self._has_unsent and sent > self._sent
        is_alive = heard != self._heard or is_taken
        self._heard, self._sent, self._has_unsent = heard, sent, has_unsent
        if is_alive or slept_seconds > _MOST_SECONDS:
            self._looks = 0
            return "wait"
        self._looks += 1
        if self._looks >= _DEAD_AFTER:
            return "dead"
        return "ask" if self._looks >= _ASK_AFTER else "wait"
