"""DescribeConfigs: the configs of topics, brokers, groups and client metrics, with where each value is set."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache

from agent.catalog import Snapshot
from agent.errors import EXPECTED, AnswerTooLarge, RequestRefused, code_of, invalid
from agent.groups.group_configs import default_of
from agent.handlers.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    agent_named,
    check_group,
    check_subscription,
    is_fixed,
    no_such_topic,
    of_no_kind,
)
from agent.security.kafka_configs import security_configs
from agent.services import RequestContext, Services
from agent.settings import AgentSettings
from sequencer.api.agents import Member
from sequencer.api.topics import BrokerConfigsRequest
from tailrace.configs.broker_config import KafkaConfig, broker_configs
from tailrace.configs.client_metrics_config import CLIENT_METRICS_CONFIGS
from tailrace.configs.group_config import GROUP_CONFIGS
from tailrace.configs.topic_config import TOPIC_CONFIGS, ConfigDefinition, ConfigType
from tailrace.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from tailrace.rpc.link import join_address
from tailrace.turns import Turns

LOG_DIR = "object-store"
"""The only log directory that is reported."""

SOURCE_TOPIC, SOURCE_BROKER, SOURCE_CLUSTER, SOURCE_STATIC, SOURCE_DEFAULT = 1, 2, 3, 4, 5
SOURCE_CLIENT_METRICS, SOURCE_GROUP = 7, 8

ROWS_IN_A_TURN = 2_000
"""Configs described in one turn of the loop."""
RESOURCE_ROWS = 10
"""The cost of a resource in addition to its configs, in rows."""

ROW_BYTES = 400
DOCUMENTED_ROW_BYTES = 700
"""Bytes that a config takes in an answer, with its synonyms, as object and encoded."""

TopicRow = Callable[[str, str | None], DescribeConfigsResourceResult]
"""Returns the row of a topic's config, given its name and the topic's own value."""


async def describe_configs(
    services: Services, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe each resource's configs, with sources, and with synonyms and documentation if asked. A resource that is
    named repeatedly is described once. No keys, or an empty list of them, stand for all."""
    response = DescribeConfigsResponse()
    snapshot = await services.catalog.refresh()
    topic_row = _topic_rows(snapshot.broker_configs, request)
    turns = Turns(ROWS_IN_A_TURN)
    resources = list({_named(resource): resource for resource in request.resources}.values())
    try:
        await context.reservation.needs(_bytes_of(resources, request))
    except AnswerTooLarge as error:
        response.results = [_too_large(resource, error) for resource in resources]
        return response
    for resource in resources:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        response.results.append(result)
        try:
            result.configs = await _describe(
                services, snapshot, resource, request=request, topic_row=topic_row
            )
        except (RequestRefused, *EXPECTED) as error:
            result.error_code, result.error_message = code_of(error), str(error)
        await turns.did(RESOURCE_ROWS + len(result.configs))
    return response


def _too_large(resource: DescribeConfigsResource, error: AnswerTooLarge) -> DescribeConfigsResult:
    return DescribeConfigsResult(error.code, str(error), resource.resource_type, resource.resource_name)


def _bytes_of(resources: Sequence[DescribeConfigsResource], request: DescribeConfigsRequest) -> int:
    """Estimate the answer's bytes, as objects and encoded."""
    rows_of = {
        RESOURCE_TOPIC: len(TOPIC_CONFIGS),
        RESOURCE_GROUP: len(GROUP_CONFIGS),
        RESOURCE_CLIENT_METRICS: len(CLIENT_METRICS_CONFIGS),
        RESOURCE_BROKER: len(broker_configs()),
    }
    rows = 0
    for resource in resources:
        every = rows_of.get(resource.resource_type, 0)
        keys = resource.configuration_keys
        rows += RESOURCE_ROWS + (min(every, len(keys)) if keys else every)
    return rows * (DOCUMENTED_ROW_BYTES if request.include_documentation else ROW_BYTES)


def _named(resource: DescribeConfigsResource) -> Hashable:
    return resource.resource_type, resource.resource_name, frozenset(resource.configuration_keys or ())


async def _describe(
    services: Services,
    snapshot: Snapshot,
    resource: DescribeConfigsResource,
    *,
    request: DescribeConfigsRequest,
    topic_row: TopicRow,
) -> list[DescribeConfigsResourceResult]:
    keys = set(resource.configuration_keys or ())
    if resource.resource_type == RESOURCE_TOPIC:
        known = snapshot.by_name.get(resource.resource_name)
        if known is None:
            raise no_such_topic(resource.resource_name)
        own = known.topic.configs
        return [topic_row(name, own.get(name)) for name in TOPIC_CONFIGS if not keys or name in keys]
    if resource.resource_type == RESOURCE_BROKER:
        rows = await _broker_rows(services, snapshot, resource.resource_name, request)
        return [row for row in rows if not keys or row.name in keys]
    if resource.resource_type == RESOURCE_GROUP:
        check_group(resource.resource_name)
        own = services.catalog.client_configs.groups.get(resource.resource_name, {})
        return [
            _set_row(
                name,
                definition,
                (own, SOURCE_GROUP),
                request=request,
                default=default_of(name, services.settings),
            )
            for name, definition in GROUP_CONFIGS.items()
            if not keys or name in keys
        ]
    if resource.resource_type == RESOURCE_CLIENT_METRICS:
        check_subscription(resource.resource_name)
        own = services.catalog.client_configs.metrics.get(resource.resource_name, {})
        return [
            _set_row(name, definition, (own, SOURCE_CLIENT_METRICS), request=request)
            for name, definition in CLIENT_METRICS_CONFIGS.items()
            if not keys or name in keys
        ]
    if resource.resource_type == RESOURCE_BROKER_LOGGER:
        if agent_named(resource.resource_name, snapshot) is None:
            raise invalid("loggers are asked for without the id of a broker")
        return []
    raise of_no_kind(resource.resource_type)


async def _broker_rows(
    services: Services, snapshot: Snapshot, broker: str, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    """Return all rows of an agent; without a name, the rows that are set for the whole cluster."""
    member = agent_named(broker, snapshot)
    cluster = (await services.sequencer.broker_configs(BrokerConfigsRequest(""))).configs
    own = (await services.sequencer.broker_configs(BrokerConfigsRequest(broker))).configs if broker else {}
    rows = {
        name: _set_row(name, definition, (own, SOURCE_BROKER), (cluster, SOURCE_CLUSTER), request=request)
        for name, definition in broker_configs().items()
        if broker or name in cluster
    }
    if member is not None:
        rows |= {row.name: row for row in _own_rows(services, member)}
    return list(rows.values())


def _topic_rows(cluster: Mapping[str, str], request: DescribeConfigsRequest) -> TopicRow:
    """Return a function that makes topics' rows. It shares rows of equal values, so all topics take little memory."""

    @cache
    def topic_row(name: str, own: str | None) -> DescribeConfigsResourceResult:
        return _topic_row(TOPIC_CONFIGS[name], own, cluster, request)

    return topic_row


def _topic_row(
    definition: ConfigDefinition, own: str | None, cluster: Mapping[str, str], request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    synonyms = []
    if own is not None:
        synonyms.append(DescribeConfigsSynonym(definition.name, own, SOURCE_TOPIC))
    broker_name = definition.broker_name
    if broker_name is not None:
        if broker_name in cluster:
            synonyms.append(DescribeConfigsSynonym(broker_name, cluster[broker_name], SOURCE_CLUSTER))
        synonyms.append(DescribeConfigsSynonym(broker_name, definition.default, SOURCE_DEFAULT))
    return _row(definition.name, definition, synonyms, request)


def _set_row(
    name: str,
    definition: ConfigDefinition | KafkaConfig,
    *levels: tuple[Mapping[str, str], int],
    request: DescribeConfigsRequest,
    default: str | None = None,
) -> DescribeConfigsResourceResult:
    """Return the row of a config that may be set on these levels, each with its source. The first that sets it wins."""
    synonyms = [DescribeConfigsSynonym(name, own[name], source) for own, source in levels if name in own]
    shown_default = definition.default if default is None else default
    synonyms.append(DescribeConfigsSynonym(name, shown_default, SOURCE_DEFAULT))
    return _row(name, definition, synonyms, request)


def _row(
    name: str,
    definition: ConfigDefinition | KafkaConfig,
    synonyms: list[DescribeConfigsSynonym],
    request: DescribeConfigsRequest,
) -> DescribeConfigsResourceResult:
    """Return the row of a config that has the value of the first synonym; without one, its default."""
    is_secret = definition.type is ConfigType.PASSWORD
    if is_secret:
        synonyms = [DescribeConfigsSynonym(synonym.name, None, synonym.source) for synonym in synonyms]
    effective = synonyms[0] if synonyms else DescribeConfigsSynonym(name, definition.default, SOURCE_DEFAULT)
    return DescribeConfigsResourceResult(
        name=name,
        value=None if is_secret else effective.value,
        read_only=is_fixed(definition),
        config_source=effective.source,
        is_sensitive=is_secret,
        synonyms=synonyms if request.include_synonyms else [],
        config_type=definition.type,
        documentation=definition.doc if request.include_documentation else None,
    )


def _own_rows(services: Services, member: Member) -> list[DescribeConfigsResourceResult]:
    """Return an agent's settings that have a Kafka name. For another agent these are this agent's own values, except
    what the ring knows of it: all agents of a cluster are configured alike."""
    info = member.info
    addresses = info.listeners or {"PLAINTEXT": (info.host, info.port)}
    advertised = ",".join(f"{name}://{join_address(*address)}" for name, address in addresses.items())
    values: dict[str, str | None] = {
        **security_configs(services.clients),
        **_settings_by_kafka_name(services.settings),
        "broker.id": str(member.broker_id),
        "node.id": str(member.broker_id),
        "broker.rack": info.zone or None,
        "process.roles": "broker",
        "advertised.listeners": advertised,
        "log.dirs": LOG_DIR,
        "default.replication.factor": "1",
        "group.coordinator.rebalance.protocols": "classic,consumer,share",
    }
    if member.broker_id != services.identity.broker_id:
        values["listeners"] = advertised
    return [
        DescribeConfigsResourceResult(
            name=name,
            value=value,
            read_only=True,
            config_source=SOURCE_STATIC,
            config_type=broker_configs()[name].type,
            documentation=None,
        )
        for name, value in values.items()
    ]


def _settings_by_kafka_name(settings: AgentSettings) -> dict[str, str]:
    return {
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "num.partitions": str(settings.default_partitions),
        "socket.request.max.bytes": str(settings.max_request_bytes),
        "queued.max.request.bytes": str(settings.memory_budget_bytes),
        "connections.max.idle.ms": str(settings.idle_connection_ms),
        "fetch.max.bytes": str(settings.fetch_max_bytes),
        "max.incremental.fetch.session.cache.slots": str(settings.fetch_sessions),
        "group.initial.rebalance.delay.ms": str(settings.group_initial_rebalance_delay_ms),
        "group.min.session.timeout.ms": str(settings.group_min_session_timeout_ms),
        "group.max.session.timeout.ms": str(settings.group_max_session_timeout_ms),
        "group.max.size": str(settings.group_max_size),
        "group.consumer.migration.policy": str(settings.group_consumer_migration_policy),
        "group.consumer.session.timeout.ms": str(settings.group_consumer_session_timeout_ms),
        "group.consumer.heartbeat.interval.ms": str(settings.group_consumer_heartbeat_interval_ms),
        "group.consumer.max.size": str(settings.group_consumer_max_size),
        "group.share.session.timeout.ms": str(settings.group_share_session_timeout_ms),
        "group.share.heartbeat.interval.ms": str(settings.group_share_heartbeat_interval_ms),
        "group.share.max.size": str(settings.group_share_max_size),
        "group.share.record.lock.duration.ms": str(settings.group_share_record_lock_duration_ms),
        "group.share.delivery.count.limit": str(settings.group_share_delivery_count_limit),
        "group.share.partition.max.record.locks": str(settings.group_share_partition_max_record_locks),
        "offset.metadata.max.bytes": str(settings.offset_metadata_max_bytes),
    }
