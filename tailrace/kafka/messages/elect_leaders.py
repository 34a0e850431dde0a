"""ElectLeaders (API key 43): elect leaders of partitions."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Int8, Int16, Int32, Message, On, String


class TopicPartitions(Message):
    """The topic partitions to elect leaders."""

    topic: String = ""
    partitions: list[Int32] = []


class ElectLeadersRequest(Message):
    """ElectLeaders request."""

    election_type: Annotated[Int8, On("1+")] = 0
    topic_partitions: Annotated[list[TopicPartitions] | None, On(nullable="0+")] = []
    timeout_ms: Int32 = 60000


class PartitionResult(Message):
    """The results for each partition."""

    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[String | None, On(nullable="0+")] = ""


class ReplicaElectionResult(Message):
    """The outcome of the elections in one topic."""

    topic: String = ""
    partition_result: list[PartitionResult] = []


class ElectLeadersResponse(Message):
    """ElectLeaders response."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, On("1+")] = 0
    replica_election_results: list[ReplicaElectionResult] = []
