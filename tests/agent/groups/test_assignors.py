"""The server's assignors: each partition goes to one subscribed member; balanced; and with few moves."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agent.groups.assignors import ASSIGNORS, Assignment, Assignor, Subscriber, range_, uniform, united
from tailrace.turns import at_once

A, B = UUID(int=1), UUID(int=2)


def sizes(target: dict[str, Assignment]) -> list[int]:
    return sorted(sum(map(len, assignment.values())) for assignment in target.values())


def reading(*topics: UUID, current: Assignment | None = None) -> Subscriber:
    return Subscriber(frozenset(topics), None, current or {})


def assigned(
    assignor: Assignor, members: dict[str, Subscriber], partitions: dict[UUID, int]
) -> dict[str, Assignment]:
    return at_once(assignor(members, partitions))


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, Subscriber], dict[UUID, int]]:
    topics = [UUID(int=number) for number in range(1, 5)]
    partitions = {topic: draw(st.integers(1, 7)) for topic in topics}
    anything = st.dictionaries(
        st.sampled_from([*topics, UUID(int=99)]), st.frozensets(st.integers(0, 9)), max_size=3
    )
    members = {
        f"m-{number}": Subscriber(draw(st.frozensets(st.sampled_from(topics))), None, draw(anything))
        for number in range(draw(st.integers(1, 6)))
    }
    return members, partitions


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_goes_to_one_of_its_readers(
    group: tuple[dict[str, Subscriber], dict[UUID, int]], name: str
) -> None:
    members, partitions = group

    target = assigned(ASSIGNORS[name], members, partitions)

    assert target.keys() == members.keys()
    given_out = [
        (topic, partition)
        for member_id, assignment in target.items()
        for topic, of_topic in assignment.items()
        for partition in of_topic
        if topic in members[member_id].topics
    ]
    read = {topic for member in members.values() for topic in member.topics}
    assert sorted(given_out) == sorted((topic, n) for topic in read for n in range(partitions[topic]))
    assert sum(sizes(target)) == len(given_out), "and nobody gets what it doesn't read"


@given(st.integers(1, 9), st.integers(1, 40))
def test_members_that_read_the_same_have_equal_shares_but_for_one(members: int, partitions: int) -> None:
    target = assigned(uniform, {f"m-{n}": reading(A, B) for n in range(members)}, {A: partitions, B: 3})

    assert sizes(target)[-1] - sizes(target)[0] <= 1


@given(groups())
def test_an_even_assignment_stays_as_it_is(group: tuple[dict[str, Subscriber], dict[UUID, int]]) -> None:
    members, partitions = group
    before = assigned(uniform, members, partitions)

    again = {
        member_id: Subscriber(member.topics, None, before[member_id]) for member_id, member in members.items()
    }

    assert assigned(uniform, again, partitions) == before


def test_a_newcomer_takes_its_share_and_nobody_else_changes() -> None:
    before = assigned(uniform, {"m-1": reading(A), "m-2": reading(A)}, {A: 6})

    after = assigned(
        uniform, {**{m: reading(A, current=before[m]) for m in before}, "m-3": reading(A)}, {A: 6}
    )

    assert sizes(after) == [2, 2, 2]
    assert after["m-1"][A] < before["m-1"][A] and after["m-2"][A] < before["m-2"][A]


def test_members_that_read_less_leave_more_to_others() -> None:
    target = assigned(uniform, {"both": reading(A, B), "only": reading(A)}, {A: 4, B: 4})

    assert sizes(target) == [4, 4]


def test_a_range_is_of_neighbours_and_the_first_have_more() -> None:
    target = assigned(range_, {"c": reading(A), "a": reading(A, B), "b": reading(A)}, {A: 7, B: 1})

    assert target == {
        "a": {A: frozenset({0, 1, 2}), B: frozenset({0})},
        "b": {A: frozenset({3, 4})},
        "c": {A: frozenset({5, 6})},
    }


def test_static_members_are_in_the_order_of_their_instances() -> None:
    members = {"z": Subscriber(frozenset({A}), "1"), "a": Subscriber(frozenset({A}), "2")}

    assert assigned(range_, members, {A: 2}) == {"z": {A: frozenset({0})}, "a": {A: frozenset({1})}}


def test_in_a_range_static_members_come_before_the_others() -> None:
    members = {
        "a": reading(A),
        "z": Subscriber(frozenset({A}), "i-2"),
        "y": Subscriber(frozenset({A}), "i-1"),
    }
    ranges = {"y": {A: frozenset({0})}, "z": {A: frozenset({1})}, "a": {A: frozenset({2})}}

    assert assigned(range_, members, {A: 3}) == ranges


def test_topics_without_a_reader_are_assigned_to_nobody() -> None:
    assert assigned(uniform, {"m": reading(B)}, {A: 3}) == {"m": {}}
    assert assigned(range_, {"m": reading(B)}, {A: 3}) == {"m": {}}


def test_a_topic_that_is_named_twice_has_all_its_partitions() -> None:
    one, other = UUID(int=1), UUID(int=2)
    named = [(one, [0, 1]), (other, [5]), (one, [2]), (one, [1])]
    assert united(named) == {one: frozenset({0, 1, 2}), other: frozenset({5})}
