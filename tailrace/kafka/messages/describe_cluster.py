"""DescribeCluster: the cluster's id, controller and brokers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, ClusterId, ErrorMessage, Int8, Int16, Int32, Message, On, String


class DescribeClusterRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_CLUSTER, "0-2", flexible="0+")

    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, On("1+")] = 1
    include_fenced_brokers: Annotated[Bool, On("2+")] = False


class DescribeClusterBroker(Message):
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[String | None, On(nullable="0+")] = None
    is_fenced: Annotated[Bool, On("2+")] = False


class DescribeClusterResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    endpoint_type: Annotated[Int8, On("1+")] = 1
    cluster_id: ClusterId = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: Int32 = -2147483648
