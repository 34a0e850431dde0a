"""KIP-932: share groups, their members, what they fetch and acknowledge, and their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareOffsetsTopic,
)
from tailrace.kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
    DescribeShareOffsetsTopic,
)
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tailrace.kafka.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from tailrace.kafka.messages.share_fetch import (
    AcknowledgementBatch,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareForgottenTopic,
)
from tailrace.kafka.messages.share_group_describe import ShareGroupDescribeRequest
from tailrace.kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.compat.differential.known import Known, says_why
from tests.compat.differential.scripts.classic_groups import (
    AT_ONCE,
    AT_ONCE_TOO,
    LONG,
    NAMELESS,
    ONCE,
    described,
    joined,
    once_ready,
    stable,
)
from tests.compat.differential.scripts.producing import batch, produced
from tests.compat.differential.scripts.topics import NOT_THERE
from tests.compat.differential.steps import Ask, Script, Scripts, topic

KAFKA = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
ACCEPT, RELEASE, REJECT, GAP = 1, 2, 3, 0
MEMBER = "AAAAAAAAAAAAAAAAAAAAXQ"


def beat(
    what: str, group: str, member: str, epoch: int = 0, topics: Sequence[str] | None = None, **more: Any
) -> Ask:
    """ShareGroupHeartbeat."""
    names = None if topics is None else list(topics)
    rack = more.pop("rack", None)
    request = ShareGroupHeartbeatRequest(group, member, epoch, rack, names)
    unordered = ("topic_partitions", "partitions")
    return Ask(what, ApiKey.SHARE_GROUP_HEARTBEAT, 1, request, unordered=unordered, **more)


def has_partitions(answer: Any) -> bool:
    """Whether a heartbeat was answered with something to read."""
    return answer.assignment is not None and bool(answer.assignment.topic_partitions)


def seen(what: str, *groups: str, **more: Any) -> Ask:
    """ShareGroupDescribe."""
    request = ShareGroupDescribeRequest(list(groups))
    unordered = ("members", "topic_partitions", "partitions")
    return Ask(what, ApiKey.SHARE_GROUP_DESCRIBE, 1, request, unordered=unordered, **more)


def members() -> Script:
    """Share group members: joins, wrong epochs, leaving, bad fields."""
    yield from topic("share-m", 2)
    group = "share-members"
    yield beat("joins", group, MEMBER, 0, ["share-m"], until=has_partitions, is_compared=False)
    last = yield beat("joins again", group, MEMBER, 0, ["share-m"])
    yield seen("with one", group)
    epoch = last.member_epoch
    yield beat("goes on", group, MEMBER, epoch)
    yield beat("goes on, in full", group, MEMBER, epoch, ["share-m"])
    yield beat("later epoch", group, MEMBER, epoch + 1)
    yield beat("much later epoch", group, MEMBER, epoch + 50)
    yield beat("another member", group, "nobody", epoch)
    for what, arguments in (
        ("empty group", ("", MEMBER, 0, ["share-m"])),
        ("blank group", (" ", MEMBER, 0, ["share-m"])),
        ("long group", (LONG, MEMBER, 0, ["share-m"])),
        ("empty member", (group, "", 0, ["share-m"])),
        ("no subscription", (f"{group}-bad", MEMBER, 0, None)),
        ("nothing subscribed", (f"{group}-bad", MEMBER, 0, [])),
        ("unknown topic", (f"{group}-unknown", MEMBER, 0, ["share-not"])),
        ("illegal topic", (f"{group}-illegal", MEMBER, 0, ["a/b"])),
        ("empty topic", (f"{group}-empty", MEMBER, 0, [""])),
        ("epoch -2", (group, MEMBER, -2, None)),
        ("epoch -1 of an unknown member", (group, "nobody", -1, None)),
        ("epoch 3 of an unknown group", (f"{group}-not", MEMBER, 3, None)),
        ("epoch -1 of an unknown group", (f"{group}-not", MEMBER, -1, None)),
    ):
        yield beat(what, *arguments)
    yield beat("empty rack", group, "racked", 0, ["share-m"], rack="")
    yield described("by DescribeGroups", group)
    yield joined("a classic member", group)
    yield seen("several", group, "share-not-there", group)
    yield seen("empty name", "")
    yield seen("none")
    yield Ask("delete it", ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([group]))
    yield beat("leaves", group, MEMBER, -1)
    yield beat("leaves again", group, MEMBER, -1)
    yield seen("empty", group)
    yield from stable("share-classic")
    yield beat("joins a classic group", "share-classic", MEMBER, 0, ["share-m"])
    yield seen("a classic group", "share-classic")


def offsets() -> Script:
    """Describe-, Alter- and DeleteShareGroupOffsets: of what is there and what is not, with members and without."""
    yield from topic("share-o", 2)
    yield from topic("share-p", 1)
    group = "share-offsets"

    def shown(what: str, *groups: tuple[str, list[tuple[str, list[int]]] | None], version: int = 1) -> Ask:
        rows = [
            DescribeShareOffsetsGroup(
                name, None if topics is None else [DescribeShareOffsetsTopic(*row) for row in topics]
            )
            for name, topics in groups
        ]
        request = DescribeShareGroupOffsetsRequest(rows)
        unordered = ("topics", "partitions")
        return Ask(what, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version, request, unordered=unordered)

    def moved(what: str, name: str, *rows: tuple[str, list[tuple[int, int]]]) -> Ask:
        topics = [
            AlterShareOffsetsTopic(topic_name, [AlterShareOffsetsPartition(*part) for part in parts])
            for topic_name, parts in rows
        ]
        request = AlterShareGroupOffsetsRequest(name, topics)
        unordered = ("responses", "partitions")
        return Ask(what, ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, request, unordered=unordered)

    def removed(what: str, name: str, *topics: str) -> Ask:
        request = DeleteShareGroupOffsetsRequest(name, [DeleteShareOffsetsTopic(row) for row in topics])
        return Ask(what, ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, request, unordered=("responses",))

    for version in (0, 1):
        yield shown("unknown group", ("share-none", [("share-o", [0])]), version=version)
        yield shown("all of an unknown group", ("share-none", None), version=version)
        yield shown("empty group", ("", [("share-o", [0])]), version=version)
        yield shown("none", version=version)
    yield moved("unknown group", "share-none", ("share-o", [(0, 0)]))
    yield moved("empty group", "", ("share-o", [(0, 0)]))
    yield removed("unknown group", "share-none", "share-o")
    yield removed("empty group", "", "share-o")
    yield beat("joins", group, MEMBER, 0, ["share-o"], until=has_partitions, is_compared=False)
    yield moved("with members", group, ("share-o", [(0, 0)]))
    yield removed("with members", group, "share-o")
    yield shown("never read", (group, [("share-o", [0, 1])]))
    yield beat("leaves", group, MEMBER, -1)
    yield moved("good", group, ("share-o", [(0, 0), (1, 0)]))
    for version in (0, 1):
        yield shown("moved", (group, [("share-o", [0, 1])]), version=version)
        yield shown("all", (group, None), version=version)
        yield shown("unknown partition", (group, [("share-o", [7, -1])]), version=version)
        yield shown("unknown topic", (group, [("share-not", [0])]), version=version)
        yield shown("never read", (group, [("share-p", [0])]), version=version)
        yield shown("no partition", (group, [("share-o", [])]), version=version)
        yield shown("no topic", (group, []), version=version)
        yield shown("a group twice", (group, None), (group, None), version=version)
    yield moved("beyond the end", group, ("share-o", [(0, 99)]))
    yield moved("negative", group, ("share-o", [(0, -1)]))
    yield moved("unknown partition", group, ("share-o", [(7, 0), (1, 0)]))
    yield moved("unknown topic", group, ("share-not", [(0, 0)]), ("share-o", [(0, 0)]))
    yield moved("a topic that it never read", group, ("share-p", [(0, 0)]))
    yield moved("a partition twice", group, ("share-o", [(0, 0), (0, 0)]))
    yield moved("nothing", group)
    yield removed("unknown topic", group, "share-not", "share-o")
    yield removed("again", group, "share-o")
    yield removed("nothing", group)
    yield shown("all after the deletion", (group, None))
    yield from stable("share-offsets-classic")
    yield shown("a classic group", ("share-offsets-classic", [("share-o", [0])]))
    yield moved("a classic group", "share-offsets-classic", ("share-o", [(0, 0)]))
    yield removed("a classic group", "share-offsets-classic", "share-o")
    yield Ask("delete the group", ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([group]))


def fetches() -> Script:
    """ShareFetch and ShareAcknowledge: sessions, epochs, errors; what is acquired and acknowledged."""
    known = yield from topic("share-f", 2)
    group = "share-fetch"
    row = AlterableConfig("share.auto.offset.reset", 0, "earliest")
    configs = IncrementalAlterConfigsRequest([AlterConfigsResource(32, group, [row])])
    yield Ask("from the beginning", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, configs)
    yield produced("fill", "share-f", batch(*[b"%d" % number for number in range(10)]), is_compared=False)

    def fetched(
        what: str,
        epoch: int,
        *parts: tuple[int, list[AcknowledgementBatch]],
        member: str | None = MEMBER,
        name: str | None = group,
        of: UUID = known,
        gone: Sequence[int] = (),
        version: int = 2,
        until: Any = None,
        is_compared: bool = True,
        **more: Any,
    ) -> Ask:
        topics = [ShareFetchTopic(of, [ShareFetchPartition(*part) for part in parts])] if parts else []
        forgotten = [ShareForgottenTopic(of, list(gone))] if gone else []
        more = {"max_wait_ms": 300, "min_bytes": 1, "max_records": 100, "batch_size": 100, **more}
        request = ShareFetchRequest(
            name, member, epoch, topics=topics, forgotten_topics_data=forgotten, **more
        )
        return Ask(
            what, ApiKey.SHARE_FETCH, version, request, unordered=("responses", "partitions", "node_endpoints"),
            ignored=("node_endpoints",), until=until, is_compared=is_compared,
        )  # fmt: skip

    def acknowledged(
        what: str,
        epoch: int,
        *batches: tuple[int, int, list[int]],
        partition: int = 0,
        of: UUID = known,
        member: str | None = MEMBER,
        name: str | None = group,
        version: int = 2,
    ) -> Ask:
        rows = [AcknowledgementBatch(*row) for row in batches]
        topics = [AcknowledgeTopic(of, [AcknowledgePartition(partition, rows)])] if batches else []
        request = ShareAcknowledgeRequest(name, member, epoch, topics=topics)
        return Ask(what, ApiKey.SHARE_ACKNOWLEDGE, version, request, ignored=("node_endpoints",))

    yield beat("joins", group, MEMBER, 0, ["share-f"], until=has_partitions, is_compared=False)
    yield fetched("null group", 0, (0, []), name=None)
    yield fetched("empty group", 0, (0, []), name="")
    yield fetched("null member", 0, (0, []), member=None)
    yield fetched("epoch 1 of no session", 1, (0, []))
    yield fetched("last epoch of no session", -1)
    yield fetched("first, with acknowledgements", 0, (0, [AcknowledgementBatch(0, 0, [ACCEPT])]))
    yield acknowledged("first, as an acknowledgement", 0, (0, 0, [ACCEPT]))
    yield acknowledged("of no session", 1, (0, 0, [ACCEPT]))

    def has_records(answer: Any) -> bool:
        return any(part.acquired_records for part_topic in answer.responses for part in part_topic.partitions)

    yield fetched("first", 0, (0, []), (1, []), until=has_records)
    yield fetched("go on", 1)
    yield fetched("the same epoch", 1)
    yield fetched("far epoch", 50)
    yield acknowledged("some", 2, (0, 1, [ACCEPT]), (2, 2, [RELEASE]), (3, 3, [REJECT]))
    yield acknowledged("again", 3, (0, 1, [ACCEPT]))
    yield acknowledged("each", 4, (4, 5, [ACCEPT, RELEASE]))
    yield acknowledged("too few types", 5, (6, 8, [ACCEPT, ACCEPT]))
    yield acknowledged("no types", 6, (6, 8, []))
    yield acknowledged("unknown type", 7, (6, 6, [9]))
    yield acknowledged("negative type", 8, (6, 6, [-1]))
    yield acknowledged("end before start", 9, (7, 6, [ACCEPT]))
    yield acknowledged("overlapping", 10, (6, 7, [ACCEPT]), (7, 8, [ACCEPT]))
    yield acknowledged("backwards", 11, (8, 8, [ACCEPT]), (6, 6, [ACCEPT]))
    yield acknowledged("beyond the end", 12, (20, 21, [ACCEPT]))
    yield acknowledged("nothing", 13)
    yield acknowledged("wrong epoch", 99, (6, 6, [ACCEPT]))
    yield fetched("what was released", 14)
    yield fetched("forgets one", 15, gone=[1])
    yield fetched("accepts and fetches", 16, (0, [AcknowledgementBatch(2, 2, [ACCEPT])]))
    yield acknowledged("unknown group", 1, (0, 0, [ACCEPT]), name="share-none")
    yield acknowledged("ends the session", -1, (6, 6, [ACCEPT]))
    yield fetched("after the session", 17)
    yield fetched("first again, version 1", 0, (0, []), version=1, until=has_records)
    yield fetched("ends the session", -1, version=1)


def bad_fetches() -> Script:
    """ShareFetch and ShareAcknowledge of what is not there, or makes no sense, each in a session of its own."""
    known = yield from topic("share-b", 1)
    group = "share-bad"
    yield beat("joins", group, MEMBER, 0, ["share-b"], until=has_partitions, is_compared=False)

    def fetched(what: str, epoch: int, partition: int, of: UUID = known, **more: Any) -> Ask:
        batches = more.pop("batches", [])
        more = {"max_wait_ms": 100, "min_bytes": 1, "max_records": 100, "batch_size": 100, **more}
        topics = [ShareFetchTopic(of, [ShareFetchPartition(partition, batches)])]
        request = ShareFetchRequest(group, MEMBER, epoch, topics=topics, **more)
        return Ask(what, ApiKey.SHARE_FETCH, 2, request, ignored=("node_endpoints",))

    def acknowledged(what: str, epoch: int, partition: int, of: UUID = known) -> Ask:
        rows = [AcknowledgePartition(partition, [AcknowledgementBatch(0, 0, [ACCEPT])])]
        request = ShareAcknowledgeRequest(group, MEMBER, epoch, topics=[AcknowledgeTopic(of, rows)])
        return Ask(what, ApiKey.SHARE_ACKNOWLEDGE, 2, request, ignored=("node_endpoints",))

    for what, partition, of, more in (
        ("unknown partition", 7, known, {}),
        ("negative partition", -1, known, {}),
        ("unknown topic", 0, NOT_THERE, {}),
        ("id of zeros", 0, UUID(int=0), {}),
        ("negative wait", 0, known, {"max_wait_ms": -1}),
        ("no records", 0, known, {"max_records": 0}),
        ("no bytes", 0, known, {"max_bytes": 0}),
        ("unknown mode", 0, known, {"share_acquire_mode": 9}),
        ("renews and fetches", 0, known, {"is_renew_ack": True}),
    ):
        yield fetched(what, 0, partition, of, **more)
        yield acknowledged(f"{what}, as an acknowledgement", 1, partition, of)
        yield acknowledged(f"{what}, to end it", -1, partition, of)


REJOINS = "a member that nobody knows joins again: clients take GROUP_ID_NOT_FOUND as the end"
SCRIPTS = Scripts(
    once_ready(members=members, offsets=offsets, fetches=fetches, bad_fetches=bad_fetches),
    kafka={**AT_ONCE, **KAFKA},
    tailrace=AT_ONCE_TOO,
    known=(
        says_why("*.members", "empty *"),
        says_why("*fetches"),
        Known("*.members", "empty group*", "error_code", "clients know INVALID_GROUP_ID"),
        Known("*.members", "blank group*", "error_code", "spaces are a name"),
        Known(
            "*.members",
            "long group*",
            "assignment.*",
            "Kafka can't store the state of a group of such a name",
        ),
        Known("*.members", "empty topic*", "error_code", "topics have names"),
        Known("*.members", "epoch * of an unknown group*", "error_code", REJOINS),
        Known("*.members", "several*", "groups.share-members#2", ONCE),
        Known(
            "*",
            "leaves v1",
            "heartbeat_interval_ms",
            "a member that leaves is told the usual interval",
            kafka=0,
        ),
        Known(
            "*.offsets",
            "*unknown group*",
            "groups.*.error_code",
            "KIP-932 has GROUP_ID_NOT_FOUND for it",
            tailrace="GROUP_ID_NOT_FOUND(69)",
        ),
        Known(
            "*.offsets",
            "a classic group*",
            "groups.*.error_code",
            "KIP-932 has GROUP_ID_NOT_FOUND for it",
            tailrace="GROUP_ID_NOT_FOUND(69)",
        ),
        Known("*.offsets", "empty group*", "groups..error_code", NAMELESS),
        Known(
            "*.offsets",
            "unknown partition*",
            "groups.*.error_code",
            "Kafka fails at it",
            kafka="UNKNOWN_SERVER_ERROR(-1)",
        ),
        Known(
            "*.offsets",
            "no partition*",
            "groups.*.error_code",
            "Kafka fails at it",
            kafka="UNKNOWN_SERVER_ERROR(-1)",
        ),
        Known(
            "*.offsets",
            "unknown topic*",
            "groups.*.partitions.0.error_code",
            "the partition says that it is not there",
        ),
        Known("*.offsets", "a group twice*", "groups.share-offsets#2", ONCE),
        Known("*.offsets", "again*", "responses.share-o.error_code", "what is gone may be deleted again"),
        Known("*.fetches", "empty group*", "error_code", NAMELESS),
        Known(
            "*.fetches",
            "first v2",
            "responses.0.partitions.1",
            "the first answer of a session names every partition",
        ),
        Known(
            "*.bad_fetches",
            "n* v2",
            "responses.0",
            "the first answer of a session names every partition",
            kafka="<missing>",
        ),
        Known("*.fetches", "overlapping*", "*error_code", "ranges that overlap are no valid request"),
        Known("*.fetches", "beyond the end*", "*error_code", "what was never handed out is not held"),
        Known(
            "*.bad_fetches",
            "unknown topic v2",
            "error_code",
            "Kafka fails at it",
            kafka="UNKNOWN_SERVER_ERROR(-1)",
        ),
        Known(
            "*.bad_fetches",
            "id of zeros v2",
            "error_code",
            "Kafka fails at it",
            kafka="UNKNOWN_SERVER_ERROR(-1)",
        ),
        Known(
            "*.bad_fetches",
            "unknown mode v2",
            "error_code",
            "Kafka fails at it",
            kafka="UNKNOWN_SERVER_ERROR(-1)",
        ),
    ),
)
