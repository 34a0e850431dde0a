"""FindCoordinator, and the classic group protocol: members that join, sync, beat and leave, and what they may not."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.heartbeat import HeartbeatRequest
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tailrace.kafka.messages.list_groups import ListGroupsRequest
from tailrace.kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.compat.differential.known import Known, says_why
from tests.compat.differential.steps import Ask, Script, Scripts

LONG = "g" * 300
AT_ONCE = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.assignor.offload.enable": "false",
    "group.share.min.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
    "group.share.assignor.offload.enable": "false",
}
"""Kafka: the first rebalance of a new group, and every assignment, is made at once."""
AT_ONCE_TOO = {
    "TAILRACE_AGENT__GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "TAILRACE_AGENT__GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "5000",
    "TAILRACE_AGENT__GROUP_SHARE_AUTO_OFFSET_RESET": "latest",
}


def subscription(*topics: str) -> bytes:
    """What a consumer says when it joins (ConsumerProtocolSubscription, version 0)."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def assignment(**partitions: Sequence[int]) -> bytes:
    """What a consumer is assigned (ConsumerProtocolAssignment, version 0)."""
    rows = b"".join(
        struct.pack(">h", len(name))
        + name.encode()
        + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
        for name, indexes in partitions.items()
    )
    return struct.pack(">hi", 0, len(partitions)) + rows + struct.pack(">i", -1)


def joined(
    what: str,
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    protocols: Sequence[tuple[str, bytes]] = (("range", subscription("a")),),
    kind: str = "consumer",
    session_ms: int = 30_000,
    rebalance_ms: int = 30_000,
    version: int = 9,
    **more: Any,
) -> Ask:
    """JoinGroup."""
    rows = [JoinGroupRequestProtocol(name, metadata) for name, metadata in protocols]
    request = JoinGroupRequest(group, session_ms, rebalance_ms, member, instance, kind, rows)
    return Ask(what, ApiKey.JOIN_GROUP, version, request, unordered=("members",), **more)


def synced(
    what: str,
    group: str,
    member: str,
    generation: int,
    given: Sequence[tuple[str, bytes]] = (),
    *,
    instance: str | None = None,
    kind: str | None = "consumer",
    protocol: str | None = "range",
    version: int = 5,
    **more: Any,
) -> Ask:
    """SyncGroup."""
    rows = [SyncGroupRequestAssignment(name, part) for name, part in given]
    request = SyncGroupRequest(group, generation, member, instance, kind, protocol, rows)
    return Ask(what, ApiKey.SYNC_GROUP, version, request, **more)


def beaten(
    what: str,
    group: str,
    member: str,
    generation: int,
    instance: str | None = None,
    version: int = 4,
    **more: Any,
) -> Ask:
    """Heartbeat."""
    return Ask(what, ApiKey.HEARTBEAT, version, HeartbeatRequest(group, generation, member, instance), **more)


def left(what: str, group: str, *members: tuple[str, str | None], version: int = 5, **more: Any) -> Ask:
    """LeaveGroup, of (member id, instance id)."""
    rows = [MemberIdentity(member, instance) for member, instance in members]
    request = LeaveGroupRequest(group, members[0][0] if version < 3 else "", rows if version >= 3 else [])
    return Ask(what, ApiKey.LEAVE_GROUP, version, request, **more)


def described(what: str, *groups: str, version: int = 6, **more: Any) -> Ask:
    """DescribeGroups."""
    request = DescribeGroupsRequest(list(groups))
    return Ask(what, ApiKey.DESCRIBE_GROUPS, version, request, unordered=("members",), **more)


def member_of(group: str, name: str = "one", version: int = 9, **more: Any) -> Script:
    """Join a group for good, over a connection of the member's own. Returns its id, the generation and its protocol."""
    asked = yield joined(
        f"{name} asks for an id", group, connection=name, is_compared=False, version=version, **more
    )
    answer = asked
    if asked.error_code:
        answer = yield joined(
            f"{name} joins", group, asked.member_id, connection=name, version=version, **more
        )
    return answer.member_id, answer.generation_id, answer.protocol_name


def stable(group: str, name: str = "one", **more: Any) -> Script:
    """A group of one member, which has its assignment. Returns its id and the generation."""
    member, generation, protocol = yield from member_of(group, name, **more)
    given = [(member, assignment(a=[0]))]
    kind = more.get("kind", "consumer")
    yield synced(
        f"{name} syncs", group, member, generation, given, kind=kind, protocol=protocol, connection=name
    )
    return member, generation


def is_in(group: str, phase: str, members: int | None = None) -> Script:
    """Wait until the group is in a state, and has so many members."""

    def is_there(answer: Any) -> bool:
        row = answer.groups[0]
        return row.group_state == phase and members in (None, len(row.members))

    what = f"wait until {group} is {phase} of {members}"
    yield described(what, group, connection="observer", until=is_there, is_compared=False)


def received(what: str, sent: Ask) -> Ask:
    """The answer to a request that was sent before."""
    return Ask(what, sent.api, sent.version, None, sent.connection, unordered=sent.unordered)


def once_ready(**scripts: Callable[[], Script]) -> dict[str, Callable[[], Script]]:
    """The scripts, each behind a wait for the coordinators of groups and transactions: Kafka makes their topics when
    they are first looked for."""

    def ready(script: Callable[[], Script]) -> Script:
        for kind in (0, 1):
            yield Ask(
                f"wait for coordinator {kind}",
                ApiKey.FIND_COORDINATOR,
                4,
                FindCoordinatorRequest("", kind, ["ready"]),
                until=lambda answer: not answer.coordinators[0].error_code,
                is_compared=False,
            )
        yield described("wait for groups", "ready", is_compared=False)
        yield from script()

    return {name: partial(ready, script) for name, script in scripts.items()}


def find_coordinator() -> Script:
    """FindCoordinator of every version and key type; no key, several, the same twice, empty and long ones."""

    def found(what: str, version: int, kind: int, *keys: str) -> Ask:
        request = FindCoordinatorRequest(
            keys[0] if version < 4 else "", kind, list(keys) if version >= 4 else []
        )
        return Ask(what, ApiKey.FIND_COORDINATOR, version, request)

    for kind in (0, 1):
        for key in ("found", "", " ", "é", LONG, "a\0b"):
            yield found(f"type {kind}, key {key[:5]!r} {len(key)}, ready", 6, kind, key)
    for version in range(7):
        for kind in (0, 1, 2, 3, -1):
            if version > 0 or kind == 0:
                for key in ("found", "", " ", "é", LONG, "a\0b"):
                    yield found(f"type {kind}, key {key[:5]!r} {len(key)}", version, kind, key)
        if version >= 4:
            yield found("none", version, 0)
            yield found("several", version, 0, "found", "", "other")
            yield found("several transactions", version, 1, "found", "", "other")
            yield found("twice", version, 0, "found", "found")
    for key in ("g:AAAAAAAAAAAAAAAAAAAATQ:0", "g:topic:0", "g:AAAAAAAAAAAAAAAAAAAATQ", ":::", "g:a:b"):
        yield found(f"share partition {key}", 6, 2, key)


def joins() -> Script:
    """JoinGroup of every version: first joins, unknown members, empty names, time-outs out of bounds."""
    for version in range(10):
        group = f"joins-{version}"
        yield joined("unknown member", group, "nobody", version=version)
        yield joined("empty group", "", version=version)
        for session_ms in (0, -1, 5_999, 1_800_001):
            yield joined(f"session of {session_ms}", group, session_ms=session_ms, version=version)
        yield joined("no protocols", group, protocols=(), version=version)
        yield joined("empty type", group, kind="", version=version)
        yield joined("empty protocol name", group, protocols=(("", b""),), version=version)
        first = yield joined("first", f"{group}-new", version=version)
        member = first.member_id
        if first.error_code:
            first = yield joined("first, with its id", f"{group}-new", member, version=version)
        yield joined("again", f"{group}-new", member, version=version)
        yield joined("of another type", f"{group}-new", member, kind="connect", version=version)
        yield joined("new, of another type", f"{group}-new", kind="connect", version=version)
        yield joined(
            "new, with another protocol", f"{group}-new", protocols=(("sticky", b""),), version=version
        )
        yield joined(
            "with another protocol", f"{group}-new", member, protocols=(("sticky", b"x"),), version=version
        )
        if version >= 5:
            yield joined("static, unknown", group, "nobody", instance="i", version=version)
            yield joined("static", f"{group}-static", instance="i", version=version)
            yield joined(
                "static, with another id", f"{group}-static", "nobody", instance="i", version=version
            )
            yield joined("static, again", f"{group}-static", instance="i", version=version)
    yield joined("long group", LONG)
    yield joined("negative rebalance time-out", "joins-rebalance", rebalance_ms=-5, version=1)
    yield joined("no rebalance time-out", "joins-rebalance0", rebalance_ms=0, version=1)
    yield joined("long instance", "joins-long", instance="i" * 300)
    yield joined("illegal instance", "joins-illegal", instance="a/b c")
    yield joined("other type", "joins-type", kind="any type at all", protocols=(("x", b"\xff"),), version=3)
    yield joined("a protocol twice", "joins-twice", protocols=(("x", b"1"), ("x", b"2")), version=3)
    yield joined("empty instance", "joins-empty", instance="")


def generations() -> Script:
    """SyncGroup, Heartbeat and LeaveGroup of every version: of strangers, wrong generations, empty names."""
    for version in range(6):
        group = f"syncs-{version}"
        yield synced("unknown group", group, "nobody", 1, version=version)
        yield synced("empty group", "", "nobody", 1, version=version)
        member, generation, _ = yield from member_of(group)
        yield described(f"before sync {version}", group)
        beat = min(version, 4)
        yield beaten(f"before sync {version}", group, member, generation, version=beat)
        yield synced("unknown member", group, "nobody", generation, version=version)
        yield synced("empty member", group, "", generation, version=version)
        yield synced("old generation", group, member, generation - 1, version=version)
        yield synced("later generation", group, member, generation + 1, version=version)
        if version == 5:
            yield synced("another type", group, member, generation, kind="connect", version=version)
            yield synced("another protocol", group, member, generation, protocol="sticky", version=version)
            yield synced("null type", group, "nobody", generation, kind=None, version=version)
            yield synced("null protocol", group, "nobody", generation, protocol=None, version=version)
        yield synced(
            "sync",
            group,
            member,
            generation,
            [(member, assignment(a=[0])), ("nobody", b"x")],
            version=version,
        )
        yield synced("again", group, member, generation, [(member, b"ignored")], version=version)
        yield described(f"stable {version}", group)
        yield beaten(f"good {version}", group, member, generation, version=beat)
        yield beaten(f"old generation {version}", group, member, generation - 1, version=beat)
        yield beaten(f"later generation {version}", group, member, generation + 1, version=beat)
        yield beaten(f"generation -1 {version}", group, member, -1, version=beat)
        yield beaten(f"unknown member {version}", group, "nobody", generation, version=beat)
        yield beaten(f"empty member {version}", group, "", generation, version=beat)
        yield beaten(f"unknown group {version}", f"{group}-not", member, generation, version=beat)
        yield beaten(f"empty group {version}", "", member, generation, version=beat)
        yield left("unknown member", group, ("nobody", None), version=version)
        yield left("empty member", group, ("", None), version=version)
        yield left("unknown group", f"{group}-not", (member, None), version=version)
        yield left("empty group", "", (member, None), version=version)
        yield left("leaves", group, (member, None), version=version)
        yield left("leaves again", group, (member, None), version=version)
        yield beaten(f"after it left {version}", group, member, generation, version=beat)
        yield synced("after it left", group, member, generation, version=version)
        yield described(f"empty {version}", group)
    yield left("nobody", "syncs-0", version=5)
    yield left("nobody of an unknown group", "syncs-not", version=5)
    member, generation = yield from stable("leaves")
    yield left("good and bad", "leaves", (member, None), ("nobody", None), ("", "i"), (member, None))


def two_members() -> Script:
    """A second member: the rebalance, the leader's list, protocols in common, who leads next."""
    group, both = (
        "two",
        (("sticky", subscription("a", "b")), ("range", subscription("a"))),
    )
    one, generation = yield from stable(group, protocols=both)
    asked = yield joined("two asks for an id", group, connection="two", protocols=(("range", b"2"),))
    two = asked.member_id
    yield beaten("one, while two has not joined", group, one, generation)
    later = joined(
        "two joins", group, two, connection="two", protocols=(("range", b"2"),), is_answered_later=True
    )
    yield later
    yield from is_in(group, "PreparingRebalance")
    yield described("rebalancing", group)
    yield beaten("one, in a rebalance", group, one, generation)
    yield synced("one, in a rebalance", group, one, generation, protocol="sticky")
    yield beaten("one, in a rebalance, of a wrong generation", group, one, generation + 1)
    yield joined("one joins again", group, one, protocols=both, connection="one")
    yield received("two joined", later)
    generation += 1
    sync = synced("two syncs", group, two, generation, connection="two", is_answered_later=True)
    yield sync
    yield beaten("one, before its sync", group, one, generation)
    yield beaten("two, before its sync", group, two, generation)
    yield synced("one syncs", group, one, generation, [(one, b"1"), (two, b"2")], connection="one")
    yield received("two synced", sync)
    yield described("of two", group)
    yield joined("a follower asks again", group, two, connection="two", protocols=(("range", b"2"),))
    yield beaten("one goes on", group, one, generation)
    later = joined(
        "the leader joins again", group, one, protocols=both, connection="one", is_answered_later=True
    )
    yield later
    yield from is_in(group, "PreparingRebalance")
    yield beaten("two hears of it", group, two, generation)
    yield left("two leaves", group, (two, None))
    yield received("one is alone", later)
    generation += 1
    yield synced("one syncs alone", group, one, generation, [(one, b"1")], protocol="sticky")
    yield left("one leaves", group, (one, None))
    yield described("nobody is left", group)


def waiting_members() -> Script:
    """Requests that wait: a member that joins twice, that syncs twice, that leaves meanwhile."""
    group = "waiting"
    one, generation = yield from stable(group)
    asked = yield joined("two asks for an id", group, connection="two")
    two = asked.member_id
    first = joined("two joins", group, two, connection="two", is_answered_later=True)
    yield first
    yield from is_in(group, "PreparingRebalance", 2)
    second = joined(
        "two joins over another connection", group, two, connection="two too", is_answered_later=True
    )
    yield second
    yield received("its first request", first)
    yield joined("one joins again", group, one, connection="one")
    yield received("its second request", second)
    generation += 1
    yield left("two leaves before it syncs", group, (two, None))
    yield beaten("one hears of it", group, one, generation)
    asked = yield joined("three asks for an id", group, connection="three")
    three = asked.member_id
    first = joined("three joins", group, three, connection="three", is_answered_later=True)
    yield first
    yield from is_in(group, "PreparingRebalance", 2)
    yield left("three leaves while it joins", group, (three, None))
    yield received("its join", first)
    asked = yield joined("four asks for an id", group, connection="four")
    yield left("four leaves with no more than an id", group, (asked.member_id, None))
    yield joined("four joins after all", group, asked.member_id, connection="four")


def unused_ids() -> Script:
    """Clients that ask for an id and do not come back: only a later rebalance waits for them."""
    group = "unused"
    yield joined("asks for an id", group, connection="one")
    first = yield joined("another joins", group, connection="two", version=3)
    yield synced("it syncs", group, first.member_id, first.generation_id, [(first.member_id, b"1")])
    yield joined("asks for another", group, connection="one")
    yield beaten("no rebalance", group, first.member_id, first.generation_id)
    yield left("the only member leaves", group, (first.member_id, None))
    yield described("empty", group)
    request = DeleteGroupsRequest([group])
    yield Ask("delete it", ApiKey.DELETE_GROUPS, 2, request)


def static_members() -> Script:
    """Static members: taking their place again, fenced, removed by instance id."""
    group = "static"
    one, generation = yield from stable(group, instance="i1")
    yield joined("one, with its id", group, one, instance="i1")
    yield joined("an unknown id", group, "nobody", instance="i1")
    yield joined("an id without the instance", group, one)
    yield described("its state", group)
    yield synced("one syncs", group, one, generation + 1, [(one, b"1")], instance="i1")
    yield beaten("one", group, one, generation + 1, "i1")
    yield beaten("another id", group, "nobody", generation + 1, "i1")
    yield beaten("another instance", group, one, generation + 1, "i2")
    yield beaten("no instance", group, one, generation + 1)
    yield synced("another id", group, "nobody", generation + 1, instance="i1")
    yield synced("another instance", group, one, generation + 1, instance="i2")
    again = yield joined("the same instance starts again", group, instance="i1")
    yield joined("the same, version 5", "static-5", instance="i1", version=5)
    yield beaten("the old one", group, one, again.generation_id, "i1")
    yield beaten("the new one", group, again.member_id, again.generation_id, "i1")
    yield synced("the new one", group, again.member_id, again.generation_id, instance="i1")
    changed = yield joined(
        "the same instance wants something else",
        group,
        instance="i1",
        protocols=(("range", subscription("b")),),
    )
    yield synced("it syncs", group, changed.member_id, changed.generation_id, [(changed.member_id, b"2")])
    yield described("described", group)
    yield left("another id", group, ("nobody", "i1"))
    yield left("another instance", group, (changed.member_id, "i2"))
    yield left("an unknown instance", group, ("", "i2"))
    yield left("by the instance", group, ("", "i1"))
    yield left("again", group, ("", "i1"))
    yield described("gone", group)


def administration() -> Script:
    """DescribeGroups, ListGroups and DeleteGroups of every version: states, types, what is not there."""
    member, _ = yield from stable("admin-stable")
    gone, _ = yield from stable("admin-empty")
    yield left("leaves", "admin-empty", (gone, None))
    yield from member_of("admin-completing")
    for version in range(7):
        for name in ("admin-stable", "admin-empty", "admin-completing", "admin-not", "", LONG):
            yield described(f"{name[:20]!r}", name, version=version)
        yield described("several", "admin-stable", "admin-not", "admin-stable", version=version)
        yield described("none", version=version)
    for version in (3, 6):
        for name in ("admin-stable", "admin-not"):
            request = DescribeGroupsRequest([name], True)
            yield Ask(f"operations of {name}", ApiKey.DESCRIBE_GROUPS, version, request)

    def listed(what: str, version: int, *filters: list[str]) -> Ask:
        request = ListGroupsRequest(*filters)
        return Ask(what, ApiKey.LIST_GROUPS, version, request, unordered=("groups",))

    for version in range(6):
        yield listed("all", version)
    for state in (
        *("Stable", "stable", "STABLE", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance"),
        *("Assigning", "Reconciling", "", "unknown", "NoSuch"),
    ):
        for version in (4, 5):
            yield listed(f"in state {state!r}", version, [state])
        yield listed(f"in state {state!r} or Empty", 5, [state, "Empty"])
    for kind in ("classic", "Classic", "consumer", "Consumer", "share", "streams", "", "unknown", "NoSuch"):
        yield listed(f"of type {kind!r}", 5, [], [kind])
        yield listed(f"of type {kind!r} or classic", 5, [], [kind, "classic"])
    yield listed("of state and type", 5, ["Stable"], ["classic"])

    def gone_groups(what: str, version: int, *names: str) -> Ask:
        return Ask(
            what, ApiKey.DELETE_GROUPS, version, DeleteGroupsRequest(list(names)), unordered=("results",)
        )

    for version in range(3):
        yield gone_groups("not empty", version, "admin-stable")
        yield gone_groups("unknown", version, "admin-not")
        yield gone_groups("empty name", version, "")
        yield gone_groups("none", version)
        yield gone_groups("several", version, "admin-stable", "admin-not", "admin-not")
    yield gone_groups("empty", 2, "admin-empty")
    yield gone_groups("empty, again", 2, "admin-empty")
    yield described("deleted", "admin-empty")
    yield beaten("the member of the group that was not", "admin-stable", member, 1)


NAMELESS = "a group and a transactional id have a name here; Kafka serves the empty one"
ONCE = "what a request names repeatedly is answered once"
SCRIPTS = Scripts(
    once_ready(
        administration=administration,
        find_coordinator=find_coordinator,
        joins=joins,
        generations=generations,
        two_members=two_members,
        waiting_members=waiting_members,
        unused_ids=unused_ids,
        static_members=static_members,
    ),
    kafka=AT_ONCE,
    tailrace=AT_ONCE_TOO,
    known=(
        Known("classic_groups.*", "''*", "*error_code", NAMELESS, tailrace="INVALID_GROUP_ID(24)"),
        Known("classic_groups.*", "empty name*", "*error_code", NAMELESS),
        Known("classic_groups.*", "several*", "groups.admin-stable#2", ONCE),
        says_why("*.find_coordinator", "type 2*"),
        says_why("*.find_coordinator", "share partition*"),
        Known("*.find_coordinator", "type ?, key '' 0*", "*error_code", NAMELESS),
        Known("*.find_coordinator", "several*", "coordinators.1.error_code", NAMELESS),
        Known("*.find_coordinator", "twice*", "coordinators.1", ONCE),
        Known(
            "*.find_coordinator",
            "share partition g:A*:0*",
            "*error_code",
            "the sequencer keeps the state of share partitions, no broker",
        ),
        Known(
            "*.joins",
            "with another protocol*",
            "error_code",
            "a member may change its protocols if the others know one of the new ones",
        ),
        Known(
            "*.joins", "a protocol twice*", "", "Kafka counts a protocol twice and never completes the join"
        ),
        Known("*.joins", "empty instance*", "error_code", "an instance id has a name"),
        Known(
            "*.waiting_members",
            "its first request*",
            "",
            "the request that a later one replaces is answered; Kafka forgets it",
        ),
        Known("*.waiting_members", "its join*", "member_id", "the answer names the member that left"),
        Known(
            "*.static_members",
            "the same instance wants*",
            "*",
            "a leader whose subscription changed starts a rebalance at once; Kafka leaves that to the client",
        ),
        Known("*.static_members", "it syncs*", "assignment", "as the rebalance before it"),
        Known("*.static_members", "described*", "*member_assignment", "as the rebalance before it"),
    ),
)
