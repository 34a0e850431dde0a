"""The sequencer's methods as data, derived from the interface and shared by client, server and committer.

`sequencer.api.interface.Sequencer` is the only place that declares a method. `METHODS` has the name, request and answer
of each; `SequencerMethods` implements each of them by one `call`.
"""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sequencer.api.errors import SequencerUnavailable
from sequencer.api.interface import Sequencer
from sequencer.api.values import Value


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the interface: its name, the struct that it takes and the struct that it returns."""

    name: str
    request: type[Value]
    answer: type[Value]


Call = Callable[[Method, Value], Awaitable[Value]]
"""Carries out any method. The answer is of the method's answer type."""


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
"""All methods of the interface that take a request, by name."""

FORWARD = "forward."
"""A method name with this prefix on the wire allows a server that is not the committer to forward the call. Without it,
such a server answers with the committer's address."""

READ = "read."
"""A method name with this prefix and a number on the wire, as in 'read.17.metadata', allows a follower to answer from
its copy of the rows, at a journal number that is not lower. If it can't, it forwards the call. Every answer states in
its tail the journal number that it reflects; a client sends the largest number that it has seen."""
NUMBER_BYTES = 8

AS_SEEN = frozenset(
    {"compaction_candidates", "lags", "live_files", "object_runs", "objects", "sizes", "statistics"}
)
"""Methods that a follower answers at any journal number that is not below the one the caller has seen."""
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
"""Methods that a follower answers at the newest journal number in the database. A client may switch to another agent,
and the second agent must know what the first one answered: bounds that don't move back, a new topic, the open
transaction."""
FOLLOWED = AS_SEEN | AS_NEWEST
"""Methods that a follower may answer."""


class NotCommitter(SequencerUnavailable):
    """This server is not the committer; the message is the committer's address, '' if there is none."""

    code = "not_committer"


class SequencerMethods(Sequencer):
    """An object with all methods of the interface; each of them calls `call`. Subclasses implement `call` and `close`.

    The methods are set from METHODS below. A type checker takes their signatures from the interface.
    """

    async def call(self, method: Method, request: Value) -> Value:
        """Carry out any method."""
        raise NotImplementedError

    async def close(self) -> None:
        """Release the resources of this object."""
        raise NotImplementedError


class FunctionSequencer(SequencerMethods):
    """The interface over a function. Closing it does nothing."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def call(self, method: Method, request: Value) -> Value:
        """Carry out any method."""
        return await self._call(method, request)

    async def close(self) -> None:
        """Do nothing: the creator of the function closes what it uses."""


def _bound(method: Method) -> Callable[[SequencerMethods, Value], Awaitable[Value]]:
    def call(self: SequencerMethods, request: Value) -> Awaitable[Value]:
        return self.call(method, request)

    call.__name__ = method.name
    call.__qualname__ = f"SequencerMethods.{method.name}"
    return call


for _method in METHODS.values():
    setattr(SequencerMethods, _method.name, _bound(_method))
