"""DescribeAcls (API key 29): which access rules there are."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Int8, Int16, Int32, Message, On, String


class DescribeAclsRequest(Message):
    """DescribeAcls request."""

    resource_type_filter: Int8 = 0
    resource_name_filter: Annotated[String | None, On(nullable="0+")] = ""
    pattern_type_filter: Int8 = 3
    principal_filter: Annotated[String | None, On(nullable="0+")] = ""
    host_filter: Annotated[String | None, On(nullable="0+")] = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Message):
    """The ACLs."""

    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Message):
    """Each Resource that is referenced in an ACL."""

    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 3
    acls: list[AclDescription] = []


class DescribeAclsResponse(Message):
    """DescribeAcls response."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[String | None, On(nullable="0+")] = ""
    resources: list[DescribeAclsResource] = []
