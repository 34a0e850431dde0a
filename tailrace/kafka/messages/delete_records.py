"""DeleteRecords (API key 21): delete the records before an offset."""

from __future__ import annotations

from tailrace.kafka.schema import Int16, Int32, Int64, Message, String


class DeleteRecordsPartition(Message):
    """Each partition that we want to delete records from."""

    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Message):
    """Each topic that we want to delete records from."""

    name: String = ""
    partitions: list[DeleteRecordsPartition] = []


class DeleteRecordsRequest(Message):
    """DeleteRecords request."""

    topics: list[DeleteRecordsTopic] = []
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Message):
    """Each partition that we wanted to delete records from."""

    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Message):
    """Each topic that we wanted to delete records from."""

    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = []


class DeleteRecordsResponse(Message):
    """DeleteRecords response."""

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = []
