"""Rules for APIs whose requests or answers concern the whole cluster, which translating names does not cover.

A rule runs before names are translated: its requests and answers have the names that clients use.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from agent.catalog import KnownTopic
from agent.groups.topic_pattern import InvalidPattern, TopicPattern
from agent.handlers.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from agent.handlers.metadata import wants_all
from agent.security import refusals
from agent.tenants.access_lists import create_acls, delete_acls, describe_acls
from agent.tenants.client_quotas import alter_quotas, describe_quotas
from agent.tenants.tenant_request import Rule, TenantRequest
from tailrace.kafka import ApiKey
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.describe_log_dirs import DescribableLogDirTopic
from tailrace.kafka.messages.describe_topic_partitions import TopicRequest
from tailrace.kafka.messages.metadata import MetadataRequestTopic
from tailrace.security.acls import Operation, ResourceType

ALTERED_BY_TENANTS = frozenset((RESOURCE_TOPIC, RESOURCE_GROUP))
SEEN_BY_TENANTS = ALTERED_BY_TENANTS | {RESOURCE_BROKER, RESOURCE_BROKER_LOGGER}
"""Other config resources (clients' metrics) affect the clients of all tenants."""
LISTENER_CONFIGS = ("listeners", "advertised.listeners", "listener.security.protocol.map")


async def _own_topics(tenant_request: TenantRequest) -> list[tuple[str, KnownTopic]]:
    """Return the tenant's topics that the client may describe, with the names that clients use."""
    await tenant_request.services.catalog.refresh_if_possible()
    tenant, access = tenant_request.tenant, tenant_request.context.access
    return [
        (tenant.local(name), known)
        for name, known in tenant_request.services.catalog.snapshot.by_name.items()
        if tenant.owns(name) and access.may(Operation.DESCRIBE, ResourceType.TOPIC, name)
    ]


async def _metadata(tenant_request: TenantRequest, request: Any) -> Any:
    """Replace "all topics" by the tenant's. In version 0 no topics would mean all; the translation hides the others."""
    if wants_all(tenant_request.context, request):
        topics = [MetadataRequestTopic(name=name) for name, _ in await _own_topics(tenant_request)]
        request = replace(request, topics=topics, allow_auto_topic_creation=False)
    return await tenant_request.answer(request)


async def _topic_partitions(tenant_request: TenantRequest, request: Any) -> Any:
    if not request.topics:
        topics = [TopicRequest(name) for name, _ in await _own_topics(tenant_request)]
        if not topics:
            return APIS[ApiKey.DESCRIBE_TOPIC_PARTITIONS].response()
        request = replace(request, topics=topics)
    return await tenant_request.answer(request)


async def _log_dirs(tenant_request: TenantRequest, request: Any) -> Any:
    """Replace "all topics" by the tenant's topics that the client may describe."""
    if request.topics is None:
        topics = [
            DescribableLogDirTopic(name, list(range(known.topic.partitions)))
            for name, known in await _own_topics(tenant_request)
        ]
        request = replace(request, topics=topics)
    return await tenant_request.answer(request)


async def _describe_configs(tenant_request: TenantRequest, request: Any) -> Any:
    """Hide other resources, and an agent's other listeners: the client only sees the listener that it connected to."""
    kept = [named for named in request.resources if named.resource_type in SEEN_BY_TENANTS]
    response = await tenant_request.answer(replace(request, resources=kept))
    for result in response.results:
        if result.resource_type == RESOURCE_BROKER:
            for row in result.configs:
                if row.name in LISTENER_CONFIGS:
                    row.value = _own_listener(tenant_request, row.value or "")
    response.results += [
        refusals.describe_config(resource, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        for resource in request.resources
        if resource.resource_type not in SEEN_BY_TENANTS
    ]
    return response


def _own_listener(tenant_request: TenantRequest, listeners: str) -> str:
    own = tenant_request.context.access.listener
    return ",".join(listener for listener in listeners.split(",") if listener.partition(":")[0] == own)


async def _alter_configs(tenant_request: TenantRequest, request: Any) -> Any:
    kept = [named for named in request.resources if named.resource_type in ALTERED_BY_TENANTS]
    response = await tenant_request.answer(replace(request, resources=kept))
    response.responses += [
        refusals.alter_config(named, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        for named in request.resources
        if named.resource_type not in ALTERED_BY_TENANTS
    ]
    return response


async def _list_config_resources(tenant_request: TenantRequest, request: Any) -> Any:
    response = await tenant_request.answer(request)
    response.config_resources = [
        named for named in response.config_resources if named.resource_type in SEEN_BY_TENANTS
    ]
    return response


async def _list_transactions(tenant_request: TenantRequest, request: Any) -> Any:
    """Match the pattern with the names that the client uses. Whether it is valid does not depend on other tenants."""
    pattern = request.transactional_id_pattern
    if not pattern:
        return await tenant_request.answer(request)
    try:
        wanted = TopicPattern(pattern)
    except InvalidPattern:
        return APIS[ApiKey.LIST_TRANSACTIONS].response(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    response = await tenant_request.answer(replace(request, transactional_id_pattern=None))
    names = wanted.matches(row.transactional_id for row in response.transaction_states)
    response.transaction_states = [
        row for row in response.transaction_states if row.transactional_id in names
    ]
    return response


async def _not_for_tenants(tenant_request: TenantRequest, request: Any) -> Any:
    return APIS[request.api.key].response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def make_rules() -> dict[int, Rule]:
    """Return the rules of one agent, by API."""
    return {
        ApiKey.METADATA: _metadata,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: _topic_partitions,
        ApiKey.DESCRIBE_LOG_DIRS: _log_dirs,
        ApiKey.DESCRIBE_CONFIGS: _describe_configs,
        ApiKey.ALTER_CONFIGS: _alter_configs,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: _alter_configs,
        ApiKey.LIST_CONFIG_RESOURCES: _list_config_resources,
        ApiKey.LIST_TRANSACTIONS: _list_transactions,
        ApiKey.DESCRIBE_ACLS: describe_acls,
        ApiKey.CREATE_ACLS: create_acls,
        ApiKey.DELETE_ACLS: delete_acls,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_quotas,
        ApiKey.ALTER_CLIENT_QUOTAS: alter_quotas,
        ApiKey.DESCRIBE_QUORUM: _not_for_tenants,
    }
