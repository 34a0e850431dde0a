"""When a silent peer counts as dead.

A process that is stopped, or whose machine is gone, does not close its connections: a caller would wait until its own
deadline. So a caller that has received nothing for a second while calls wait sends a probe to the peer's RPC layer
(`ALIVE`, which no handler sees), and closes the connection after another second without bytes. Any bytes count as a
sign of life, an error as well as an answer.

Pure: the connection passes in what it has received, and how long it slept between two checks.
"""

from __future__ import annotations

from typing import Literal

ALIVE = "rpc.alive"
"""A request that is answered at once, with nothing; by a server that does not know it with an error, heard as well."""
LOOK_SECONDS = 0.5
_ASK_AFTER = 2
_DEAD_AFTER = 4
_MOST_SECONDS = 2 * LOOK_SECONDS


class Silence:
    """How many checks a connection has been silent for. `heard` is any number that grows with what arrives."""

    def __init__(self, heard: int) -> None:
        self._heard = heard
        self._looks = 0

    def look(self, heard: int, slept_seconds: float, is_sending: bool) -> Literal["wait", "ask", "dead"]:
        """What to do now. Called about every LOOK_SECONDS.

        `is_sending`: earlier bytes still wait to be sent, so the peer may not have received the probe yet.
        `slept_seconds`: far more than requested means that this process was stopped itself, and that bytes of the peer
        may wait to be read.
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
