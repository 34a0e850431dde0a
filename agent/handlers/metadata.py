"""Metadata and DescribeCluster: all live agents, and for each partition a leader in the client's zone.

Leaders are only a hint for affinity: any agent serves any partition. The leader epoch is the ring's generation, which
never falls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from agent.answer_memory import AnswerReservation
from agent.catalog import KnownTopic, Snapshot
from agent.errors import EXPECTED, code_of
from agent.handlers.colliding_names import collisions
from agent.internal_topics.topics import creation
from agent.services import EncodedResponse, RequestContext, Services
from cache.ring import NO_LEADER
from sequencer.api.errors import TopicExists
from sequencer.api.topics import CreateTopic
from tailrace.configs.internal_topics import is_internal, is_kept
from tailrace.ids import NIL_TOPIC_ID
from tailrace.kafka import ApiKey
from tailrace.kafka.answers import encoded_once
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tailrace.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tailrace.kafka.source_writer import STEP
from tailrace.security.acls import CLUSTER_NAME, ResourceType
from tailrace.tenants import is_topic_name
from tailrace.turns import Turns, in_turns

ENDPOINT_BROKERS = 1
PARTITIONS_IN_A_TURN = 1_000
"""Partitions placed in one turn of the loop, in a small ring. Each topic counts as one more."""
NAMES_IN_A_TURN = 5_000
"""Topics read from a request in one turn of the loop."""
CREATED_AT_ONCE = 1_000
"""The most topics that one request creates concurrently."""
MIN_PARTITIONS_OF_KEPT = 100
"""An answer of fewer partitions is made for each request: it takes less than half a millisecond."""
MAX_TOPICS_OF_KEPT = 64
"""The answer to a request that names more topics is not kept, because hardly any other client names the same ones."""
TOPIC_BYTES = 600
PARTITION_BYTES = 320
"""Estimated bytes of a topic and of a partition in an answer, as objects and encoded."""
FIRST_WITH_CREATION_FLAG = 4
FIRST_NULL_NAME_VERSION = 12


async def handle(
    services: Services, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | EncodedResponse:
    """Answer from a snapshot that was requested after the client's request arrived."""
    await _name_once(request)
    current = await _current(services, context, request)
    if isinstance(current, MetadataResponse):
        return current
    snapshot, refused = current
    if refused or not _may_be_kept(context, request) or not _is_large(context, request, snapshot):
        await context.reservation.needs(await _bytes_of(context, request, snapshot))
        return await _answer(services, context=context, request=request, snapshot=snapshot, refused=refused)

    async def encoded() -> bytes:
        # The request's own reservation holds its copy of the bytes.
        reservation = AnswerReservation(services.answer_memory)
        try:
            await reservation.needs(await _bytes_of(context, request, snapshot))
            response = await _answer(
                services, context=context, request=request, snapshot=snapshot, refused={}
            )
            return await in_turns(encoded_once(ApiKey.METADATA, context.api_version, response), Turns(STEP))
        finally:
            reservation.release()

    body = await snapshot.answers.get(_asked(context, request, snapshot), encoded)
    await context.reservation.needs(len(body))
    return EncodedResponse(body)


async def respond(services: Services, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """As `handle`, but always return a message."""
    await _name_once(request)
    current = await _current(services, context, request)
    if isinstance(current, MetadataResponse):
        return current
    snapshot, refused = current
    await context.reservation.needs(await _bytes_of(context, request, snapshot))
    return await _answer(services, context=context, request=request, snapshot=snapshot, refused=refused)


async def _name_once(request: MetadataRequest) -> None:
    """Remove repeated topics from the request. Kafka makes a set of them, too."""
    if request.topics is None or len(request.topics) < 2:
        return
    named: dict[Hashable, MetadataRequestTopic] = {}
    async for topic in Turns(NAMES_IN_A_TURN).over(request.topics):
        named[topic.name if topic.topic_id == NIL_TOPIC_ID else topic.topic_id] = topic
    request.topics = list(named.values())


async def _current(
    services: Services, context: RequestContext, request: MetadataRequest
) -> tuple[Snapshot, dict[str, ErrorCode]] | MetadataResponse:
    """Create missing topics. Return the snapshot to answer from, and the error of each refused topic."""
    try:
        snapshot = await services.catalog.refresh()
    except EXPECTED as error:
        snapshot = services.catalog.snapshot
        if snapshot.version < 0:
            return _unavailable(request, code_of(error))
    to_create = await _topics_to_create(services, context, request, snapshot)
    if not to_create:
        return snapshot, {}
    refused = dict.fromkeys(await collisions(to_create, snapshot), ErrorCode.INVALID_TOPIC_EXCEPTION)
    refused |= await _create_all(services, context, [name for name in to_create if name not in refused])
    return await services.catalog.refresh(), refused


def _unavailable(request: MetadataRequest, error: ErrorCode) -> MetadataResponse:
    return MetadataResponse(
        error_code=error,
        topics=[
            MetadataResponseTopic(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE, name=topic.name, topic_id=topic.topic_id
            )
            for topic in request.topics or []
        ],
    )


def creates_topics(services: Services, context: RequestContext, request: MetadataRequest) -> bool:
    """Whether client and agent allow creating the topics that the request names."""
    is_asked = request.allow_auto_topic_creation or context.api_version < FIRST_WITH_CREATION_FLAG
    return services.settings.auto_create_topics and is_asked


async def _topics_to_create(
    services: Services, context: RequestContext, request: MetadataRequest, snapshot: Snapshot
) -> list[str]:
    """Return the unknown topics of the request, if client and agent allow creating them. An internal topic is only
    created if its copies are kept: otherwise it would stay empty and suggest that no group has ever committed."""
    if not creates_topics(services, context, request):
        return []
    unknown = [
        topic.name
        async for topic in Turns(NAMES_IN_A_TURN).over(request.topics or [])
        if topic.name
        and topic.name not in snapshot.by_name
        and (not is_internal(topic.name) or is_kept(topic.name, snapshot.broker_configs))
    ]
    return list(dict.fromkeys(unknown))


async def _create_all(services: Services, context: RequestContext, names: list[str]) -> dict[str, ErrorCode]:
    """Create the topics. Return the error of each that was refused."""
    refused: dict[str, ErrorCode] = {}
    for first in range(0, len(names), CREATED_AT_ONCE):
        some = names[first : first + CREATED_AT_ONCE]
        codes = await asyncio.gather(*(_create(services, context, name) for name in some))
        refused.update((name, code) for name, code in zip(some, codes, strict=True) if code)
    return refused


def wants_all(context: RequestContext, request: MetadataRequest) -> bool:
    """Whether the request asks for all topics."""
    return request.topics is None or (context.api_version == 0 and not request.topics)


def _may_be_kept(context: RequestContext, request: MetadataRequest) -> bool:
    """Whether others may get the same answer: it lists no permissions, and is not translated for a tenant."""
    if context.access.tenant is not None:
        return False
    says_operations = (
        request.include_cluster_authorized_operations or request.include_topic_authorized_operations
    )
    return context.access.acls is None or not says_operations


def _is_large(context: RequestContext, request: MetadataRequest, snapshot: Snapshot) -> bool:
    """Whether the answer has enough partitions to be worth keeping."""
    if wants_all(context, request):
        topics = iter(snapshot.by_id.values())
    elif request.topics is None or len(request.topics) > MAX_TOPICS_OF_KEPT:
        return False
    else:
        named = (_known(topic, snapshot) for topic in request.topics)
        topics = iter([topic for topic in named if topic is not None])
    partitions = 0
    while partitions < MIN_PARTITIONS_OF_KEPT and (known := next(topics, None)) is not None:
        partitions += known.topic.partitions
    return partitions >= MIN_PARTITIONS_OF_KEPT


async def _bytes_of(context: RequestContext, request: MetadataRequest, snapshot: Snapshot) -> int:
    """Estimate the answer's bytes, as objects and encoded."""
    if wants_all(context, request):
        return TOPIC_BYTES * len(snapshot.by_id) + PARTITION_BYTES * snapshot.partitions
    topics, partitions = request.topics or (), 0
    async for some in Turns(NAMES_IN_A_TURN).parts(topics):
        known = (_known(topic, snapshot) for topic in some)
        partitions += sum(topic.topic.partitions for topic in known if topic is not None)
    return TOPIC_BYTES * len(topics) + PARTITION_BYTES * partitions


def _asked(context: RequestContext, request: MetadataRequest, snapshot: Snapshot) -> Hashable:
    """Return everything in a request that its answer depends on, except the snapshot."""
    return (
        context.api_version,
        snapshot.replicas.zone_of(context.zone),
        context.access.listener,
        context.is_librdkafka,
        request.include_cluster_authorized_operations,
        request.include_topic_authorized_operations,
        None if request.topics is None else tuple((topic.topic_id, topic.name) for topic in request.topics),
    )


async def _answer(
    services: Services,
    context: RequestContext,
    request: MetadataRequest,
    snapshot: Snapshot,
    refused: dict[str, ErrorCode],
) -> MetadataResponse:
    turns = Turns(snapshot.replicas.in_a_turn(context.zone, PARTITIONS_IN_A_TURN))
    if wants_all(context, request):
        rows = [await _row(known, snapshot, context.zone, turns) for known in snapshot.by_name.values()]
    else:
        rows = [
            await _wanted(topic, snapshot=snapshot, zone=context.zone, refused=refused, turns=turns)
            for topic in request.topics or []
        ]
        if context.api_version < FIRST_NULL_NAME_VERSION:
            for row in rows:
                row.name = row.name or ""
    # librdkafka 2.10 and later removes a broker that metadata no longer lists, even if it is still the known
    # coordinator of a group. send_offsets_to_transaction then waits for it forever, whatever its timeout (seen in
    # 2.16). If the broker is still listed but refuses connections, librdkafka looks for the coordinator again.
    members = [*snapshot.ring.members, *(snapshot.departed if context.is_librdkafka else ())]
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(member.broker_id, *address, member.info.zone or None)
            for member in members
            if (address := member.info.address_of(context.access.listener)) is not None
        ],
        cluster_id=snapshot.cluster_id,
        controller_id=_controller(services),
        topics=rows,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.access.operations(ResourceType.CLUSTER, CLUSTER_NAME)
    if request.include_topic_authorized_operations:
        for row in rows:
            await turns.did()
            if row.error_code == ErrorCode.NONE:
                row.topic_authorized_operations = context.access.operations(
                    ResourceType.TOPIC, row.name or ""
                )
    return response


async def _create(services: Services, context: RequestContext, name: str) -> ErrorCode:
    if not is_topic_name(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    partitions, charge = services.settings.default_partitions, context.charge
    if charge is not None and not charge.may_change(partitions, is_strict=True):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # as in Kafka: the client asks again
    own = CreateTopic(name, partitions, {})
    try:
        await services.sequencer.create_topic(creation(name) if is_internal(name) else own)
    except TopicExists:
        return ErrorCode.NONE
    except EXPECTED as error:
        return code_of(error)
    return ErrorCode.NONE


def _known(topic: MetadataRequestTopic, snapshot: Snapshot) -> KnownTopic | None:
    if topic.topic_id != NIL_TOPIC_ID:
        return snapshot.by_id.get(topic.topic_id)
    return snapshot.by_name.get(topic.name or "")


async def _wanted(
    topic: MetadataRequestTopic,
    snapshot: Snapshot,
    zone: str,
    refused: dict[str, ErrorCode],
    turns: Turns,
) -> MetadataResponseTopic:
    await turns.did()
    known = _known(topic, snapshot)
    if known is not None:
        return await _row(known, snapshot, zone, turns)
    if topic.topic_id != NIL_TOPIC_ID:
        return MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic.topic_id
        )
    name = topic.name or ""
    if not is_topic_name(name):
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        error = refused.get(name, ErrorCode.NONE) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return MetadataResponseTopic(error_code=error, name=name)


async def _row(known: KnownTopic, snapshot: Snapshot, zone: str, turns: Turns) -> MetadataResponseTopic:
    topic = known.topic
    partitions = []
    for index in range(topic.partitions):
        nodes = snapshot.replicas.of(zone, topic.topic_id, index, topic.replication_factor)
        partitions.append(
            MetadataResponsePartition(
                error_code=ErrorCode.NONE if nodes else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=nodes[0] if nodes else NO_LEADER,
                leader_epoch=max(snapshot.ring.generation, 0),
                replica_nodes=nodes,
                isr_nodes=nodes,
            )
        )
        await turns.did()
    return MetadataResponseTopic(
        name=topic.name, topic_id=topic.topic_id, is_internal=known.is_internal, partitions=partitions
    )


def _controller(services: Services) -> int:
    """Return this agent: any agent does what a controller does, and the client can reach this one."""
    return services.identity.broker_id


async def describe_cluster(
    services: Services, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Describe the live agents as brokers."""
    response = DescribeClusterResponse(endpoint_type=request.endpoint_type)
    if request.endpoint_type != ENDPOINT_BROKERS:
        response.error_code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        response.error_message = (
            f"endpoint type {request.endpoint_type} was requested; there are only brokers (1)"
        )
        return response
    try:
        snapshot = await services.catalog.refresh()
    except EXPECTED as error:
        response.error_code, response.error_message = code_of(error), str(error)
        return response
    response.cluster_id = snapshot.cluster_id
    response.controller_id = _controller(services)
    response.brokers = [
        DescribeClusterBroker(member.broker_id, *address, member.info.zone or None)
        for member in snapshot.ring.members
        if (address := member.info.address_of(context.access.listener)) is not None
    ]
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.access.operations(ResourceType.CLUSTER, CLUSTER_NAME)
    return response
