"""DescribeAcls: the bindings that a filter matches, grouped by resource pattern."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, ErrorMessage, Int8, Int16, Int32, Message, On, String


class DescribeAclsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_ACLS, "1-3", flexible="2+")

    resource_type_filter: Int8 = 0
    resource_name_filter: Annotated[String | None, On(nullable="0+")] = None
    pattern_type_filter: Annotated[Int8, On("1+")] = 3
    principal_filter: Annotated[String | None, On(nullable="0+")] = None
    host_filter: Annotated[String | None, On(nullable="0+")] = None
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Message):
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Annotated[Int8, On("1+")] = 3
    acls: list[AclDescription] = []


class DescribeAclsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    resources: list[DescribeAclsResource] = []
