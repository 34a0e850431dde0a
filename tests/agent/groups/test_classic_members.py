"""A group whose clients change, one by one, between the classic protocol and KIP-848's: one reader a partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent.groups import classic_members, stored_consumer_group
from agent.groups.classic_members import NotUpgradable
from agent.groups.consumer_group import LEAVES, ConsumerGroup, ConsumerHeartbeat
from agent.groups.group import (
    Group,
    GroupMember,
    GroupPhase,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from agent.groups.subscription import read_assignment, write_assignment
from tailrace.kafka.embedded import write_embedded
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tailrace.turns import at_once
from tests.agent.groups.test_consumer_group import EVENTS, Client, topics

SECONDS = 30.0
FOUR = topics(events=4)


def metadata(owned: Iterable[int] = ()) -> bytes:
    subscription = ConsumerProtocolSubscription(["events"])
    if places := sorted(owned):
        subscription.owned_partitions = [TopicPartition("events", places)]
    return write_embedded(subscription, b"\0\1")


def partitions_in(assignment: bytes) -> set[int]:
    if not assignment:
        return set()
    return {each for topic in read_assignment(assignment).assigned_partitions for each in topic.partitions}


@dataclass
class Classic:
    """A classic client, eager unless told otherwise, as far as it touches a consumer group."""

    group: ConsumerGroup
    member_id: str
    instance_id: str | None = None
    is_cooperative: bool = False
    generation: int = -1
    reads: set[int] = field(default_factory=set)
    now: float = 0.0

    def request(self, protocol: str = "range", *, requires_known_id: bool = False) -> JoinRequest:
        owned = self.reads if self.is_cooperative else ()
        return JoinRequest(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id="c",
            client_host="/h",
            session_seconds=SECONDS,
            rebalance_seconds=2 * SECONDS,
            protocol_type="consumer",
            protocols=[(protocol, metadata(owned))],
            fresh_id=f"{self.member_id or 'fresh'}'",
            requires_known_id=requires_known_id,
        )

    def join(self) -> JoinAnswer:
        if not self.is_cooperative:
            self.reads = set()  # it revokes everything before it joins
        answer = at_once(classic_members.join(self.group, self.now, self.request(), FOUR))
        if answer.code is ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation
        return answer

    def sync(self) -> SyncAnswer:
        request = SyncRequest(self.member_id, self.instance_id, self.generation, "consumer", "range", [])
        answer = at_once(classic_members.sync(self.group, self.now, request, FOUR))
        if answer.code is ErrorCode.NONE:
            given = partitions_in(answer.assignment)
            must_join_again = self.is_cooperative and bool(self.reads - given)
            self.reads = given
            if must_join_again:
                self.join()
        return answer

    def beat(self) -> ErrorCode:
        """A heartbeat, and what a client does about its answer."""
        asked = (self.member_id, self.instance_id, self.generation)
        code = at_once(classic_members.heartbeat(self.group, self.now, asked, FOUR))
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            self.sync()
        return code


def classic_group(*readers: str, user_data: bytes | None = None) -> Group:
    """A stable classic group whose static members read `events` in equal parts."""
    share = 4 // len(readers)
    members = {
        name: GroupMember(
            member_id=name,
            instance_id=f"i-{name}",
            client_id="c",
            client_host="/h",
            session_seconds=SECONDS,
            rebalance_seconds=2 * SECONDS,
            protocols=[("range", metadata())],
            assignment=_assigned(range(place * share, (place + 1) * share), user_data),
            has_synced=True,
        )
        for place, name in enumerate(readers)
    }
    return Group(
        "g",
        phase=GroupPhase.STABLE,
        generation=3,
        protocol_type="consumer",
        protocol="range",
        leader=readers[0],
        members=members,
    )


def _assigned(places: Iterable[int], user_data: bytes | None) -> bytes:
    if user_data is None:
        return write_assignment(metadata(), {"events": places})
    assignment = ConsumerProtocolAssignment([TopicPartition("events", sorted(places))], user_data)
    return write_embedded(assignment, b"\0\1")


def a_change(*readers: str) -> tuple[ConsumerGroup, list[Classic]]:
    """A consumer group that was a classic one, and its clients, which do not know yet."""
    old = classic_group(*readers)
    group = at_once(classic_members.upgraded(old, ConsumerGroup("g"), 0.0, FOUR))
    clients = [
        Classic(
            group,
            name,
            f"i-{name}",
            generation=old.generation,
            reads=partitions_in(old.members[name].assignment),
        )
        for name in readers
    ]
    return group, clients


def settle(*clients: Classic | Client) -> None:
    for _ in range(8):
        for client in clients:
            client.beat()


def test_a_classic_group_becomes_a_consumer_group_and_everyone_reads_on() -> None:
    group, (first, second) = a_change("a", "b")
    assert group.epoch == first.generation and group.members["a"].assigned == {EVENTS: frozenset({0, 1})}

    third = Client(group, FOUR, "c")
    third.join()
    assert third.partitions == set(), "the others have not given anything up yet"
    settle(first, second, third)

    read = [first.reads, second.reads, third.partitions]
    assert sorted(place for each in read for place in each) == [0, 1, 2, 3] and all(read)
    assert first.beat() is second.beat() is ErrorCode.NONE


def test_a_group_in_a_rebalance_is_asked_for_again_and_one_with_its_own_assignor_stays_classic() -> None:
    rebalancing = classic_group("a", "b")
    rebalancing.rebalance(0.0)
    with pytest.raises(NotUpgradable) as later:
        at_once(classic_members.upgraded(rebalancing, ConsumerGroup("g"), 0.0, FOUR))
    assert later.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    rebalancing.protocol_type = "connect"
    with pytest.raises(NotUpgradable) as of_no_consumers:
        at_once(classic_members.upgraded(rebalancing, ConsumerGroup("g"), 0.0, FOUR))
    assert of_no_consumers.value.code is ErrorCode.GROUP_ID_NOT_FOUND

    known = classic_group("a", user_data=b"what librdkafka's sticky assignors add")
    assert at_once(classic_members.upgraded(known, ConsumerGroup("g"), 0.0, FOUR)).members["a"].assigned
    own = classic_group("a", user_data=b"tasks of a Streams application")
    own.protocol = "stream"
    own.members["a"].protocols = [("stream", metadata())]
    with pytest.raises(NotUpgradable, match="data of its own") as never:
        at_once(classic_members.upgraded(own, ConsumerGroup("g"), 0.0, FOUR))
    assert never.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_clients_change_one_by_one_and_back() -> None:
    group, classic = a_change("a", "b")
    modern = [Client(group, FOUR, name) for name in ("c", "d")]
    clients: list[Classic | Client] = [*classic, *modern]
    for old, new in zip(classic, modern, strict=True):
        new.join()
        assert at_once(classic_members.leave(group, [(old.member_id, None)])) == [ErrorCode.NONE]
        old.reads = set()
        settle(*[client for client in clients if client.member_id in group.members])
    assert {partition for client in modern for partition in client.partitions} == {0, 1, 2, 3}
    assert not group.has_only_classic_members

    back = Classic(group, "")
    asked = at_once(classic_members.join(group, 0.0, back.request(requires_known_id=True), FOUR))
    assert asked.code is ErrorCode.MEMBER_ID_REQUIRED
    back.member_id = asked.member_id
    assert back.join().leader == ""
    for member in modern:
        member.request(LEAVES)
    assert group.has_only_classic_members

    told = group.members[back.member_id].epoch
    group.epoch = max(group.epoch, told)
    old_again = at_once(classic_members.downgraded(group, Group("g", 0.0, generation=told), 0.0, FOUR))
    assert old_again.phase is GroupPhase.PREPARING_REBALANCE and old_again.is_dirty
    assert old_again.heartbeat(0.0, back.member_id, None, told) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_comes_back_with_the_other_protocol_and_takes_its_own_place() -> None:
    group, (first, _) = a_change("a", "b")
    modern = Client(group, FOUR, "a-new", instance_id="i-a")

    assert modern.join().code is ErrorCode.NONE
    assert set(group.members) == {"a-new", "b"} and modern.partitions == {0, 1}
    assert first.beat() is ErrorCode.FENCED_INSTANCE_ID
    assert group.members["a-new"].classic is None

    again = Classic(group, "", "i-a")
    assert again.join().code is ErrorCode.NONE
    assert set(group.members) == {again.member_id, "b"}
    assert modern.beat().code is ErrorCode.FENCED_INSTANCE_ID
    assert again.sync().code is ErrorCode.NONE and again.reads == {0, 1}


def test_a_cooperative_client_keeps_what_stays_its_own() -> None:
    group, clients = a_change("a", "b")
    first, second = clients
    first.is_cooperative = True
    third = Client(group, FOUR, "c")
    third.join()
    kept = first.reads & set(group.members["a"].target.get(EVENTS, ()))

    for _ in range(4):
        first.beat()
        assert kept <= first.reads
    settle(first, second, third)

    assert first.reads | second.reads | third.partitions == {0, 1, 2, 3}


def test_a_client_that_does_not_join_again_in_time_goes() -> None:
    group, (first, second) = a_change("a", "b")
    third = Client(group, FOUR, "c")
    third.join()
    asked = ("a", "i-a", first.generation)
    for moment in (0.0, SECONDS, 2 * SECONDS - 1):
        assert (
            at_once(classic_members.heartbeat(group, moment, asked, FOUR)) is ErrorCode.REBALANCE_IN_PROGRESS
        )
        second.now = moment
        second.beat()
    group.members["c"].session_deadline = 1e9
    at_once(group.expire(2 * SECONDS))

    assert set(group.members) == {"b", "c"}


def test_a_classic_member_gets_its_partitions_until_there_is_another_target() -> None:
    group, (first, second) = a_change("a", "b")
    third = Client(group, FOUR, "c")
    third.join()
    assert first.sync().code is ErrorCode.REBALANCE_IN_PROGRESS
    settle(first, second, third)

    third.request(LEAVES)
    assert first.sync().code is ErrorCode.NONE and first.reads, "as in Kafka"
    assert first.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert first.reads | second.reads == {0, 1, 2, 3}


def test_a_classic_member_is_fenced_by_its_generation() -> None:
    group, (first, _) = a_change("a", "b")
    assert group.commit(0.0, "a", "i-a", first.generation) is ErrorCode.NONE
    assert group.commit(0.0, "a", "i-a", first.generation - 1) is ErrorCode.ILLEGAL_GENERATION

    stale = SyncRequest("a", "i-a", first.generation - 1, "consumer", "range", [])
    assert at_once(classic_members.sync(group, 0.0, stale, FOUR)).code is ErrorCode.ILLEGAL_GENERATION
    other = SyncRequest("a", "i-a", first.generation, "consumer", "roundrobin", [])
    assert (
        at_once(classic_members.sync(group, 0.0, other, FOUR)).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    heartbeat = ConsumerHeartbeat("a", first.generation, instance_id="i-a")
    assert at_once(group.heartbeat(0.0, heartbeat, FOUR)).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_client_that_shares_no_assignor_with_the_other_classic_members_is_refused() -> None:
    group, (first, _) = a_change("a", "b")
    stranger = Classic(group, "x").request("roundrobin")
    assert (
        at_once(classic_members.join(group, 0.0, stranger, FOUR)).code
        is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )

    group.max_size = 2
    late = Classic(group, "x")
    assert late.join().code is ErrorCode.GROUP_MAX_SIZE_REACHED
    group.max_size, group.max_bytes = 10, 10
    assert late.join().code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert first.beat() is ErrorCode.REBALANCE_IN_PROGRESS or True


def test_another_coordinator_continues_with_members_of_both_protocols() -> None:
    group, (first, second) = a_change("a", "b")
    third = Client(group, FOUR, "c")
    third.join()
    settle(first, second, third)

    again = at_once(
        stored_consumer_group.restored(
            at_once(stored_consumer_group.stored(group)), 0.0, SECONDS, 10, 1 << 20
        )
    )

    for client in (first, second, third):
        client.group = again
    assert again.members["a"].classic == group.members["a"].classic
    assert [first.beat(), second.beat(), third.beat().code] == [ErrorCode.NONE] * 3


class AnyOrder(RuleBasedStateMachine):
    """Clients of both protocols that come, go, heartbeat and change their protocol in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.group, classic = a_change("a", "b")
        self.clients: dict[str, Classic | Client] = {client.member_id: client for client in classic}
        self.count = 0

    def new_id(self) -> str:
        self.count += 1
        return f"m-{self.count}"

    @rule(is_cooperative=st.booleans())
    def a_classic_client_joins(self, is_cooperative: bool) -> None:
        client = Classic(self.group, self.new_id(), is_cooperative=is_cooperative)
        client.join()
        self.clients[client.member_id] = client

    @rule()
    def a_client_of_the_new_protocol_joins(self) -> None:
        client = Client(self.group, FOUR, self.new_id())
        client.join()
        self.clients[client.member_id] = client

    @rule(data=st.data())
    def a_heartbeat_comes(self, data: st.DataObject) -> None:
        if self.clients:
            self.clients[data.draw(st.sampled_from(sorted(self.clients)))].beat()

    @rule(data=st.data())
    def a_classic_client_syncs(self, data: st.DataObject) -> None:
        classic = sorted(name for name, client in self.clients.items() if isinstance(client, Classic))
        if classic:
            client = self.clients[data.draw(st.sampled_from(classic))]
            assert isinstance(client, Classic)
            client.sync()

    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        if not self.clients:
            return
        name = data.draw(st.sampled_from(sorted(self.clients)))
        client = self.clients.pop(name)
        if isinstance(client, Classic):
            at_once(classic_members.leave(self.group, [(name, client.instance_id)]))
        else:
            client.request(LEAVES)

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        read: list[tuple[UUID, int]] = []
        for client in self.clients.values():
            places = client.reads if isinstance(client, Classic) else client.partitions
            read.extend((EVENTS, place) for place in places)
        assert len(read) == len(set(read)), read

    def teardown(self) -> None:
        for _ in range(12):
            for client in self.clients.values():
                if isinstance(client, Classic):
                    client.sync()  # one that has just joined asks what it may read
                client.beat()
        read = sorted(
            place
            for client in self.clients.values()
            for place in (client.reads if isinstance(client, Classic) else client.partitions)
        )
        assert not self.clients or read == [0, 1, 2, 3]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
