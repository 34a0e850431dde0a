"""A share group's members: joins, epochs, sessions; and that every partition has a reader and every reader one."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agent.groups import stored_share_group
from agent.groups.assignors import shared
from agent.groups.consumer_group import JOINS, LEAVES
from agent.groups.share_group import ShareGroup, ShareGroupPhase, ShareHeartbeat, ShareHeartbeatAnswer
from agent.groups.topic_names import TopicNames
from tailrace.kafka.error_codes import ErrorCode
from tailrace.turns import at_once
from tests.agent.groups.test_consumer_group import EVENTS, OTHER, topics

KNOWN = topics(events=4, other=1)


def beat(
    group: ShareGroup, member: str, epoch: int, *names: str, now: float = 0.0, known: object = None
) -> ShareHeartbeatAnswer:
    asked = ShareHeartbeat(member, epoch, topics=TopicNames(names) if names else None)
    return at_once(group.heartbeat(now, asked, KNOWN if known is None else known))  # type: ignore[arg-type]


def test_a_member_that_is_alone_reads_all_partitions() -> None:
    group = ShareGroup("g")

    answer = beat(group, "a", JOINS, "events")

    assert (answer.code, answer.epoch, answer.assigned) == (ErrorCode.NONE, 1, {EVENTS: frozenset(range(4))})
    assert (group.phase, group.assigned_epoch, group.is_dirty) == (ShareGroupPhase.STABLE, 1, True)


def test_a_heartbeat_that_changes_nothing_is_not_stored() -> None:
    group = ShareGroup("g")
    beat(group, "a", JOINS, "events")
    group.is_dirty = False

    assert beat(group, "a", 1).assigned is None
    assert not group.is_dirty


def test_members_share_partitions_without_waiting_for_each_other() -> None:
    group = ShareGroup("g")
    beat(group, "a", JOINS, "events")

    second = beat(group, "b", JOINS, "events")
    first = beat(group, "a", 1)

    assert (first.epoch, second.epoch) == (2, 2)
    assert first.assigned == {EVENTS: frozenset({0, 2})} and second.assigned == {EVENTS: frozenset({1, 3})}


def test_a_member_that_left_is_unknown_and_the_rest_get_its_partitions() -> None:
    group = ShareGroup("g")
    beat(group, "a", JOINS, "events")
    beat(group, "b", JOINS, "events")

    assert beat(group, "b", LEAVES).epoch == LEAVES
    assert beat(group, "a", 2).assigned == {EVENTS: frozenset(range(4))}
    assert beat(group, "b", 2).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_is_silent_is_removed_when_its_session_is_over() -> None:
    group = ShareGroup("g", session_seconds=45.0)
    beat(group, "a", JOINS, "events", now=0.0)
    beat(group, "b", JOINS, "events", now=30.0)

    assert group.next_deadline(30.0) == 45.0
    group.expire(45.0)

    assert list(group.members) == ["b"]


def test_a_new_partition_is_assigned_at_the_next_heartbeat() -> None:
    group = ShareGroup("g")
    beat(group, "a", JOINS, "events")

    answer = beat(group, "a", 1, known=topics(events=5))

    assert answer.epoch == 2 and answer.assigned == {EVENTS: frozenset(range(5))}


def test_an_epoch_that_was_never_given_is_fenced() -> None:
    group = ShareGroup("g")
    beat(group, "a", JOINS, "events")

    assert beat(group, "a", 2).code is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_group_that_is_full_takes_nobody() -> None:
    group = ShareGroup("g", max_size=1)
    beat(group, "a", JOINS, "events")

    assert beat(group, "b", JOINS, "events").code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert beat(group, "a", JOINS, "events").code is ErrorCode.NONE


def test_the_next_coordinator_continues_and_stores_nothing() -> None:
    group = ShareGroup("g")
    beat(group, "a", JOINS, "events")
    beat(group, "b", JOINS, "events", "other")

    after = at_once(
        stored_share_group.restored(at_once(stored_share_group.stored(group)), 100.0, 45.0, 200, 1 << 20)
    )

    answer = beat(after, "b", 2, now=100.0)
    assert (answer.code, answer.epoch, answer.assigned, after.is_dirty) == (ErrorCode.NONE, 2, None, False)
    assert {member.session_deadline for member in after.members.values()} == {145.0}
    assert beat(after, "a", 1).assigned == after.members["a"].assigned


@given(
    st.dictionaries(st.text("abc", min_size=1), st.frozensets(st.sampled_from([EVENTS, OTHER, UUID(int=9)]))),
    st.dictionaries(st.sampled_from([EVENTS, OTHER]), st.integers(1, 5)),
)
def test_every_partition_that_is_read_has_a_reader_and_every_reader_a_partition(
    readers: dict[str, frozenset[UUID]], partitions: dict[UUID, int]
) -> None:
    target = at_once(shared(readers, partitions))

    held = {
        (topic, partition)
        for each in target.values()
        for topic, numbers in each.items()
        for partition in numbers
    }
    read = frozenset[UUID]().union(*readers.values()) & partitions.keys()
    assert held == {(topic, partition) for topic in read for partition in range(partitions[topic])}
    for member, topics_read in readers.items():
        assert bool(target[member]) == bool(topics_read & partitions.keys())
        assert target[member].keys() <= topics_read
    assert all(target[each] or not topics & partitions.keys() for each, topics in readers.items())
    dealt = [len(numbers) for each in target.values() for numbers in each.values()]
    assert sum(dealt) <= sum(partitions.values()) + len(readers)


def test_members_of_different_subscriptions_share_the_topics_that_they_have_in_common() -> None:
    group = ShareGroup("g")
    beat(group, "a", JOINS, "events")
    beat(group, "b", JOINS, "events", "other")

    assert group.members["a"].assigned == {EVENTS: frozenset({0, 1, 3})}
    assert group.members["b"].assigned == {OTHER: frozenset({0}), EVENTS: frozenset({2})}
