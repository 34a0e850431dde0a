"""The ring: owners of chunks, leaders of partitions, coordinators of groups."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cache.ring
from cache.chunk import ChunkId
from cache.ring import NO_LEADER, Replicas, ZoneRing, group_candidates
from sequencer.api.agents import AgentInfo, Member, Ring

TOPIC = UUID(int=77)


def member(broker_id: int, zone: str = "a", *, draining: bool = False, peer_port: int = 7000) -> Member:
    info = AgentInfo("h", 9092, "h", peer_port, 9644, zone, "1", UUID(int=broker_id))
    return Member(broker_id, 1, info, draining)


def ring(*members: Member, generation: int = 1) -> Ring:
    return Ring(generation, list(members))


KEYS = [ChunkId(f"c1/mixed/ab/session/{number}", index) for number in range(1000) for index in (0, 1)]


def owners(of: Ring) -> list[int]:
    seen = ZoneRing(of, "a", 1)
    found = [seen.owner(key) for key in KEYS]
    return [owner.broker_id for owner in found if owner is not None]


@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(0, 2**31 - 1), min_size=2, max_size=12), st.data())
def test_a_member_that_goes_moves_its_own_keys_only_and_about_one_in_n(
    ids: set[int], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(sorted(ids)))
    before = owners(ring(*(member(each) for each in ids)))
    after = owners(ring(*(member(each) for each in ids if each != gone)))

    assert all(old == gone for old, new in zip(before, after, strict=True) if old != new)
    share = Counter(before)[gone] / len(KEYS)
    assert 0.7 / len(ids) < share < 1.4 / len(ids)


def test_owners_are_of_the_viewers_zone_live_and_reachable() -> None:
    members = [member(1), member(2), member(3, "b"), member(4, draining=True), member(5, peer_port=0)]

    assert set(owners(ring(*members))) == {1, 2}


def test_an_agent_without_a_peer_port_owns_chunks_in_its_own_eyes_when_alone() -> None:
    seen = ZoneRing(ring(member(1, peer_port=0)), "a", 1)

    assert all(seen.is_mine(key) for key in KEYS)


def test_nobody_owns_a_chunk_in_an_empty_zone() -> None:
    assert ZoneRing(ring(member(1, "b")), "a", 1).owner(KEYS[0]) is None


def leader_of(of: Ring, zone: str | None, topic_id: UUID, partition: int) -> int:
    return Replicas(of).of(zone, topic_id, partition, 1)[0]


def test_replicas_are_agents_of_the_zone_and_repeat_where_there_are_too_few() -> None:
    of = ring(member(1), member(2), member(3, "b"))

    for partition in range(20):
        first, second, third = Replicas(of).of("a", TOPIC, partition, 3)
        assert {first, second} == {1, 2}
        assert third == first == leader_of(of, "a", TOPIC, partition)


def test_a_leader_is_of_the_clients_zone_where_there_is_one() -> None:
    of = ring(member(1), member(2), member(3, "b"), member(4, "b", draining=True))

    assert {leader_of(of, "a", TOPIC, partition) for partition in range(50)} == {1, 2}
    assert {leader_of(of, "b", TOPIC, partition) for partition in range(50)} == {3}
    assert {leader_of(of, "nowhere", TOPIC, partition) for partition in range(50)} == {1, 2, 3}
    assert {leader_of(of, None, TOPIC, partition) for partition in range(50)} == {1, 2, 3}


def test_leaders_are_worked_out_once_for_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []
    mix = cache.ring._mix

    def counted(value: int) -> int:
        scored.append(value)
        return mix(value)

    monkeypatch.setattr(cache.ring, "_mix", counted)
    replicas = Replicas(ring(*(member(each) for each in range(1, 101)), member(101, "b")))
    for _ in range(10):
        for partition in range(50):
            replicas.of("a", TOPIC, partition, 1)

    assert len(scored) == 101 + 50 * 100, "each member once, then once for each partition"


def test_a_draining_agent_leads_only_where_it_is_the_last() -> None:
    assert leader_of(ring(member(4, draining=True)), "a", TOPIC, 0) == 4
    assert Replicas(ring()).of("a", TOPIC, 0, 1) == []


def test_the_order_of_members_changes_nothing() -> None:
    members = [member(each) for each in range(1, 8)]

    assert owners(ring(*members)) == owners(ring(*reversed(members)))
    assert group_candidates(ring(*members), "g") == group_candidates(ring(*reversed(members)), "g")


def test_the_placement_is_the_same_in_every_version() -> None:
    """Agents of two versions share a ring while one rolls out: these answers may never change."""
    of = ring(*(member(each) for each in range(1, 6)))

    assert owners(of)[:8] == GOLDEN_OWNERS
    assert [leader_of(of, "a", TOPIC, partition) for partition in range(8)] == GOLDEN_LEADERS
    assert group_candidates(of, "payments") == GOLDEN_CANDIDATES


GOLDEN_OWNERS = [4, 2, 5, 2, 3, 3, 5, 3]
GOLDEN_LEADERS = [5, 2, 4, 5, 3, 1, 4, 1]
GOLDEN_CANDIDATES = [3, 2, 1, 4, 5]


def test_groups_spread_over_all_live_agents() -> None:
    of = ring(member(1), member(2, "b"), member(3), member(4, draining=True))
    firsts = Counter(group_candidates(of, f"group-{number}")[0] for number in range(300))

    assert set(firsts) == {1, 2, 3}
    assert min(firsts.values()) > 60
    replicas = Replicas(of)
    assert firsts == Counter(replicas.coordinator(f"group-{number}") for number in range(300))
    assert Replicas(ring()).coordinator("g") == NO_LEADER


def test_the_more_members_are_scored_the_fewer_partitions_are_placed_in_a_turn() -> None:
    replicas = Replicas(ring(*(member(each) for each in range(1, 101)), member(101, "b")))
    assert [replicas.in_a_turn(zone, 1_000) for zone in ("b", "a", None, "nowhere")] == [1_000, 90, 90, 90]
    assert replicas.in_a_turn("a", 5) == 1
