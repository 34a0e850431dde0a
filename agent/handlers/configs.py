"""AlterConfigs and IncrementalAlterConfigs: of topics, brokers, groups and client metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from agent.catalog import Snapshot
from agent.errors import EXPECTED, RequestRefused, code_of, invalid
from agent.handlers.config_resources import (
    SCOPES,
    agent_named,
    check_group,
    check_subscription,
    definition_of,
    is_fixed,
    no_such_topic,
    of_no_kind,
)
from agent.services import RequestContext, Services
from sequencer.api.topics import AlterConfig, ConfigChange, ConfigOperation, ConfigScope
from tailrace.configs.broker_config import KafkaConfig
from tailrace.configs.topic_config import ConfigDefinition, ConfigType, InvalidConfigValue
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from tailrace.kafka.messages.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from tailrace.kafka.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tailrace.turns import Turns

RESOURCES_IN_A_TURN = 100
"""Resources whose configs are changed in one turn of the loop, if nothing has to be waited for."""


async def alter_configs(
    services: Services, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Replace all configs that are set for a resource."""

    def changes(resource: AlterConfigsResource) -> list[ConfigChange]:
        return _each_once(
            [ConfigChange(config.name, ConfigOperation.SET, config.value) for config in resource.configs]
        )

    rows = await _altered(services, request, changes, replace=True)
    return AlterConfigsResponse(responses=rows)


async def incremental_alter_configs(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to or subtract from single configs."""

    def changes(resource: IncrementalResource) -> list[ConfigChange]:
        if any(not 0 <= config.config_operation <= 3 for config in resource.configs):
            raise invalid("an operation is not one of 0 to 3")
        return _each_once(
            [
                ConfigChange(config.name, ConfigOperation(config.config_operation), config.value)
                for config in resource.configs
            ]
        )

    rows = await _altered(services, request, changes, replace=False)
    return IncrementalAlterConfigsResponse(responses=rows)


def _each_once(changes: list[ConfigChange]) -> list[ConfigChange]:
    """Return the changes. Raises RequestRefused if a config is named twice, or a value is missing."""
    if len({change.name for change in changes}) < len(changes):
        raise invalid("a config is named more than once")
    for change in changes:
        if change.value is None and change.operation is not ConfigOperation.DELETE:
            raise invalid(f"{change.name}: no value was given")
    return changes


async def _altered(
    services: Services,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    changes_of: Callable[[Any], list[ConfigChange]],
    *,
    replace: bool,
) -> list[AlterConfigsResourceResponse]:
    """Return a response for each resource. `changes_of` returns a resource's changes; it may raise RequestRefused. A
    resource that is named repeatedly is refused wherever it stands, as in Kafka."""
    rows: list[AlterConfigsResourceResponse] = []
    snapshot = await services.catalog.refresh()
    resources: Sequence[AlterConfigsResource | IncrementalResource] = request.resources
    mentions = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    async for resource in Turns(RESOURCES_IN_A_TURN).over(resources):
        kind, name = resource.resource_type, resource.resource_name
        row = AlterConfigsResourceResponse(resource_type=kind, resource_name=name, error_message=None)
        rows.append(row)
        try:
            if mentions[kind, name] > 1:
                raise invalid(f"{name!r} is named more than once")
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


def _scope(resource_type: int, name: str, snapshot: Snapshot) -> ConfigScope:
    scope = SCOPES.get(resource_type)
    if scope is None:
        raise of_no_kind(resource_type)
    if scope is ConfigScope.TOPIC and not name:
        raise invalid("a topic's name is empty")
    if scope is ConfigScope.TOPIC and name not in snapshot.by_name:
        raise no_such_topic(name)
    if scope is ConfigScope.BROKER:
        agent_named(name, snapshot)
    if scope is ConfigScope.GROUP:
        check_group(name)
    if scope is ConfigScope.CLIENT_METRICS:
        check_subscription(name)
    return scope


def _check(definition: ConfigDefinition | KafkaConfig | None, change: ConfigChange) -> None:
    if change.operation is ConfigOperation.DELETE:
        return  # whatever its name: what is not set is not set afterwards
    if definition is None:
        raise InvalidConfigValue(f"Unknown config name: {change.name}")
    if is_fixed(definition):
        raise invalid(f"Cannot update these configs dynamically: [{change.name}]")
    assert change.value is not None, "checked with the request"
    if change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        if definition.type is not ConfigType.LIST:
            raise InvalidConfigValue(f"{change.name} is no list: it can be set or deleted, not appended to")
        if change.operation is ConfigOperation.SUBTRACT:
            return
    definition.check(change.value)
