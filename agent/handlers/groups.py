"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the requests of group members."""

from __future__ import annotations

from collections.abc import Sequence

from agent.errors import EXPECTED, AnswerTooLarge, code_of
from agent.groups.coordinator import GroupRefusal
from agent.groups.group import JoinRequest, SyncRequest
from agent.groups.topic_names import TopicNames, topic_names
from agent.services import RequestContext, Services
from agent.settings import AgentSettings
from cache.ring import group_candidates
from sequencer.api.agents import Member, Ring
from sequencer.api.errors import LimitReached, SequencerOverloaded, SequencerUnavailable, StaleGroup
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tailrace.kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from tailrace.kafka.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from tailrace.kafka.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tailrace.limits import MAX_NAME_BYTES, cut, is_name
from tailrace.turns import Turns, in_turns

GROUP, TRANSACTION = 0, 1
"""FindCoordinator's key types. Clients find a share group's coordinator as any group's. Key type 2 is for Kafka brokers
that look for the state of a share partition, which the sequencer keeps here."""

BATCHED = 4
KEYS_IN_A_TURN = 100
NAMES_IN_A_TURN = 2_000
NULLABLE_PROTOCOL = 7
SKIP_ASSIGNMENT = 9
MEMBER_ID_REQUIRED = 4
LEAVE_MANY = 3
PROTOCOL_NAMED = 5
"""From this version on, SyncGroup names the protocol and its type (KIP-559)."""
MAX_PROTOCOLS = 100
"""The most protocols of one member: each costs memory, even one without a name and metadata."""
MAX_PREFIX_BYTES = 255
"""A new member's id begins with at most this much of its client id."""

REFUSALS = (GroupRefusal, AnswerTooLarge, *EXPECTED)
"""The exceptions that group requests answer with an error code."""


def group_code(error: Exception) -> ErrorCode:
    """Return the code for a group's request. An unreachable sequencer is NOT_COORDINATOR: in every group request, every
    client then looks for the coordinator and retries. A limit that is reached for now is COORDINATOR_NOT_AVAILABLE,
    with the same effect; clients treat POLICY_VIOLATION as fatal here."""
    if isinstance(error, GroupRefusal):
        return error.code
    if isinstance(error, StaleGroup | SequencerUnavailable | SequencerOverloaded):
        return ErrorCode.NOT_COORDINATOR
    if isinstance(error, LimitReached):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code_of(error)


async def subscribed_topics(named: Sequence[str] | None) -> TopicNames | None:
    """Return the topics that a member names, in turns; None if it leaves them out. Raises GroupRefusal."""
    if named is None:
        return None
    turns = Turns(NAMES_IN_A_TURN)
    async for some in turns.parts(named):
        if not all(map(is_name, some)):
            message = "SubscribedTopicNames has an empty name, or one that is too long"
            raise GroupRefusal(ErrorCode.INVALID_REQUEST, message)
    return await in_turns(topic_names(named), turns)


def position_code(error: Exception) -> ErrorCode:
    """Return the code for reading and committing positions. An overloaded sequencer is COORDINATOR_LOAD_IN_PROGRESS:
    clients wait and ask the same coordinator again. Looking for it first would load the sequencer more."""
    if isinstance(error, SequencerOverloaded):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return group_code(error)


async def find_coordinator(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Return the coordinators of groups (placed by the sequencer) or transactional ids (any live agent); one for each
    key, however often it is named."""
    keys = request.coordinator_keys if context.api_version >= BATCHED else [request.key]
    turns = Turns(KEYS_IN_A_TURN)
    coordinators: list[Coordinator] = []
    for key in dict.fromkeys(keys):
        coordinators.append(await _coordinator(services, context, key, request.key_type))
        await turns.did()
    if context.api_version >= BATCHED:
        return FindCoordinatorResponse(coordinators=coordinators)
    first = coordinators[0]
    return FindCoordinatorResponse(
        error_code=first.error_code,
        error_message=first.error_message or ErrorCode.NONE.name,
        node_id=first.node_id,
        host=first.host,
        port=first.port,
    )


async def _coordinator(services: Services, context: RequestContext, key: str, key_type: int) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION):
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, f"key type {key_type} is not served")
    if not is_name(key):
        code = ErrorCode.INVALID_GROUP_ID if key_type == GROUP else ErrorCode.INVALID_REQUEST
        return _no_coordinator(key, code, f"{len(key.encode())} bytes; 1 to {MAX_NAME_BYTES} are allowed")
    find = _transaction_coordinator if key_type == TRANSACTION else _group_coordinator
    return await find(services, context, key)


async def _transaction_coordinator(services: Services, context: RequestContext, key: str) -> Coordinator:
    """Any agent serves any transactional id; one in the client's zone causes no cross-zone traffic. Only this agent is
    known to be alive: another may have died and stay in the ring until its lease ends."""
    try:
        ring = (await services.catalog.refresh()).ring
    except EXPECTED as error:
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
    near = [
        agent for agent in ring.members if agent.info.zone == context.zone and not agent.draining
    ] or ring.members
    mine = services.identity.broker_id
    chosen = next(iter(group_candidates(Ring(ring.generation, near), key)), None)
    if any(agent.broker_id == mine for agent in near):
        chosen = mine
    member = next((agent for agent in ring.members if agent.broker_id == chosen), None)
    if member is None:
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "no agent is live; ask again")
    return _at(context, key, member)


async def _group_coordinator(services: Services, context: RequestContext, key: str) -> Coordinator:
    try:
        owner = await services.groups.locate(key)
    except EXPECTED as error:
        code = group_code(error)
        if code is ErrorCode.NOT_COORDINATOR:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return _no_coordinator(key, code, str(error))
    if not context.access.listener:
        return Coordinator(key, owner.broker_id, owner.host, owner.port)
    members = services.catalog.snapshot.ring.members
    if all(member.broker_id != owner.broker_id for member in members):
        await services.catalog.refresh_if_possible()
        members = services.catalog.snapshot.ring.members
    coordinator = next((member for member in members if member.broker_id == owner.broker_id), None)
    if coordinator is None:
        return _no_coordinator(
            key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is not known here yet"
        )
    return _at(context, key, coordinator)


def _at(context: RequestContext, key: str, member: Member) -> Coordinator:
    """Return the agent at its address for the client's listener."""
    listener = context.access.listener
    address = member.info.address_of(listener)
    if address is None:
        reason = f"agent {member.broker_id} has no listener {listener!r}; all agents need the same ones"
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)
    return Coordinator(key, member.broker_id, *address)


def _no_coordinator(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)


async def join_group(
    services: Services, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse:
    """Join the group's next generation. The answer comes when the generation is complete."""
    version = context.api_version
    code = _join_error(request, services.settings)
    if code is not ErrorCode.NONE:
        return _join_refused(request, version, code)
    rebalance_ms = (
        request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
    )
    prefix = request.group_instance_id or cut(context.client_id, MAX_PREFIX_BYTES)
    try:
        answer = await services.groups.join(
            request.group_id,
            JoinRequest(
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                client_id=context.client_id,
                client_host=f"/{context.client_host}",
                session_seconds=request.session_timeout_ms / 1000,
                rebalance_seconds=rebalance_ms / 1000,
                protocol_type=request.protocol_type,
                protocols=[(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols],
                fresh_id=f"{prefix}-{services.entropy.uuid()}",
                requires_known_id=version >= MEMBER_ID_REQUIRED,
                can_skip_assignment=version >= SKIP_ASSIGNMENT,
            ),
        )
    except REFUSALS as error:
        return _join_refused(request, version, group_code(error))
    if answer.code is not ErrorCode.NONE:
        response = _join_refused(request, version, answer.code)
        response.member_id = answer.member_id
        return response
    return JoinGroupResponse(
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol or "",
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[JoinGroupResponseMember(*member) for member in answer.members],
    )


def _join_error(request: JoinGroupRequest, settings: AgentSettings) -> ErrorCode:
    """Return the error of the request by itself, without looking at the group."""
    if not is_name(request.group_id):
        return ErrorCode.INVALID_GROUP_ID
    if not _is_bounded(request, settings):
        return ErrorCode.INVALID_REQUEST
    least, most = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if not least <= request.session_timeout_ms <= most:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def _is_bounded(request: JoinGroupRequest, settings: AgentSettings) -> bool:
    """Whether the member's data is small enough to be kept in the group's row and sent in every member's answer."""
    names = [request.protocol_type, *(protocol.name for protocol in request.protocols)]
    size = sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
    return (
        len(request.protocols) <= MAX_PROTOCOLS
        and all(len(name) <= MAX_NAME_BYTES for name in names)
        and (request.group_instance_id is None or is_name(request.group_instance_id))
        and size <= settings.group_max_bytes
    )


def _join_refused(request: JoinGroupRequest, version: int, code: ErrorCode) -> JoinGroupResponse:
    name = None if version >= NULLABLE_PROTOCOL else ""
    return JoinGroupResponse(error_code=code, protocol_name=name, member_id=request.member_id)


async def sync_group(
    services: Services, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse:
    """Receive the assignment of a generation; the leader also sends it."""
    if context.api_version >= PROTOCOL_NAMED and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        answer = await services.groups.sync(
            request.group_id,
            SyncRequest(
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation_id,
                protocol_type=request.protocol_type,
                protocol=request.protocol_name,
                assignments=[
                    (assignment.member_id, bytes(assignment.assignment)) for assignment in request.assignments
                ],
            ),
        )
    except REFUSALS as error:
        return SyncGroupResponse(error_code=group_code(error))
    return SyncGroupResponse(
        error_code=answer.code,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


async def heartbeat(
    services: Services, context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse:
    """Keep the member's session alive, and tell it of rebalances."""
    try:
        code = await services.groups.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    except REFUSALS as error:
        code = group_code(error)
    return HeartbeatResponse(error_code=code)


async def leave_group(
    services: Services, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    """Leave the group; from version 3 on, for several members at once, each with its own code."""
    is_many = context.api_version >= LEAVE_MANY
    leaving: list[tuple[str, str | None]] = (
        [(member.member_id, member.group_instance_id) for member in request.members]
        if is_many
        else [(request.member_id, None)]
    )
    try:
        codes = await services.groups.leave(request.group_id, leaving)
    except REFUSALS as error:
        return LeaveGroupResponse(error_code=group_code(error))
    if not is_many:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id, instance_id, code)
            for (member_id, instance_id), code in zip(leaving, codes, strict=True)
        ]
    )
