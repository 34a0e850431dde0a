"""ElectLeaders: make the preferred replicas the leaders."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, ErrorMessage, Int8, Int16, Int32, Message, On, TopicName


class ElectLeadersTopicPartitions(Message):
    topic: TopicName = ""
    partitions: list[Int32] = []


class ElectLeadersRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.ELECT_LEADERS, "0-2", flexible="2+")

    election_type: Annotated[Int8, On("1+")] = 0
    topic_partitions: Annotated[list[ElectLeadersTopicPartitions] | None, On(nullable="0+")] = []
    timeout_ms: Int32 = 60_000


class ElectLeadersPartitionResult(Message):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = ""


class ReplicaElectionResult(Message):
    topic: TopicName = ""
    partition_result: list[ElectLeadersPartitionResult] = []


class ElectLeadersResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, On("1+", ignorable=True)] = 0
    replica_election_results: list[ReplicaElectionResult] = []
