"""Topics: made, given partitions, looked up, deleted."""

from __future__ import annotations

from uuid import UUID

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tailrace.kafka.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.compat.differential.known import Known
from tests.compat.differential.steps import Ask, Script, Scripts, topic, topic_is_gone, topic_is_there

NOT_THERE = UUID(int=77)


def create() -> Script:
    """CreateTopics of every version, and what it refuses."""

    def made(
        what: str, *topics: CreatableTopic, version: int = 7, validate_only: bool = False, texts: bool = False
    ) -> Ask:
        request = CreateTopicsRequest(list(topics), 30_000, validate_only)
        return Ask(what, ApiKey.CREATE_TOPICS, version, request, unordered=("topics",), texts=texts)

    for version in range(2, 8):
        yield made("one topic", CreatableTopic(f"create-{version}", 2, 1), version=version)
    yield made("defaults", CreatableTopic("create-defaults", -1, -1))
    yield made("it exists", CreatableTopic("create-2", 1, 1), texts=True)
    bad = CreatableTopicConfig("no.such.config", "1")
    yield made("it exists, bad count", CreatableTopic("create-2", 0, 1), texts=True)
    yield made("it exists, bad config", CreatableTopic("create-2", 1, 1, [], [bad]))
    yield made("bad count, factor and config", CreatableTopic("create-bad", 0, 0, [], [bad]))
    yield made("bad count and factor", CreatableTopic("create-bad", 0, 0))
    yield made("validate only", CreatableTopic("create-tried", 3, 1), validate_only=True)
    yield made("validate only, again", CreatableTopic("create-tried", 3, 1), validate_only=True)
    yield made("validate only, it exists", CreatableTopic("create-2", 3, 1), validate_only=True)
    for count in (0, -2, 2_000_000):
        yield made(f"{count} partitions", CreatableTopic("create-count", count, 1), validate_only=True)
    for factor in (0, -2, 2, 32767):
        yield made(f"{factor} replicas", CreatableTopic("create-factor", 1, factor), validate_only=True)
    for name in ("", ".", "..", "a b", "a/b", "é", "x" * 249, "x" * 250, "a\0b"):
        yield made(f"name {name[:9]!r} {len(name)}", CreatableTopic(name, 1, 1), validate_only=True)
    yield made("one of two is bad", CreatableTopic("create-good", 1, 1), CreatableTopic("create/bad", 1, 1))
    yield made("twice in a request", CreatableTopic("create-twin", 1, 1), CreatableTopic("create-twin", 2, 1))
    yield made(
        "twice, once badly", CreatableTopic("create-twin2", 1, 1), CreatableTopic("create-twin2", 0, 1)
    )
    yield made("with a dot", CreatableTopic("create.dot", 1, 1))
    yield made("the same with an underscore", CreatableTopic("create_dot", 1, 1))
    yield made("both in a request", CreatableTopic("both.dot", 1, 1), CreatableTopic("both_dot", 1, 1))
    yield made("internal name", CreatableTopic("__consumer_offsets", 1, 1), validate_only=True)
    yield made("none", version=7)


def create_with_assignments() -> Script:
    """CreateTopics with replicas by hand."""

    def made(what: str, rows: list[tuple[int, list[int]]], count: int = -1, factor: int = -1) -> Ask:
        assignments = [CreatableReplicaAssignment(index, brokers) for index, brokers in rows]
        new = CreatableTopic(f"assigned-{what.replace(' ', '-')}", count, factor, assignments)
        return Ask(what, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([new], 30_000, True))

    everything = yield Ask("brokers", ApiKey.METADATA, 12, MetadataRequest([]))
    node = everything.brokers[0].node_id
    yield made("good", [(0, [node]), (1, [node])])
    yield made("with a count", [(0, [node])], count=1)
    yield made("with a factor", [(0, [node])], factor=1)
    yield made("an unknown broker", [(0, [987])])
    yield made("twice the same broker", [(0, [node, node])])
    yield made("no replica", [(0, [])])
    yield made("not from 0 on", [(1, [node]), (2, [node])])
    yield made("a hole", [(0, [node]), (2, [node])])
    yield made("a partition twice", [(0, [node]), (0, [node])])
    yield made("a negative broker", [(0, [-1])])


def create_with_configs() -> Script:
    """CreateTopics with configs, good and bad; what it says of a new topic's configs."""

    def made(what: str, *configs: tuple[str, str | None], version: int = 7, is_tried: bool = True) -> Ask:
        rows = [CreatableTopicConfig(key, value) for key, value in configs]
        new = CreatableTopic(f"configured-{what.replace(' ', '-')}", 1, 1, [], rows)
        return Ask(what, ApiKey.CREATE_TOPICS, version, CreateTopicsRequest([new], 30_000, is_tried))

    yield made("good", ("retention.ms", "1000"), ("cleanup.policy", "compact,delete"), is_tried=False)
    yield made("unknown key", ("no.such.config", "1"))
    yield made("no number", ("retention.ms", "soon"))
    yield made("below its bounds", ("retention.ms", "-2"))
    yield made("bad word", ("cleanup.policy", "keep"))
    yield made("empty value", ("retention.ms", ""))
    yield made("null value", ("retention.ms", None))
    yield made("null value in version 4", ("retention.ms", None), version=4)
    yield made("empty key", ("", "1"))
    yield made("a key twice", ("retention.ms", "1"), ("retention.ms", "2"))
    yield made("spaces", ("retention.ms", " 5 "))
    yield made("bad boolean", ("preallocate", "yes"))
    yield made("upper case", ("cleanup.policy", "DELETE"))
    yield made("lag bounds", ("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5"))
    yield made("local retention", ("local.retention.ms", "10"), ("retention.ms", "5"))
    yield made("remote storage", ("remote.storage.enable", "true"))
    yield made("too large a number", ("max.message.bytes", "3000000000"))
    yield made("broker's name", ("log.retention.ms", "5"))
    for name in ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas"):
        for number, value in enumerate(
            ("", "*", "0:1", "0:1,1:2", " 0:1 , 1:2 ", "0", "0:1,*", "some", "0:-1")
        ):
            yield made(f"{name} {number}", (name, value))


def partitions() -> Script:
    """CreatePartitions: counts, assignments, duplicates."""
    yield from topic("grow", 2)
    everything = yield Ask("brokers", ApiKey.METADATA, 12, MetadataRequest([]))
    node = everything.brokers[0].node_id

    def grown(
        what: str,
        *rows: tuple[str, int, list[list[int]] | None],
        version: int = 3,
        validate_only: bool = False,
    ) -> Ask:
        topics = [
            CreatePartitionsTopic(
                name, count, None if given is None else [CreatePartitionsAssignment(row) for row in given]
            )
            for name, count, given in rows
        ]
        request = CreatePartitionsRequest(topics, 30_000, validate_only)
        return Ask(what, ApiKey.CREATE_PARTITIONS, version, request, unordered=("results",))

    yield grown("as many", ("grow", 2, None))
    yield grown("fewer", ("grow", 1, None))
    yield grown("zero", ("grow", 0, None))
    yield grown("negative", ("grow", -1, None))
    yield grown("too many", ("grow", 3_000_000, None), validate_only=True)
    yield grown("unknown topic", ("grow-not", 3, None))
    yield grown("empty name", ("", 3, None))
    yield grown("validate only", ("grow", 3, None), validate_only=True)
    for version in range(4):
        yield grown("one more", ("grow", 3 + version, None), version=version)
    yield from topic_is_there("grow", 6)
    yield grown("twice", ("grow", 7, None), ("grow", 8, None))
    yield grown("assigned", ("grow", 7, [[node]]), validate_only=True)
    yield grown("assigned to a stranger", ("grow", 7, [[987]]), validate_only=True)
    yield grown("too few assignments", ("grow", 8, [[node]]), validate_only=True)
    yield grown("too many assignments", ("grow", 7, [[node], [node]]), validate_only=True)
    yield grown("an empty assignment", ("grow", 7, [[]]), validate_only=True)
    yield grown("no assignments", ("grow", 7, []), validate_only=True)
    yield grown("more replicas than before", ("grow", 7, [[node, node]]), validate_only=True)
    yield grown("good and bad", ("grow", 7, None), ("grow-not", 3, None))
    yield grown("none")


def delete() -> Script:
    """DeleteTopics by name and by id; what isn't there; duplicates."""
    ids = {}
    names = [f"delete-{name}" for name in (*"12345", "name", "id", "both", "twice", "again")]
    for name in names:
        ids[name] = yield from topic(name)

    def gone(what: str, *states: DeleteTopicState) -> Ask:
        request = DeleteTopicsRequest(topics=list(states), timeout_ms=30_000)
        return Ask(what, ApiKey.DELETE_TOPICS, 6, request, unordered=("responses",))

    for version in range(1, 6):
        request = DeleteTopicsRequest(topic_names=[f"delete-{version}", "delete-not"], timeout_ms=30_000)
        yield Ask("by names", ApiKey.DELETE_TOPICS, version, request, unordered=("responses",))
    yield gone("by name", DeleteTopicState("delete-name"))
    yield gone("by id", DeleteTopicState(None, ids["delete-id"]))
    yield gone("name and id", DeleteTopicState("delete-both", ids["delete-both"]))
    yield gone("neither", DeleteTopicState(None))
    yield gone("unknown name", DeleteTopicState("delete-not"))
    yield gone("unknown id", DeleteTopicState(None, NOT_THERE))
    yield gone("empty name", DeleteTopicState(""))
    yield gone("bad name", DeleteTopicState("a/b"))
    yield gone("twice by name", DeleteTopicState("delete-twice"), DeleteTopicState("delete-twice"))
    yield gone("twice by id", *[DeleteTopicState(None, ids["delete-twice"])] * 2)
    yield gone("name, and id", DeleteTopicState("delete-twice"), DeleteTopicState(None, ids["delete-twice"]))
    yield gone("one of two", DeleteTopicState("delete-again"), DeleteTopicState("delete-not"))
    yield from topic_is_gone("delete-again")
    yield gone("what is gone, by id", DeleteTopicState(None, ids["delete-again"]))
    yield gone("none")


def metadata() -> Script:
    """Metadata of every version: by names, by ids, of all, of none."""
    known = yield from topic("meta-a", 3)
    yield from topic("meta-b")

    def asked(
        what: str, rows: list[MetadataRequestTopic] | None, version: int, creates: bool = False, **more: bool
    ) -> Ask:
        request = MetadataRequest(rows, creates, **more)
        return Ask(what, ApiKey.METADATA, version, request, unordered=("topics", "partitions"))

    for version in range(14):
        yield asked(
            "two",
            [MetadataRequestTopic(name="meta-a"), MetadataRequestTopic(name="meta-b")],
            version,
            version < 4,
        )
        if version >= 4:
            yield asked("unknown", [MetadataRequestTopic(name="meta-not")], version)
            yield asked("illegal", [MetadataRequestTopic(name="meta/not")], version)
            yield asked("illegal, to be made", [MetadataRequestTopic(name="meta/not")], version, True)
        yield asked("twice", [MetadataRequestTopic(name="meta-a")] * 2, version, version < 4)
        if version > 0:
            yield asked("none", [], version, version < 4)
    for version in range(10, 14):
        yield asked("by id", [MetadataRequestTopic(known, None)], version)
        yield asked("unknown id", [MetadataRequestTopic(NOT_THERE, None)], version)
        yield asked("id and name", [MetadataRequestTopic(known, "meta-a")], version)
        yield asked("id of another name", [MetadataRequestTopic(known, "meta-b")], version)
        yield asked("neither", [MetadataRequestTopic(name=None)], version)
        yield asked(
            "id, and a name",
            [MetadataRequestTopic(known, None), MetadataRequestTopic(name="meta-b")],
            version,
        )
    for version in (8, 10, 12):
        yield asked(
            "operations",
            [MetadataRequestTopic(name="meta-a")],
            version,
            include_topic_authorized_operations=True,
        )
    yield asked("cluster's operations", [], 9, include_cluster_authorized_operations=True)
    yield asked("empty name", [MetadataRequestTopic(name="")], 9)
    yield asked("empty name, to be made", [MetadataRequestTopic(name="")], 9, True)
    yield asked("long name, to be made", [MetadataRequestTopic(name="x" * 250)], 9, True)
    yield asked("collides, to be made", [MetadataRequestTopic(name="meta.made")], 9, True)
    yield from topic_is_there("meta.made")
    yield asked("collides, to be made too", [MetadataRequestTopic(name="meta_made")], 9, True)
    yield asked("internal, to be made", [MetadataRequestTopic(name="__transaction_state")], 9)


KNOWN = (
    Known("topics.create*", "*", "*.configs.<order>", "both give all configs; clients look them up by name"),
    Known("topics.create*", "*", "*.configs.tailrace.*", "Tailrace's own configs"),
    Known(
        "topics.create*",
        "*",
        "*.configs.errors.deadletterqueue.*",
        "a config of KIP-1191, newer than Kafka 4.3",
    ),
    Known(
        "topics.create*",
        "*",
        "*.min.insync.replicas.config_source",
        "new clusters of Kafka set it for all topics",
    ),
    Known(
        "topics.create*",
        "*",
        "*.topic_id",
        "nothing has an id that was only validated",
        tailrace="<uuid 0>",
    ),
    Known(
        "topics.create", "2 replicas v7", "*.error_code", "the object store replicates: any factor is taken"
    ),
    Known("topics.create", "twice*", "*#2", "a row for each mention: both say INVALID_REQUEST"),
    Known(
        "topics.create_with_assignments",
        "*broker v7",
        "*.error_code",
        "there are no replicas to place",
    ),
    Known(
        "topics.create_with_configs",
        "remote storage v7",
        "*.error_code",
        "kept without effect",
    ),
    Known("topics.partitions", "too many v3", "*.error_code", "Kafka fails where Tailrace names its limit"),
    Known("topics.partitions", "twice v3", "*#2", "a row for each mention: both say INVALID_REQUEST"),
    Known("topics.partitions", "*assign* v3", "*.error_code", "there are no replicas to place"),
    Known("topics.partitions", "more replicas*", "*.error_code", "there are no replicas to place"),
    Known("topics.delete", "twice*", "*#2", "a row for each mention: both say INVALID_REQUEST"),
    Known("topics.delete", "name, and id v6", "*", "a row for each mention: both say INVALID_REQUEST"),
    Known(
        "topics.metadata",
        "* v1[01]",
        "*",
        "Kafka looks up ids from version 12 on; Tailrace from 10 on",
    ),
    Known("topics.metadata", "neither *", "*", "Kafka fails as a whole; Tailrace refuses that topic"),
    Known("topics.metadata", "id, and a name *", "topics.meta-b", "Kafka leaves out names beside ids"),
    Known(
        "topics.metadata", "collides, to be made v9", "*", "a topic is there when its creation is answered"
    ),
    Known(
        "topics.metadata", "collides, to be made too v9", "*.error_code", "it says why the topic is not made"
    ),
    Known("topics.metadata", "internal*", "*.is_internal", "a topic that does not exist is not internal"),
)


SCRIPTS = Scripts(
    {
        "create": create,
        "create_with_assignments": create_with_assignments,
        "create_with_configs": create_with_configs,
        "partitions": partitions,
        "delete": delete,
        "metadata": metadata,
    },
    known=KNOWN,
)
