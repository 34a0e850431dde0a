"""A client is told once that another agent leads now what it asks for."""

from __future__ import annotations

from uuid import UUID

from agent.leadership import MAX_CHECKED, PAUSE_SECONDS, LeadershipTold
from cache.ring import replicas_of
from sequencer.api import AgentInfo, Member, Ring
from tailrace.ids import TopicPartition

TOPIC = UUID(int=7)
ALL = [TopicPartition(TOPIC, index) for index in range(20)]
ME = 1


def ring(generation: int, *broker_ids: int) -> Ring:
    info = AgentInfo("h", 1, "", 0, 0, "z", "0", UUID(int=1))
    return Ring(generation, [Member(each, 1, info, False) for each in broker_ids])


def others(of: Ring) -> set[TopicPartition]:
    return {each for each in ALL if replicas_of(of, "z", TOPIC, each.partition, 1) != [ME]}


def test_what_an_agent_that_joined_leads_is_refused_once_also_where_each_partition_has_a_request() -> None:
    told, after = LeadershipTold(), ring(2, 1, 2)
    assert told.moved(ring(1, 1), ME, "z", ALL, 0.0) == set()
    refused = [told.moved(after, ME, "z", [each], 10.0 + index / 1000) for index, each in enumerate(ALL)]
    assert set().union(*refused) == others(after) and others(after)
    for now in (10.2, 11.0, 100.0):
        assert told.moved(after, ME, "z", ALL, now) == set(), "the client came back: it is served"


def test_changes_in_a_row_are_told_together_after_a_pause() -> None:
    told = LeadershipTold()
    told.moved(ring(1, 1), ME, "z", ALL, 0.0)
    assert told.moved(ring(2, 1, 2), ME, "z", ALL, 1.0)
    for generation, now in ((3, 2.0), (4, 3.0), (4, PAUSE_SECONDS)):
        assert told.moved(ring(generation, 1, 2, generation), ME, "z", ALL, now) == set()
    latest = ring(4, 1, 2, 4)
    assert told.moved(latest, ME, "z", ALL, PAUSE_SECONDS + 1.0) == others(latest)


def test_a_client_of_this_ring_and_one_whose_partitions_stay_are_never_refused() -> None:
    told = LeadershipTold()
    assert [told.moved(ring(5, 1, 2, 3), ME, "z", ALL, now) for now in (0.0, 50.0)] == [set(), set()]
    assert told.moved(ring(6, 1), ME, "z", ALL, 100.0) == set()


def test_what_a_connection_remembers_is_bounded() -> None:
    told = LeadershipTold()
    told.moved(ring(1, 1), ME, "z", ALL, 0.0)
    many = [TopicPartition(TOPIC, index) for index in range(3 * MAX_CHECKED)]
    told.moved(ring(2, 1, 2), ME, "z", many, 1.0)
    assert len(told._checked) == MAX_CHECKED
    assert told.moved(ring(2, 1, 2), ME, "z", many, 100.0) == set()
