"""WriteTxnMarkers (API key 27): write a transaction's end into its partitions."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Bool, Int8, Int16, Int32, Int64, Message, On, String


class WritableTxnMarkerTopic(Message):
    """Each topic that we want to write transaction marker(s) for."""

    name: String = ""
    partition_indexes: list[Int32] = []


class WritableTxnMarker(Message):
    """The transaction markers to be written."""

    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, On("2+", ignorable=True)] = 0


class WriteTxnMarkersRequest(Message):
    """WriteTxnMarkers request."""

    markers: list[WritableTxnMarker] = []


class WritableTxnMarkerPartitionResult(Message):
    """The results by partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Message):
    """The results by topic."""

    name: String = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Message):
    """The results for writing makers."""

    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


class WriteTxnMarkersResponse(Message):
    """WriteTxnMarkers response."""

    markers: list[WritableTxnMarkerResult] = []
