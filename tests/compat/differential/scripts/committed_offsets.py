"""OffsetCommit, OffsetFetch, OffsetDelete, TxnOffsetCommit: a group's positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tailrace.kafka.messages.end_txn import EndTxnRequest
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tailrace.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tailrace.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.compat.differential.known import Known
from tests.compat.differential.scripts.classic_groups import (
    AT_ONCE,
    AT_ONCE_TOO,
    LONG,
    NAMELESS,
    ONCE,
    described,
    is_in,
    joined,
    left,
    member_of,
    once_ready,
    stable,
)
from tests.compat.differential.steps import Ask, Script, Scripts, topic, topic_is_gone

NOT_THERE = UUID(int=81)
BY_ID = 10
Position = tuple[int, int, str | None]
"""Partition, offset, metadata."""


def committed(
    what: str,
    group: str,
    name: str | UUID,
    *rows: Position,
    generation: int = -1,
    member: str = "",
    instance: str | None = None,
    version: int = 9,
    **more: Any,
) -> Ask:
    """OffsetCommit of partitions of one topic."""
    parts = [OffsetCommitRequestPartition(index, offset, -1, metadata) for index, offset, metadata in rows]
    named = {"topic_id": name} if isinstance(name, UUID) else {"name": name}
    topics = [OffsetCommitRequestTopic(**named, partitions=parts)]
    request = OffsetCommitRequest(group, generation, member, instance, -1, topics)
    return Ask(what, ApiKey.OFFSET_COMMIT, version, request, **more)


def asked(
    what: str,
    group: str,
    *names: tuple[str | UUID, Sequence[int]],
    everything: bool = False,
    stable_only: bool = False,
    member: str | None = None,
    epoch: int = -1,
    version: int = 9,
    **more: Any,
) -> Ask:
    """OffsetFetch of one group."""
    if version < 8:
        old = None if everything else [OffsetFetchRequestTopic(str(name), list(rows)) for name, rows in names]
        request = OffsetFetchRequest(group, old, [], stable_only)
    else:
        topics = [
            OffsetFetchRequestTopics("", name, list(rows))
            if isinstance(name, UUID)
            else OffsetFetchRequestTopics(name, partition_indexes=list(rows))
            for name, rows in names
        ]
        row = OffsetFetchRequestGroup(group, member, epoch, None if everything else topics)
        request = OffsetFetchRequest(groups=[row], require_stable=stable_only)
    return Ask(what, ApiKey.OFFSET_FETCH, version, request, unordered=("topics", "partitions"), **more)


def commits() -> Script:
    """OffsetCommit of every version by groups without members: good, negative, too long, unknown."""
    known = yield from topic("commits", 2)
    for version in range(2, 11):
        name, other = ("commits", "commits-not") if version < BY_ID else (known, NOT_THERE)
        group = f"commits-{version}"
        yield committed("good", group, name, (0, 5, "m"), (1, 0, ""), version=version)
        yield committed("null metadata", group, name, (0, 6, None), version=version)
        yield committed("beyond the end", group, name, (0, 1 << 60, ""), version=version)
        for offset in (-1, -2):
            yield committed(f"offset {offset}", group, name, (1, offset, ""), version=version)
        for size in (4096, 4097):
            yield committed(f"metadata of {size}", group, name, (1, 7, "m" * size), version=version)
        yield committed("metadata of many bytes", group, name, (1, 7, "é" * 4096), version=version)
        yield committed("unknown topic", group, other, (0, 1, ""), version=version)
        yield committed("unknown partition", group, name, (2, 1, ""), (0, 2, ""), version=version)
        yield committed("negative partition", group, name, (-1, 1, ""), version=version)
        yield committed("a partition twice", group, name, (0, 1, ""), (0, 2, ""), version=version)
        yield committed("no partition", group, name, version=version)
        yield committed("a generation", group, name, (0, 1, ""), generation=1, version=version)
        yield committed("generation 0", group, name, (0, 1, ""), generation=0, version=version)
        yield committed("generation -2", group, name, (0, 1, ""), generation=-2, version=version)
        yield committed("a member", group, name, (0, 1, ""), member="nobody", version=version)
        rows: tuple[Position, ...] = (0, 1, ""), (1, 1, "m" * 4097), (2, 1, "")
        yield committed(
            "a member, three", group, name, *rows,
            member="nobody", version=version, unordered=("partitions",),
        )  # fmt: skip
        yield committed("a member, unknown topic", group, other, *rows, member="nobody", version=version)
        yield committed(
            "member and generation", group, name, (0, 1, ""), generation=1, member="nobody", version=version
        )
        yield committed(
            "member, generation, new group", f"{group}-not", name, (0, 1, ""), generation=1, member="nobody",
            version=version,
        )  # fmt: skip
        yield committed(
            "a generation, new group", f"{group}-not", name, (0, 1, ""), generation=1, version=version
        )
        if version >= 7:
            yield committed("an instance", group, name, (0, 1, ""), instance="i", version=version)
        empty = OffsetCommitRequest(group)
        yield Ask("no topic", ApiKey.OFFSET_COMMIT, version, empty)
    yield committed("empty group", "", "commits", (0, 1, ""))
    yield committed("empty name", "commits-2", "", (0, 1, ""))
    yield committed("illegal name", "commits-2", "a/b", (0, 1, ""))
    yield committed("id of zeros", "commits-2", UUID(int=0), (0, 1, ""), version=10)
    rows = [
        OffsetCommitRequestTopic(name="commits", partitions=[OffsetCommitRequestPartition(index, 3)])
        for index in (0, 1)
    ]
    yield Ask("a topic twice", ApiKey.OFFSET_COMMIT, 9, OffsetCommitRequest("commits-2", topics=rows))


def members_commits() -> Script:
    """OffsetCommit by members: their generation, another, another's id; while a rebalance goes on."""
    yield from topic("members", 2)
    group, name = "members-commit", "members"
    member, generation, *_ = yield from stable(group)
    for version in (2, 7, 9):
        for what, who, number in (
            ("good", member, generation),
            ("old generation", member, generation - 1),
            ("later generation", member, generation + 1),
            ("no generation", member, -1),
            ("another member", "nobody", generation),
            ("as a simple consumer", "", -1),
            ("no member", "", generation),
        ):
            yield committed(what, group, name, (0, 5, ""), generation=number, member=who, version=version)
    yield committed(
        "instance of a dynamic member",
        group,
        name,
        (0, 5, ""),
        generation=generation,
        member=member,
        instance="i",
    )
    other, number, _ = yield from member_of("members-completing")
    yield committed(
        "before its sync", "members-completing", name, (0, 1, ""), generation=number, member=other
    )
    yield committed("before its sync, simple", "members-completing", name, (0, 1, ""))
    static, number = yield from stable("members-static", instance="i")
    for what, who, instance in (
        ("static", static, "i"),
        ("static, another id", "nobody", "i"),
        ("static, another instance", static, "j"),
        ("static, no instance", static, None),
    ):
        yield committed(
            what, "members-static", name, (0, 5, ""), generation=number, member=who, instance=instance
        )
    later = yield joined("two asks for an id", group, connection="two")
    sent = joined("two joins", group, later.member_id, connection="two", is_answered_later=True)
    yield sent
    yield from is_in(group, "PreparingRebalance")
    yield described("rebalancing", group)
    yield committed("in a rebalance", group, name, (0, 6, ""), generation=generation, member=member)
    yield left("one leaves", group, (member, None))
    yield Ask("two is in", ApiKey.JOIN_GROUP, 9, None, "two")
    yield committed("after it left", group, name, (0, 6, ""), generation=generation, member=member)


def fetches() -> Script:
    """OffsetFetch of every version: what was committed, what was not, of all, of several groups."""
    known = yield from topic("fetched", 2)
    yield committed("commit", "fetched-group", "fetched", (0, 5, "meta"), is_compared=False)
    yield committed("commit null", "fetched-null", "fetched", (0, 5, None), is_compared=False)
    for version in range(1, 11):
        name, other = ("fetched", "fetched-not") if version < BY_ID else (known, NOT_THERE)
        yield asked("good", "fetched-group", (name, [0]), version=version)
        yield asked("null metadata", "fetched-null", (name, [0]), version=version)
        yield asked("without an offset", "fetched-group", (name, [1]), version=version)
        yield asked("both", "fetched-group", (name, [1, 0]), version=version)
        yield asked("a partition twice", "fetched-group", (name, [0, 0]), version=version)
        yield asked("unknown partition", "fetched-group", (name, [7, -1]), version=version)
        yield asked("unknown topic", "fetched-group", (other, [0]), version=version)
        yield asked("good and unknown topic", "fetched-group", (name, [0]), (other, [0]), version=version)
        yield asked("no partition", "fetched-group", (name, []), version=version)
        yield asked("no topic", "fetched-group", version=version)
        yield asked("unknown group", "fetched-none", (name, [0]), version=version)
        yield asked("empty group", "", (name, [0]), version=version)
        yield asked("long group", LONG, (name, [0]), version=version)
        if version >= 2:
            yield asked("all", "fetched-group", everything=True, version=version)
            yield asked("all of an unknown group", "fetched-none", everything=True, version=version)
        if version >= 7:
            yield asked("stable", "fetched-group", (name, [0]), stable_only=True, version=version)
        if version >= 8:
            rows = [
                OffsetFetchRequestGroup(group, None, -1, None)
                for group in ("fetched-group", "fetched-none", "fetched-null", "")
            ]
            yield Ask("several groups", ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(groups=rows))
            yield Ask("a group twice", ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(groups=rows[:1] * 2))
            yield Ask("no group", ApiKey.OFFSET_FETCH, version, OffsetFetchRequest())
        if version >= 9:
            yield asked("as a member", "fetched-group", (name, [0]), member="m", epoch=1, version=version)
            yield asked("epoch alone", "fetched-group", (name, [0]), epoch=1, version=version)
            yield asked("empty member", "fetched-group", (name, [0]), member="", epoch=0, version=version)
            yield asked(
                "a member of an unknown group",
                "fetched-none",
                (name, [0]),
                member="m",
                epoch=1,
                version=version,
            )
    yield asked("id of zeros", "fetched-group", (UUID(int=0), [0]), version=10)
    member, generation, *_ = yield from stable("fetched-classic")
    for who, epoch in ((member, generation), (member, 9), ("nobody", generation), ("", -1)):
        yield asked(
            f"classic group {who[:6]} {epoch}", "fetched-classic", ("fetched", [0]), member=who, epoch=epoch
        )


def is_without_offset(answer: Any) -> bool:
    """Whether the first partition of an OffsetFetch has no offset."""
    return bool(answer.groups[0].topics[0].partitions[0].committed_offset == -1)


def deleted_topics() -> Script:
    """The offsets of a topic that is gone."""
    known = yield from topic("gone-soon", 1)
    yield committed("commit", "gone-group", "gone-soon", (0, 5, "meta"), is_compared=False)
    request = DeleteTopicsRequest(topics=[DeleteTopicState("gone-soon")], timeout_ms=10_000)
    yield Ask("delete the topic", ApiKey.DELETE_TOPICS, 6, request)
    yield from topic_is_gone("gone-soon")
    yield asked("by name", "gone-group", ("gone-soon", [0]), until=is_without_offset)
    yield asked("by id", "gone-group", (known, [0]), version=10)
    yield asked("all", "gone-group", everything=True)
    yield committed("commit again", "gone-group", "gone-soon", (0, 5, "meta"))
    yield committed("commit again by id", "gone-group", known, (0, 5, "meta"), version=10)


def deletes() -> Script:
    """OffsetDelete: of what is there, of what is not, of topics that members read."""
    yield from topic("deleted", 2)
    yield from topic("a")

    def removed(what: str, group: str, *rows: tuple[str, Sequence[int]]) -> Ask:
        topics = [
            OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(index) for index in indexes])
            for name, indexes in rows
        ]
        return Ask(what, ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest(group, topics))

    for group in ("deleted-group", "deleted-other"):
        yield committed("commit", group, "deleted", (0, 5, ""), (1, 5, ""), is_compared=False)
    yield removed("unknown group", "deleted-not", ("deleted", [0]))
    yield removed("empty group", "", ("deleted", [0]))
    yield removed("good", "deleted-group", ("deleted", [0]))
    yield removed("again", "deleted-group", ("deleted", [0]))
    yield removed("twice", "deleted-group", ("deleted", [1, 1]))
    yield removed("unknown partition", "deleted-other", ("deleted", [7, -1, 0]))
    yield removed("unknown topic", "deleted-other", ("deleted-not", [0]), ("deleted", [1]))
    yield removed("no partition", "deleted-other", ("deleted", []))
    yield removed("no topic", "deleted-other")
    yield asked("what is left", "deleted-other", everything=True)
    member, generation, *_ = yield from stable("deleted-members")
    for name in ("deleted", "a"):
        yield committed(
            f"commit {name}", "deleted-members", name, (0, 5, ""), generation=generation, member=member
        )
    yield removed("read by a member", "deleted-members", ("a", [0]))
    yield removed("not read by a member", "deleted-members", ("deleted", [0]))
    yield removed("both", "deleted-members", ("deleted", [0]), ("a", [0]))
    yield from stable("deleted-connect", "connect", kind="connect", protocols=(("x", b""),))
    yield removed("of no consumers", "deleted-connect", ("a", [0]))
    request = DeleteGroupsRequest(["deleted-other"])
    yield Ask("delete the group", ApiKey.DELETE_GROUPS, 2, request)
    yield asked("of the group that is gone", "deleted-other", ("deleted", [0, 1]))


def transactions() -> Script:
    """Offsets in a transaction: pending, stable only, aborted, committed; who may commit them."""
    yield from topic("in-txn", 2)
    group, name = "txn-group", "in-txn"
    begun = yield Ask(
        "begin", ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest("offsets-txn", 60_000), is_compared=False
    )
    producer, epoch = begun.producer_id, begun.producer_epoch
    yield committed("a commit before", group, name, (0, 1, "before"), is_compared=False)

    def pending(
        what: str,
        *rows: tuple[int, int],
        topic_name: str = name,
        version: int = 3,
        number: int = epoch,
        of: str = group,
        **more: Any,
    ) -> Ask:
        parts = [TxnOffsetCommitRequestPartition(index, offset) for index, offset in rows]
        request = TxnOffsetCommitRequest(
            "offsets-txn",
            of,
            producer,
            number,
            topics=[TxnOffsetCommitRequestTopic(topic_name, parts)],
            **more,
        )
        return Ask(what, ApiKey.TXN_OFFSET_COMMIT, version, request, unordered=("partitions",))

    def added(what: str, of: str, number: int = epoch) -> Ask:
        request = AddOffsetsToTxnRequest("offsets-txn", producer, number, of)
        return Ask(what, ApiKey.ADD_OFFSETS_TO_TXN, 3, request)

    def ended(what: str, is_commit: bool) -> Ask:
        request = EndTxnRequest("offsets-txn", producer, epoch, is_commit)
        return Ask(what, ApiKey.END_TXN, 3, request)

    yield added("add the group", group)
    yield added("add the empty group", "")
    yield added("add with an old epoch", group, epoch - 1)
    yield pending("good", (0, 7))
    yield pending("unknown topic", (0, 7), topic_name="in-txn-not")
    yield pending("unknown partition", (5, 7))
    yield pending("unknown member", (0, 7), member_id="nobody", generation_id=1)
    yield pending("unknown member, two", (0, 7), (5, 7), member_id="nobody", generation_id=1)
    yield pending("old epoch, two", (0, 7), (5, 7), number=epoch - 1)
    yield pending("generation alone", (0, 7), generation_id=1)
    for stable_only in (False, True):
        for version in (7, 8, 9):
            yield asked(
                f"pending {stable_only}", group, (name, [0, 1]), stable_only=stable_only, version=version
            )
            yield asked(
                f"all pending {stable_only}", group, everything=True, stable_only=stable_only, version=version
            )
    yield Ask("delete the group", ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([group]))
    yield ended("abort", False)
    yield asked(
        "aborted",
        group,
        (name, [0, 1]),
        stable_only=True,
        until=lambda row: not row.groups[0].topics[0].partitions[0].error_code,
    )
    yield added("add the group again", group)
    yield pending("good again", (0, 8), (1, 9))
    yield ended("commit", True)
    yield asked(
        "committed",
        group,
        (name, [0, 1]),
        stable_only=True,
        until=lambda row: not row.groups[0].topics[0].partitions[0].error_code,
    )


SCRIPTS = Scripts(
    once_ready(
        commits=commits,
        members_commits=members_commits,
        fetches=fetches,
        deleted_topics=deleted_topics,
        deletes=deletes,
        transactions=transactions,
    ),
    kafka=AT_ONCE,
    tailrace=AT_ONCE_TOO,
    known=(
        Known(
            "*.commits",
            "metadata of many bytes*",
            "*error_code",
            "offset.metadata.max.bytes counts bytes; Kafka counts characters",
        ),
        Known(
            "*.commits", "no partition*", "topics.*", "a topic without partitions is answered as it was named"
        ),
        Known(
            "*.commits",
            "member, generation, new group*",
            "*error_code",
            "the member joins again, whatever its client makes of GROUP_ID_NOT_FOUND",
        ),
        Known(
            "*.commits",
            "a generation, new group*",
            "*error_code",
            "the member joins again, whatever its client makes of GROUP_ID_NOT_FOUND",
        ),
        Known("*.commits", "empty group*", "*error_code", NAMELESS),
        Known("*.fetches", "empty group*", "*error_code", NAMELESS),
        Known("*.fetches", "several groups*", "groups..error_code", NAMELESS),
        Known("*.fetches", "a group twice*", "groups.fetched-group#2", ONCE),
        Known(
            "*.deletes", "no partition*", "topics.*", "a topic without partitions is answered as it was named"
        ),
        Known(
            "*.deletes",
            "delete the group*",
            "*error_code",
            "a group without members and offsets is no group; Kafka forgets it later",
        ),
        Known("*.transactions", "add the empty group*", "error_code", NAMELESS),
    ),
)
