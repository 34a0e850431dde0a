"""DescribeGroups, ListGroups, DeleteGroups: requests of admin tools about groups."""

from __future__ import annotations

from agent.answer_memory import ENTRY_BYTES, restartable
from agent.errors import EXPECTED
from agent.groups.coordinator import GroupRefusal
from agent.groups.group import Group, GroupPhase
from agent.groups.group_bytes import AnyGroup
from agent.handlers.described_groups import GROUP_ROWS, MEMBER_ROWS, ROWS_IN_A_TURN, is_unused, refusal_of_all
from agent.handlers.groups import REFUSALS, group_code
from agent.internal_topics.copier import partitions_of_group
from agent.services import RequestContext, Services
from sequencer.api.groups import FetchOffsets, GroupListing, GroupListings, ListGroups
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from tailrace.kafka.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tailrace.kafka.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tailrace.security.acls import ResourceType
from tailrace.turns import Steps, Turns

MISSING_IS_AN_ERROR = 6
"""From this DescribeGroups version on, an unknown group is GROUP_ID_NOT_FOUND instead of just Dead (KIP-1043)."""


async def describe_groups(
    services: Services, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Describe each group's state, protocol, members and assignments; a group that is named repeatedly, once."""
    response = DescribeGroupsResponse()
    turns = Turns(ROWS_IN_A_TURN)
    refusal = await refusal_of_all(services, context, request.groups, turns)
    for group_id in dict.fromkeys(request.groups):
        if refusal is not None:
            group = DescribedGroup(error_code=refusal.code, group_id=group_id)
        else:
            group = await _describe(services, context, group_id)
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = context.access.operations(ResourceType.GROUP, group.group_id)
        response.groups.append(group)
        await turns.did(GROUP_ROWS + len(group.members))
    return response


async def _describe(services: Services, context: RequestContext, group_id: str) -> DescribedGroup:
    try:
        described: DescribedGroup | None = await services.groups.look(group_id, _description)
        if described is None and await _has_offsets(services, group_id):
            return DescribedGroup(group_id=group_id, group_state=GroupPhase.EMPTY)
    except REFUSALS as error:
        code = group_code(error)
        if code is not ErrorCode.GROUP_ID_NOT_FOUND:
            return DescribedGroup(error_code=code, group_id=group_id)
        return _missing(context, group_id, str(error))
    return described or _missing(context, group_id, f"Group {group_id} not found.")


def _missing(context: RequestContext, group_id: str, message: str) -> DescribedGroup:
    missing = DescribedGroup(group_id=group_id, group_state=GroupPhase.DEAD)
    if context.api_version >= MISSING_IS_AN_ERROR:
        missing.error_code, missing.error_message = ErrorCode.GROUP_ID_NOT_FOUND, message
    return missing


def _description(group: AnyGroup) -> Steps[DescribedGroup | None]:
    """Describe a group. Return None if it never had a member: it may exist for its offsets only, or not at all."""
    if not isinstance(group, Group):
        raise GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a classic group.")
    if is_unused(group):
        return None
    is_settled = group.phase is GroupPhase.STABLE
    protocol = (group.protocol or "") if is_settled else ""
    members = []
    for member in group.members.values():
        members.append(
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol),
                member_assignment=member.assignment,
            )
        )
        yield MEMBER_ROWS
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.phase,
        protocol_type=group.protocol_type,
        protocol_data=protocol,
        members=members,
    )


@restartable
async def list_groups(
    services: Services, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    """List the groups that this agent coordinates or would take over: tools ask every agent and merge the answers. A
    client of the gateway, which asks one agent only, gets all groups."""
    states = {name.lower() for name in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    response = ListGroupsResponse()
    try:
        snapshot = await services.catalog.refresh()
        live = {member.broker_id for member in snapshot.ring.members}
        me = services.identity.broker_id
        turns = Turns(snapshot.replicas.in_a_turn(None, ROWS_IN_A_TURN))
        pages = await context.reservation.listing(services.sequencer.list_groups, ListGroups(), _bytes_of)
        for row in (group for page in pages for group in page.groups):
            await turns.did()
            owner = row.owner if row.owner in live else snapshot.replicas.coordinator(row.group_id)
            if not (owner == me or context.sees_all_groups):
                continue
            held = services.groups.held_group(row.group_id)
            state, group_type = (row.state, row.type) if held is None else (str(held.phase), held.type)
            is_asked = (not states or state.lower() in states) and (not types or group_type in types)
            if is_asked and await _exists(services, row, state):
                response.groups.append(ListedGroup(row.group_id, row.protocol_type, state, group_type))
    except EXPECTED as error:
        return ListGroupsResponse(error_code=_tool_code(error))
    return response


def _bytes_of(page: GroupListings) -> int:
    return ENTRY_BYTES * len(page.groups)


async def _exists(services: Services, row: GroupListing, state: str) -> bool:
    """Whether the group exists. A row without a protocol was made for offsets, pending or deleted by now."""
    if row.protocol_type or state != GroupPhase.EMPTY:
        return True
    return await _has_offsets(services, row.group_id)


async def _has_offsets(services: Services, group_id: str) -> bool:
    return bool((await services.sequencer.fetch_offsets(FetchOffsets(group_id, None, limit=1))).positions)


async def delete_groups(
    services: Services, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """Delete groups without members, and their offsets."""
    response = DeleteGroupsResponse()
    turns = Turns(ROWS_IN_A_TURN)
    for group_id in dict.fromkeys(request.groups_names):
        await turns.did(GROUP_ROWS)
        code = ErrorCode.NONE
        try:
            never_used = await services.groups.look(group_id, is_unused)
            if never_used and not await _has_offsets(services, group_id):
                code = ErrorCode.GROUP_ID_NOT_FOUND
            else:
                partitions = await partitions_of_group(services, group_id)
                await services.groups.delete(group_id)
                services.copy_queue.group_state(group_id)
                services.copy_queue.positions(group_id, partitions)
        except REFUSALS as error:
            code = group_code(error)
        response.results.append(DeletableGroupResult(group_id, code))
    return response


def _tool_code(error: Exception) -> ErrorCode:
    code = group_code(error)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code is ErrorCode.NOT_COORDINATOR else code
