"""Decides when a silent peer counts as dead.

A process that is stopped, or whose machine is lost, does not close its connections. Its callers would wait until their
own deadlines. So a client that receives nothing for a second while calls wait sends a probe to the peer's RPC layer
(`ALIVE`, which no handler gets). After another second without bytes it closes the connection. Any bytes are a sign of
life, also those of an error.

Pure: the connection passes in what it has received, and how long it slept between two checks.
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
    """Counts the checks for which a connection has been silent. `heard` is any number that grows as bytes arrive."""

    def __init__(self, heard: int) -> None:
        self._heard = heard
        self._looks = 0

    def look(self, heard: int, slept_seconds: float, is_sending: bool) -> Literal["wait", "ask", "dead"]:
        """Return what to do now. Call it about every LOOK_SECONDS.

        `is_sending`: earlier bytes are still unsent, so the peer may not have received the probe yet. `slept_seconds`:
        if it is much more than requested, this process itself was stopped, and bytes from the peer may be unread.
        """
        if heard != self._heard or is_sending:
            self._heard = heard
            self._looks = 0
            return "wait"
        if slept_seconds > _MOST_SECONDS:
            self._looks = 0
            return "wait"
        self._looks += 1
        if self._looks >= _DEAD_AFTER:
            return "dead"
        return "ask" if self._looks >= _ASK_AFTER else "wait"
