"""Leases: agents and the ring they form, named leases, and which agent coordinates a group.

An agent's row says whether the agent is live. Nothing else compares clocks: expiry is a change of the row.

Invariants:
- a broker id belongs to one agent process at one advertised address and is never reused. Each registration of that
  process increases its epoch, once however often the request arrives;
- the ring's generation never decreases, and changes with every change of the ring;
- a named lease's epoch increases each time the lease is taken, and stays when it is renewed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from sequencer.api.agents import AgentInfo, AgentLease, AgentRef, Member, NewestVersions, RenewAgent, Ring
from sequencer.api.compaction import NamedLease, TakeLease
from sequencer.api.errors import InvalidRequest, LeaseLost, LimitReached, SequencerUnavailable
from sequencer.api.groups import GroupOwner, LocateGroup
from sequencer.api.values import Empty
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.rows import AgentRow, GroupRow, LeaseRow
from sequencer.store.state import (
    BROKER_ID,
    CLIENT_CONFIGS_VERSION,
    METADATA_VERSION,
    RING_GENERATION,
    SECURITY_VERSION,
    HotState,
    agent_info,
    replace_row,
)
from tailrace.limits import MAX_NAME_BYTES, PORTS, is_name

MAX_DEPARTED = 32
MAX_GONE_AGENTS = 1_000
"""Limit of rows kept for agents without a lease, in case they return."""

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")

EMPTY_GROUP = "Empty"
MAX_LEASE_MS = 24 * 3600 * 1000
"""The longest named lease: a holder that is gone must not block others for long."""


SLOW_ROUND_TRIP_S = 0.1
"""A database with a shorter round trip than this is not slow."""
ROUND_TRIPS_OF_SLACK = 10
"""A renewal waits for the previous group and for its own; each of them reads the time and writes: four round trips. The
next renewal takes four again. Two more are a reserve."""
MAX_SLACK_MS = 60_000

MAX_LISTENERS = 16
"""Limit of an agent's listeners, because all agents keep the listeners of all others."""


def slack_ms(round_trip_s: float) -> int:
    """Return how much longer leases and silences last with a database of this round trip."""
    if round_trip_s < SLOW_ROUND_TRIP_S:
        return 0
    return min(MAX_SLACK_MS, round(round_trip_s * 1000 * ROUND_TRIPS_OF_SLACK))


class LastHeard:
    """When the committer last heard from each agent, on its own clock. Kept in memory, because a write per second and
    agent would be too much.

    An agent that was not heard from since the state was loaded counts as heard then: the previous committer may have
    heard from it a moment earlier, and nobody could renew while there was no committer. A committer that was stopped
    for a while starts again in the same way.
    """

    def __init__(self, now: float) -> None:
        self._began = self._looked = now
        self._heard: dict[int, tuple[int, float]] = {}
        self._renewing: dict[int, int] = {}
        self._suspected: dict[int, int] = {}
        """Epochs of the agents that a neighbour has not reached since the committer last heard from them."""

    def note(self, lease: AgentLease, now: float, *, is_renewal: bool = False) -> None:
        """Note that the agent has just registered or renewed."""
        self._heard[lease.broker_id] = lease.epoch, now
        self._suspected.pop(lease.broker_id, None)
        if is_renewal:
            self._renewing[lease.broker_id] = lease.epoch

    def suspect(self, agent: AgentRef) -> None:
        """Note that the agent's neighbour does not reach it."""
        self._suspected[agent.broker_id] = agent.epoch

    def look(self, now: float, settings: SequencerSettings, slack_ms: int = 0) -> None:
        """Note that the committer checks for expired leases, which it does three times per length of its own lease. If
        it has not done so for half an agent lease, and for the whole of its own, it was stopped or the database was
        unreachable, and it could not hear from anybody."""
        long_ms = max(settings.agent_lease_ms / 2, settings.committer_lease_ms)
        if (now - self._looked) * 1000 > long_ms + slack_ms:
            self._began = now
            self._heard.clear()
            self._suspected.clear()
        self._looked = now

    def silent_ms(self, agent: AgentRef, now: float) -> float:
        """Return how long the agent has been silent under this epoch."""
        epoch, at = self._heard.get(agent.broker_id, (agent.epoch, self._began))
        return (now - (at if epoch == agent.epoch else self._began)) * 1000

    def has_stopped(
        self, agent: AgentRef, now: float, settings: SequencerSettings, slack_ms: int = 0
    ) -> bool:
        """Whether an agent that has renewed its lease before has missed a renewal, or has sent none since its neighbour
        did not reach it. It may be dead or only late."""
        is_renewing = self._renewing.get(agent.broker_id) == agent.epoch
        is_suspected = self._suspected.get(agent.broker_id) == agent.epoch
        is_late = self.silent_ms(agent, now) >= silence_ms(settings) / 2 + slack_ms
        return is_renewing and (is_suspected or is_late)

    def has_left(self, agent: AgentRef, now: float, settings: SequencerSettings, slack_ms: int = 0) -> bool:
        """Whether the agent has been silent for so long that its lease may be ended if its neighbour suspects it."""
        return self.silent_ms(agent, now) >= silence_ms(settings) + slack_ms

    def has_run_out(
        self, agent: AgentRef, now: float, settings: SequencerSettings, slack_ms: int = 0
    ) -> bool:
        """Whether the agent has been silent for a whole lease. After an outage all agents look for the committer at the
        same time, and find it within some seconds."""
        return self.silent_ms(agent, now) >= settings.agent_lease_ms + slack_ms


def silence_ms(settings: SequencerSettings) -> int:
    """Return the silence after which a suspected agent's lease is ended."""
    return min(settings.agent_silence_ms, settings.agent_lease_ms // 2)


def register_agent(
    draft: Draft, info: AgentInfo, identity: DatabaseIdentity, settings: SequencerSettings, slack_ms: int = 0
) -> AgentLease:
    """Lease a broker id: the one that this instance had before, or a new one. Fence other agents at the address.

    A restarted process is a new broker to clients (decision 19). If it kept its broker id, clients would consider the
    broker down and would not connect to it before their backoff ends.
    """
    if not is_name(info.host) or any(
        port not in PORTS for port in (info.port, info.peer_port, info.http_port)
    ):
        raise InvalidRequest(
            f"an agent at {info.host[:100]!r}:{info.port}, peers at {info.peer_port}, HTTP at {info.http_port}: a host"
            " and ports of at most 65535 are needed"
        )
    if len(info.listeners) > MAX_LISTENERS or not all(
        is_name(name) and is_name(host) and port in PORTS for name, (host, port) in info.listeners.items()
    ):
        raise InvalidRequest(
            f"{len(info.listeners)} listeners: at most {MAX_LISTENERS}, each with a name, a host and a port"
        )
    lease_ms = settings.agent_lease_ms + slack_ms
    at_address = draft.agents_at((info.host, info.port))
    before = next((row for row in at_address if agent_info(row).instance == info.instance), None)
    broker_id = draft.next_value(BROKER_ID) if before is None else before.broker_id
    epoch = 1 if before is None else before.epoch + 1
    for row in at_address:
        for session in draft.open_sessions_of(row.broker_id):
            draft.put(replace_row(session, closed_ms=draft.now_ms))
        if row.expires_ms != 0:
            draft.put(replace_row(row, expires_ms=0))
    draft.put(
        AgentRow(
            broker_id=broker_id,
            epoch=epoch,
            info=_encoder.encode(msgspec.structs.replace(info, request_id=None)),
            expires_ms=draft.now_ms + lease_ms,
            draining=False,
        )
    )
    draft.bump_once(RING_GENERATION)
    return AgentLease(
        broker_id=broker_id,
        epoch=epoch,
        lease_ms=lease_ms,
        incarnation=identity.incarnation,
        silence_ms=silence_ms(settings),
    )


def live_agent(draft: Draft, broker_id: int, epoch: int) -> AgentRow:
    """Return the agent's row. Raises LeaseLost unless the agent is live under this epoch."""
    row = draft.get(AgentRow, broker_id)
    if row is None or row.epoch != epoch or row.expires_ms == 0:
        current = "none" if row is None else f"epoch {row.epoch}{' (over)' if row.expires_ms == 0 else ''}"
        raise LeaseLost(
            f"agent {broker_id} has no live lease of epoch {epoch}, but {current}; register again"
        )
    return row


def renew_agent(
    draft: Draft,
    request: RenewAgent,
    identity: DatabaseIdentity,
    settings: SequencerSettings,
    slack_ms: int = 0,
) -> AgentLease:
    """Extend an agent's lease and store whether it drains. The row is written only if a third of the lease has passed
    or draining begins."""
    row = live_agent(draft, request.broker_id, request.epoch)
    begins_to_drain = (
        request.draining and not row.draining
    )  # draining is final: a renewal without it was sent earlier
    if begins_to_drain:
        draft.bump_once(RING_GENERATION)
    left_ms, lease_ms = row.expires_ms - draft.now_ms, settings.agent_lease_ms + slack_ms
    if begins_to_drain or left_ms <= lease_ms * 2 // 3:
        left_ms = lease_ms
        draft.put(
            replace_row(row, expires_ms=draft.now_ms + left_ms, draining=row.draining or request.draining)
        )
    return AgentLease(
        broker_id=row.broker_id,
        epoch=row.epoch,
        lease_ms=left_ms,
        incarnation=identity.incarnation,
        silence_ms=silence_ms(settings),
        newest=NewestVersions(
            metadata=draft.counter(METADATA_VERSION),
            ring_generation=draft.counter(RING_GENERATION),
            security=draft.counter(SECURITY_VERSION),
            client_configs=draft.counter(CLIENT_CONFIGS_VERSION),
        ),
    )


def release_agent(draft: Draft, request: AgentRef) -> Empty:
    """Release a lease; ignore one that has ended. The broker id stays reserved for this agent."""
    row = draft.get(AgentRow, request.broker_id)
    if row is not None and row.epoch == request.epoch and row.expires_ms != 0:
        draft.put(replace_row(row, expires_ms=0))
        draft.bump_once(RING_GENERATION)
    return Empty()


def suspect_agent(draft: Draft, request: AgentRef, *, has_left: bool) -> AgentRow | None:
    """A neighbour reports the agent as silent: end its lease if it has been silent here for too long as well. Return
    the agent whose lease ends."""
    row = draft.get(AgentRow, request.broker_id)
    if row is None or row.epoch != request.epoch or row.expires_ms == 0 or not has_left:
        return None
    draft.put(replace_row(row, expires_ms=0))
    draft.bump_once(RING_GENERATION)
    return row


def forget_agents(draft: Draft) -> None:
    """Delete the rows of agents without a lease, oldest first, except the last MAX_GONE_AGENTS.

    An agent that returns after that gets a new broker id. Ids are never reused, so no client finds another broker under
    an id that it remembers.
    """
    gone = sorted(row.broker_id for row in draft.all(AgentRow) if row.expires_ms == 0)
    for broker_id in gone[: max(0, len(gone) - MAX_GONE_AGENTS)]:
        draft.delete(AgentRow, broker_id)


def expire_agents(draft: Draft, has_run_out: Callable[[AgentRef], bool]) -> list[AgentRow]:
    """End the expired leases; return their agents. An agent that was heard from keeps its lease: its renewal may be
    waiting for the database."""
    expired = [
        row
        for row in draft.all(AgentRow)
        if 0 < row.expires_ms <= draft.now_ms and has_run_out(AgentRef(row.broker_id, row.epoch))
    ]
    for row in expired:
        draft.put(replace_row(row, expires_ms=0))
    if expired:
        draft.bump_once(RING_GENERATION)
    return expired


def expire_sessions(draft: Draft) -> int:
    """Close the upload sessions with expired leases; return how many."""
    expired = [row for row in draft.open_sessions() if row.expires_ms <= draft.now_ms]
    for row in expired:
        draft.put(replace_row(row, closed_ms=draft.now_ms))
    return len(expired)


def ring_of(generation: int, agents: Iterable[AgentRow]) -> Ring:
    """Return the ring: the live agents by broker id, and those that left last."""
    rows = sorted(agents, key=lambda row: row.broker_id)
    gone = [row for row in rows if row.expires_ms == 0][-MAX_DEPARTED:]
    return Ring(
        generation, [_member(row) for row in rows if row.expires_ms > 0], [_member(row) for row in gone]
    )


def _member(row: AgentRow) -> Member:
    return Member(row.broker_id, row.epoch, agent_info(row), row.draining)


def take_lease(draft: Draft, request: TakeLease) -> NamedLease:
    """Take a named lease that is free, or renew the held one."""
    if not is_name(request.name) or not 0 < request.lease_ms <= MAX_LEASE_MS:
        raise InvalidRequest(
            f"lease {request.name[:100]!r} for {request.lease_ms} ms: a name, and 1 to {MAX_LEASE_MS} ms"
        )
    row = draft.get(LeaseRow, request.name)
    is_live = row is not None and row.expires_ms > draft.now_ms
    if request.epoch:
        if row is None or row.epoch != request.epoch or row.holder != request.holder:
            held = "nobody" if row is None else f"{row.holder!r} with epoch {row.epoch}"
            raise LeaseLost(f"lease {request.name!r}, epoch {request.epoch}: it belongs to {held}")
        epoch = row.epoch
    elif row is not None and is_live and row.holder != request.holder:
        raise LeaseLost(
            f"lease {request.name!r} is {row.holder!r}'s for {row.expires_ms - draft.now_ms} ms more"
        )
    else:
        epoch = 1 if row is None else row.epoch + 1
    draft.put(
        LeaseRow(
            name=request.name,
            holder=request.holder,
            epoch=epoch,
            expires_ms=draft.now_ms + request.lease_ms,
        )
    )
    return NamedLease(request.name, request.holder, epoch, request.lease_ms)


def locate_group(
    state: HotState, request: LocateGroup, has_stopped: Callable[[AgentRef], bool] = lambda agent: False
) -> GroupOwner:
    """Return the group's coordinator: its owner if it is live and not draining, else the first such candidate.

    Changes nothing: the agent that loads the group becomes its owner (`rules.groups`). Agents whose candidates differ
    for a moment may name two coordinators; the first to load the group owns it, and redirects the clients of the other.

    Raises:
        SequencerUnavailable: no agent is live, or the owner has stopped renewing its lease (`has_stopped`); soon it
            will have renewed or left. A client that is sent to a dead agent takes long to retry.
    """
    row = state.get(GroupRow, request.group_id)
    owner = None if row is None else placeable_agent(state, row.owner)
    if owner is not None:
        if has_stopped(AgentRef(owner.broker_id, owner.epoch)):
            raise SequencerUnavailable(
                f"agent {owner.broker_id}, which coordinates group {request.group_id!r}, is silent; retry"
            )
        return _owner_of(owner)
    candidates = [
        agent for broker_id in request.candidates if (agent := placeable_agent(state, broker_id)) is not None
    ]
    candidates.sort(key=lambda agent: has_stopped(AgentRef(agent.broker_id, agent.epoch)))
    if candidates:
        return _owner_of(candidates[0])
    living = [row for row in state.all(AgentRow) if placeable_agent(state, row.broker_id) is not None]
    if not living:
        raise SequencerUnavailable(f"no live agent can coordinate group {request.group_id!r}; retry")
    return _owner_of(min(living, key=lambda row: row.broker_id))


def new_group(draft: Draft, group_id: str, settings: SequencerSettings) -> GroupRow:
    """Return an empty group without an owner. Raises InvalidRequest, LimitReached."""
    if not is_name(group_id):
        raise InvalidRequest(
            f"a group id of {len(group_id.encode())} bytes; 1 to {MAX_NAME_BYTES} are allowed"
        )
    groups = draft.count(GroupRow)
    if groups >= settings.max_groups:
        raise LimitReached(f"{groups} groups; max_groups is {settings.max_groups}")
    return GroupRow(
        group_id=group_id,
        owner=-1,
        owner_epoch=-1,
        generation=0,
        state=EMPTY_GROUP,
        protocol_type="",
        members=[],
        blob=b"",
        updated_ms=draft.now_ms,
    )


def placeable_agent(state: Draft | HotState, broker_id: int) -> AgentRow | None:
    """Return the agent's row if it is live and not draining, so that it may own groups."""
    row = state.get(AgentRow, broker_id)
    return row if row is not None and row.expires_ms > 0 and not row.draining else None


def _owner_of(row: AgentRow) -> GroupOwner:
    info = agent_info(row)
    return GroupOwner(row.broker_id, info.host, info.port)
