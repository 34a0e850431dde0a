"""What handlers may use: everything an agent is made of, wired once at start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from agent.answer_memory import NO_BOUND, AnswerMemory, Room
from agent.fetch.abreast import Rooms
from agent.identity import AgentIdentity
from agent.leadership import KnownLeadership
from agent.long_work import LongWork
from agent.quotas.quotas import Charge, Quotas
from agent.security.access import ANYBODY, Access
from agent.settings import AgentSettings
from sequencer.api import Sequencer
from tailrace.clock import Clock, Entropy

if TYPE_CHECKING:
    from agent.catalog import Catalog
    from agent.fetch.fetch_memory import FetchMemory
    from agent.fetch.fetch_sessions import FetchSessions
    from agent.fetch.given_up import DeadLetters
    from agent.fetch.share_sessions import ShareSessions
    from agent.fetch.tail import Tail
    from agent.groups.coordinator import GroupCoordinator
    from agent.internal_topics.uncopied import Uncopied
    from agent.produce.current_transactions import CurrentTransactions
    from agent.produce.lanes import Lanes
    from agent.produce.request_memory import RequestMemory
    from agent.produce.transactional_producers import TransactionalProducers
    from agent.security.doors import ClientSecurity
    from agent.telemetry import AgentTelemetry
    from cache.reader import BatchReader

_ZONE_MARK = "tailrace_az="


@dataclass(slots=True)
class Services:
    """An agent's parts, by name. One per agent; owned by agent.server.Agent. The listeners of `clients` are bound."""

    settings: AgentSettings
    clients: ClientSecurity
    clock: Clock
    entropy: Entropy
    identity: AgentIdentity
    sequencer: Sequencer
    catalog: Catalog
    lanes: Lanes
    current_transactions: CurrentTransactions
    transactional_producers: TransactionalProducers
    reader: BatchReader
    tail: Tail
    sessions: FetchSessions
    share_sessions: ShareSessions
    dead_letters: DeadLetters
    fetch_memory: FetchMemory
    answer_memory: AnswerMemory
    request_memory: RequestMemory
    groups: GroupCoordinator
    uncopied: Uncopied
    decoding: Executor
    telemetry: AgentTelemetry
    quotas: Quotas
    long_work: LongWork
    rooms: Rooms = field(default_factory=Rooms)


class RequestContext(msgspec.Struct, frozen=True):
    """Where a request came from. `zone`: the client's zone if it says one (client.id or rack), else the agent's.
    `client_software`: name and version of the client library, if it said them (KIP-511). `leadership`: what the
    connection's client knows of it. `is_first_waiting`: no produce request of the connection waits for its answer.
    `sees_all_groups`: the client asks one agent for what Kafka's tools ask all of them. `access`: who the client is,
    and what it may do. `charge`: what the request uses of the client's quotas, if it has any.
    `connection`: what it came by, to tell it from others. `room`: what the answer has of the memory for large ones."""

    api_version: int
    client_id: str
    client_host: str
    zone: str
    client_software: str = ""
    leadership: KnownLeadership = msgspec.field(default_factory=KnownLeadership)
    is_first_waiting: bool = True
    sees_all_groups: bool = False
    access: Access = ANYBODY
    charge: Charge | None = None
    connection: object = None
    room: Room = NO_BOUND

    @property
    def is_librdkafka(self) -> bool:
        """Whether the client is librdkafka or one of its bindings. It says its name as it likes (KIP-511):
        librdkafka/2.16.0, confluent-kafka-python/2.16.1-rdkafka-2.16.0, confluent-kafka-go/...,
        confluent-kafka-dotnet/2.16.0."""
        return "rdkafka" in self.client_software or self.client_software.startswith("confluent-kafka")


def zone_of_client(client_id: str | None, fallback: str) -> str:
    """The zone that a client names in its client id (`...,tailrace_az=eu-1a`), else `fallback`."""
    if client_id and _ZONE_MARK in client_id:
        named = client_id.split(_ZONE_MARK, 1)[1]
        for end in (",", ";", " "):
            named = named.split(end, 1)[0]
        if named:
            return named
    return fallback


class HeldResponse(msgspec.Struct, frozen=True):
    """A handler's answer that holds memory until it was sent, or never will be: then `release` is called."""

    response: Any
    release: Callable[[], None]


class EncodedResponse(msgspec.Struct, frozen=True):
    """A handler's answer that is encoded already: what follows the correlation id, the header's rest included."""

    body: bytes


Handler = Callable[[Services, RequestContext, Any], Awaitable[Any]]
"""Takes a decoded request; returns the response message, one that comes later (Deferred, Produce only), one that
holds memory (HeldResponse, Fetch only), or one that is encoded (EncodedResponse, Metadata only)."""


class MustWait:
    """Returned by an immediate handler that can't answer without waiting; it has done nothing."""


MUST_WAIT = MustWait()

HandlerAtOnce = Callable[[Services, RequestContext, Any], Any]
"""As a Handler, without waiting; or MUST_WAIT."""


class LongAnswer(msgspec.Struct, frozen=True):
    """An answer that takes several turns of the loop: `making` gives the response message. Whoever has it awaits it."""

    making: Coroutine[Any, Any, Any]


class Deferred:
    """A handler's answer that is not there yet; the next request of the connection may be read meanwhile.

    Once there is what it is made of (`is_ready`, said once, on the loop), `response` gives the response message, a
    LongAnswer, or another Deferred, without waiting. Whoever waits is passed the Deferred, and does not refer to it: a
    cycle would keep the request's bytes until the garbage collector runs.
    """

    __slots__ = ("_given", "_is_ready", "_make", "_then")

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._given: Any = None
        self._is_ready = False
        self._then: Callable[[Deferred], None] | None = None

    def is_ready(self, given: Any = None) -> None:
        """Set what the answer is made of."""
        self._given = given
        self._is_ready = True
        if self._then is not None:
            self._then(self)

    def then(self, call: Callable[[Deferred], None]) -> None:
        """Call this once the answer can be made, possibly at once."""
        self._then = call
        if self._is_ready:
            call(self)

    def response(self) -> Any:
        """The answer."""
        return self._make(self._given)

    def changed(self, change: Callable[[Any], Any]) -> Deferred:
        """One whose answer is what `change` makes of this one's."""
        return _Changed(self, change)


class _Changed(Deferred):
    """Refers to the first one, and the first never to it."""

    __slots__ = ("_change", "_first")

    def __init__(self, first: Deferred, change: Callable[[Any], Any]) -> None:
        self._first = first
        self._change = change

    def then(self, call: Callable[[Deferred], None]) -> None:
        change = self._change
        self._first.then(lambda first: call(_Changed(first, change)))

    def response(self) -> Any:
        response = self._first.response()
        return response.changed(self._change) if isinstance(response, Deferred) else self._change(response)
