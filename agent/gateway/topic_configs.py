"""A topic's configs over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from aiohttp import web

from agent.gateway.call import HttpCall, answered
from agent.gateway.errors import HttpRefusal, check
from agent.gateway.listings import listing
from agent.handlers.config_resources import RESOURCE_TOPIC
from tailrace.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

SET, DELETE = 0, 1
MAX_CONFIGS = 1_000
"""The most configs in one request: more than exist."""
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
}


class ConfigValue(msgspec.Struct):
    """A config to set, or to reset with `operation` DELETE."""

    name: str
    value: str | None = None
    operation: str = "SET"


class NewValue(msgspec.Struct):
    value: str | None = None


SeveralConfigs = Annotated[list[ConfigValue], msgspec.Meta(max_length=MAX_CONFIGS)]


class ConfigValues(msgspec.Struct):
    """Configs to change together."""

    data: SeveralConfigs
    validate_only: bool = False


async def list_configs(call: HttpCall) -> web.StreamResponse:
    name = call.name("topic_name")
    shown = [_config_shown(call, name, config) for config in await _configs(call, None)]
    return await listing(call, "KafkaTopicConfigList", ("topics", name, "configs"), shown)


async def get_config(call: HttpCall) -> web.Response:
    config = call.name("name")
    found = await _configs(call, [config])
    if not found:
        raise HttpRefusal(404, f"There is no topic config {config}.")
    return answered(_config_shown(call, call.name("topic_name"), found[0]))


async def set_config(call: HttpCall) -> web.Response:
    value = (await call.body(NewValue)).value
    return await _alter(call, [ConfigValue(call.name("name"), value)])


async def reset_config(call: HttpCall) -> web.Response:
    return await _alter(call, [ConfigValue(call.name("name"), None, "DELETE")])


async def alter_configs(call: HttpCall) -> web.Response:
    given = await call.body(ConfigValues)
    return await _alter(call, given.data, validate_only=given.validate_only)


async def _configs(call: HttpCall, names: list[str] | None) -> list[DescribeConfigsResourceResult]:
    wanted = DescribeConfigsResource(RESOURCE_TOPIC, call.name("topic_name"), names)
    [found] = (await call.ask(DescribeConfigsRequest(resources=[wanted], include_synonyms=True))).results
    check(found.error_code, found.error_message)
    return list(found.configs)


async def _alter(
    call: HttpCall, changes: Sequence[ConfigValue], *, validate_only: bool = False
) -> web.Response:
    for change in changes:
        if change.operation not in ("SET", "DELETE"):
            raise HttpRefusal(400, "operation must be SET or DELETE.")
    configs = [
        AlterableConfig(new.name, SET if new.operation == "SET" else DELETE, new.value) for new in changes
    ]
    resource = AlterConfigsResource(RESOURCE_TOPIC, call.name("topic_name"), configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    [altered] = (await call.ask(request)).responses
    check(altered.error_code, altered.error_message)
    return web.Response(status=204)


def _config_shown(call: HttpCall, topic: str, found: DescribeConfigsResourceResult) -> dict[str, object]:
    return call.resource(
        "KafkaTopicConfig",
        ("topics", topic, "configs", found.name),
        topic_name=topic,
        name=found.name,
        value=found.value,
        is_read_only=found.read_only,
        is_sensitive=found.is_sensitive,
        is_default=found.config_source != 1,
        source=SOURCES.get(found.config_source, "UNKNOWN"),
        synonyms=[
            {"name": synonym.name, "value": synonym.value, "source": SOURCES.get(synonym.source, "UNKNOWN")}
            for synonym in found.synonyms
        ],
    )
