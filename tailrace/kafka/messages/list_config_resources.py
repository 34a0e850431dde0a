"""ListConfigResources: list the resources that have configs."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, ConfigResourceName, Int8, Int16, Int32, Message, On


class ListConfigResourcesRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.LIST_CONFIG_RESOURCES, "0-1", flexible="0+")

    resource_types: Annotated[list[Int8], On("1+")] = []


class ConfigResource(Message):
    resource_name: ConfigResourceName = ""
    resource_type: Annotated[Int8, On("1+", ignorable=True)] = 16


class ListConfigResourcesResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []
