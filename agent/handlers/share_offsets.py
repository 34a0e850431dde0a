"""Describe-, Alter- and DeleteShareGroupOffsets: the positions of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from agent.answer_memory import ENTRY_BYTES, restartable
from agent.errors import PARTITION_CODES
from agent.groups.coordinator import GroupRefusal
from agent.groups.group_bytes import AnyGroup
from agent.groups.share_group import ShareGroup
from agent.handlers.described_groups import groups_once
from agent.handlers.groups import REFUSALS, group_code
from agent.services import RequestContext, Services
from sequencer.api.share_groups import AlterShareOffsets, ShareOffset, ShareOffsets, ShareOffsetsRequest
from sequencer.pages import all_share_offsets
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_share_group_offsets import (
    AlteredShareOffset,
    AlteredShareTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from tailrace.kafka.messages.delete_share_group_offsets import (
    DeletedShareTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from tailrace.kafka.messages.describe_share_group_offsets import (
    DescribedShareOffset,
    DescribedShareOffsets,
    DescribedShareTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareOffsetsGroup,
)
from tailrace.security.acls import Operation, ResourceType
from tailrace.turns import Turns, in_parts

GROUPS_IN_A_TURN = 100
"""Groups described in one turn of the loop, if nothing has to be waited for."""
ALTERED_AT_ONCE = 2_000
"""Positions that are changed in one transaction."""
NO_TOPIC = "there is no such topic"
FORGET = -1
"""As a start offset in a request to the sequencer: forget the partition. In an answer: the group has not read it."""


@restartable
async def describe(
    services: Services, context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Return start offsets and lags of the named partitions, or of all that the group has read."""
    response = DescribeShareGroupOffsetsResponse()
    async for asked in Turns(GROUPS_IN_A_TURN).over(await groups_once(request.groups)):
        group = DescribedShareOffsets(asked.group_id, _refused(context, asked))
        try:
            await services.groups.look(asked.group_id, _check_share_group)
            group.topics += await _described(services, context, asked)
        except REFUSALS as error:
            group.error_code, group.error_message = group_code(error), str(error)
        response.groups.append(group)
    return response


def _check_share_group(group: AnyGroup) -> None:
    if not isinstance(group, ShareGroup):
        raise GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no share group {group.group_id}.")


def _bytes_of(page: ShareOffsets) -> int:
    return ENTRY_BYTES * (1 + len(page.offsets))


async def _described(
    services: Services, context: RequestContext, asked: DescribeShareOffsetsGroup
) -> list[DescribedShareTopic]:
    known: dict[UUID, dict[int, ShareOffset]] = {}
    pages = await context.reservation.listing(
        services.sequencer.share_offsets, ShareOffsetsRequest(asked.group_id), _bytes_of
    )
    for page in pages:
        for offset in page.offsets:
            known.setdefault(offset.topic_id, {})[offset.partition] = offset
    topics = (await services.catalog.refresh()).by_id
    if asked.topics is None:
        return [
            DescribedShareTopic(
                topics[topic_id].topic.name, topic_id, [_offset_row(offset) for offset in offsets.values()]
            )
            for topic_id, offsets in known.items()
            if topic_id in topics and _may_describe(context, topics[topic_id].topic.name)
        ]
    described: list[DescribedShareTopic] = []
    lookup = services.catalog.of_one_request()
    for named in asked.topics:
        if not _may_describe(context, named.topic_name):
            continue
        topic = await lookup.by_name(named.topic_name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            rows = [DescribedShareOffset(number, FORGET, error_code=code) for number in named.partitions]
            described.append(DescribedShareTopic(named.topic_name, partitions=rows))
            continue
        read = known.get(topic.topic.topic_id, {})
        rows = [
            _offset_row(read.get(number, ShareOffset(topic.topic.topic_id, number, FORGET)))
            for number in named.partitions
        ]
        described.append(DescribedShareTopic(named.topic_name, topic.topic.topic_id, rows))
    return described


def _refused(context: RequestContext, asked: DescribeShareOffsetsGroup) -> list[DescribedShareTopic]:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return [
        DescribedShareTopic(
            named.topic_name,
            partitions=[DescribedShareOffset(number, FORGET, error_code=code) for number in named.partitions],
        )
        for named in asked.topics or ()
        if not _may_describe(context, named.topic_name)
    ]


def _may_describe(context: RequestContext, name: str) -> bool:
    return context.access.may(Operation.DESCRIBE, ResourceType.TOPIC, name)


def _offset_row(offset: ShareOffset) -> DescribedShareOffset:
    return DescribedShareOffset(offset.partition, offset.start_offset, lag=offset.lag)


async def alter(
    services: Services, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Restart the group at these offsets, limited to the log. An unknown group is created, as in Kafka."""
    response = AlterShareGroupOffsetsResponse()
    changes: list[ShareOffset] = []
    changing: list[AlteredShareOffset] = []
    topics = (await services.catalog.refresh()).by_name
    for named in request.topics:
        topic = topics.get(named.topic_name)
        row = AlteredShareTopic(named.topic_name)
        response.responses.append(row)
        for partition in named.partitions:
            altered = AlteredShareOffset(partition.partition_index)
            row.partitions.append(altered)
            if topic is None:
                altered.error_code, altered.error_message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC
                continue
            row.topic_id = topic.topic.topic_id
            start = max(0, partition.start_offset)
            changes.append(ShareOffset(row.topic_id, partition.partition_index, start))
            changing.append(altered)
    try:
        await services.groups.make_share_group(request.group_id)
        codes = await _alter(services, request.group_id, changes)
    except REFUSALS as error:
        return AlterShareGroupOffsetsResponse(error_code=group_code(error), error_message=str(error))
    for altered, code in zip(changing, codes, strict=True):
        altered.error_code = code
        if code is not ErrorCode.NONE:
            altered.error_message = "there is no such partition, or the offset can't be kept"
    return response


async def delete(
    services: Services, context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Forget everything that the group has read of these topics."""
    response = DeleteShareGroupOffsetsResponse()
    topic_ids: set[UUID] = set()
    topics = (await services.catalog.refresh()).by_name
    for named in request.topics:
        topic = topics.get(named.topic_name)
        row = DeletedShareTopic(named.topic_name)
        response.responses.append(row)
        if topic is None:
            row.error_code, row.error_message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC
        else:
            row.topic_id = topic.topic.topic_id
            topic_ids.add(row.topic_id)
    try:
        await services.groups.look(request.group_id, _check_share_group)
        known = await all_share_offsets(services.sequencer, request.group_id)
        forgotten = [
            ShareOffset(offset.topic_id, offset.partition, FORGET)
            for offset in known
            if offset.topic_id in topic_ids
        ]
        await _alter(services, request.group_id, forgotten)
    except REFUSALS as error:
        return DeleteShareGroupOffsetsResponse(error_code=group_code(error), error_message=str(error))
    return response


async def _alter(services: Services, group_id: str, offsets: Sequence[ShareOffset]) -> list[ErrorCode]:
    """Change the positions, in several transactions if they are many: a client that gets an error repeats all."""
    codes: list[ErrorCode] = []
    parts = in_parts(offsets, ALTERED_AT_ONCE) or (offsets,)  # without offsets, the group is still checked
    for some in parts:
        answer = await services.sequencer.alter_share_offsets(AlterShareOffsets(group_id, list(some)))
        codes += [PARTITION_CODES[error] for error in answer.errors]
    return codes
