"""WriteTxnMarkers: write the markers that end a transaction into its partitions."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, Int8, Int16, Int32, Int64, Message, On, TopicName


class WritableTxnMarkerTopic(Message):
    name: TopicName = ""
    partition_indexes: list[Int32] = []


class WritableTxnMarker(Message):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, On("2+", ignorable=True)] = 0


class WriteTxnMarkersRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.WRITE_TXN_MARKERS, "1-2", flexible="1+")

    markers: list[WritableTxnMarker] = []


class WritableTxnMarkerPartitionResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Message):
    name: TopicName = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Message):
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


class WriteTxnMarkersResponse(Message):
    markers: list[WritableTxnMarkerResult] = []
