"""Resources that have configs: their types, names and definitions; ListConfigResources."""

from __future__ import annotations

from agent.answer_memory import ENTRY_BYTES
from agent.catalog import Snapshot
from agent.errors import RequestRefused, invalid, unknown_topic_code
from agent.services import RequestContext, Services
from sequencer.api.agents import Member
from sequencer.api.topics import ConfigScope
from tailrace.configs.broker_config import KafkaConfig, broker_configs
from tailrace.configs.client_metrics_config import CLIENT_METRICS_CONFIGS
from tailrace.configs.group_config import GROUP_CONFIGS
from tailrace.configs.topic_config import TOPIC_CONFIGS, ConfigDefinition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tailrace.limits import MAX_NAME_BYTES, is_name

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


def definition_of(scope: ConfigScope, name: str) -> ConfigDefinition | KafkaConfig | None:
    """Return the definition of a config, None if there is none of this name."""
    if scope is ConfigScope.TOPIC:
        return TOPIC_CONFIGS.get(name)
    if scope is ConfigScope.CLIENT_METRICS:
        return CLIENT_METRICS_CONFIGS.get(name)
    return GROUP_CONFIGS.get(name) if scope is ConfigScope.GROUP else broker_configs().get(name)


def check_group(name: str) -> None:
    if not is_name(name):
        raise invalid(f"a group's id has 1 to {MAX_NAME_BYTES} bytes")


def check_subscription(subscription: str) -> None:
    if not is_name(subscription):
        raise invalid(f"a subscription's name has 1 to {MAX_NAME_BYTES} bytes")


def agent_named(name: str, snapshot: Snapshot) -> Member | None:
    """Return the agent whose configs are named; None for the configs of all agents. Raises RequestRefused."""
    if not name:
        return None
    for member in snapshot.ring.members:
        if str(member.broker_id) == name:
            return member
    raise invalid(f"broker {name!r} was named; no live agent has this id")


def no_such_topic(name: str) -> RequestRefused:
    return RequestRefused(unknown_topic_code(name), f"topic {name!r} does not exist")


def of_no_kind(resource_type: int) -> RequestRefused:
    kind = OTHER_RESOURCES.get(resource_type, f"resource type {resource_type}")
    return invalid(
        f"configs of {kind} were asked for; an agent keeps those of topics, brokers, groups and client metrics"
    )


def is_fixed(definition: ConfigDefinition | KafkaConfig) -> bool:
    return isinstance(definition, KafkaConfig) and definition.is_fixed
