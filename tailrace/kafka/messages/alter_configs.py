"""AlterConfigs (API key 33): replace all settings of topics and brokers."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Bool, Int8, Int16, Int32, Message, On, String


class AlterableConfig(Message):
    """The configurations."""

    name: String = ""
    value: Annotated[String | None, On(nullable="0+")] = ""


class AlterConfigsResource(Message):
    """The updates for each resource."""

    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = []


class AlterConfigsRequest(Message):
    """AlterConfigs request."""

    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message):
    """The responses for each resource."""

    error_code: Int16 = 0
    error_message: Annotated[String | None, On(nullable="0+")] = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class AlterConfigsResponse(Message):
    """AlterConfigs response."""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
