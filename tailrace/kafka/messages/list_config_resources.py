"""ListConfigResources (API key 74): which resources have settings."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Int8, Int16, Int32, Message, On, String


class ListConfigResourcesRequest(Message):
    """ListConfigResources request."""

    resource_types: Annotated[list[Int8], On("1+")] = []


class ConfigResource(Message):
    """Each config resource in the response."""

    resource_name: String = ""
    resource_type: Annotated[Int8, On("1+", ignorable=True)] = 16


class ListConfigResourcesResponse(Message):
    """ListConfigResources response."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []
