"""IncrementalAlterConfigs: set, delete, append to or subtract from single settings."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.messages.alter_configs import AlterConfigsResourceResponse
from tailrace.kafka.schema import Api, Bool, ConfigResourceName, Int8, Int32, Message, On, String


class AlterableConfig(Message):
    name: String = ""
    config_operation: Int8 = 0
    value: Annotated[String | None, On(nullable="0+")] = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: ConfigResourceName = ""
    configs: list[AlterableConfig] = []


class IncrementalAlterConfigsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "0-1", flexible="1+")

    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class IncrementalAlterConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
