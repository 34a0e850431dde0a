"""KIP-848: ConsumerGroupHeartbeat and ConsumerGroupDescribe, and groups with members of both protocols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tailrace.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatTopicPartitions,
)
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.list_groups import ListGroupsRequest
from tests.compat.differential.known import Known, says_why
from tests.compat.differential.scripts.classic_groups import (
    AT_ONCE,
    AT_ONCE_TOO,
    LONG,
    ONCE,
    beaten,
    described,
    joined,
    left,
    once_ready,
    stable,
    subscription,
    synced,
)
from tests.compat.differential.scripts.committed_offsets import asked, committed
from tests.compat.differential.steps import Ask, Script, Scripts, topic


def beat(
    what: str,
    group: str,
    member: str,
    epoch: int = 0,
    topics: Sequence[str] | None = None,
    *,
    owned: Sequence[tuple[UUID, Sequence[int]]] | None = None,
    rebalance_ms: int = -1,
    version: int = 1,
    until: Any = None,
    is_compared: bool = True,
    **more: Any,
) -> Ask:
    """ConsumerGroupHeartbeat."""
    rows = None
    if owned is not None:
        rows = [ConsumerGroupHeartbeatTopicPartitions(known, list(parts)) for known, parts in owned]
    request = ConsumerGroupHeartbeatRequest(
        group, member, epoch, rebalance_timeout_ms=rebalance_ms, topic_partitions=rows,
        subscribed_topic_names=None if topics is None else list(topics), **more,
    )  # fmt: skip
    return Ask(
        what, ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request, unordered=("topic_partitions", "partitions"),
        until=until, is_compared=is_compared,
    )  # fmt: skip


def join(what: str, group: str, member: str, *topics: str, **more: Any) -> Ask:
    """The first heartbeat of a member, as clients send it."""
    more = {"owned": [], "rebalance_ms": 60_000, **more}
    return beat(what, group, member, 0, topics, **more)


def has_topics(answer: Any, count: int) -> bool:
    """Whether a heartbeat was answered with partitions of so many topics."""
    return answer.assignment is not None and len(answer.assignment.topic_partitions) == count


def arrive(group: str, member: str, *topics: str, **more: Any) -> Script:
    """Join, and join again until there is something to read: Kafka's coordinator learns of a new topic a little later.
    Returns the member's epoch."""
    yield join(
        f"{member} waits for {group}'s topics",
        group,
        member,
        *topics,
        until=lambda answer: has_topics(answer, len(topics)),
        is_compared=False,
        **more,
    )
    answer = yield join(f"{member} joins", group, member, *topics, **more)
    return answer.member_epoch


def seen(what: str, *groups: str, version: int = 1, operations: bool = False, **more: Any) -> Ask:
    """ConsumerGroupDescribe."""
    request = ConsumerGroupDescribeRequest(list(groups), operations)
    unordered = ("members", "topic_partitions", "partitions", "subscribed_topic_names")
    return Ask(what, ApiKey.CONSUMER_GROUP_DESCRIBE, version, request, unordered=unordered, **more)


def bad_fields() -> Script:
    """Heartbeats that are refused for what they say."""
    known = yield from topic("k848-bad", 2)
    for version in (0, 1):
        good: dict[str, Any] = {"version": version}
        group = f"bad-{version}"
        yield from arrive(f"{group}-ready", "m", "k848-bad")
        yield join("empty group", "", "m", "k848-bad", **good)
        yield join("blank group", " ", "m", "k848-bad", **good)
        yield join("blank member", f"{group}-blank", " ", "k848-bad", **good)
        yield join("long member", f"{group}-long", "m" * 40, "k848-bad", **good)
        yield join("no rebalance time-out", group, "m", "k848-bad", rebalance_ms=-1, **good)
        yield join("rebalance time-out of 0", f"{group}-zero", "m", "k848-bad", rebalance_ms=0, **good)
        yield join("owned is null", f"{group}-null", "m", "k848-bad", owned=None, **good)
        yield join("owns something", group, "m", "k848-bad", owned=[(known, [0])], **good)
        yield beat("no subscription", group, "m", owned=[], rebalance_ms=60_000, **good)
        yield join("nothing subscribed", f"{group}-nothing", "m", **good)
        yield join("empty instance", group, "m", "k848-bad", instance_id="", **good)
        yield join("empty rack", group, "m", "k848-bad", rack_id="", **good)
        yield join("empty assignor", group, "m", "k848-bad", server_assignor="", **good)
        yield join("unknown assignor", group, "m", "k848-bad", server_assignor="none", **good)
        yield join("unknown topic", f"{group}-unknown", "m", "k848-not", **good)
        yield join("illegal topic", f"{group}-illegal", "m", "a/b", **good)
        yield join("empty topic", f"{group}-empty", "m", "", **good)
        yield join("a topic twice", f"{group}-twice", "m", "k848-bad", "k848-bad", **good)
        yield join("in a new group", group, "m", "k848-bad", **good)
        yield beat("epoch -2 without instance", group, "m", -2, **good)
        yield beat("epoch -3", group, "m", -3, **good)
        yield beat("epoch 5 of an unknown group", f"{group}-not", "m", 5, **good)
        yield beat("epoch -1 of an unknown group", f"{group}-not", "m", -1, **good)
        yield beat("epoch -2 of an unknown group", f"{group}-not", "m", -2, instance_id="i", **good)
    yield join("empty member", "bad-empty", "", "k848-bad", version=1)
    yield join("no member, version 0", "bad-v0", "", "k848-bad", version=0)
    yield join("long group", LONG, "m", "k848-bad")
    yield join("bad regex", "bad-regex", "m", subscribed_topic_regex="(")
    yield join("empty regex", "bad-regex", "m", subscribed_topic_regex="")
    yield beat(
        "regex alone", "bad-regex", "m", subscribed_topic_regex="k848-bad.*", owned=[], rebalance_ms=9_000
    )


def members() -> Script:
    """Joins, heartbeats, wrong epochs and members, joining again, a second member."""
    known = yield from topic("k848", 4)
    group = "members-848"
    epoch = yield from arrive(group, "one", "k848")
    yield seen("joined", group)
    yield beat("owns nothing yet", group, "one", epoch)
    yield beat("owns all", group, "one", epoch, owned=[(known, range(4))])
    yield seen("stable", group)
    yield beat("at its epoch", group, "one", epoch)
    full: dict[str, Any] = {"topics": ["k848"], "rebalance_ms": 60_000}
    yield beat("at its epoch, in full", group, "one", epoch, owned=[(known, range(4))], **full)
    yield beat("in full, without what it owns", group, "one", epoch, owned=[], **full)
    for more in (1, 99):
        yield beat(f"epoch + {more}", group, "one", epoch + more)
    yield beat("another member", group, "nobody", epoch)
    yield beat("empty member", group, "", epoch)
    yield beat("unknown assignor", group, "one", epoch, server_assignor="none")
    yield beat("joins again", group, "one", 0, owned=[], **full)
    yield seen("after it joined again", group)
    yield beat("goes on", group, "one", epoch, owned=[(known, range(4))])
    second = yield join("two", group, "two", "k848")
    yield described("as a classic group", group)
    told = yield beat("one must give up", group, "one", epoch, owned=[(known, range(4))])
    yield seen("one must give up", group)
    kept = [row.partitions for row in told.assignment.topic_partitions] if told.assignment else [[]]
    yield beat("two waits", group, "two", second.member_epoch, owned=[])
    yield beat("one goes on as before", group, "one", epoch, owned=[(known, range(4))])
    moved = yield beat("one gives up", group, "one", epoch, owned=[(known, kept[0])])
    yield beat("one, at the epoch before", group, "one", epoch, owned=[(known, kept[0])])
    yield beat("two gets them", group, "two", second.member_epoch, owned=[])
    yield seen("of two", group)
    yield beat("one at its epoch", group, "one", moved.member_epoch)
    yield beat("changes the assignor", group, "one", moved.member_epoch, server_assignor="range")
    yield seen("with another assignor", group)


def earlier_epochs() -> Script:
    """Heartbeats of the epoch before, before and while the member must give up partitions; it must give up more."""
    known = yield from topic("k848-late", 4)
    group, everything = "earlier-848", [(known, range(4))]
    old = yield from arrive(group, "one", "k848-late")
    more: dict[str, Any] = {"topics": ["k848-late", "k848-none"], "owned": everything, "rebalance_ms": 60_000}
    new = (yield beat("one reads more", group, "one", old, **more)).member_epoch
    yield beat("one, at the epoch before", group, "one", old, owned=everything)
    yield beat("one, at the epoch before, in full", group, "one", old, **more)
    yield beat("one, at the epoch before, without what it owns", group, "one", old)
    yield join("two", group, "two", "k848-late")
    told = yield beat("one must give up", group, "one", new, owned=everything)
    kept = [(known, row.partitions) for row in told.assignment.topic_partitions]
    yield beat("one, late", group, "one", old, owned=[])
    yield beat("one, late, of some", group, "one", old, owned=kept)
    for name in ("three", "four"):
        yield join(name, group, name, "k848-late")
    yield beat("one gives up, and must give up more", group, "one", new, owned=kept)
    yield beat("one, at the same epoch", group, "one", new)
    yield beat("one, late again", group, "one", old, owned=[])
    yield seen("one must give up more", group, ignored=("assignment", "target_assignment"))


def leaves() -> Script:
    """Epochs -1 and -2, of dynamic and of static members; who is fenced."""
    known = yield from topic("k848-leaves", 2)
    group = "leaves-848"
    epoch = yield from arrive(group, "one", "k848-leaves")
    yield beat("it leaves", group, "one", -1)
    yield beat("it leaves again", group, "one", -1)
    yield seen("empty", group)
    yield beat("it goes on", group, "one", epoch)
    yield beat("leaves for a while without an instance", group, "one", -2)
    static: dict[str, Any] = {"instance_id": "i"}
    first = yield join("static", group, "s1", "k848-leaves", **static)
    epoch = first.member_epoch
    yield beat("static goes on", group, "s1", epoch, owned=[(known, [0, 1])], **static)
    yield beat("without its instance", group, "s1", epoch)
    yield beat("of another instance", group, "s1", epoch, instance_id="j")
    yield join("the same instance, another member", group, "s2", "k848-leaves", **static)
    yield beat("another member of the instance", group, "s2", epoch, **static)
    yield beat("another leaves", group, "s2", -1, **static)
    yield beat("another leaves for a while", group, "s2", -2, **static)
    yield beat("leaves for a while", group, "s1", -2, **static)
    yield seen("one is away", group)
    yield beat("goes on while away", group, "s1", epoch, **static)
    yield join("is back as another", group, "s3", "k848-leaves", **static)
    yield join("joins while it is there", group, "s3", "k848-leaves", **static)
    yield seen("is back", group)
    yield beat("the one before", group, "s1", epoch, **static)
    yield beat("leaves for good", group, "s3", -1, **static)
    yield seen("all are gone", group)
    yield left("a stranger leaves by LeaveGroup", group, ("s3", None))
    yield join("joins to be removed", group, "s4", "k848-leaves", **static)
    yield left("is removed by its instance", group, ("", "i"))
    yield left("an unknown instance is removed", group, ("", "j"))
    yield seen("was removed", group)


def regexes() -> Script:
    """Subscriptions by pattern."""
    yield from topic("re-a", 1)
    yield from topic("re-b", 1)
    yield from arrive("regex-ready", "m", "re-a", "re-b")
    group = "regex-848"
    pattern: dict[str, Any] = {"subscribed_topic_regex": "re-[ab]"}
    yield join("pattern", group, "one", until=lambda row: has_topics(row, 2), is_compared=False, **pattern)
    yield seen("by pattern", group)
    again = yield join("by pattern, again", group, "one", subscribed_topic_regex="re-[ab]")
    yield beat("a bad pattern", group, "one", again.member_epoch, subscribed_topic_regex="[")
    yield beat("no pattern any more", group, "one", again.member_epoch, subscribed_topic_regex="")
    yield join(
        "names and a pattern", "regex-both", "one", "re-a", subscribed_topic_regex="re-b", is_compared=False
    )
    yield join("matches none", "regex-none", "one", subscribed_topic_regex="no-such-.*")
    yield seen("matches none", "regex-none")


def describes() -> Script:
    """ConsumerGroupDescribe: of what is there and what is not, of other types; what other requests say of the group."""
    yield from topic("k848-seen", 1)
    yield from arrive("seen-848", "one", "k848-seen")
    yield from stable("seen-classic")
    yield committed("a commit", "seen-offsets", "k848-seen", (0, 1, ""), is_compared=False)
    for version in (0, 1):
        for name in ("seen-848", "seen-not", "seen-classic", "seen-offsets", "", LONG):
            yield seen(f"{name[:20]!r}", name, version=version)
        yield seen("several", "seen-848", "seen-not", "seen-848", version=version)
        yield seen("none", version=version)
        yield seen("operations", "seen-848", "seen-not", version=version, operations=True)
    yield described("by DescribeGroups", "seen-848")
    yield described("by DescribeGroups", "seen-848", version=5)
    for states, kinds in ((["Stable"], []), ([], ["consumer"]), (["Assigning", "Reconciling"], [])):
        request = ListGroupsRequest(states, kinds)
        yield Ask(f"list {states} {kinds}", ApiKey.LIST_GROUPS, 5, request, unordered=("groups",))
    yield joined("a classic member of another type", "seen-848", kind="connect")
    yield beaten("a classic heartbeat", "seen-848", "one", 1)
    yield synced("a classic sync", "seen-848", "one", 1)
    yield Ask("delete it", ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(["seen-848"]))


def positions() -> Script:
    """OffsetCommit and OffsetFetch by members of a consumer group."""
    known = yield from topic("k848-offsets", 1)
    group, name = "offsets-848", "k848-offsets"
    now = yield from arrive(group, "one", name)
    for what, member, epoch in (
        ("good", "one", now),
        ("later epoch", "one", now + 1),
        ("old epoch", "one", now - 1),
        ("another member", "nobody", now),
        ("no member", "", -1),
        ("no epoch", "one", -1),
        ("empty member", "", now),
    ):
        for version in (8, 9):
            yield committed(what, group, name, (0, 3, ""), generation=epoch, member=member, version=version)
        yield committed(what, group, known, (0, 3, ""), generation=epoch, member=member, version=10)
        yield asked(what, group, (name, [0]), member=member, epoch=epoch)
        yield asked(what, group, (known, [0]), member=member, epoch=epoch, version=10)
    yield asked("no member at all", group, (name, [0]))
    yield asked("version 8", group, (name, [0]), version=8)
    yield asked("null member, an epoch", group, (name, [0]), epoch=now)


def upgrade() -> Script:
    """A classic group of one member becomes a consumer group, and a classic one again."""
    known = yield from topic("a", 2)
    yield from arrive("upgrade-ready", "m", "a")
    group = "upgrade"
    one, generation = yield from stable(group)
    yield committed("classic commit", group, "a", (0, 1, ""), generation=generation, member=one)
    yield join("a new member", group, "new", "a")
    yield seen("upgraded", group)
    yield described("upgraded", group)
    yield beaten("the classic member", group, one, generation)
    yield committed("classic commit, upgraded", group, "a", (0, 2, ""), generation=generation, member=one)
    yield synced("it syncs as before", group, one, generation)
    yield joined("it joins again", group, one)
    again = yield joined("it joins once more", group, one)
    yield synced("it syncs", group, one, again.generation_id)
    yield seen("both", group)
    yield beaten("it beats", group, one, again.generation_id)
    yield beaten("it beats at the generation before", group, one, generation)
    yield committed("it commits", group, "a", (0, 2, ""), generation=again.generation_id, member=one)
    yield beaten("the new member beats as a classic one", group, "new", again.generation_id)
    yield beat("the new member", group, "new", again.generation_id, owned=[(known, [])])
    yield joined("another type", group, kind="connect")
    yield joined("another protocol", group, protocols=(("sticky", subscription("a")),))
    yield joined("metadata that can't be read", group, protocols=(("range", b"\1"),))
    yield beat("the new member leaves", group, "new", -1)
    yield described("downgraded", group)
    yield seen("downgraded", group)
    yield beaten("the classic member hears of it", group, one, again.generation_id)
    yield joined("it joins the classic group", group, one)


def mixed() -> Script:
    """A classic member syncs before and after a member of the new protocol leaves."""
    yield from topic("a", 2)
    yield from arrive("mixed-ready", "m", "a")
    group = "mixed"
    one, generation = yield from stable(group)
    for new in ("new", "newer"):
        yield join(f"{new} joins", group, new, "a")
    yield synced("it syncs as before", group, one, generation)
    yield joined("it joins again", group, one)
    again = yield joined("it joins once more", group, one)
    yield synced("it syncs", group, one, again.generation_id, ignored=("assignment",))
    yield beat("newer leaves", group, "newer", -1)
    yield synced("it syncs with the same target", group, one, again.generation_id, ignored=("assignment",))
    yield joined("it joins the next epoch", group, one)


def not_upgradable() -> Script:
    """Classic groups that can't become consumer groups."""
    yield from topic("a", 2)
    yield from arrive("no-upgrade-ready", "m", "a")
    yield from stable("no-upgrade-connect", "connect", kind="connect", protocols=(("x", b""),))
    yield join("of another type", "no-upgrade-connect", "new", "a")
    yield from stable("no-upgrade-bytes", "bytes", protocols=(("range", b"\1"),))
    yield join("of metadata that can't be read", "no-upgrade-bytes", "new", "a")
    one, generation = yield from stable("upgrade-alone")
    yield join("of a good one", "upgrade-alone", "new", "a")
    yield beat("the classic member beats as a new one", "upgrade-alone", one, generation)
    yield committed("a commit", "no-upgrade-offsets", "a", (0, 1, ""), is_compared=False)
    yield join("of offsets alone", "no-upgrade-offsets", "new", "a")
    yield seen("of offsets alone", "no-upgrade-offsets")
    yield beat("leaves", "no-upgrade-offsets", "new", -1)
    yield joined("an empty consumer group becomes classic", "no-upgrade-offsets", version=3)
    yield described("it is classic", "no-upgrade-offsets")
    yield joined("asks for an id", "no-upgrade-pending")
    yield join("with a pending member", "no-upgrade-pending", "new", "a")


REJOINS = "a member that nobody knows joins again: clients take GROUP_ID_NOT_FOUND as the end"
LEFT = "a member that leaves is told the usual interval"
SCRIPTS = Scripts(
    once_ready(
        describes=describes,
        bad_fields=bad_fields,
        members=members,
        earlier_epochs=earlier_epochs,
        leaves=leaves,
        regexes=regexes,
        positions=positions,
        upgrade=upgrade,
        mixed=mixed,
        not_upgradable=not_upgradable,
    ),
    kafka=AT_ONCE,
    tailrace=AT_ONCE_TOO,
    known=(
        says_why("*.describes", "''*"),
        Known("*.describes", "several*", "groups.seen-848#2", ONCE),
        Known("*.bad_fields", "empty group*", "error_code", "clients know INVALID_GROUP_ID"),
        Known("*.bad_fields", "blank *", "error_code", "spaces are a name"),
        Known(
            "*.bad_fields", "owned is null*", "error_code", "a member that joins owns nothing, said or not"
        ),
        Known("*.bad_fields", "empty topic*", "error_code", "topics have names"),
        Known("*.bad_fields", "epoch * of an unknown group*", "error_code", REJOINS),
        Known(
            "*.bad_fields",
            "regex alone*",
            "assignment.*",
            "a pattern is matched at once; Kafka does so later",
        ),
        Known("*.members", "one*", "assignment", "the assignment comes with each new epoch"),
        Known(
            "*.earlier_epochs",
            "one, at the epoch before v1",
            "assignment",
            "the assignment comes with each epoch that the client does not know",
            kafka=None,
        ),
        Known("*.members", "changes the assignor*", "assignment", "another assignor assigns at once"),
        Known("*.members", "with another assignor*", "*group_state", "another assignor assigns at once"),
        Known("*", "*leaves*", "heartbeat_interval_ms", LEFT, kafka=0),
        Known("*.leaves", "one is away*", "*group_state", "a group waits for no static member that is away"),
        Known(
            "*.leaves",
            "joins while it is there*",
            "error_code",
            "a member whose answer was lost may join again under its id",
        ),
        Known("*.positions", "null member*", "groups.*.error_code", "Kafka fails at a null member"),
        Known(
            "*.upgrade", "metadata that can't*", "error_code", "metadata is read before a member gets an id"
        ),
        Known(
            "*.not_upgradable",
            "the classic member beats*",
            "error_code",
            "a client that changes its protocol is a new member",
        ),
        Known(
            "*.not_upgradable",
            "an empty consumer*",
            "generation_id",
            "generations go on from the epoch, so that no earlier member is taken for a later one",
        ),
        Known(
            "*.not_upgradable",
            "with a pending member*",
            "error_code",
            "the client asks again until the classic member has joined or its time is over",
        ),
    ),
)
