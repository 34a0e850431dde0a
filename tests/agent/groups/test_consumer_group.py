"""A consumer group: joins, hand-overs, static members, fences; and that no partition has two readers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent.catalog import KnownTopic
from agent.groups import stored_consumer_group
from agent.groups.assignors import Assignment
from agent.groups.consumer_group import (
    JOINS,
    LEAVES,
    LEAVES_FOR_NOW,
    ConsumerAnswer,
    ConsumerGroup,
    ConsumerGroupPhase,
    ConsumerHeartbeat,
)
from agent.groups.topic_names import TopicNames
from agent.groups.topic_pattern import TopicPattern
from sequencer.api.groups import OffsetPosition
from sequencer.api.topics import Topic
from tailrace.configs.topic_config import topic_settings
from tailrace.kafka.error_codes import ErrorCode
from tailrace.turns import at_once

EVENTS, OTHER = UUID(int=1), UUID(int=2)
REBALANCE_SECONDS = 60.0


def topics(**partitions: int) -> dict[str, KnownTopic]:
    ids = {"events": EVENTS, "other": OTHER}
    return {
        name: KnownTopic(Topic(ids[name], name, count, {}, 0), topic_settings({}))
        for name, count in partitions.items()
    }


@dataclass
class Client:
    """A member as KIP-848's clients are: it says what it owns only when that has changed."""

    group: ConsumerGroup
    known: dict[str, KnownTopic]
    member_id: str
    instance_id: str | None = None
    reads: TopicNames = field(default_factory=lambda: TopicNames({"events"}))
    epoch: int = JOINS
    owned: Assignment = field(default_factory=dict)
    is_changed: bool = False

    def request(self, epoch: int, **said: Any) -> ConsumerAnswer:
        asked = ConsumerHeartbeat(member_id=self.member_id, epoch=epoch, instance_id=self.instance_id, **said)
        return at_once(self.group.heartbeat(0.0, asked, self.known))

    def join(self) -> ConsumerAnswer:
        self.owned = {}
        answer = self.request(JOINS, rebalance_seconds=REBALANCE_SECONDS, topics=self.reads, owned={})
        return self.take(answer)

    def beat(self) -> ConsumerAnswer:
        said = {"owned": self.owned} if self.is_changed else {}
        self.is_changed = False
        return self.take(self.request(self.epoch, **said))

    def full_beat(self) -> ConsumerAnswer:
        return self.take(
            self.request(self.epoch, rebalance_seconds=REBALANCE_SECONDS, topics=self.reads, owned=self.owned)
        )

    def take(self, answer: ConsumerAnswer) -> ConsumerAnswer:
        if answer.code is ErrorCode.NONE:
            self.epoch = answer.epoch
            if answer.assigned is not None:
                self.is_changed = answer.assigned != self.owned
                self.owned = answer.assigned
        return answer

    @property
    def partitions(self) -> set[int]:
        return set(self.owned.get(EVENTS, ()))


def a_group(**partitions: int) -> tuple[ConsumerGroup, dict[str, KnownTopic]]:
    return ConsumerGroup("g"), topics(**(partitions or {"events": 4}))


def settled(*clients: Client) -> None:
    for _ in range(6):
        for client in clients:
            client.beat()


def two_members(group: ConsumerGroup, known: dict[str, KnownTopic]) -> tuple[Client, Client]:
    """Members that each have their half."""
    first, second = Client(group, known, "m-1"), Client(group, known, "m-2")
    first.join()
    second.join()
    settled(first, second)
    return first, second


def test_a_group_without_patterns_looks_at_no_topics_that_it_does_not_read() -> None:
    group, _ = a_group()
    for number in range(2):
        many = topics(events=4) | {f"t{each}": topics(other=1)["other"] for each in range(1_000 + number)}
        joining = ConsumerHeartbeat(
            "m", JOINS, rebalance_seconds=60.0, topics=TopicNames({"events"}), owned={}
        )
        assert sum(group.heartbeat(0.0, joining, many)) < 100, "steps are in topics and partitions"


def test_the_first_member_gets_everything_at_once() -> None:
    group, known = a_group()

    answer = Client(group, known, "m-1").join()

    assert answer == ConsumerAnswer(ErrorCode.NONE, "m-1", 1, {EVENTS: frozenset(range(4))})
    assert group.phase is ConsumerGroupPhase.STABLE


def test_a_second_member_gets_its_half_once_the_first_has_given_it_up() -> None:
    group, known = a_group()
    first, second = Client(group, known, "m-1"), Client(group, known, "m-2")
    first.join()

    second.join()
    assert second.partitions == set() and group.phase is ConsumerGroupPhase.RECONCILING
    first.beat()
    assert len(first.partitions) == 2
    second.beat()
    assert second.partitions == set(), "the first has been told, but has not said that it did"
    first.beat()
    second.beat()

    assert second.partitions == {0, 1, 2, 3} - first.partitions and len(second.partitions) == 2
    assert first.epoch == second.epoch == group.epoch and group.phase is ConsumerGroupPhase.STABLE


def test_a_member_that_keeps_what_it_must_give_up_goes_when_its_time_is_over() -> None:
    group, known = a_group()
    group.session_seconds = 2 * REBALANCE_SECONDS
    first, second = Client(group, known, "m-1"), Client(group, known, "m-2")
    first.join()
    second.join()
    first.beat()
    assert group.next_deadline(0.0) == REBALANCE_SECONDS

    at_once(group.expire(REBALANCE_SECONDS))

    assert list(group.members) == ["m-2"]
    settled(second)
    assert second.partitions == {0, 1, 2, 3}
    assert first.beat().code is ErrorCode.UNKNOWN_MEMBER_ID


def test_sessions_end() -> None:
    group, known = a_group()
    Client(group, known, "m-1").join()

    assert group.next_deadline(0.0) == 45.0
    at_once(group.expire(45.0))

    assert group.phase is ConsumerGroupPhase.EMPTY and group.is_idle


def test_a_heartbeat_that_changes_nothing_stores_nothing_and_tells_nothing() -> None:
    group, known = a_group()
    client = Client(group, known, "m-1")
    client.join()
    client.beat()
    group.is_dirty = False

    answer = client.beat()

    assert not group.is_dirty and answer.assigned is None


def test_a_client_that_is_not_sure_gets_the_answer_again() -> None:
    group, known = a_group()
    client = Client(group, known, "m-1")
    client.join()

    assert client.full_beat().assigned == {EVENTS: frozenset(range(4))}


def test_a_member_one_epoch_behind_missed_an_answer_and_any_other_is_fenced() -> None:
    group, known = a_group()
    client = Client(group, known, "m-1")
    client.join()
    client.known = topics(events=6)
    client.full_beat()
    assert client.epoch == 2

    client.epoch = 1
    assert client.full_beat().epoch == 2
    client.epoch = 7
    assert client.full_beat().code is ErrorCode.FENCED_MEMBER_EPOCH
    client.epoch = 1
    assert client.beat().code is ErrorCode.FENCED_MEMBER_EPOCH, "it does not say what it owns"


def test_a_late_heartbeat_of_an_earlier_epoch_gives_nothing_up() -> None:
    group, known = a_group(events=1)
    first = Client(group, known, "m-1")
    first.join()
    first.known = topics(events=4)
    first.full_beat()
    Client(group, first.known, "m-2").join()
    assert first.partitions == {0, 1, 2, 3} and first.epoch == 2

    assert first.request(1, owned={}).assigned == {EVENTS: frozenset(range(4))}
    first.beat()
    assert first.request(1, owned={}).code is ErrorCode.FENCED_MEMBER_EPOCH, "as in Kafka"
    assert len(first.partitions) == 2 and len(group.members["m-1"].revoking[EVENTS]) == 2
    first.beat()
    assert first.epoch == 3 and not group.members["m-1"].revoking


def test_a_member_that_must_give_up_more_stays_at_its_epoch() -> None:
    group, known = a_group()
    first = Client(group, known, "m-1")
    first.join()
    for name in ("m-2", "m-3"):
        Client(group, known, name).join()
        first.beat()
        assert first.epoch == 1, "as in Kafka"
    first.beat()
    assert len(first.partitions) == 1 and first.epoch == 3


def test_new_partitions_and_topics_are_noticed() -> None:
    group, known = a_group()
    client = Client(group, known, "m-1", reads=TopicNames({"events", "other"}))
    client.join()

    client.known = topics(events=5, other=1)
    client.beat()

    assert client.owned == {EVENTS: frozenset(range(5)), OTHER: frozenset({0})}


def test_a_deleted_topic_is_given_up() -> None:
    group, known = a_group(events=2, other=1)
    client = Client(group, known, "m-1", reads=TopicNames({"events", "other"}))
    client.join()

    client.known = topics(other=1)
    settled(client)

    assert client.owned == {OTHER: frozenset({0})} and group.phase is ConsumerGroupPhase.STABLE


def test_what_a_member_stops_to_read_is_taken_back_while_it_has_others_to_give_up() -> None:
    group, known = a_group(events=4, other=1)
    first = Client(group, known, "m-1", reads=TopicNames({"events", "other"}))
    first.join()
    Client(group, known, "m-2").join()
    first.beat()
    assert OTHER in first.owned

    answer = first.request(first.epoch, topics=TopicNames({"events"}))

    assert answer.assigned is not None and OTHER not in answer.assigned
    first.take(answer)
    settled(first)
    assert first.epoch == group.epoch and OTHER not in first.owned


def test_a_pattern_is_matched_with_whole_names() -> None:
    group, known = a_group(events=2, other=1)
    client = Client(group, known, "m-1")

    answer = client.request(JOINS, rebalance_seconds=1.0, pattern="even.*", owned={})

    assert answer.assigned == {EVENTS: frozenset({0, 1})}
    assert at_once(group.subscribed_topics(known)) == {"events"}
    state = at_once(stored_consumer_group.stored(group))
    taken = at_once(stored_consumer_group.restored(state, 0.0, 45.0, 10, 1 << 20))
    assert at_once(taken.subscribed_topics(known)) == {"events"}, "though none of its members has been heard"


def test_when_topics_change_a_pattern_is_matched_with_the_new_names_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matched: list[set[str]] = []
    matches = TopicPattern.matches

    def counted(self: TopicPattern, names: Iterable[str]) -> frozenset[str]:
        matched.append(set(names))
        return matches(self, names)

    monkeypatch.setattr(TopicPattern, "matches", counted)
    group, known = a_group()
    client = Client(group, known, "m-1")
    client.take(client.request(JOINS, rebalance_seconds=1.0, pattern=".*e.*", owned={}))
    client.known = topics(events=4, other=1)
    client.beat()
    assert set(client.owned) == {EVENTS, OTHER}
    client.known = topics(other=1)
    client.beat()

    assert matched == [{"events"}, {"other"}]
    assert set(client.owned) == {OTHER}


def test_one_group_has_a_bounded_number_of_patterns() -> None:
    group, known = a_group()
    codes = [
        Client(group, known, f"m-{n}").request(JOINS, rebalance_seconds=1.0, pattern=f"e{n}", owned={}).code
        for n in range(17)
    ]

    assert codes == [ErrorCode.NONE] * 16 + [ErrorCode.INVALID_REGULAR_EXPRESSION]


def test_subscriptions_and_members_are_bounded() -> None:
    group, full = ConsumerGroup("g", max_size=1, max_bytes=100), ErrorCode.GROUP_MAX_SIZE_REACHED
    assert Client(group, topics(events=1), "m-1", reads=TopicNames({"x" * 98})).join().code is full
    assert Client(group, topics(events=1), "m" * 95).join().code is full, "names are kept, too"
    client = Client(group, topics(events=1), "m-1")
    assert client.join().code is ErrorCode.NONE
    for name in ("client_id", "client_host", "rack_id"):
        assert client.request(client.epoch, **{name: "x" * 92}).code is full
    assert client.request(client.epoch, rack_id="x" * 91).code is ErrorCode.NONE

    assert Client(group, topics(events=1), "m-2").join().code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_member_that_leaves_frees_its_partitions() -> None:
    first, second = two_members(*a_group())

    assert first.request(LEAVES) == ConsumerAnswer(ErrorCode.NONE, "m-1", LEAVES)
    settled(second)

    assert second.partitions == {0, 1, 2, 3}
    assert first.request(LEAVES).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_leaves_for_now_gets_its_partitions_back_under_a_new_id() -> None:
    group, known = a_group()
    first, second = Client(group, known, "m-1", "i-1"), Client(group, known, "m-2")
    first.join()
    second.join()
    settled(first, second)
    had, epoch = first.partitions, group.epoch

    assert first.request(LEAVES_FOR_NOW).epoch == LEAVES_FOR_NOW
    settled(second)
    assert len(second.partitions) == 2, "its place is kept"
    again = Client(group, known, "m-3", "i-1")
    again.join()

    assert again.partitions == had and group.epoch == epoch
    assert first.beat().code is ErrorCode.FENCED_INSTANCE_ID


def test_a_late_heartbeat_does_not_bring_back_a_static_member_that_left_for_now() -> None:
    group, known = a_group()
    first, second = Client(group, known, "m-1", "i-1"), Client(group, known, "m-2")
    first.join()
    second.join()
    settled(first, second)
    before = group.members["m-1"].previous_epoch
    first.request(LEAVES_FOR_NOW)

    assert before > 0 and first.request(before, owned=first.owned).code is ErrorCode.FENCED_MEMBER_EPOCH
    assert group.members["m-1"].has_left_for_now


def test_an_instance_that_is_there_is_not_taken_over() -> None:
    group, known = a_group()
    Client(group, known, "m-1", "i-1").join()

    assert Client(group, known, "m-2", "i-1").join().code is ErrorCode.UNRELEASED_INSTANCE_ID


@pytest.mark.parametrize("instance_id", [None, "i-1"])
def test_a_member_that_names_an_instance_that_nobody_holds_is_unknown(instance_id: str | None) -> None:
    group, known = a_group()
    client = Client(group, known, "m-1", instance_id)
    client.join()
    client.instance_id = "i-2"

    assert client.beat().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert client.request(LEAVES).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.commit(0.0, "m-1", "i-2", client.epoch) is ErrorCode.NONE, "as in Kafka"


def test_a_member_that_joins_again_gives_up_at_once_what_others_are_to_have() -> None:
    group, known = a_group()
    first, second = Client(group, known, "m-1"), Client(group, known, "m-2")
    first.join()
    second.join()

    first.join()
    second.beat()

    assert first.partitions | second.partitions == {0, 1, 2, 3} and len(second.partitions) == 2


def positions(*partitions: int) -> list[OffsetPosition]:
    return [OffsetPosition(EVENTS, partition, 7, -1, "") for partition in partitions]


def test_commits_are_taken_at_the_members_epoch() -> None:
    group, known = a_group()
    client = Client(group, known, "m-1")
    client.join()

    assert group.commit(0.0, "m-1", None, 1, positions=positions(0)) is ErrorCode.NONE
    assert group.commit(0.0, "m-1", None, 0, positions=positions(0)) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.commit(0.0, "m-1", None, 2, positions=positions(0)) is ErrorCode.STALE_MEMBER_EPOCH
    assert (
        group.commit(0.0, "m-1", None, 0, positions=positions(0), is_transactional=True)
        is ErrorCode.ILLEGAL_GENERATION
    )
    assert group.commit(0.0, "m-9", None, 1, positions=positions(0)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_at_an_earlier_epoch_is_taken_of_partitions_that_the_member_already_had_then() -> None:
    group, known = a_group()
    first, second = two_members(group, known)
    given = sorted(second.partitions)
    first.reads = TopicNames({"events", "other"})
    known["other"] = topics(other=1)["other"]
    first.full_beat()
    settled(first, second)
    assert second.epoch == 3 and sorted(second.partitions) == given

    assert group.commit(0.0, "m-2", None, 2, positions=positions(*given)) is ErrorCode.NONE
    assert (
        group.commit(0.0, "m-2", None, 2, positions=positions(*given), is_transactional=True)
        is ErrorCode.NONE
    )
    assert group.commit(0.0, "m-2", None, 1, positions=positions(*given)) is ErrorCode.STALE_MEMBER_EPOCH
    others = [*given, *first.partitions]
    assert group.commit(0.0, "m-2", None, 2, positions=positions(*others)) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.validate_reader("m-2", 2) is ErrorCode.STALE_MEMBER_EPOCH


def test_a_commit_from_before_a_member_joined_again_is_refused() -> None:
    group, known = a_group()
    _, second = two_members(group, known)
    Client(group, known, "m-3").join()
    second.join()
    assert second.epoch == 3 and second.partitions

    assert (
        group.commit(0.0, "m-2", None, 2, positions=positions(*second.partitions))
        is ErrorCode.STALE_MEMBER_EPOCH
    )


def test_most_members_choose_the_assignor() -> None:
    group, known = a_group()
    for n, assignor in enumerate(("uniform", "range", "range")):
        said = {"rebalance_seconds": 1.0, "topics": TopicNames({"events"}), "owned": {}}
        Client(group, known, f"m-{n}").request(JOINS, assignor=assignor, **said)

    assert group.assignor == "range"


def test_another_agent_continues_with_no_rebalance() -> None:
    group, known = a_group()
    first, second = Client(group, known, "m-1"), Client(group, known, "m-2", "i-2")
    first.join()
    second.join()
    first.beat()
    epoch = group.epoch

    state = at_once(stored_consumer_group.stored(group))
    taken = at_once(stored_consumer_group.restored(state, 100.0, 45.0, 10, 1 << 20))
    first.group = second.group = taken
    settled(first, second)

    assert taken.epoch == epoch and taken.phase is ConsumerGroupPhase.STABLE
    assert len(first.partitions) == len(second.partitions) == 2


class Hostile(RuleBasedStateMachine):
    """Members come, go, restart, lose answers and are slow; agents take over. No partition is read by two at once."""

    def __init__(self) -> None:
        super().__init__()
        self.known = topics(events=5, other=3)
        self.group = ConsumerGroup("g")
        self.clients: dict[str, Client] = {}
        self.reading: dict[str, set[tuple[UUID, int]]] = {}
        self.now = 0.0

    def changed(self) -> None:
        """What each client reads, once it has taken its answer: what it must give up, it gives up."""
        for name, client in self.clients.items():
            self.reading[name] = {(topic, n) for topic, of_topic in client.owned.items() for n in of_topic}

    @rule(
        number=st.integers(0, 3),
        reads=st.sampled_from([{"events"}, {"other"}, {"events", "other"}]),
        is_static=st.booleans(),
    )
    def join(self, number: int, reads: set[str], is_static: bool) -> None:
        name = f"m-{number}"
        client = Client(self.group, self.known, name, f"i-{number}" if is_static else None, TopicNames(reads))
        old = self.clients.get(name)
        if old is not None:
            client.instance_id = old.instance_id
        if client.join().code is ErrorCode.NONE:
            self.clients[name] = client
        self.changed()

    @rule(number=st.integers(0, 3), is_full=st.booleans(), is_lost=st.booleans())
    def beat(self, number: int, is_full: bool, is_lost: bool) -> None:
        client = self.clients.get(f"m-{number}")
        if client is None:
            return
        before = (client.epoch, client.owned)
        answer = client.full_beat() if is_full or client.is_changed else client.beat()
        if answer.code is not ErrorCode.NONE:
            del self.clients[client.member_id]
            self.reading.pop(client.member_id, None)
        elif is_lost:
            (client.epoch, client.owned), client.is_changed = before, True
        self.changed()

    @rule(number=st.integers(0, 3), epoch=st.sampled_from([LEAVES, LEAVES_FOR_NOW]))
    def leave(self, number: int, epoch: int) -> None:
        client = self.clients.get(f"m-{number}")
        if client is None or (epoch == LEAVES_FOR_NOW and client.instance_id is None):
            return
        client.request(epoch)
        del self.clients[client.member_id]
        self.reading.pop(client.member_id, None)

    @rule(events=st.integers(1, 6), other=st.integers(1, 4))
    def grow(self, events: int, other: int) -> None:
        self.known = topics(events=events, other=other)
        for client in self.clients.values():
            client.known = self.known

    @rule()
    def another_agent_takes_over(self) -> None:
        state = at_once(stored_consumer_group.stored(self.group))
        self.group = at_once(stored_consumer_group.restored(state, self.now, 45.0, 10, 1 << 20))
        for client in self.clients.values():
            client.group = self.group

    @invariant()
    def nobody_reads_what_another_reads(self) -> None:
        places = [place for read in self.reading.values() for place in read]
        assert len(places) == len(set(places)), self.reading

    def teardown(self) -> None:
        """Left alone, those who are there come to rest, and share everything."""
        if not self.clients:
            return
        for absent in self.group.members.keys() - self.clients.keys():
            at_once(self.group.remove(self.group.members[absent]))
        for _ in range(12):
            for client in list(self.clients.values()):
                if client.full_beat().code is not ErrorCode.NONE:
                    client.join()
        assert self.group.phase is ConsumerGroupPhase.STABLE
        wanted = {name for client in self.clients.values() for name in client.reads}
        read = {place for client in self.clients.values() for place in self._places(client.owned)}
        assert read == {
            (self.known[name].topic.topic_id, n)
            for name in wanted
            for n in range(self.known[name].topic.partitions)
        }

    @staticmethod
    def _places(owned: Assignment) -> set[tuple[UUID, int]]:
        return {(topic, n) for topic, of_topic in owned.items() for n in of_topic}


TestHostile = Hostile.TestCase
TestHostile.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
