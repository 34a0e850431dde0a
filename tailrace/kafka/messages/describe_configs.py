"""DescribeConfigs: the settings of topics and brokers."""

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


class DescribeConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: ConfigResourceName = ""
    configuration_keys: Annotated[list[String] | None, On(nullable="0+")] = []


class DescribeConfigsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_CONFIGS, "1-4", flexible="4+")

    resources: list[DescribeConfigsResource] = []
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, On("3+")] = False


class DescribeConfigsSynonym(Message):
    name: String = ""
    value: Annotated[String | None, On(nullable="0+")] = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Message):
    name: String = ""
    value: Annotated[String | None, On(nullable="0+")] = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: Annotated[Int8, On("3+", ignorable=True)] = 0
    documentation: Annotated[String | None, On("3+", nullable="3+", ignorable=True)] = ""


class DescribeConfigsResult(Message):
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = ""
    resource_type: Int8 = 0
    resource_name: ConfigResourceName = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []
