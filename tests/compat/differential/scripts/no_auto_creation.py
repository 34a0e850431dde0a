"""Topics that are not there, where the broker makes none by itself (auto.create.topics.enable=false)."""

from __future__ import annotations

from uuid import UUID

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tailrace.kafka.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.compat.differential.known import Known
from tests.compat.differential.scripts.producing import batch, produced
from tests.compat.differential.scripts.reading import fetched, wanted
from tests.compat.differential.scripts.transactions import coordinated
from tests.compat.differential.steps import Ask, Script, Scripts, topic

NOT_THERE = UUID(int=91)


def metadata() -> Script:
    """Metadata of every version: a request that allows to make topics makes none."""
    yield from topic("made-before")

    def asked(what: str, rows: list[MetadataRequestTopic] | None, version: int, allows: bool = True) -> Ask:
        request = MetadataRequest(rows, allows)
        return Ask(what, ApiKey.METADATA, version, request, unordered=("topics", "partitions"))

    for version in range(14):
        yield asked("unknown", [MetadataRequestTopic(name="never-made")], version)
        yield asked(
            "known and unknown",
            [MetadataRequestTopic(name="made-before"), MetadataRequestTopic(name="never-made")],
            version,
        )
        for what, name in (
            ("illegal", "a/b"),
            ("empty", ""),
            ("long", "x" * 250),
            ("collides", "made.before"),
            ("internal", "__consumer_offsets"),
        ):
            yield asked(what, [MetadataRequestTopic(name=name)], version)
        if version >= 4:
            yield asked("unknown, not to be made", [MetadataRequestTopic(name="never-made")], version, False)
        if version >= 12:
            yield asked("unknown id", [MetadataRequestTopic(NOT_THERE, None)], version)
    everything = MetadataRequest(None, True)
    yield Ask("what there is", ApiKey.METADATA, 12, everything, unordered=("topics",))
    pages = DescribeTopicPartitionsRequest([TopicRequest("never-made")])
    unasked = ("topic_authorized_operations",)
    yield Ask("described", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, pages, ignored=unasked)


def clients() -> Script:
    """What producers, consumers and members of groups are told of a topic that is not there."""
    yield from coordinated("auto-new-group")
    for version in (3, 9, 12):
        yield produced("produce", "never-made", batch(), version=version)
    yield produced("produce without an answer", "never-made", batch(), acks=0)
    yield fetched("fetch", "never-made", wanted(), ignored=("aborted_transactions",))
    yield fetched("fetch by id", NOT_THERE, wanted(), version=17, ignored=("aborted_transactions",))
    rows = [OffsetCommitRequestTopic("never-made", partitions=[OffsetCommitRequestPartition(0, 5)])]
    commit = OffsetCommitRequest("auto-new-group", topics=rows)
    yield Ask("commit", ApiKey.OFFSET_COMMIT, 9, commit)
    joins = ConsumerGroupHeartbeatRequest(
        "auto-new-group",
        "member",
        0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["never-made"],
        topic_partitions=[],
    )
    yield Ask("join", ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, joins)
    unknown = MetadataRequest([MetadataRequestTopic(name="never-made")], True)
    yield Ask("still unknown", ApiKey.METADATA, 12, unknown)


SCRIPTS = Scripts(
    {"metadata": metadata, "clients": clients},
    kafka={"auto.create.topics.enable": "false"},
    tailrace={
        "TAILRACE_AGENT__AUTO_CREATE_TOPICS": "false",
        "TAILRACE_AGENT__GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "5000",
    },
    known=(
        Known(
            "no_auto_creation.metadata",
            "internal*",
            "*.is_internal",
            "a topic that does not exist is not internal",
        ),
    ),
)
