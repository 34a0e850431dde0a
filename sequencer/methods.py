"""The sequencer's methods as data, computed from the interface: what the client, the server and the committer share.

`sequencer.api.Sequencer` is the only place that declares a method. `METHODS` has each one's name, request and answer;
`SequencerMethods` has them as methods, each of which is one `call`.
"""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sequencer.api import Sequencer, SequencerUnavailable, Value


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the interface: its name, the struct that it takes and the one that it returns."""

    name: str
    request: type[Value]
    answer: type[Value]


Call = Callable[[Method, Value], Awaitable[Value]]
"""Carries out any method. The answer is of the method's type."""


def _methods() -> dict[str, Method]:
    table = {}
    for name, function in vars(Sequencer).items():
        if name.startswith("_") or not callable(function):
            continue
        hints: dict[str, Any] = typing.get_type_hints(function)
        if "request" in hints:
            table[name] = Method(name, hints["request"], hints["return"])
    return table


METHODS = _methods()
"""Every method of the interface that takes a request, by name."""

FORWARD = "forward."
"""A method's name on the wire has this prefix when a server that is not the committer may forward the call. Without
it, such a server answers who the committer is."""

READ = "read."
"""A method's name on the wire begins with this and a number, 'read.17.metadata', when a follower may answer from its
copy of the rows: as of a number of the journal that is not lower. Where it can't, it passes the question on. Every
answer of a server says in its tail as of which number it is; a caller asks with the largest that it has seen."""
NUMBER_BYTES = 8

AS_SEEN = frozenset(
    {"compaction_candidates", "lags", "live_files", "object_runs", "objects", "sizes", "statistics"}
)
"""What a follower answers as of what the caller has seen."""
AS_NEWEST = frozenset(
    {
        "broker_configs",
        "client_configs",
        "describe_producers",
        "fetch_offsets",
        "find_batches",
        "list_groups",
        "list_offsets",
        "metadata",
        "offsets_for_epochs",
        "security",
        "share_offsets",
        "tokens",
        "transactions",
    }
)
"""What it answers as of what is in the database when it is asked. A client goes from one agent to another, and the
second must know what the first was told: bounds that don't move back, a new topic, the transaction that is open."""


class NotCommitter(SequencerUnavailable):
    """This server is not the committer; the message is the committer's address, '' when there is none."""

    code = "not_committer"


class SequencerMethods(Sequencer):
    """An object with all methods of the interface, each of which is `call`. Subclasses implement `call` and `close`.

    The methods are set from METHODS below. A type checker takes their signatures from the interface.
    """

    async def call(self, method: Method, request: Value) -> Value:
        """Carry out any method."""
        raise NotImplementedError

    async def close(self) -> None:
        """Release what this object holds."""
        raise NotImplementedError


class CalledSequencer(SequencerMethods):
    """The interface over a function. Closing it does nothing."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def call(self, method: Method, request: Value) -> Value:
        """Carry out any method."""
        return await self._call(method, request)

    async def close(self) -> None:
        """Do nothing: whoever made the function closes what is behind it."""


def _bound(method: Method) -> Callable[[SequencerMethods, Value], Awaitable[Value]]:
    def call(self: SequencerMethods, request: Value) -> Awaitable[Value]:
        return self.call(method, request)

    call.__name__ = method.name
    call.__qualname__ = f"SequencerMethods.{method.name}"
    return call


for _method in METHODS.values():
    setattr(SequencerMethods, _method.name, _bound(_method))
