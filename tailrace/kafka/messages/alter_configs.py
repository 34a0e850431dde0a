"""AlterConfigs: replace all settings of topics and brokers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    Api,
    Bool,
    ConfigResourceName,
    ErrorMessage,
    Int8,
    Int16,
    Int32,
    Message,
    On,
    String,
)


class AlterableConfig(Message):
    name: String = ""
    value: Annotated[String | None, On(nullable="0+")] = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: ConfigResourceName = ""
    configs: list[AlterableConfig] = []


class AlterConfigsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.ALTER_CONFIGS, "0-2", flexible="2+")

    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = ""
    resource_type: Int8 = 0
    resource_name: ConfigResourceName = ""


class AlterConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
