"""DescribeLogDirs: the size of partitions, by log directory."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, Int16, Int32, Int64, Message, On, String, TopicName


class DescribableLogDirTopic(Message):
    topic: TopicName = ""
    partitions: list[Int32] = []


class DescribeLogDirsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_LOG_DIRS, "1-5", flexible="2+")

    topics: Annotated[list[DescribableLogDirTopic] | None, On(nullable="0+")] = []


class DescribeLogDirsPartition(Message):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Message):
    name: TopicName = ""
    partitions: list[DescribeLogDirsPartition] = []


class DescribeLogDirsResult(Message):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Annotated[Int64, On("4+", ignorable=True)] = -1
    usable_bytes: Annotated[Int64, On("4+", ignorable=True)] = -1
    is_cordoned: Annotated[Bool, On("5+", ignorable=True)] = False


class DescribeLogDirsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, On("3+", ignorable=True)] = 0
    results: list[DescribeLogDirsResult] = []
