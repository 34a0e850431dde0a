"""When a peer that answers nothing is taken for dead.

A process that is stopped, or whose machine is gone, does not end its connections: who waits for its answer would wait
until the call's own time is over. So a caller that has heard nothing for a second while calls wait asks the peer's RPC
itself (`ALIVE`, which no handler sees), and ends the connection when it hears nothing for another second. Any bytes
count as a sign of life, an error as well as an answer.

Pure: the connection says what it has heard, and how long it slept between two looks.
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
    """How long a connection has been silent, in looks. `heard` is any number that grows with what arrives."""

    def __init__(self, heard: int) -> None:
        self._heard = heard
        self._looks = 0

    def look(self, heard: int, slept_seconds: float, is_sending: bool) -> Literal["wait", "ask", "dead"]:
        """What to do now. Called about every LOOK_SECONDS.

        `is_sending`: what was sent before still waits to leave, so the peer may not have got the question yet.
        `slept_seconds`: where it is far more than was asked for, this process was stopped itself, and what the peer
        said meanwhile is not read yet.
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
