"""Agents' leases, and the ring that they form."""

from __future__ import annotations

from uuid import UUID

from sequencer.api.values import Value
from tailrace.limits import Int64


class AgentInfo(Value, frozen=True):
    """The addresses of an agent. `peer_*` is its cache-peer RPC; port 0 means that it serves no peers. `listeners`:
    advertised host and port by listener name, if there are listeners in addition to the plain one at `host` and `port`.
    `request_id` makes a repeated registration take effect once."""

    host: str
    port: Int64
    peer_host: str
    peer_port: Int64
    http_port: Int64
    zone: str
    version: str
    instance: UUID
    listeners: dict[str, tuple[str, Int64]] = {}
    request_id: UUID | None = None

    def address_of(self, listener: str) -> tuple[str, int] | None:
        """Return the address of the agent for clients of this listener ('' for the plain one); None if it has no such
        listener."""
        return self.listeners.get(listener) if listener else (self.host, self.port)


class NewestVersions(Value, frozen=True):
    """The newest versions of the state that every agent keeps: topics and their configs; the ring; users and ACLs;
    client configs."""

    metadata: int
    ring_generation: int
    security: int
    client_configs: int


class AgentLease(Value, frozen=True):
    """An agent's lease. `silence_ms`: an agent that renews three times in this period is never suspected. A coordinator
    answers from memory only while its last renewal is younger than this (0 from a sequencer that ends no lease early).
    `early_puts`, `rows`: the agent's shares of the cluster's budgets, per second; -1: unchanged. `newest`: the newest
    versions as of a renewal, so that an agent requests metadata only if there is something new (None from an older
    sequencer)."""

    broker_id: int
    epoch: int
    lease_ms: int
    incarnation: int
    silence_ms: int = 0
    early_puts: float = -1.0
    rows: float = -1.0
    newest: NewestVersions | None = None


class AgentRef(Value, frozen=True):
    broker_id: Int64
    epoch: Int64


class RenewAgent(Value, frozen=True):
    """`draining` takes the agent out of leadership and group placement, but it keeps its lease. `early_puts`, `rows`:
    how many per second the agent could use."""

    broker_id: Int64
    epoch: Int64
    draining: bool = False
    early_puts: float = 0.0
    rows: float = 0.0


class Member(Value, frozen=True):
    """A live agent as other agents see it."""

    broker_id: int
    epoch: int
    info: AgentInfo
    draining: bool


class Ring(Value, frozen=True):
    """The live agents, ordered by broker id. `generation` never decreases; metadata uses it as leader epoch.

    `departed`: the agents that left last, because clients may still wait for them.
    """

    generation: int
    members: list[Member]
    departed: list[Member] = []


class RingChange(Value, frozen=True):
    """The difference between the rings of the generations `since` and `generation`. `members`: members that are new or
    changed. `left`: broker ids that are no longer members. `departed`: those of the ring's departed agents that were
    neither members nor departed before."""

    since: int
    generation: int
    members: list[Member]
    left: list[int]
    departed: list[Member] = []
