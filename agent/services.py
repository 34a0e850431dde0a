"""The services that handlers use: all parts of an agent, wired once at the start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from agent.answer_memory import UNRESERVED, AnswerMemory, AnswerReservation
from agent.fetch.alignment import RequestSizes
from agent.identity import AgentIdentity
from agent.leadership import KnownLeadership
from agent.long_work import LongWork
from agent.quotas.quotas import Charge, Quotas
from agent.security.access import ANYBODY, Access
from agent.settings import AgentSettings
from sequencer.api.interface import Sequencer
from tailrace.clock import Clock, Entropy

if TYPE_CHECKING:
    from agent.catalog import Catalog
    from agent.fetch.dead_letter_queue import DeadLetterQueue
    from agent.fetch.fetch_memory import FetchMemory
    from agent.fetch.fetch_sessions import FetchSessions
    from agent.fetch.share_sessions import ShareSessions
    from agent.fetch.tail import Tail
    from agent.groups.coordinator import GroupCoordinator
    from agent.internal_topics.copy_queue import CopyQueue
    from agent.produce.current_transactions import CurrentTransactions
    from agent.produce.lanes import Lanes
    from agent.produce.request_memory import RequestMemory
    from agent.produce.transactional_producers import TransactionalProducers
    from agent.security.listener_contexts import ClientSecurity
    from agent.telemetry import AgentTelemetry
    from cache.reader import BatchReader

_ZONE_MARK = "tailrace_az="


@dataclass(slots=True)
class Services:
    """An agent's parts. One per agent; owned by agent.server.Agent. `clients` has the ports that were bound."""

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
    dead_letters: DeadLetterQueue
    fetch_memory: FetchMemory
    answer_memory: AnswerMemory
    request_memory: RequestMemory
    groups: GroupCoordinator
    copy_queue: CopyQueue
    decoding: Executor
    telemetry: AgentTelemetry
    quotas: Quotas
    long_work: LongWork
    request_sizes: RequestSizes = field(default_factory=RequestSizes)


class RequestContext(msgspec.Struct, frozen=True):
    """Where a request came from. `zone`: the client's zone from its client.id, else the agent's. `client_software`:
    name and version of the client library, if sent (KIP-511). `leadership`: what the connection's client knows of it.
    `is_first_waiting`: whether no other produce request of the connection waits for its answer. `sees_all_groups`: the
    client asks one agent for what Kafka's tools ask all agents. `access`: who the client is, and what it may do.
    `charge`: the request's use of the client's quotas, if any. `connection`: an object that identifies the connection.
    `reservation`: the answer's part of the memory for large answers."""

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
    reservation: AnswerReservation = UNRESERVED

    @property
    def is_librdkafka(self) -> bool:
        """Whether the client is librdkafka or one of its bindings. They send different names (KIP-511):
        librdkafka/2.16.0, confluent-kafka-python/2.16.1-rdkafka-2.16.0, confluent-kafka-go/...,
        confluent-kafka-dotnet/2.16.0."""
        return "rdkafka" in self.client_software or self.client_software.startswith("confluent-kafka")


def zone_of_client(client_id: str | None, fallback: str) -> str:
    """Return the zone that a client names in its client id (`...,tailrace_az=eu-1a`), else `fallback`."""
    if client_id and _ZONE_MARK in client_id:
        named = client_id.split(_ZONE_MARK, 1)[1]
        for end in (",", ";", " "):
            named = named.split(end, 1)[0]
        if named:
            return named
    return fallback


class HeldResponse(msgspec.Struct, frozen=True):
    """A handler's answer that holds memory. `release` is called once it was sent, or never will be."""

    response: Any
    release: Callable[[], None]


class EncodedResponse(msgspec.Struct, frozen=True):
    """An encoded answer: everything after the correlation id, including the rest of the header."""

    body: bytes


Handler = Callable[[Services, RequestContext, Any], Awaitable[Any]]
"""Takes a decoded request. Returns the response message, one that comes later (Deferred, Produce only), one that holds
memory (HeldResponse, Fetch only), or one that is encoded (EncodedResponse, Metadata only)."""


class MustWait:
    """Returned by an immediate handler that can't answer without waiting. It has no side effects then."""


MUST_WAIT = MustWait()

HandlerAtOnce = Callable[[Services, RequestContext, Any], Any]
"""As a Handler, but without waiting; may return MUST_WAIT."""


class LongAnswer(msgspec.Struct, frozen=True):
    """An answer that takes several turns of the loop. Its receiver must await `making`, the response message."""

    making: Coroutine[Any, Any, Any]


class Deferred:
    """A handler's answer that is made later. The next request of the connection may be read meanwhile.

    Once its input is set (`is_ready`, called once, on the loop), `response` returns the response message, a LongAnswer,
    or another Deferred, without waiting. The callback gets the Deferred as an argument and does not refer to it: a
    cycle would keep the request's bytes until the garbage collector runs.
    """

    __slots__ = ("_given", "_is_ready", "_make", "_then")

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._given: Any = None
        self._is_ready = False
        self._then: Callable[[Deferred], None] | None = None

    def is_ready(self, given: Any = None) -> None:
        """Set the input of the answer, and call the waiting callback."""
        self._given = given
        self._is_ready = True
        if self._then is not None:
            self._then(self)

    def then(self, call: Callable[[Deferred], None]) -> None:
        """Call `call` once the answer can be made, possibly at once."""
        self._then = call
        if self._is_ready:
            call(self)

    def response(self) -> Any:
        """Make the answer. Call it once it is ready."""
        return self._make(self._given)

    def changed(self, change: Callable[[Any], Any]) -> Deferred:
        """Return a Deferred whose answer is `change` applied to this one's."""
        return _MappedDeferred(self, change)


class _MappedDeferred(Deferred):
    """Refers to the first Deferred, which never refers to it."""

    __slots__ = ("_change", "_first")

    def __init__(self, first: Deferred, change: Callable[[Any], Any]) -> None:
        self._first = first
        self._change = change

    def then(self, call: Callable[[Deferred], None]) -> None:
        change = self._change
        self._first.then(lambda first: call(_MappedDeferred(first, change)))

    def response(self) -> Any:
        response = self._first.response()
        return response.changed(self._change) if isinstance(response, Deferred) else self._change(response)
