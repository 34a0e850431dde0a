"""OffsetCommit, OffsetFetch, OffsetDelete: a group's positions, which the sequencer keeps under the topics' ids."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar
from uuid import UUID

from agent.answer_memory import restartable
from agent.catalog import KnownTopic, RequestTopics
from agent.errors import PARTITION_CODES
from agent.groups.consumer_group import ConsumerGroup, Topics
from agent.groups.coordinator import GroupRefusal
from agent.groups.group_bytes import AnyGroup
from agent.handlers.described_groups import groups_once
from agent.handlers.groups import REFUSALS, group_code, position_code
from agent.services import RequestContext, Services
from sequencer.api.errors import UnknownGroup
from sequencer.api.groups import DeleteOffsets, FetchOffsets, OffsetPosition, OffsetPositions
from sequencer.pages import positions_at
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tailrace.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tailrace.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tailrace.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponsePartition,
)
from tailrace.limits import is_name
from tailrace.turns import Steps, Turns

POSITION_BYTES = 512
"""Estimated bytes of a position, as object and encoded, without its metadata."""
NAMES_EPOCHS = 9
"""From this version on, OffsetCommit is for members of KIP-848's protocol, too."""
BY_ID = 10
"""From this version on, OffsetCommit and OffsetFetch name topics by their ids (KIP-848)."""

MANY_GROUPS = 8
GROUP_ERROR = 2
"""From this version on, OffsetFetch has an error code for the group, in addition to those of partitions."""
POSITIONS_IN_A_TURN = 2_000
"""Positions read from a request, or added to an answer, in one turn of the loop."""
GROUP_ROWS = 20
"""The cost of a group in addition to its positions, in positions."""


GroupUse = tuple[Set[str] | None, bool]
"""The topics that a group reads (None: unknown), and whether it has members."""


Row = TypeVar("Row", OffsetCommitResponsePartition, TxnOffsetCommitResponsePartition)


@dataclass(slots=True)
class RequestedPositions(Generic[Row]):
    """The positions that a request commits, in a transaction or not. `rows`: of the answer, one per position.
    `existing`: the rows of all partitions that exist. As in Kafka, the group is asked about these only: the others keep
    their code, whatever the group's answer is."""

    max_metadata_bytes: int
    positions: list[OffsetPosition] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    existing: list[Row] = field(default_factory=list)

    def add(
        self,
        topic: KnownTopic | None,
        requested: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
        row: Row,
        unknown_topic: ErrorCode,
    ) -> None:
        """Take the position of a partition, or give its row the code that says why it can't be stored."""
        if topic is None:
            row.error_code = unknown_topic
            return
        if not 0 <= requested.partition_index < topic.topic.partitions:
            row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return
        self.existing.append(row)
        metadata = requested.committed_metadata or ""
        if len(metadata.encode()) > self.max_metadata_bytes:
            row.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            return
        self.rows.append(row)
        self.positions.append(
            OffsetPosition(
                topic_id=topic.topic.topic_id,
                partition=requested.partition_index,
                offset=requested.committed_offset,
                leader_epoch=requested.committed_leader_epoch,
                metadata=metadata,
            )
        )


async def offset_commit(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    """Commit positions. Each position that can't be stored gets its own code; the others are stored."""
    response = OffsetCommitResponse()
    asked = RequestedPositions[OffsetCommitResponsePartition](services.settings.offset_metadata_max_bytes)
    turns = Turns(POSITIONS_IN_A_TURN)
    lookup = services.catalog.of_one_request()
    async for topic in turns.over(request.topics):
        known = await _topic(lookup, context, topic.name, topic.topic_id)
        answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answer)
        async for partition in turns.over(topic.partitions):
            row = OffsetCommitResponsePartition(partition.partition_index)
            answer.partitions.append(row)
            asked.add(known, partition, row, _unknown_topic(context))
    if not asked.existing:
        return response
    try:
        done = await services.groups.commit(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
            offsets=asked.positions,
            retention_ms=request.retention_time_ms,
            names_epochs=context.api_version >= NAMES_EPOCHS,
        )
        services.copy_queue.committed(request.group_id, asked.positions)
        for row, problem in zip(asked.rows, done.errors, strict=True):
            row.error_code = PARTITION_CODES[problem]
    except REFUSALS as error:
        for row in asked.existing:
            row.error_code = position_code(error)
    return response


@restartable
async def offset_fetch(
    services: Services, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """Return the committed positions of one group, or (from version 8 on) of several; -1 for none."""
    turns = Turns(POSITIONS_IN_A_TURN)
    context.reservation.used = POSITION_BYTES * await _named_partitions(request, turns)
    await context.reservation.needs(context.reservation.used)
    if context.api_version >= MANY_GROUPS:
        return OffsetFetchResponse(
            groups=[
                await _fetch(services, context, group, require_stable=request.require_stable, turns=turns)
                for group in await groups_once(request.groups)
            ]
        )
    named = (
        None
        if request.topics is None
        else [
            OffsetFetchRequestTopics(topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    )
    group = OffsetFetchRequestGroup(request.group_id, topics=named)
    fetched = await _fetch(services, context, group, require_stable=request.require_stable, turns=turns)
    if fetched.error_code and context.api_version < GROUP_ERROR:
        fetched.topics = _refused(named or [], fetched.error_code)
    return OffsetFetchResponse(
        error_code=fetched.error_code,
        topics=[
            OffsetFetchResponseTopic(
                topic.name,
                [
                    OffsetFetchResponsePartition(
                        partition_index=row.partition_index,
                        committed_offset=row.committed_offset,
                        committed_leader_epoch=row.committed_leader_epoch,
                        metadata=row.metadata,
                        error_code=row.error_code,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in fetched.topics
        ],
    )


async def _named_partitions(request: OffsetFetchRequest, turns: Turns) -> int:
    count = sum(len(topic.partition_indexes) for topic in request.topics or ())
    async for group in turns.over(request.groups):
        count += 1 + sum(len(topic.partition_indexes) for topic in group.topics or ())
    return count


def _refused(topics: list[OffsetFetchRequestTopics], code: int) -> list[OffsetFetchResponseTopics]:
    """Return the group's error for each partition."""
    return [
        OffsetFetchResponseTopics(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartitions(index, committed_offset=-1, error_code=code)
                for index in topic.partition_indexes
            ],
        )
        for topic in topics
    ]


async def _fetch(
    services: Services,
    context: RequestContext,
    request: OffsetFetchRequestGroup,
    *,
    require_stable: bool,
    turns: Turns,
) -> OffsetFetchResponseGroup:
    await turns.did(GROUP_ROWS)
    response = OffsetFetchResponseGroup(group_id=request.group_id)
    if not is_name(request.group_id):
        response.error_code = ErrorCode.INVALID_GROUP_ID
        return response
    try:
        if request.member_id is not None:
            await _validate_reader(services, request, request.member_id)
        if request.topics is None:
            response.topics = await _all_positions(
                services, context, request.group_id, require_stable=require_stable, turns=turns
            )
        else:
            before = services.catalog.snapshot
            asked_positions = partial(
                _asked_positions,
                services,
                context=context,
                group_id=request.group_id,
                topics=request.topics,
                require_stable=require_stable,
                turns=turns,
            )
            response.topics, has_unknown = await asked_positions()
            if has_unknown and await services.catalog.has_moved_on(before):
                response.topics, _ = await asked_positions()
    except REFUSALS as error:
        response.error_code = position_code(error)
    return response


async def _validate_reader(services: Services, request: OffsetFetchRequestGroup, member_id: str) -> None:
    """Raise GroupRefusal if the group requires a member and its epoch for reads (KIP-848), and these don't match."""
    code = await services.groups.look(
        request.group_id, lambda group: group.validate_reader(member_id, request.member_epoch)
    )
    if code is not ErrorCode.NONE:
        raise GroupRefusal(code)


async def _asked_positions(
    services: Services,
    context: RequestContext,
    group_id: str,
    topics: list[OffsetFetchRequestTopics],
    require_stable: bool,
    turns: Turns,
) -> tuple[list[OffsetFetchResponseTopics], bool]:
    """Return the answer, and whether it names a partition that this agent or the sequencer does not know."""
    answers: list[OffsetFetchResponseTopics] = []
    has_unknown = False
    partitions: list[tuple[UUID, int]] = []
    rows: list[OffsetFetchResponsePartitions] = []
    lookup = services.catalog.of_one_request()
    for topic in topics:
        known = await _topic(lookup, context, topic.name, topic.topic_id)
        answer = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
        answers.append(answer)
        for index in topic.partition_indexes:
            row = OffsetFetchResponsePartitions(index, committed_offset=-1)
            answer.partitions.append(row)
            if known is not None:
                rows.append(row)
                partitions.append((known.topic.topic_id, index))
            elif context.api_version >= BY_ID:
                row.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            # By name, Kafka answers -1 (no position), whether or not the topic exists.
            await turns.did()
        await turns.did()
    if partitions:
        positions = await positions_at(services.sequencer, group_id, partitions)
        context.reservation.grow(sum(len(position.metadata) for position in positions))
        for row, position in zip(rows, positions, strict=True):
            await turns.did()
            _fill(row, position, require_stable)
            has_unknown |= position.is_unknown
    return answers, has_unknown


def _bytes_of(page: OffsetPositions) -> int:
    return sum(POSITION_BYTES + len(position.metadata) for position in page.positions)


async def _all_positions(
    services: Services, context: RequestContext, group_id: str, *, require_stable: bool, turns: Turns
) -> list[OffsetFetchResponseTopics]:
    asked = FetchOffsets(group_id, None)
    pages = await context.reservation.listing(services.sequencer.fetch_offsets, asked, _bytes_of)
    positions = [position for page in pages for position in page.positions]
    answers: dict[UUID, OffsetFetchResponseTopics] = {}
    lookup = services.catalog.of_one_request()
    for position in positions:
        known = await lookup.by_id(position.topic_id)
        if known is None:
            continue
        answer = answers.setdefault(
            position.topic_id, OffsetFetchResponseTopics(known.topic.name, position.topic_id)
        )
        row = OffsetFetchResponsePartitions(position.partition)
        _fill(row, position, require_stable)
        answer.partitions.append(row)
        await turns.did()
    return list(answers.values())


def _fill(row: OffsetFetchResponsePartitions, position: OffsetPosition, require_stable: bool) -> None:
    if require_stable and position.has_pending:
        # An open transaction may still change it (KIP-447): the client retries until the transaction has ended.
        row.committed_offset, row.error_code = -1, ErrorCode.UNSTABLE_OFFSET_COMMIT
        return
    row.committed_offset = position.offset
    row.committed_leader_epoch = position.leader_epoch
    row.metadata = position.metadata


async def offset_delete(
    services: Services, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    """Delete positions of topics to which no member is subscribed."""
    response = OffsetDeleteResponse()
    try:
        known_topics = services.catalog.snapshot.by_name
        use: GroupUse = await services.groups.look(
            request.group_id, lambda group: _use_of(group, known_topics)
        )
        subscribed, is_used = use
        if is_used and subscribed is None:
            # The members are not consumers, so it is unknown which topics they read.
            return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
        partitions: list[tuple[UUID, int]] = []
        rows: list[OffsetDeleteResponsePartition] = []
        lookup = services.catalog.of_one_request()
        for topic in request.topics:
            known = await lookup.by_name(topic.name)
            answer = OffsetDeleteResponseTopic(name=topic.name)
            response.topics.append(answer)
            for partition in topic.partitions:
                row = OffsetDeleteResponsePartition(partition.partition_index)
                answer.partitions.append(row)
                if known is None or not 0 <= partition.partition_index < known.topic.partitions:
                    row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif subscribed is not None and topic.name in subscribed:
                    row.error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                else:
                    rows.append(row)
                    partitions.append((known.topic.topic_id, partition.partition_index))
        done = await services.sequencer.delete_offsets(DeleteOffsets(request.group_id, partitions))
        services.copy_queue.positions(request.group_id, partitions)
    except UnknownGroup:
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    except REFUSALS as error:
        return OffsetDeleteResponse(error_code=group_code(error))
    for row, problem in zip(rows, done.errors, strict=True):
        row.error_code = PARTITION_CODES[problem]
    return response


def _use_of(group: AnyGroup, topics: Topics) -> Steps[GroupUse]:
    subscribed: Set[str] | None
    if isinstance(group, ConsumerGroup):
        subscribed = yield from group.subscribed_topics(topics)
    else:
        subscribed = yield from group.subscribed_topics()
    return subscribed, bool(group.members)


async def _topic(
    lookup: RequestTopics, context: RequestContext, name: str, topic_id: UUID
) -> KnownTopic | None:
    if context.api_version >= BY_ID:
        return await lookup.by_id(topic_id)
    return await lookup.by_name(name)


def _unknown_topic(context: RequestContext) -> ErrorCode:
    if context.api_version >= BY_ID:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
