"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources: for topics, brokers, groups and
client metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from agent.answer_memory import ENTRY_BYTES
from agent.catalog import Snapshot
from agent.errors import EXPECTED, AnswerTooLarge, RequestRefused, code_of, unknown_topic_code
from agent.groups.group_configs import default_of
from agent.security.kafka_configs import security_configs
from agent.services import RequestContext, Services
from agent.settings import AgentSettings
from sequencer.api.agents import Member
from sequencer.api.topics import AlterConfig, BrokerConfigsRequest, ConfigChange, ConfigOperation, ConfigScope
from tailrace.configs.broker_config import KafkaConfig, broker_configs
from tailrace.configs.client_metrics_config import CLIENT_METRICS_CONFIGS
from tailrace.configs.group_config import GROUP_CONFIGS
from tailrace.configs.topic_config import TOPIC_CONFIGS, ConfigDefinition, ConfigType, InvalidConfigValue
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from tailrace.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from tailrace.kafka.messages.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementalResourceResponse,
)
from tailrace.kafka.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tailrace.kafka.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tailrace.limits import MAX_NAME_BYTES, is_name
from tailrace.rpc.link import join_address
from tailrace.turns import Turns

RESOURCE_TOPIC, RESOURCE_BROKER, RESOURCE_BROKER_LOGGER = 2, 4, 8
RESOURCE_CLIENT_METRICS, RESOURCE_GROUP = 16, 32
OTHER_RESOURCES = {RESOURCE_BROKER_LOGGER: "a broker's loggers"}
"""Resources whose configs Kafka has and an agent does not, with their names for error messages."""
KNOWN_RESOURCES = {
    RESOURCE_TOPIC,
    RESOURCE_BROKER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    *OTHER_RESOURCES,
}
SCOPES = {
    RESOURCE_TOPIC: ConfigScope.TOPIC,
    RESOURCE_BROKER: ConfigScope.BROKER,
    RESOURCE_GROUP: ConfigScope.GROUP,
    RESOURCE_CLIENT_METRICS: ConfigScope.CLIENT_METRICS,
}
"""Where the configs of a resource are stored."""
LOG_DIR = "object-store"
"""The only log directory that is reported."""

SOURCE_TOPIC, SOURCE_BROKER, SOURCE_CLUSTER, SOURCE_STATIC, SOURCE_DEFAULT = 1, 2, 3, 4, 5
SOURCE_CLIENT_METRICS, SOURCE_GROUP = 7, 8

ROWS_IN_A_TURN = 2_000
"""Configs described in one turn of the loop."""
RESOURCES_IN_A_TURN = 100
"""Resources whose configs are changed in one turn of the loop, if nothing has to be waited for."""
RESOURCE_ROWS = 10
"""The cost of a resource in addition to its configs, in rows."""

ROW_BYTES = 400
DOCUMENTED_ROW_BYTES = 700
"""Bytes that a config takes in an answer, with its synonyms, as object and encoded."""

A = TypeVar("A", AlterConfigsResourceResponse, IncrementalResourceResponse)
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
            raise _no_such_topic(resource.resource_name)
        own = known.topic.configs
        return [topic_row(name, own.get(name)) for name in TOPIC_CONFIGS if not keys or name in keys]
    if resource.resource_type == RESOURCE_BROKER:
        rows = await _broker_rows(services, snapshot, resource.resource_name, request)
        return [row for row in rows if not keys or row.name in keys]
    if resource.resource_type == RESOURCE_GROUP:
        _check_group(resource.resource_name)
        own = services.catalog.client_configs.groups.get(resource.resource_name, {})
        return [
            _group_row(definition, own, services.settings, request)
            for name, definition in GROUP_CONFIGS.items()
            if not keys or name in keys
        ]
    if resource.resource_type == RESOURCE_CLIENT_METRICS:
        _check_name(resource.resource_name)
        own = services.catalog.client_configs.metrics.get(resource.resource_name, {})
        return [
            _client_metrics_row(definition, own, request)
            for name, definition in CLIENT_METRICS_CONFIGS.items()
            if not keys or name in keys
        ]
    if resource.resource_type == RESOURCE_BROKER_LOGGER:
        if _agent_named(resource.resource_name, snapshot) is None:
            raise RequestRefused(
                ErrorCode.INVALID_REQUEST, "loggers are asked for without the id of a broker"
            )
        return []
    raise _of_no_kind(resource.resource_type)


async def _broker_rows(
    services: Services, snapshot: Snapshot, broker: str, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    """Return all rows of an agent; without a name, the rows that are set for the whole cluster."""
    member = _agent_named(broker, snapshot)
    cluster = (await services.sequencer.broker_configs(BrokerConfigsRequest(""))).configs
    own = (await services.sequencer.broker_configs(BrokerConfigsRequest(broker))).configs if broker else {}
    rows = {
        name: _broker_row(name, definition=definition, own=own, cluster=cluster, request=request)
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
    definition: ConfigDefinition,
    own: str | None,
    cluster: Mapping[str, str],
    request: DescribeConfigsRequest,
) -> DescribeConfigsResourceResult:
    synonyms = []
    if own is not None:
        synonyms.append(DescribeConfigsSynonym(definition.name, own, SOURCE_TOPIC))
    if definition.broker_name is not None:
        if definition.broker_name in cluster:
            synonyms.append(
                DescribeConfigsSynonym(
                    definition.broker_name, cluster[definition.broker_name], SOURCE_CLUSTER
                )
            )
        synonyms.append(DescribeConfigsSynonym(definition.broker_name, definition.default, SOURCE_DEFAULT))
    first = (
        synonyms[0]
        if synonyms
        else DescribeConfigsSynonym(definition.name, definition.default, SOURCE_DEFAULT)
    )
    return _row(definition.name, definition=definition, effective=first, synonyms=synonyms, request=request)


def _group_row(
    definition: ConfigDefinition,
    own: Mapping[str, str],
    settings: AgentSettings,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResourceResult:
    name = definition.name
    synonyms = [DescribeConfigsSynonym(name, default_of(name, settings), SOURCE_DEFAULT)]
    if name in own:
        synonyms.insert(0, DescribeConfigsSynonym(name, own[name], SOURCE_GROUP))
    return _row(name, definition=definition, effective=synonyms[0], synonyms=synonyms, request=request)


def _client_metrics_row(
    definition: ConfigDefinition, own: Mapping[str, str], request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    name = definition.name
    synonyms = [DescribeConfigsSynonym(name, definition.default, SOURCE_DEFAULT)]
    if name in own:
        synonyms.insert(0, DescribeConfigsSynonym(name, own[name], SOURCE_CLIENT_METRICS))
    return _row(name, definition=definition, effective=synonyms[0], synonyms=synonyms, request=request)


def _broker_row(
    name: str,
    definition: ConfigDefinition | KafkaConfig,
    own: Mapping[str, str],
    cluster: Mapping[str, str],
    request: DescribeConfigsRequest,
) -> DescribeConfigsResourceResult:
    synonyms = []
    if name in own:
        synonyms.append(DescribeConfigsSynonym(name, own[name], SOURCE_BROKER))
    if name in cluster:
        synonyms.append(DescribeConfigsSynonym(name, cluster[name], SOURCE_CLUSTER))
    synonyms.append(DescribeConfigsSynonym(name, definition.default, SOURCE_DEFAULT))
    return _row(name, definition=definition, effective=synonyms[0], synonyms=synonyms, request=request)


def _row(
    name: str,
    definition: ConfigDefinition | KafkaConfig,
    effective: DescribeConfigsSynonym,
    synonyms: list[DescribeConfigsSynonym],
    request: DescribeConfigsRequest,
) -> DescribeConfigsResourceResult:
    is_secret = definition.type is ConfigType.PASSWORD
    if is_secret:
        synonyms = [DescribeConfigsSynonym(synonym.name, None, synonym.source) for synonym in synonyms]
    return DescribeConfigsResourceResult(
        name=name,
        value=None if is_secret else effective.value,
        read_only=_is_fixed(definition),
        config_source=effective.source,
        is_sensitive=is_secret,
        synonyms=synonyms if request.include_synonyms else [],
        config_type=definition.type,
        documentation=definition.doc if request.include_documentation else None,
    )


def _is_fixed(definition: ConfigDefinition | KafkaConfig) -> bool:
    return isinstance(definition, KafkaConfig) and definition.is_fixed


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


async def list_config_resources(
    services: Services, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List the resources of the requested types (none: all) that have configs. Version 0 lists client metrics only."""
    kinds = set(request.resource_types)
    if not kinds:
        kinds = KNOWN_RESOURCES if context.api_version > 0 else {RESOURCE_CLIENT_METRICS}
    if not kinds <= KNOWN_RESOURCES:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    snapshot = await services.catalog.refresh()
    brokers = [str(member.broker_id) for member in snapshot.ring.members]
    names = {
        RESOURCE_TOPIC: list(snapshot.by_name),
        RESOURCE_BROKER: brokers,
        RESOURCE_BROKER_LOGGER: brokers,
        RESOURCE_GROUP: list(services.catalog.client_configs.groups),
        RESOURCE_CLIENT_METRICS: list(services.catalog.client_configs.metrics),
    }
    await context.reservation.needs(ENTRY_BYTES * sum(len(names.get(kind, ())) for kind in kinds))
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(name, kind) for kind in sorted(kinds) for name in names.get(kind, ())
        ]
    )


def _check_group(name: str) -> None:
    if not is_name(name):
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"a group's id has 1 to {MAX_NAME_BYTES} bytes")


def _check_name(subscription: str) -> None:
    if not is_name(subscription):
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST, f"a subscription's name has 1 to {MAX_NAME_BYTES} bytes"
        )


def _agent_named(name: str, snapshot: Snapshot) -> Member | None:
    """Return the agent whose configs are named; None for the configs of all agents. Raises RequestRefused."""
    if not name:
        return None
    for member in snapshot.ring.members:
        if str(member.broker_id) == name:
            return member
    raise RequestRefused(ErrorCode.INVALID_REQUEST, f"broker {name!r} was named; no live agent has this id")


async def alter_configs(
    services: Services, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Replace all configs that are set for a resource."""

    def changes(resource: AlterConfigsResource) -> list[ConfigChange]:
        return _each_once(
            [ConfigChange(config.name, ConfigOperation.SET, config.value) for config in resource.configs]
        )

    rows = await _altered(services, request, AlterConfigsResourceResponse, changes, replace=True)
    return AlterConfigsResponse(responses=rows)


async def incremental_alter_configs(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to or subtract from single configs."""

    def changes(resource: IncrementalResource) -> list[ConfigChange]:
        if any(not 0 <= config.config_operation <= 3 for config in resource.configs):
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "an operation is not one of 0 to 3")
        return _each_once(
            [
                ConfigChange(config.name, ConfigOperation(config.config_operation), config.value)
                for config in resource.configs
            ]
        )

    rows = await _altered(services, request, IncrementalResourceResponse, changes, replace=False)
    return IncrementalAlterConfigsResponse(responses=rows)


def _each_once(changes: list[ConfigChange]) -> list[ConfigChange]:
    """Return the changes. Raises RequestRefused if a config is named twice, or a value is missing."""
    if len({change.name for change in changes}) < len(changes):
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "a config is named more than once")
    for change in changes:
        if change.value is None and change.operation is not ConfigOperation.DELETE:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{change.name}: no value was given")
    return changes


async def _altered(
    services: Services,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    response: type[A],
    changes_of: Callable[[Any], list[ConfigChange]],
    *,
    replace: bool,
) -> list[A]:
    """Return a response for each resource. `changes_of` returns a resource's changes; it may raise RequestRefused. A
    resource that is named repeatedly is refused wherever it stands, as in Kafka."""
    rows: list[A] = []
    snapshot = await services.catalog.refresh()
    resources: Sequence[AlterConfigsResource | IncrementalResource] = request.resources
    mentions = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    async for resource in Turns(RESOURCES_IN_A_TURN).over(resources):
        kind, name = resource.resource_type, resource.resource_name
        row = response(resource_type=kind, resource_name=name, error_message=None)
        rows.append(row)
        try:
            if mentions[kind, name] > 1:
                raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{name!r} is named more than once")
            changes, scope = changes_of(resource), _scope(kind, name, snapshot)
            for change in changes:
                _check(definition_of(scope, change.name), change)
            await services.sequencer.alter_config(
                AlterConfig(
                    scope=scope,
                    name=name,
                    changes=changes,
                    replace=replace,
                    validate_only=request.validate_only,
                )
            )
        except InvalidConfigValue as error:
            row.error_code, row.error_message = ErrorCode.INVALID_CONFIG, str(error)
        except (RequestRefused, *EXPECTED) as error:
            row.error_code, row.error_message = code_of(error), str(error)
    await services.catalog.refresh_if_possible()
    return rows


def definition_of(scope: ConfigScope, name: str) -> ConfigDefinition | KafkaConfig | None:
    """Return the definition of a config, None if there is none of this name."""
    if scope is ConfigScope.TOPIC:
        return TOPIC_CONFIGS.get(name)
    if scope is ConfigScope.CLIENT_METRICS:
        return CLIENT_METRICS_CONFIGS.get(name)
    return GROUP_CONFIGS.get(name) if scope is ConfigScope.GROUP else broker_configs().get(name)


def _scope(resource_type: int, name: str, snapshot: Snapshot) -> ConfigScope:
    scope = SCOPES.get(resource_type)
    if scope is None:
        raise _of_no_kind(resource_type)
    if scope is ConfigScope.TOPIC and not name:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "a topic's name is empty")
    if scope is ConfigScope.TOPIC and name not in snapshot.by_name:
        raise _no_such_topic(name)
    if scope is ConfigScope.BROKER:
        _agent_named(name, snapshot)
    if scope is ConfigScope.GROUP:
        _check_group(name)
    if scope is ConfigScope.CLIENT_METRICS:
        _check_name(name)
    return scope


def _no_such_topic(name: str) -> RequestRefused:
    return RequestRefused(unknown_topic_code(name), f"topic {name!r} does not exist")


def _of_no_kind(resource_type: int) -> RequestRefused:
    kind = OTHER_RESOURCES.get(resource_type, f"resource type {resource_type}")
    return RequestRefused(
        ErrorCode.INVALID_REQUEST,
        f"configs of {kind} were asked for; an agent keeps those of topics, brokers, groups and client metrics",
    )


def _check(definition: ConfigDefinition | KafkaConfig | None, change: ConfigChange) -> None:
    if change.operation is ConfigOperation.DELETE:
        return  # whatever its name: what is not set is not set afterwards
    if definition is None:
        raise InvalidConfigValue(f"Unknown config name: {change.name}")
    if _is_fixed(definition):
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{change.name}]"
        )
    assert change.value is not None, "checked with the request"
    if change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        if definition.type is not ConfigType.LIST:
            raise InvalidConfigValue(f"{change.name} is no list: it can be set or deleted, not appended to")
        if change.operation is ConfigOperation.SUBTRACT:
            return
    definition.check(change.value)
