"""AlterReplicaLogDirs: move a partition to another disk of its broker."""

from __future__ import annotations

from typing import ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Int16, Int32, Message, String, TopicName


class AlterReplicaLogDirTopic(Message):
    name: TopicName = ""
    partitions: list[Int32] = []


class AlterReplicaLogDir(Message):
    path: String = ""
    topics: list[AlterReplicaLogDirTopic] = []


class AlterReplicaLogDirsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.ALTER_REPLICA_LOG_DIRS, "1-2", flexible="2+")

    dirs: list[AlterReplicaLogDir] = []


class AlterReplicaLogDirPartitionResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Message):
    topic_name: TopicName = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = []


class AlterReplicaLogDirsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = []
