"""The state machine of a classic group, by example and by property."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.groups.group import (
    Group,
    GroupMember,
    GroupPhase,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from agent.groups.stored_group import restored, stored
from tailrace.kafka.compiler import codec
from tailrace.kafka.encoder_source import Parts
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolSubscription
from tailrace.turns import at_once

RANGE = [("range", b"topics")]


@dataclass
class Driver:
    """Speaks to a group as its members would, and keeps their answers."""

    group: Group = field(default_factory=lambda: Group("g"))
    now: float = 0.0
    tickets: int = 0
    answers: dict[int, Any] = field(default_factory=dict)

    def join(
        self,
        member_id: str = "",
        *,
        fresh: str = "m",
        instance: str | None = None,
        protocols: list[tuple[str, bytes]] | None = None,
        known: bool = False,
        skip: bool = False,
        protocol_type: str = "consumer",
    ) -> int:
        self.tickets += 1
        request = JoinRequest(
            member_id, instance, "c", "/h", 10.0, 30.0, protocol_type, protocols or RANGE, fresh, known, skip
        )
        at_once(self.group.join(self.now, self.tickets, request))
        self.collect()
        return self.tickets

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        instance: str | None = None,
    ) -> int:
        self.tickets += 1
        given = list((assignments or {}).items())
        request = SyncRequest(member_id, instance, generation, "consumer", None, given)
        self.group.sync(self.now, self.tickets, request)
        self.collect()
        return self.tickets

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        code = self.group.heartbeat(self.now, member_id, instance, generation)
        self.collect()
        return code

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.group.expire(self.now)
        self.collect()

    def collect(self) -> None:
        for ticket, answer in self.group.take_answers():
            assert ticket not in self.answers, "a request is answered once"
            self.answers[ticket] = answer

    def stable_pair(self, static: bool = False) -> None:
        """Members a (the leader) and b of generation 2, with assignments."""
        instances = ("ia", "ib") if static else (None, None)
        self.join(fresh="a", instance=instances[0])
        second = self.join(fresh="b", instance=instances[1])
        self.join("a", instance=instances[0])
        assert self.answers[second].generation == 2
        self.sync("b", 2, instance=instances[1])
        self.sync("a", 2, {"a": b"0", "b": b"1"}, instance=instances[0])
        assert self.group.phase is GroupPhase.STABLE


class LookedThrough(dict[str, GroupMember]):
    """Members that count how often all of them are visited."""

    times = 0

    def values(self) -> Any:
        self.times += 1
        return super().values()


@pytest.mark.parametrize("static", [False, True])
def test_a_heartbeat_visits_no_other_member(static: bool) -> None:
    driver = Driver()
    driver.stable_pair(static)
    first = driver.group.next_deadline(driver.now)
    members = driver.group.members = LookedThrough(driver.group.members)
    for _ in range(4):
        driver.now += 2.0
        for member, instance in (("a", "ia"), ("b", "ib")):
            assert driver.heartbeat(member, 2, instance if static else None) is ErrorCode.NONE
            assert driver.group.next_deadline(driver.now) == first
    assert members.times == 0
    driver.now = first or 0.0
    assert driver.group.next_deadline(driver.now) == 8.0 + 10.0, "found anew once that time has come"
    assert members.times == 1


def test_the_joins_and_syncs_of_one_rebalance_look_at_the_members_once_and_not_each_at_all_others() -> None:
    driver = Driver()
    driver.stable_pair()
    driver.join(fresh="c")
    members = driver.group.members = LookedThrough(driver.group.members)
    driver.join("b")
    driver.group.next_deadline(driver.now)
    assert members.times <= 2, "whether all have joined, and when the next is due"
    driver.join("b", protocols=[("range", b"other topics")])
    driver.group.next_deadline(driver.now)
    assert members.times <= 5, "b was told about its join before: what is due is found anew"
    driver.join("a")
    members.times = 0
    driver.group.next_deadline(driver.now)
    for member in ("b", "c"):
        driver.sync(member, 3)
        driver.group.next_deadline(driver.now)
    assert members.times == 1
    driver.sync("a", 3, {"a": b"0", "b": b"1", "c": b"2"})
    driver.group.next_deadline(driver.now)
    members.times = 0
    again = driver.sync("b", 3)
    driver.group.next_deadline(driver.now)
    assert driver.answers[again].assignment == b"1"
    assert members.times == 0


def test_protocols_of_a_member_that_left_or_joined_with_others_are_forgotten() -> None:
    driver = Driver()
    driver.join(fresh="a", protocols=[("range", b""), ("own", b"")])
    refused = driver.join(fresh="b", protocols=[("other", b"")])
    assert driver.answers[refused].code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    again = driver.join("a", protocols=[("other", b"")])
    assert driver.answers[again].code is ErrorCode.NONE
    second = driver.join(fresh="b", protocols=[("other", b""), ("range", b"")])
    driver.join("a", protocols=[("other", b"")])
    assert driver.answers[second].protocol == "other"
    driver.group.leave(driver.now, [("a", None)])
    assert driver.group._knowing == {"other": 1, "range": 1}


def test_a_session_that_runs_out_is_seen_whatever_was_remembered() -> None:
    driver = Driver()
    driver.stable_pair()
    for _ in range(3):
        driver.now += 4.0
        driver.heartbeat("a", 2)
        deadline = driver.group.next_deadline(driver.now)
        if deadline is not None and deadline <= driver.now:
            driver.advance(0.0)
    assert list(driver.group.members) == ["a"], "b was silent for 12 s"


def test_the_first_member_leads_and_only_it_gets_the_members() -> None:
    driver = Driver()
    driver.stable_pair()
    leader = next(
        each for each in driver.answers.values() if isinstance(each, JoinAnswer) and len(each.members) == 2
    )
    assert (leader.member_id, leader.leader, leader.protocol) == ("a", "a", "range")
    syncs = [each for each in driver.answers.values() if isinstance(each, SyncAnswer)]
    assert sorted(each.assignment for each in syncs) == [b"0", b"1"]


def test_a_dynamic_member_must_come_back_with_the_id_it_was_given() -> None:
    driver = Driver()
    first = driver.answers[driver.join(fresh="a", known=True)]
    assert (first.code, first.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "a")
    second = driver.answers[driver.join("a", known=True)]
    assert (second.code, second.generation) == (ErrorCode.NONE, 1)
    assert driver.answers[driver.join("stranger", known=True)].code is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_never_comes_back_holds_a_rebalance_for_its_session_only() -> None:
    driver = Driver()
    driver.join(fresh="a")
    driver.join(fresh="gone", known=True)
    ticket = driver.join("a", protocols=[("range", b"other topics")])
    assert ticket not in driver.answers
    driver.advance(10)
    assert driver.answers[ticket].code is ErrorCode.NONE


def test_members_hear_of_a_rebalance_in_heartbeats_and_may_still_commit() -> None:
    driver = Driver()
    driver.stable_pair()
    driver.join(fresh="c")
    assert driver.heartbeat("a", 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.group.commit(driver.now, "a", None, 2) is ErrorCode.NONE
    assert driver.answers[driver.sync("a", 2)].code is ErrorCode.REBALANCE_IN_PROGRESS


def test_between_join_and_sync_heartbeats_are_fine_and_commits_are_not() -> None:
    driver = Driver()
    driver.join(fresh="a")
    assert driver.heartbeat("a", 1) is ErrorCode.NONE
    assert driver.group.commit(driver.now, "a", None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat("a", 0) is ErrorCode.ILLEGAL_GENERATION
    assert driver.heartbeat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_rejoin_is_out_of_the_next_generation() -> None:
    driver = Driver()
    driver.stable_pair()
    ticket = driver.join("a")
    driver.heartbeat("b", 2)
    for _ in range(6):
        driver.advance(5)
        driver.heartbeat("b", 2)
    assert driver.answers[ticket].generation == 3
    assert list(driver.group.members) == ["a"]


def test_a_session_that_ends_rebalances_the_others() -> None:
    driver = Driver()
    driver.stable_pair()
    driver.advance(9)
    assert driver.heartbeat("a", 2) is ErrorCode.NONE
    driver.advance(2)
    assert driver.heartbeat("a", 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat("b", 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_joins_unchanged_gets_its_generation_again() -> None:
    driver = Driver()
    driver.stable_pair()
    assert driver.answers[driver.join("b")].generation == 2
    assert driver.group.phase is GroupPhase.STABLE
    assert driver.join("b", protocols=[("range", b"other")]) not in driver.answers
    assert driver.group.phase is GroupPhase.PREPARING_REBALANCE


def test_a_leader_that_joins_again_rebalances() -> None:
    driver = Driver()
    driver.stable_pair()
    driver.join("a")
    assert driver.group.phase is GroupPhase.PREPARING_REBALANCE


def test_a_leader_that_never_hands_in_an_assignment_is_removed() -> None:
    driver = Driver()
    driver.join(fresh="a")
    for _ in range(6):
        driver.heartbeat("a", 1)
        driver.advance(5)
    assert driver.group.phase is GroupPhase.EMPTY
    assert driver.group.generation == 2


def test_the_protocol_is_what_all_know_and_most_prefer() -> None:
    driver = Driver()
    driver.join(fresh="a", protocols=[("x", b""), ("y", b""), ("z", b"")])
    driver.join(fresh="b", protocols=[("y", b""), ("x", b"")])
    ticket = driver.join(fresh="c", protocols=[("y", b""), ("x", b"")])
    driver.join("b", protocols=[("y", b""), ("x", b"")])
    driver.join("a", protocols=[("x", b""), ("y", b""), ("z", b"")])
    assert driver.answers[ticket].protocol == "y"
    for wrong in ({"protocols": [("z", b"")]}, {"protocol_type": "connect"}):
        assert driver.answers[driver.join(fresh="d", **wrong)].code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # type: ignore[arg-type]


def test_a_full_group_takes_no_one() -> None:
    driver = Driver(Group("g", max_size=1))
    driver.join(fresh="a")
    assert driver.answers[driver.join(fresh="b")].code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_the_oldest_of_too_many_unused_ids_is_forgotten() -> None:
    driver = Driver(Group("g", max_size=2))
    for fresh in ("a", "b", "c"):
        ticket = driver.join(fresh=fresh, known=True)
        assert driver.answers[ticket].code is ErrorCode.MEMBER_ID_REQUIRED
    assert list(driver.group.pending) == ["b", "c"]
    assert driver.answers[driver.join("a", known=True)].code is ErrorCode.UNKNOWN_MEMBER_ID


def test_metadata_and_assignments_of_members_are_bounded_together() -> None:
    driver = Driver(Group("g", max_bytes=1_000))
    driver.join(fresh="a", protocols=[("range", b"x" * 500)])
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.answers[driver.join(fresh="b", protocols=[("range", b"x" * 600)])].code is full
    assert driver.answers[driver.join(fresh="b" * 500)].code is full, "names are kept, too"
    again = driver.answers[driver.join("a", protocols=[("range", b"x" * 900)])]
    assert again.code is ErrorCode.NONE, "what it said before is not counted beside what it says now"
    generation = driver.group.generation
    refused = driver.answers[driver.sync("a", generation, {"a": b"x" * 200})]
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert driver.answers[driver.sync("a", generation, {"a": b"x" * 50})].code is ErrorCode.NONE


def test_members_leave_by_list_and_one_rebalance_follows() -> None:
    driver = Driver()
    driver.stable_pair(static=True)
    codes = driver.group.leave(0, [("", "ia"), ("b", "nobody"), ("x", None), ("b", None)])
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    assert (driver.group.phase, driver.group.generation) == (GroupPhase.EMPTY, 3)


def test_a_restarted_static_member_keeps_its_assignment_and_fences_its_former_self() -> None:
    driver = Driver()
    driver.stable_pair(static=True)
    again = driver.answers[driver.join(fresh="b2", instance="ib")]
    assert (again.code, again.generation, again.member_id) == (ErrorCode.NONE, 2, "b2")
    assert driver.group.phase is GroupPhase.STABLE and driver.group.is_dirty
    assert driver.answers[driver.sync("b2", 2, instance="ib")].assignment == b"1"
    assert driver.heartbeat("b", 2, "ib") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.answers[driver.join("b", instance="ib")].code is ErrorCode.FENCED_INSTANCE_ID


def subscription(topics: list[str], generation: int) -> bytes:
    """A consumer's metadata, version 2."""
    out = bytearray(b"\x00\x02")
    parts: Parts = []
    wish = ConsumerProtocolSubscription(topics=topics, generation_id=generation)
    last = codec(ConsumerProtocolSubscription, 2, False).encode(wish, out, parts)
    return b"".join([*parts, last])


@pytest.mark.parametrize(("topics", "is_rebalanced"), [(["t"], False), (["t", "u"], True)])
def test_a_restarted_static_member_causes_a_rebalance_only_when_it_wants_other_topics(
    topics: list[str], is_rebalanced: bool
) -> None:
    driver = Driver()
    first = [("range", subscription(["t"], 1))]
    driver.join(fresh="a", instance="ia", protocols=first)
    driver.join(fresh="b", instance="ib", protocols=first)
    driver.join("a", instance="ia", protocols=first)
    driver.sync("b", 2, instance="ib")
    driver.sync("a", 2, {"a": b"0", "b": b"1"}, instance="ia")

    driver.join(fresh="b2", instance="ib", protocols=[("range", subscription(topics, -1))])

    assert (driver.group.phase is not GroupPhase.STABLE) is is_rebalanced


def test_a_restarted_static_leader_makes_no_assignment() -> None:
    driver = Driver()
    driver.stable_pair(static=True)
    newer = driver.answers[driver.join(fresh="a2", instance="ia", skip=True)]
    assert newer.skip_assignment and newer.leader == "a2" and len(newer.members) == 2
    older = driver.answers[driver.join(fresh="a3", instance="ia")]
    assert older.leader == "a2" and not older.members and driver.group.leader == "a3"


def test_a_new_group_waits_for_more_members_if_configured() -> None:
    driver = Driver(Group("g", initial_delay_seconds=3))
    first = driver.join(fresh="a")
    driver.advance(2)
    second = driver.join(fresh="b")
    driver.advance(2)
    assert first not in driver.answers
    driver.advance(1)
    assert driver.answers[first].generation == driver.answers[second].generation == 1


@pytest.mark.parametrize("delay_seconds", [0, 3])
def test_the_first_rebalance_waits_for_no_client_that_has_only_asked_for_an_id(delay_seconds: float) -> None:
    driver = Driver(Group("g", initial_delay_seconds=delay_seconds))
    driver.join(fresh="asked only", known=True)
    ticket = driver.join(fresh="a")
    driver.advance(delay_seconds)
    assert driver.answers[ticket].generation == 1
    assert list(driver.group.pending) == ["asked only"]


def test_a_new_coordinator_keeps_generation_members_and_assignment() -> None:
    driver = Driver()
    driver.stable_pair(static=True)
    taken = Driver(at_once(restored(at_once(stored(driver.group)), 500.0, 0.0, 10, 1 << 20)), now=500.0)
    assert taken.heartbeat("a", 2) is ErrorCode.NONE
    assert taken.answers[taken.sync("b", 2)].assignment == b"1"
    taken.advance(11)
    assert not taken.group.members or taken.group.phase is GroupPhase.PREPARING_REBALANCE


def taken_over(driver: Driver) -> Driver:
    """The group at the next coordinator, as it was stored."""
    return Driver(
        at_once(restored(at_once(stored(driver.group)), driver.now, 0.0, 10, 1 << 20)), now=driver.now
    )


def made_pair() -> Driver:
    """Members a (the leader) and b of generation 2, which have no assignments yet."""
    driver = Driver()
    driver.join(fresh="a")
    driver.join(fresh="b")
    driver.join("a")
    assert driver.group.phase is GroupPhase.COMPLETING_REBALANCE
    return driver


def test_members_that_work_on_stay_after_a_fail_over_though_it_is_not_stored_who_has_synced() -> None:
    driver = made_pair()
    driver.sync("a", 2, {"a": b"0", "b": b"1"})
    taken = taken_over(driver)
    driver.sync("b", 2)
    for _ in range(8):
        assert [taken.heartbeat(each, 2) for each in "ab"] == [ErrorCode.NONE] * 2
        taken.advance(5)
    assert set(taken.group.members) == {"a", "b"} and taken.group.phase is GroupPhase.STABLE


def test_a_leader_that_died_with_its_coordinator_is_waited_for_no_longer_than_its_session() -> None:
    taken = taken_over(made_pair())
    waiting = taken.sync("b", 2)
    taken.advance(9.9)
    assert waiting not in taken.answers
    taken.advance(0.1)
    assert taken.answers[waiting].code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_that_only_beats_after_a_fail_over_is_waited_for_no_longer_than_a_rebalance() -> None:
    taken = taken_over(made_pair())
    waiting = taken.sync("b", 2)
    for _ in range(6):
        assert waiting not in taken.answers
        assert taken.heartbeat("a", 2) is ErrorCode.NONE
        taken.advance(5)
    assert taken.answers[waiting].code is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(taken.group.members) == {"b"}


ACTIONS = st.tuples(
    st.sampled_from(
        ["join", "rejoin", "change", "sync", "heartbeat", "leave", "advance", "restart", "takeover"]
    ),
    st.integers(0, 4),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=60))
def test_a_generation_has_one_leader_and_one_assignment(actions: list[tuple[str, int]]) -> None:
    driver, ids, made = Driver(), dict.fromkeys(range(5), ""), 0
    known: dict[int, int] = {}
    sent: dict[int, tuple[int, str]] = {}
    assignments: dict[int, dict[str, bytes]] = {}
    leaders: dict[int, str] = {}
    last = 0
    for action, who in actions:
        member_id = ids[who]
        if action in ("join", "restart"):
            made += 1
            instance = f"i{who}" if who >= 3 else None
            is_new = action == "restart" or not member_id
            driver.join("" if is_new else member_id, fresh=f"{who}-{made}", instance=instance)
        elif action in ("rejoin", "change") and member_id:
            metadata = b"new%d" % made if action == "change" else b"topics"
            driver.join(member_id, protocols=[("range", metadata), ("own", b"")][: 1 + who % 2])
        elif action == "sync" and member_id:
            generation = known[who]
            is_leader = leaders.get(generation) == member_id
            made += 1
            plan = {each: b"%s@%d#%d" % (each.encode(), generation, made) for each in driver.group.members}
            was = driver.group.phase
            ticket = driver.sync(member_id, generation, plan if is_leader else None)
            sent[ticket] = (generation, member_id)
            if (
                is_leader
                and was is GroupPhase.COMPLETING_REBALANCE
                and driver.group.phase is GroupPhase.STABLE
            ):
                assert generation not in assignments, "a generation is assigned once"
                assignments[generation] = plan
        elif action == "heartbeat" and member_id:
            driver.heartbeat(member_id, known[who])
        elif action == "leave" and member_id:
            driver.group.leave(driver.now, [(member_id, None)])
            driver.collect()
        elif action == "advance":
            driver.advance(4.0 * (who + 1))
        elif action == "takeover" and not any(each.is_waiting for each in driver.group.members.values()):
            driver.group = at_once(restored(at_once(stored(driver.group)), driver.now, 0.0, 10_000, 1 << 20))
        for ticket, answer in list(driver.answers.items()):
            if isinstance(answer, JoinAnswer) and answer.code is ErrorCode.NONE:
                owner = int(answer.member_id.split("-")[0])
                ids[owner], known[owner] = answer.member_id, answer.generation
                if answer.leader == answer.member_id:
                    leaders[answer.generation] = answer.member_id
                    assert answer.member_id in {member for member, _, _ in answer.members}
            elif isinstance(answer, SyncAnswer) and answer.code is ErrorCode.NONE:
                generation, member = sent[ticket] if ticket in sent else (known[who], member_id)
                mine = next((plan for name, plan in assignments[generation].items() if name == member), None)
                if mine is not None:
                    assert answer.assignment == mine
            driver.answers[ticket] = None
        assert driver.group.generation >= last, "the generation never falls"
        last = driver.group.generation
        if driver.group.phase in (GroupPhase.STABLE, GroupPhase.COMPLETING_REBALANCE):
            assert driver.group.leader in driver.group.members
        if driver.group.phase is GroupPhase.EMPTY:
            assert not driver.group.members
        deadline = driver.group.next_deadline(driver.now)
        if driver.group.phase is GroupPhase.PREPARING_REBALANCE:
            assert deadline is not None, "a rebalance ends by itself"
        check_what_is_kept(driver.group, driver.now)


def check_what_is_kept(group: Group, now: float) -> None:
    """Deadline, bytes and protocols are those that a look at all members finds; the deadline may be too early."""
    members = group.members.values()
    assert group._kept_bytes == sum(member.kept_bytes for member in members)
    assert group._knowing == Counter(name for member in members for name in member.protocol_names)
    kept, group._nothing_before = group._nothing_before, None
    exact = group.next_deadline(now)
    group._nothing_before = kept
    assert exact is None or (kept is not None and kept <= exact)


def test_members_keep_their_assignments_until_the_next_ones_come() -> None:
    driver = Driver()
    driver.join(fresh="a")
    driver.sync("a", 1, {"a": b"first"})
    driver.group.max_bytes = driver.group._kept_bytes + len(b"longer")

    driver.join("a")
    assert driver.group.phase is GroupPhase.COMPLETING_REBALANCE
    assert driver.group.members["a"].assignment == b"first"
    answer = driver.sync("a", 2, {"a": b"longer"})

    assert driver.answers[answer].assignment == b"longer", "the next ones are not counted twice"
    driver.join("a")
    driver.sync("a", 3, {"b": b"?"})
    assert driver.group.members["a"].assignment == b""
