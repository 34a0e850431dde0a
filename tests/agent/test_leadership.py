"""A client is told once that its partition has a new leader."""

from __future__ import annotations

from uuid import UUID

from agent.leadership import MAX_USED, PAUSE_SECONDS, KnownLeadership
from cache.ring import Replicas
from sequencer.api.agents import AgentInfo, Member, Ring
from tailrace.ids import TopicPartition

TOPIC = UUID(int=7)
ALL = [TopicPartition(TOPIC, index) for index in range(200)]
ME = 1


def ring(generation: int, *broker_ids: int) -> Replicas:
    info = AgentInfo("h", 1, "", 0, 0, "z", "0", UUID(int=1))
    return Replicas(Ring(generation, [Member(each, 1, info, False) for each in broker_ids]))


def test_a_partition_led_by_a_new_agent_is_refused_once_and_then_served() -> None:
    told, after = KnownLeadership(), ring(2, 1, 2)
    assert not told.sends_away(ring(1, 1), ME, "z", 0.0)
    for each in ALL:
        told.note(each)
    assert [told.sends_away(after, ME, "z", now) for now in (10.0, 10.05)] == [True, True], (
        "what is in flight, too"
    )
    assert not any(told.sends_away(after, ME, "z", now) for now in (10.2, 11.0, 100.0)), (
        "the client came back"
    )


def test_changes_in_quick_succession_are_sent_together_after_a_pause() -> None:
    told = KnownLeadership()
    told.sends_away(ring(1, 1), ME, "z", 0.0, ALL)
    assert told.sends_away(ring(2, 1, 2), ME, "z", 1.0, ALL)
    for generation, now in ((3, 2.0), (4, 3.0), (4, PAUSE_SECONDS)):
        assert not told.sends_away(ring(generation, 1, 2, generation), ME, "z", now, ALL)
    assert told.sends_away(ring(4, 1, 2, 4), ME, "z", PAUSE_SECONDS + 1.0, ALL)


def test_a_client_of_this_ring_and_one_whose_partitions_stay_are_never_refused() -> None:
    told = KnownLeadership()
    assert not any(told.sends_away(ring(5, 1, 2, 3), ME, "z", now, ALL) for now in (0.0, 50.0))
    assert not told.sends_away(ring(6, 1), ME, "z", 100.0, ALL)
    large = ring(7, *range(1, 20))
    stays = next(each for each in ALL if large.of("z", TOPIC, each.partition, 1) == [ME])
    assert not told.sends_away(large, ME, "z", 200.0, [stays])


def test_in_a_small_ring_a_client_is_told_of_an_agent_that_joined_whatever_it_leads() -> None:
    told, small = KnownLeadership(), ring(2, 1, 2)
    stays = next(each for each in ALL if small.of("z", TOPIC, each.partition, 1) == [ME])
    assert not told.sends_away(ring(1, 1), ME, "z", 0.0, [stays])
    assert told.sends_away(small, ME, "z", 10.0, [stays])
    assert not told.sends_away(ring(3, 1), ME, "z", 100.0, [stays]), "nobody joined"


def test_the_memory_of_a_connection_is_bounded() -> None:
    told = KnownLeadership()
    for index in range(3 * MAX_USED):
        told.note(TopicPartition(TOPIC, index))
    assert len(told._used) == MAX_USED
