"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords, DescribeLogDirs."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

from agent.answer_memory import ENTRY_BYTES
from agent.catalog import KnownTopic, Snapshot
from agent.errors import EXPECTED, PARTITION_CODES, RequestRefused, code_of, invalid
from agent.handlers.colliding_names import collisions, why_refused
from agent.handlers.described_configs import LOG_DIR
from agent.handlers.metadata import CREATED_AT_ONCE
from agent.services import RequestContext, Services
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import MAX_REPLICATION_FACTOR, CreatePartitions, CreateTopic, DeleteTopic, Topic
from sequencer.pages import all_sizes
from tailrace.configs.topic_config import TOPIC_CONFIGS, InvalidConfigValue, check_topic_configs, effective
from tailrace.ids import NIL_TOPIC_ID, TopicPartition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from tailrace.kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tailrace.kafka.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from tailrace.kafka.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tailrace.kafka.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tailrace.tenants import is_topic_name
from tailrace.turns import Turns

MAX_CREATION_SECONDS = 15.0
"""How long creating a topic is retried. With a call's own 10 s it is less than clients wait for an answer."""
CREATION_PAUSE_SECONDS = 0.5
SOURCE_TOPIC, SOURCE_DEFAULT = 1, 5

FIRST_STRICT_CREATE_TOPICS, FIRST_STRICT_DELETE_TOPICS, FIRST_STRICT_CREATE_PARTITIONS = 6, 5, 3
"""From these versions on, clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
PARTITIONS_IN_A_TURN = 2_000
"""Partitions read from a request in one turn of the loop."""
TOPICS_IN_A_TURN = 1_000
"""Topics looked up for deletion or growth in one turn of the loop."""
DELETED_AT_ONCE = 500
"""The most partitions in one DeleteRecords request to the sequencer."""


async def create_topics(
    services: Services, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create each topic on its own; a failed topic does not affect the others."""
    counts = Counter(topic.name for topic in request.topics)
    colliding = await collisions(counts, services.catalog.snapshot)
    if colliding:  # the other topic may have been deleted a moment ago
        await services.catalog.refresh_if_possible()
        colliding = await collisions(counts, services.catalog.snapshot)
    results: list[CreatableTopicResult] = []
    for first in range(0, len(request.topics), CREATED_AT_ONCE):
        # Concurrently: topics created while metadata is exported share the next export.
        results += await asyncio.gather(
            *(
                _try_create(
                    services,
                    context,
                    topic,
                    request=request,
                    mentions=counts[topic.name],
                    collides_with=colliding.get(topic.name),
                )
                for topic in request.topics[first : first + CREATED_AT_ONCE]
            )
        )
    await services.catalog.refresh_if_possible()
    return CreateTopicsResponse(topics=results)


async def _try_create(
    services: Services,
    context: RequestContext,
    topic: CreatableTopic,
    *,
    request: CreateTopicsRequest,
    mentions: int,
    collides_with: str | None,
) -> CreatableTopicResult:
    result = CreatableTopicResult(name=topic.name, error_message=None, configs=[])
    try:
        if mentions > 1:
            raise invalid(f"topic {topic.name!r} occurs more than once in the request")
        if collides_with is not None:
            raise RequestRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, why_refused(topic.name, collides_with))
        await _create(services, context, topic, request=request, result=result)
    except (RequestRefused, *EXPECTED) as error:
        result.error_code, result.error_message = code_of(error), str(error)
    if result.error_code:
        result.num_partitions, result.replication_factor, result.configs = -1, -1, []
    return result


async def _create(
    services: Services,
    context: RequestContext,
    topic: CreatableTopic,
    *,
    request: CreateTopicsRequest,
    result: CreatableTopicResult,
) -> None:
    if not is_topic_name(topic.name):
        raise RequestRefused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {topic.name!r}: 1 to 249 letters, digits, '.', '_' or '-' are allowed, "
            "and neither '.' nor '..'",
        )
    configs, replication_factor, partitions = await _wanted(services, topic)
    _count_change(context, partitions, FIRST_STRICT_CREATE_TOPICS)
    creation = CreateTopic(
        name=topic.name,
        partitions=partitions,
        configs=configs,
        validate_only=request.validate_only,
        replication_factor=replication_factor,
        request_id=services.entropy.uuid(),
    )
    created = await _create_in_time(services, creation, request.timeout_ms)
    if not request.validate_only:
        result.topic_id = created.topic_id
    result.num_partitions = partitions
    result.replication_factor = replication_factor
    broker = services.catalog.snapshot.broker_configs
    result.configs = [
        CreatableTopicConfigs(
            name=name,
            value=effective(name, configs, broker),
            read_only=False,
            config_source=SOURCE_TOPIC if name in configs else SOURCE_DEFAULT,
            is_sensitive=False,
        )
        for name in TOPIC_CONFIGS
    ]


async def _wanted(services: Services, topic: CreatableTopic) -> tuple[dict[str, str], int, int]:
    """Return the configs, the replication factor and the partitions of the new topic. Raises RequestRefused, with
    TOPIC_ALREADY_EXISTS before any other code: clients that find the topic there do not mind what they asked for."""
    try:
        return _configs_of(topic), _replication_factor_of(topic), _partitions_of(services, topic)
    except RequestRefused:
        snapshot = await services.catalog.refresh()
        if topic.name in snapshot.by_name:
            raise RequestRefused(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists."
            ) from None
        raise


def _configs_of(topic: CreatableTopic) -> dict[str, str]:
    """Return the configs of the new topic. Raises RequestRefused."""
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise RequestRefused(
                ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {config.name}"
            )
        configs[config.name] = config.value
    try:
        check_topic_configs(configs)
    except InvalidConfigValue as error:
        raise RequestRefused(ErrorCode.INVALID_CONFIG, str(error)) from error
    return configs


async def _create_in_time(services: Services, request: CreateTopic, timeout_ms: int) -> Topic:
    """Create the topic, retrying until the client's timeout: the sequencer's checkpoint may take long, and a client
    that retried itself would learn that the topic exists. All attempts have one request id."""
    give_up = services.clock.monotonic() + min(timeout_ms / 1000, MAX_CREATION_SECONDS)
    while True:
        try:
            return await services.sequencer.create_topic(request)
        except SequencerUnavailable:
            if services.clock.monotonic() + CREATION_PAUSE_SECONDS >= give_up:
                raise
        await services.clock.sleep(CREATION_PAUSE_SECONDS)


def _partitions_of(services: Services, topic: CreatableTopic) -> int:
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise invalid("Both numPartitions or replicationFactor and replicasAssignments were set.")
        indexes = sorted(assignment.partition_index for assignment in topic.assignments)
        if indexes != list(range(len(indexes))):
            raise RequestRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partitions {indexes} were assigned; they must be 0, 1, 2, ...",
            )
        return len(indexes)
    if topic.num_partitions == -1:
        return services.settings.default_partitions
    if topic.num_partitions < 1:
        raise RequestRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.num_partitions} partitions were given; at least 1 is needed",
        )
    return topic.num_partitions


def _replication_factor_of(topic: CreatableTopic) -> int:
    """Return the replication factor to report for the topic. It has no effect: the object store replicates."""
    if topic.assignments:
        counts = {len(set(assignment.broker_ids)) for assignment in topic.assignments}
        if len(counts) > 1 or not 1 <= min(counts) <= MAX_REPLICATION_FACTOR:
            raise RequestRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partitions with {sorted(counts)} replicas were assigned; each needs as many as the others, 1 to"
                f" {MAX_REPLICATION_FACTOR}",
            )
        return counts.pop()
    if topic.replication_factor == -1:
        return 1
    if not 1 <= topic.replication_factor <= MAX_REPLICATION_FACTOR:
        raise RequestRefused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {topic.replication_factor} was given; 1 to {MAX_REPLICATION_FACTOR} (or -1 for the"
            " default) is allowed",
        )
    return topic.replication_factor


async def delete_topics(
    services: Services, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete topics by name or id. They disappear at once for all clients; their bytes are deleted later."""
    response = DeleteTopicsResponse()
    states = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    snapshot = await services.catalog.refresh()
    named: Counter[UUID] = Counter()
    async for state in Turns(TOPICS_IN_A_TURN).over(states):
        known = _topic_named(snapshot, state)
        if known is not None:
            named[known.topic.topic_id] += 1
    async for state in Turns(TOPICS_IN_A_TURN).over(states):
        result = DeletableTopicResult(name=state.name, topic_id=state.topic_id)
        response.responses.append(result)
        try:
            topic = _topic_to_delete(snapshot, state, named)
            result.name, result.topic_id = topic.name, topic.topic_id
            _count_change(context, topic.partitions, FIRST_STRICT_DELETE_TOPICS)
            await services.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        except (RequestRefused, *EXPECTED) as error:
            result.error_code, result.error_message = code_of(error), str(error)
    await services.catalog.refresh_if_possible()
    return response


def _topic_to_delete(snapshot: Snapshot, state: DeleteTopicState, named: Counter[UUID]) -> Topic:
    """Return the topic. Raises RequestRefused. `named`: how often the request names each topic."""
    by_id = state.topic_id != NIL_TOPIC_ID
    if by_id is (state.name is not None):
        raise invalid("a topic is named by its name or by its id, and not by both")
    known = _topic_named(snapshot, state)
    if known is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise RequestRefused(code, "there is no such topic")
    if named[known.topic.topic_id] > 1:
        raise invalid("the topic is named more than once")
    return known.topic


def _topic_named(snapshot: Snapshot, state: DeleteTopicState) -> KnownTopic | None:
    if state.name is None:
        return snapshot.by_id.get(state.topic_id)
    return snapshot.by_name.get(state.name) if state.topic_id == NIL_TOPIC_ID else None


async def create_partitions(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Grow topics. The given count is the new total."""
    response = CreatePartitionsResponse()
    snapshot = await services.catalog.refresh()
    named = Counter(topic.name for topic in request.topics)
    async for topic in Turns(TOPICS_IN_A_TURN).over(request.topics):
        result = CreatePartitionsTopicResult(name=topic.name)
        response.results.append(result)
        if named[topic.name] > 1:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "the topic is named more than once"
            continue
        known = snapshot.by_name.get(topic.name)
        if known is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        try:
            _check_growth(topic, known.topic.partitions)
            _count_change(context, topic.count - known.topic.partitions, FIRST_STRICT_CREATE_PARTITIONS)
            await services.sequencer.create_partitions(
                CreatePartitions(known.topic.topic_id, topic.count, request.validate_only)
            )
        except (RequestRefused, *EXPECTED) as error:
            result.error_code, result.error_message = code_of(error), str(error)
    await services.catalog.refresh_if_possible()
    return response


def _count_change(context: RequestContext, partitions: int, first_strict: int) -> None:
    """Count partitions to be created or deleted (controller_mutation_rate). Raises RequestRefused."""
    charge, is_strict = context.charge, context.api_version >= first_strict
    if charge is not None and not charge.may_change(partitions, is_strict=is_strict):
        raise RequestRefused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")


def _check_growth(topic: CreatePartitionsTopic, now: int) -> None:
    if topic.count <= now:
        raise RequestRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {now} partition(s); {topic.count} would not be an increase.",
        )
    if topic.assignments and len(topic.assignments) != topic.count - now:
        raise RequestRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{len(topic.assignments)} assignments were given for {topic.count - now} new partitions",
        )


async def delete_records(
    services: Services, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Raise log start offsets; -1 means up to the high watermark."""
    response = DeleteRecordsResponse()
    requested: list[DeleteRecordsPartition] = []
    rows: list[DeleteRecordsPartitionResult] = []
    turns = Turns(PARTITIONS_IN_A_TURN)
    lookup = services.catalog.of_one_request()
    async for topic in turns.over(request.topics):
        answer = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(answer)
        known = await lookup.by_name(topic.name)
        async for partition in turns.over(topic.partitions):
            row = DeleteRecordsPartitionResult(partition_index=partition.partition_index, low_watermark=-1)
            answer.partitions.append(row)
            if known is None or not 0 <= partition.partition_index < known.topic.partitions:
                row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            if known.is_internal:
                row.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
                continue
            if known.settings.cleanup_policy == {"compact"}:
                row.error_code = ErrorCode.POLICY_VIOLATION
                continue
            requested.append(
                DeleteRecordsPartition(known.topic.topic_id, partition.partition_index, partition.offset)
            )
            rows.append(row)
    for first in range(0, len(requested), DELETED_AT_ONCE):
        some, asked = rows[first : first + DELETED_AT_ONCE], requested[first : first + DELETED_AT_ONCE]
        try:
            done = await services.sequencer.delete_records(DeleteRecords(asked))
        except EXPECTED as error:
            for row in some:
                row.error_code = code_of(error)
            continue
        answers = zip(some, asked, done.errors, done.log_start_offsets, strict=True)
        for row, deleted, problem, low in answers:
            row.error_code, row.low_watermark = PARTITION_CODES[problem], low
            services.tail.note_deleted(TopicPartition(deleted.topic_id, deleted.partition), low)
    return response


async def describe_log_dirs(
    services: Services, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Describe one log dir, the object store, with each partition's live bytes."""
    snapshot = await services.catalog.refresh()
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {topic.topic: set(topic.partitions) for topic in request.topics}
    described = [known.topic for name, known in snapshot.by_name.items() if wanted is None or name in wanted]
    await context.reservation.needs(ENTRY_BYTES * sum(topic.partitions for topic in described))
    ids = [topic.topic_id for topic in described]
    try:
        sizes = await all_sizes(services.sequencer, ids)
    except EXPECTED as error:
        return DescribeLogDirsResponse(error_code=code_of(error))
    topics: dict[str, DescribeLogDirsTopic] = {}
    for size in sizes:
        known = snapshot.by_id.get(size.topic_id)
        if known is None or (wanted is not None and size.partition not in wanted[known.topic.name]):
            continue
        row = topics.setdefault(known.topic.name, DescribeLogDirsTopic(name=known.topic.name))
        row.partitions.append(DescribeLogDirsPartition(size.partition, size.bytes))
    return DescribeLogDirsResponse(
        results=[DescribeLogDirsResult(log_dir=LOG_DIR, topics=list(topics.values()))]
    )
