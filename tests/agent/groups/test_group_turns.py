"""Every turn of the loop is short, for any number of members and partitions of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from agent.catalog import KnownTopic
from agent.groups import classic_members, stored_consumer_group, stored_share_group
from agent.groups.consumer_group import (
    JOINS,
    LEAVES,
    LEAVES_FOR_NOW,
    ClassicClient,
    Consumer,
    ConsumerAnswer,
    ConsumerGroup,
    ConsumerHeartbeat,
    Subscription,
)
from agent.groups.coordinator import ASSIGNED_IN_A_TURN
from agent.groups.group import Group, GroupMember, GroupPhase, JoinRequest, SyncRequest
from agent.groups.share_group import ShareGroup, ShareHeartbeat, ShareMember
from agent.groups.subscription import write_assignment
from agent.groups.topic_names import TopicNames
from agent.handlers import consumer_groups, share_groups
from agent.handlers.described_groups import of_kind
from sequencer.api.topics import Topic
from sequencer.settings import SequencerSettings
from tailrace.configs.topic_config import topic_settings
from tailrace.kafka import ApiKey
from tailrace.kafka.embedded import write_embedded
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tailrace.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolSubscription, TopicPartition
from tailrace.turns import Steps, Turns, at_once, in_turns
from tests.support.agents import agent_bench
from tests.support.short_turns import HELD_SECONDS, asked_together
from tests.support.turns import least_of_three, measured_turns

LONG_LEASE = SequencerSettings(agent_lease_ms=86_400_000, agent_silence_ms=86_400_000)
SHAPES = [(19, 10_000), (9_500, 20)]
"""Topics, and partitions of each: as many as one member can name in a request."""


def topics_of(count: int, partitions: int) -> dict[str, KnownTopic]:
    settings = topic_settings({})
    return {
        f"t{number}": KnownTopic(Topic(UUID(int=number + 1), f"t{number}", partitions, {}, 0), settings)
        for number in range(count)
    }


def heartbeat(group: ConsumerGroup, member_id: str, epoch: int, **said: Any) -> Steps[ConsumerAnswer]:
    """A heartbeat that is complete: the client may not know the coordinator's state."""
    topics = said.pop("topics", group._known)
    asked = ConsumerHeartbeat(
        member_id, epoch, **{"rebalance_seconds": 60.0, "pattern": "t.*", "owned": {}, **said}
    )
    return group.heartbeat(0.0, asked, topics)


def holding_everything(count: int, partitions: int) -> ConsumerGroup:
    """A group whose member `a`, which is static, holds all partitions, and whose member `b` waits for its half."""
    group, topics = ConsumerGroup("g"), topics_of(count, partitions)
    for member_id, instance_id in (("a", "i"), ("b", None)):
        joining = heartbeat(group, member_id, JOINS, instance_id=instance_id, topics=topics)
        assert at_once(joining).code is ErrorCode.NONE
    held = sum(map(len, group.members["a"].assigned.values()))
    assert held == count * partitions and not group.members["b"].assigned
    return group


async def turns_of(steps: Callable[[], Steps[Any]]) -> Any:
    """Do the work as the coordinator does. Raises HeldTooLong if one of its turns was long."""

    async def done() -> Any:
        return await in_turns(steps(), Turns(ASSIGNED_IN_A_TURN))

    with measured_turns() as turns:
        result = await asyncio.create_task(done())
    turns.check(HELD_SECONDS)
    return result


@pytest.mark.parametrize("shape", SHAPES)
@least_of_three
async def test_a_member_that_held_all_partitions_leaves_in_short_turns(shape: tuple[int, int]) -> None:
    group = holding_everything(*shape)

    answer = await turns_of(lambda: heartbeat(group, "a", LEAVES, instance_id="i"))

    assert answer.code is ErrorCode.NONE and list(group.members) == ["b"]
    at_once(heartbeat(group, "b", group.members["b"].epoch))
    assert sum(map(len, group.members["b"].assigned.values())) == shape[0] * shape[1]


@pytest.mark.parametrize("shape", SHAPES)
@least_of_three
async def test_a_static_member_comes_back_under_another_id_in_short_turns(shape: tuple[int, int]) -> None:
    group = holding_everything(*shape)
    at_once(heartbeat(group, "a", LEAVES_FOR_NOW, instance_id="i"))

    answer = await turns_of(lambda: heartbeat(group, "a-2", JOINS, instance_id="i"))

    assert answer.code is ErrorCode.NONE and list(group.members) == ["a-2", "b"]
    half = shape[0] * shape[1] // 2
    assert sum(map(len, group.members["a-2"].assigned.values())) == half


@pytest.mark.parametrize("shape", SHAPES)
@least_of_three
async def test_members_that_held_all_partitions_expire_in_short_turns(shape: tuple[int, int]) -> None:
    group = holding_everything(*shape)

    await turns_of(lambda: group.expire(group.session_seconds))

    assert not group.members and not group._holders


@pytest.mark.parametrize("shape", SHAPES)
@least_of_three
async def test_classic_members_that_wait_for_all_partitions_are_answered_in_short_turns(
    shape: tuple[int, int],
) -> None:
    group = holding_everything(*shape)
    first, waiting = group.members["a"], group.members["b"]
    at_once(heartbeat(group, "a", first.epoch, instance_id="i", pattern="none", owned=first.assigned))
    at_once(heartbeat(group, "b", waiting.epoch))
    assert sum(map(len, waiting.target.values())) == shape[0] * shape[1] and not waiting.assigned
    waiting.classic = ClassicClient(45.0, (("range", b""),))
    topics = group._known or {}

    asked = ("b", None, waiting.epoch)
    code = await turns_of(lambda: classic_members.heartbeat(group, 0.0, asked, topics))

    assert code is ErrorCode.NONE, "nothing that it waits for is free"
    assert await turns_of(lambda: classic_members.leave(group, [("b", None)])) == [ErrorCode.NONE]


@pytest.mark.parametrize("shape", SHAPES)
@least_of_three
async def test_a_group_that_holds_all_partitions_is_stored_and_restored_in_short_turns(
    shape: tuple[int, int],
) -> None:
    group = holding_everything(*shape)

    row = await turns_of(lambda: stored_consumer_group.stored(group))
    restored = await turns_of(lambda: stored_consumer_group.restored(row, 0.0, 45.0, 10, 1 << 20))

    assert {name: each.assigned for name, each in restored.members.items()} == {
        name: each.assigned for name, each in group.members.items()
    }
    assert len(restored._holders) == shape[0] * shape[1]


@pytest.mark.parametrize("shape", SHAPES)
@least_of_three
async def test_a_group_changes_its_protocol_in_short_turns(shape: tuple[int, int]) -> None:
    topics = topics_of(*shape)
    subscription = ConsumerProtocolSubscription(sorted(topics))
    everything = [TopicPartition(name, list(range(shape[1]))) for name in topics]
    owning = ConsumerProtocolSubscription(sorted(topics), None, everything)
    classic = Group(
        "g", 0.0, phase=GroupPhase.STABLE, generation=1, protocol_type="consumer", protocol="range"
    )
    assignment = write_assignment(b"\0\1", {name: range(shape[1]) for name in topics})

    def joining(metadata: ConsumerProtocolSubscription) -> JoinRequest:
        protocols = [("range", write_embedded(metadata, b"\0\1"))]
        return JoinRequest("a", None, "c", "/h", 45.0, 60.0, "consumer", protocols, "", False)

    classic.add(GroupMember("a", None, "c", "/h", 45.0, 60.0, joining(subscription).protocols, assignment))

    group = await turns_of(lambda: classic_members.upgraded(classic, ConsumerGroup("g"), 0.0, topics))

    at_once(heartbeat(group, "b", JOINS, topics=topics))
    await turns_of(lambda: classic_members.join(group, 0.0, joining(owning), topics))
    at_once(heartbeat(group, "b", LEAVES))
    joined = await turns_of(lambda: classic_members.join(group, 0.0, joining(subscription), topics))
    syncing = SyncRequest("a", None, joined.generation, "consumer", "range", [])
    synced = await turns_of(lambda: classic_members.sync(group, 0.0, syncing, topics))
    assert len(synced.assignment) > 4 * shape[0] * shape[1]
    again = await turns_of(
        lambda: classic_members.downgraded(group, Group("g", 0.0, generation=9), 0.0, topics)
    )
    assert again.members["a"].assignment == synced.assignment


def of_many_members(
    subscription_of: Callable[[int], Subscription], topics: dict[str, KnownTopic]
) -> ConsumerGroup:
    """A group of as many members as are allowed but one, which all have their partitions."""
    group = ConsumerGroup("g")
    for number in range(group.max_size - 1):
        member = Consumer(f"m{number}", None)
        member.subscription = subscription_of(number)
        group.add(member)
    at_once(group.retarget(topics, is_changed=True))
    for member in group.members.values():
        at_once(group.advance(0.0, member, {}))
    return group


@least_of_three
async def test_10_000_members_of_which_each_reads_50_topics_are_served_in_short_turns() -> None:
    topics = topics_of(500, 2)
    by_id = {known.topic.topic_id: known for known in topics.values()}

    def subscription_of(number: int) -> Subscription:
        return Subscription(TopicNames(f"t{(number * 7 + each) % 500}" for each in range(50)))

    group = of_many_members(subscription_of, topics)

    joined = await turns_of(lambda: heartbeat(group, "last", JOINS, topics=topics, pattern="t9"))
    row = await turns_of(lambda: stored_consumer_group.stored(group))
    await turns_of(lambda: stored_consumer_group.restored(row, 0.0, 45.0, 10, 1 << 20))
    described = await turns_of(lambda: consumer_groups._description(group, by_id))
    subscribed = await turns_of(lambda: group.subscribed_topics(topics))

    assert joined.code is ErrorCode.NONE and subscribed == topics.keys()
    places = [each for member in described.members for each in member.target_assignment.topic_partitions]
    assert sum(len(each.partitions) for each in places) == 1_000
    await turns_of(lambda: group.expire(group.session_seconds))
    assert not group.members


@least_of_three
async def test_the_topics_of_10_000_members_with_patterns_are_found_in_short_turns() -> None:
    topics = topics_of(2_000, 1)
    group = of_many_members(lambda number: Subscription(pattern=f"t.{{1,{4 + number % 2}}}"), topics)

    assert await turns_of(lambda: group.subscribed_topics(topics)) == topics.keys()


@least_of_three
async def test_instances_that_a_classic_group_does_not_know_leave_it_in_a_short_turn() -> None:
    group = Group("g", 0.0)
    for number in range(group.max_size):
        name = f"m{number}"
        group.add(GroupMember(name, f"i{number}", "c", "/h", 45.0, 60.0, [("range", b"")]))
    leaving: list[tuple[str, str | None]] = [("", f"stranger-{number}") for number in range(group.max_size)]

    def leave() -> Steps[list[ErrorCode]]:
        yield 1
        return group.leave(0.0, leaving)

    assert set(await turns_of(leave)) == {ErrorCode.UNKNOWN_MEMBER_ID}
    leaving = [("", f"i{number}") for number in range(group.max_size)]
    assert set(await turns_of(leave)) == {ErrorCode.NONE}
    assert not group.members and group.leader is None


@pytest.mark.parametrize("differs", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@least_of_three
async def test_members_share_all_partitions_in_short_turns(shape: tuple[int, int], differs: bool) -> None:
    group, topics = ShareGroup("g"), topics_of(*shape)
    by_id = {known.topic.topic_id: known for known in topics.values()}
    count = min(group.max_size, group.max_bytes // sum(map(len, topics)))
    for number in range(count - 1):
        without = f"t{number % shape[0]}" if differs else ""
        name = f"m{number}"
        group.members[name] = ShareMember(name, topics=TopicNames(topics.keys() - {without}))

    joining = ShareHeartbeat("last", JOINS, topics=TopicNames(topics))
    joined = await turns_of(lambda: group.heartbeat(0.0, joining, topics))
    assert joined.code is ErrorCode.NONE

    row = await turns_of(lambda: stored_share_group.stored(group))
    restored = await turns_of(lambda: stored_share_group.restored(row, 0.0, 45.0, 200, 4 << 20))
    described = await turns_of(lambda: share_groups._description(group, by_id))
    loads = [sum(map(len, member.assigned.values())) for member in restored.members.values()]
    assert sum(loads) == shape[0] * shape[1] and max(loads) <= sum(loads) // count + 100
    assert len(described.members) == count


@least_of_three
async def test_members_that_name_very_many_topics_are_read_in_short_turns() -> None:
    topics = [f"{number:x}" for number in range(190_000)]
    before, now = (
        write_embedded(ConsumerProtocolSubscription(names), b"\0\1") for names in (topics, topics[::-1])
    )
    group = Group("g", 0.0, phase=GroupPhase.STABLE, protocol_type="consumer", protocol="range", generation=1)
    group.add(GroupMember("a", "i", "c", "/h", 45.0, 60.0, [("range", before)]))
    joining = JoinRequest("", "i", "c", "/h", 45.0, 60.0, "consumer", [("range", now)], "a-2", False)

    await turns_of(lambda: group.join(0.0, 1, joining))

    assert group.phase is GroupPhase.STABLE and list(group.members) == ["a-2"]
    assert len(await turns_of(group.subscribed_topics)) == len(topics)
    mixed = ConsumerGroup("g")
    joined = await turns_of(lambda: classic_members.join(mixed, 0.0, joining, {}))
    assert joined.code is ErrorCode.NONE


@least_of_three
async def test_members_of_the_new_protocols_that_name_very_many_topics_are_served_in_short_turns() -> None:
    names = [f"{number:x}" for number in range(190_000)]

    async with agent_bench(LONG_LEASE, auto_create_topics=False) as bench:
        for epoch, named in ((JOINS, names), (1, names[::-1]), (1, names[1:])):
            joining = ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id="a",
                member_epoch=epoch,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=named,
                topic_partitions=[],
            )
            (joined,) = await asked_together(bench, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, [joining])
            assert joined.error_code == 0, joined.error_message
        describing = ConsumerGroupDescribeRequest(group_ids=["g"])
        (described,) = await asked_together(bench, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, [describing])
        assert described.groups[0].members[0].subscribed_topic_names == sorted(names[1:])
        group = await bench.services.groups.look("g", lambda held: of_kind(held, ConsumerGroup, "consumer"))
        row = await turns_of(lambda: stored_consumer_group.stored(group))
        restored = await turns_of(lambda: stored_consumer_group.restored(row, 0.0, 45.0, 10, 4 << 20))
        assert restored.members["a"].subscription == group.members["a"].subscription
        assert restored.members["a"].kept_bytes == group.members["a"].kept_bytes
