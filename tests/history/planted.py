"""Faults to plant in a good history, one of each kind that a broker may commit; each says what is to be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

import msgspec

from tests.support.history.events import (
    Acked,
    AnyEvent,
    Begun,
    BoundsSeen,
    CommitAsked,
    Ended,
    Event,
    Failed,
    LogStartMoved,
    OffsetCommitAsked,
    OffsetFetched,
    OffsetsAdded,
    Positioned,
    Read,
    Sent,
)
from tests.support.history.violations import Kind

E = TypeVar("E", bound=Event)
LATER = 10_000.0
"""A time after all of a history's."""


class History:
    """Events that can be changed, and questions about them. `NoPlace` when the fault has no place in it."""

    def __init__(self, events: list[AnyEvent], random: Random) -> None:
        self.events: list[Any] = list(events)
        self.random = random

    def all(self, kind: type[E], where: Callable[[Any], bool] = lambda event: True) -> list[E]:
        return [event for event in self.events if type(event) is kind and where(event)]

    def any(self, kind: type[E], where: Callable[[Any], bool] = lambda event: True) -> E:
        found = self.all(kind, where)
        if not found:
            raise NoPlace
        return self.random.choice(found)

    def drop(self, where: Callable[[Any], bool]) -> None:
        self.events = [event for event in self.events if not where(event)]

    def change(self, event: Event, **changes: Any) -> None:
        self.events[self.events.index(event)] = msgspec.structs.replace(event, **changes)

    def sent(self, record: str) -> Sent:
        return self.any(Sent, lambda event: event.record == record)

    def is_acked(self, record: str) -> bool:
        return any(type(event) is Acked and event.record == record for event in self.events)

    def end(self, topic: str, partition: int) -> int:
        """The end of a partition as the last one who looked saw it."""
        seen = self.all(BoundsSeen, lambda event: (event.topic, event.partition) == (topic, partition))
        if not seen:
            raise NoPlace
        return seen[-1].high_watermark

    def outcome(self, transaction: str) -> str:
        ended = self.all(Ended, lambda event: event.transaction == transaction)
        return ended[0].outcome if ended else "unknown"

    def final_read(self, where: Callable[[Read], bool] = lambda event: True) -> Read:
        """A record that the last readers got."""
        return self.any(Read, lambda event: event.client.startswith("final-") and where(event))

    def read_in(self, outcome: str, isolation: str) -> Read:
        return self.any(
            Read,
            lambda event: (
                event.isolation == isolation
                and bool(self.sent(event.record).transaction)
                and self.outcome(self.sent(event.record).transaction) == outcome
            ),
        )


class NoPlace(Exception):
    """This history has nothing where the fault could be planted."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault. `found_as`: any of these kinds is a right answer; what else is found follows from it."""

    name: str
    found_as: tuple[Kind, ...]
    plant: Callable[[History], None]


FAULTS: list[Planted] = []


def fault(*found_as: Kind) -> Callable[[Callable[[History], None]], Callable[[History], None]]:
    def declare(plant: Callable[[History], None]) -> Callable[[History], None]:
        FAULTS.append(Planted(plant.__name__.replace("_", " "), found_as, plant))
        return plant

    return declare


def _is_plain_log(event: Any) -> bool:
    return not event.topic.startswith("output")


# -- lost ----------------------------------------------------------------------------------------------


@fault(Kind.LOST)
def an_acknowledged_record_is_gone_for_all_readers(history: History) -> None:
    read = history.final_read(lambda event: _is_plain_log(event) and history.is_acked(event.record))
    history.drop(lambda event: type(event) is Read and event.record == read.record)
    if not history.all(Acked, lambda event: event.record == read.record and event.offset >= 0):
        raise NoPlace


@fault(Kind.LOST, Kind.PARTIAL_TRANSACTION)
def one_reader_steps_over_a_record(history: History) -> None:
    read = history.final_read(lambda event: event.isolation == "committed")
    if (
        history.sent(read.record).transaction
        and history.outcome(history.sent(read.record).transaction) != "committed"
    ):
        raise NoPlace
    history.events.remove(read)


@fault(Kind.LOST, Kind.PARTIAL_TRANSACTION)
def the_tail_of_the_log_is_cut_off_after_it_was_acknowledged_without_an_offset(history: History) -> None:
    read = history.final_read(_is_plain_log)
    end = history.end(read.topic, read.partition)
    last = history.final_read(
        lambda event: (event.topic, event.partition, event.offset) == (read.topic, read.partition, end - 1)
    )
    if not history.is_acked(last.record):
        raise NoPlace
    history.drop(lambda event: type(event) is Read and event.record == last.record)
    for acked in history.all(Acked, lambda event: event.record == last.record):
        history.change(acked, offset=-1)
    for place in history.all(
        Positioned,
        lambda event: (event.topic, event.partition, event.offset) == (read.topic, read.partition, end),
    ):
        history.change(place, offset=end - 1)
    for bounds in history.all(
        BoundsSeen, lambda event: (event.topic, event.partition) == (read.topic, read.partition)
    ):
        history.change(
            bounds,
            high_watermark=min(bounds.high_watermark, end - 1),
            last_stable=min(bounds.last_stable, end - 1),
        )


@fault(Kind.BOUNDS_MOVED_BACK)
def the_high_watermark_is_below_an_acknowledged_offset(history: History) -> None:
    acked = history.any(Acked, lambda event: event.offset >= 0)
    sent = history.sent(acked.record)
    seen = history.any(
        BoundsSeen,
        lambda event: (
            (event.topic, event.partition) == (sent.topic, sent.partition) and event.asked > acked.at
        ),
    )
    history.change(seen, high_watermark=acked.offset, last_stable=min(seen.last_stable, acked.offset))


# -- doubled -------------------------------------------------------------------------------------------


def _append(history: History, topic: str, partition: int, record: str, isolation: str = "committed") -> int:
    """The record stands once more at the end of its partition, where the last reader of the isolation gets it."""
    end = history.end(topic, partition)
    history.events.append(
        Read(
            at=LATER,
            client=f"final-{isolation}",
            topic=topic,
            partition=partition,
            offset=end,
            record=record,
            isolation=isolation,  # type: ignore[arg-type]
        )
    )
    return end


@fault(Kind.DUPLICATED)
def an_idempotent_record_is_stored_twice(history: History) -> None:
    read = history.final_read(lambda event: history.sent(event.record).guarantee == "idempotent")
    _append(history, read.topic, read.partition, read.record)


@fault(Kind.DUPLICATED)
def a_plain_record_is_stored_more_often_than_it_was_sent(history: History) -> None:
    read = history.final_read(lambda event: history.sent(event.record).guarantee == "plain")
    sent = history.all(Sent, lambda event: event.record == read.record)
    for index in range(len(sent)):
        _append(history, read.topic, read.partition, read.record)
        for bounds in history.all(BoundsSeen)[-8:]:
            if (bounds.topic, bounds.partition) == (read.topic, read.partition):
                history.change(bounds, high_watermark=bounds.high_watermark + 1 + index)


@fault(Kind.PROCESSED_TWICE)
def a_zombie_commits_what_another_has_processed(history: History) -> None:
    output = history.read_in("committed", "committed")
    source = history.sent(output.record).source
    names: Any = {"client": "zombie", "transaction": "zombie-1"}
    added = history.any(OffsetsAdded)
    history.events += [
        Begun(at=LATER, **names),
        Sent(
            at=LATER,
            topic=output.topic,
            partition=output.partition,
            record="once more",
            number=1,
            guarantee="transactional",
            source=source,
            **names,
        ),
        msgspec.structs.replace(added, at=LATER, **names),
        CommitAsked(at=LATER, **names),
        Ended(at=LATER, outcome="committed", **names),
    ]


# -- order ---------------------------------------------------------------------------------------------


def _swap(history: History, one: Read, other: Read) -> None:
    """Two records change places for all who read or were told of them."""
    offsets = {one.record: other.offset, other.record: one.offset}
    for event in list(history.events):
        if type(event) is Read and event.record in offsets:
            swapped = other.record if event.record == one.record else one.record
            history.events[history.events.index(event)] = msgspec.structs.replace(event, record=swapped)
    for acked in history.all(Acked, lambda event: event.record in offsets and event.offset >= 0):
        history.change(acked, offset=offsets[acked.record])


@fault(Kind.REORDERED)
def two_records_of_a_producer_change_places(history: History) -> None:
    one = history.final_read(lambda event: history.sent(event.record).guarantee == "idempotent")
    other = history.final_read(
        lambda event: (
            (event.client, event.topic, event.partition) == (one.client, one.topic, one.partition)
            and history.sent(event.record).client == history.sent(one.record).client
            and event.offset > one.offset
        )
    )
    _swap(history, one, other)


@fault(Kind.REORDERED)
def a_record_stands_before_one_that_was_acknowledged_before_it_was_sent(history: History) -> None:
    one = history.final_read(
        lambda event: (
            history.sent(event.record).guarantee == "idempotent"
            and bool(history.all(Acked, lambda acked: acked.record == event.record and acked.offset >= 0))
        )
    )
    other = history.final_read(
        lambda event: (
            (event.client, event.topic, event.partition) == (one.client, one.topic, one.partition)
            and history.sent(event.record).client != history.sent(one.record).client
            and history.sent(event.record).guarantee == "idempotent"
            and history.sent(event.record).at
            > history.any(Acked, lambda acked: acked.record == one.record).at
        )
    )
    _swap(history, one, other)


@fault(Kind.NON_MONOTONIC_READ)
def a_reader_is_handed_a_record_again(history: History) -> None:
    read = history.final_read()
    history.events.insert(history.events.index(read), read)


@fault(Kind.NON_MONOTONIC_READ)
def a_reader_is_put_back_to_the_start(history: History) -> None:
    read = history.final_read(lambda event: event.offset > 2)
    first = history.final_read(
        lambda event: (
            (event.client, event.topic, event.partition) == (read.client, read.topic, read.partition)
            and event.offset < read.offset
        )
    )
    history.events.append(msgspec.structs.replace(first, at=LATER))


# -- what was never sent there -------------------------------------------------------------------------


@fault(Kind.PHANTOM)
def a_record_comes_out_changed(history: History) -> None:
    read = history.any(Read)
    history.change(read, record=read.record + "?")


@fault(Kind.PHANTOM)
def a_record_is_read_before_it_was_sent(history: History) -> None:
    read = history.any(Read)
    history.change(read, at=history.sent(read.record).at - 0.5)


@fault(Kind.MISPLACED)
def a_record_comes_out_of_another_partition(history: History) -> None:
    read = history.any(Read)
    _append(history, read.topic, 1 - read.partition, read.record)


@fault(Kind.MISPLACED)
def an_old_record_appears_in_the_topic_made_anew(history: History) -> None:
    old = history.any(Read, lambda event: event.topic == "plain")
    new = history.any(Sent, lambda event: event.topic.startswith("plain@"))
    _append(history, new.topic, old.partition, old.record)


@fault(Kind.FAILED_SEEN)
def a_refused_record_is_stored(history: History) -> None:
    failed = history.any(Failed)
    sent = history.sent(failed.record)
    _append(history, sent.topic, sent.partition, failed.record)


@fault(Kind.DELETED_SEEN)
def a_deleted_record_comes_back(history: History) -> None:
    moved = history.any(LogStartMoved, lambda event: event.is_done and event.offset > 0)
    read = history.any(
        Read,
        lambda event: (
            (event.topic, event.partition) == (moved.topic, moved.partition) and event.offset < moved.offset
        ),
    )
    history.events += [
        Positioned(
            at=LATER,
            client="late",
            topic=read.topic,
            partition=read.partition,
            offset=read.offset,
            is_seek=True,
        ),
        msgspec.structs.replace(read, at=LATER, client="late", isolation="uncommitted"),
    ]


# -- torn ----------------------------------------------------------------------------------------------


@fault(Kind.TORN)
def a_batch_is_stored_in_part(history: History) -> None:
    read = history.final_read(
        lambda event: bool(history.sent(event.record).batch) and not event.topic.startswith("plain")
    )
    batch = history.sent(read.record).batch
    if len(history.all(Sent, lambda event: event.batch == batch)) < 2:
        raise NoPlace
    history.drop(lambda event: type(event) in (Read, Acked) and event.record == read.record)


@fault(Kind.HOLE)
def an_offset_holds_nothing(history: History) -> None:
    read = history.final_read(lambda event: _is_plain_log(event) and history.sent(event.record).batch == "")
    history.drop(lambda event: type(event) in (Read, Acked) and event.record == read.record)


# -- offsets -------------------------------------------------------------------------------------------


@fault(Kind.OFFSET_REUSED)
def two_records_are_told_one_offset(history: History) -> None:
    acked = history.any(Acked, lambda event: event.offset > 0)
    sent = history.sent(acked.record)
    other = history.any(
        Acked,
        lambda event: (
            event.offset >= 0
            and event.offset != acked.offset
            and (history.sent(event.record).topic, history.sent(event.record).partition)
            == (sent.topic, sent.partition)
        ),
    )
    history.change(acked, offset=other.offset)


@fault(Kind.OFFSET_REUSED)
def an_offset_is_given_again_after_a_fail_over(history: History) -> None:
    read = history.final_read()
    others = history.all(
        Read,
        lambda event: (
            (event.topic, event.partition, event.offset) == (read.topic, read.partition, read.offset)
        ),
    )
    if len(others) < 2:
        raise NoPlace
    another = history.any(
        Read,
        lambda event: (
            (event.topic, event.partition) == (read.topic, read.partition) and event.record != read.record
        ),
    )
    history.change(read, record=another.record)


@fault(Kind.OFFSET_MOVED)
def a_record_is_not_at_the_offset_its_producer_was_told(history: History) -> None:
    read = history.final_read(
        lambda event: (
            history.sent(event.record).guarantee == "idempotent"
            and bool(history.all(Acked, lambda acked: acked.record == event.record and acked.offset >= 0))
        )
    )
    acked = history.any(Acked, lambda event: event.record == read.record and event.offset >= 0)
    history.change(acked, offset=history.end(read.topic, read.partition) + 5)


@fault(Kind.BOUNDS_MOVED_BACK)
def the_last_stable_offset_falls(history: History) -> None:
    seen = history.all(BoundsSeen, lambda event: event.last_stable > 1)
    if not seen:
        raise NoPlace
    history.events.append(
        msgspec.structs.replace(seen[-1], at=LATER, asked=LATER, last_stable=seen[-1].last_stable - 1)
    )


@fault(Kind.BOUNDS_MOVED_BACK)
def the_log_start_falls(history: History) -> None:
    seen = history.any(BoundsSeen, lambda event: event.log_start > 0)
    history.events.append(msgspec.structs.replace(seen, at=LATER, asked=LATER, log_start=0))


@fault(Kind.UNASKED_DELETION)
def the_log_start_jumps(history: History) -> None:
    seen = history.any(BoundsSeen, lambda event: event.high_watermark > event.log_start)
    history.change(seen, log_start=seen.high_watermark)


# -- transactions --------------------------------------------------------------------------------------


@fault(Kind.ABORTED_SEEN)
def a_record_of_an_aborted_transaction_is_delivered(history: History) -> None:
    read = history.read_in("aborted", "uncommitted")
    history.change(read, isolation="committed")


@fault(Kind.OPEN_SEEN)
def a_record_is_delivered_before_its_transaction_ends(history: History) -> None:
    read = history.read_in("committed", "committed")
    sent = history.sent(read.record)
    asked = history.any(CommitAsked, lambda event: event.transaction == sent.transaction)
    if asked.at <= sent.at:
        raise NoPlace
    history.events.append(msgspec.structs.replace(read, at=(sent.at + asked.at) / 2, client="early"))


@fault(Kind.OPEN_SEEN)
def a_transaction_that_nobody_asked_to_commit_is_committed(history: History) -> None:
    asked = {event.transaction for event in history.all(CommitAsked)}
    read = history.any(
        Read,
        lambda event: (
            event.isolation == "uncommitted"
            and bool(history.sent(event.record).transaction)
            and history.sent(event.record).transaction not in asked
            and history.outcome(history.sent(event.record).transaction) == "unknown"
        ),
    )
    history.change(read, isolation="committed")


@fault(Kind.PARTIAL_TRANSACTION)
def a_committed_transaction_lacks_a_record(history: History) -> None:
    read = history.read_in("committed", "committed")
    transaction = history.sent(read.record).transaction
    if len({event.record for event in history.all(Sent, lambda event: event.transaction == transaction)}) < 2:
        raise NoPlace
    history.drop(lambda event: type(event) is Read and event.record == read.record)
    if not history.all(Acked, lambda event: event.record == read.record):
        raise NoPlace


@fault(Kind.PARTIAL_TRANSACTION)
def half_of_a_transaction_of_unknown_outcome_is_committed(history: History) -> None:
    read = history.any(
        Read,
        lambda event: (
            event.isolation == "committed"
            and bool(history.sent(event.record).transaction)
            and history.outcome(history.sent(event.record).transaction) == "unknown"
        ),
    )
    transaction = history.sent(read.record).transaction
    records = {event.record for event in history.all(Sent, lambda event: event.transaction == transaction)}
    if len(records) < 2:
        raise NoPlace
    history.drop(
        lambda event: type(event) is Read and event.record == read.record and event.isolation == "committed"
    )
    if not history.all(Read, lambda event: event.record in records and event.isolation == "committed"):
        raise NoPlace


@fault(Kind.LOST, Kind.PARTIAL_TRANSACTION)
def a_read_committed_reader_passes_an_open_transaction(history: History) -> None:
    read = history.read_in("committed", "committed")
    sent = history.sent(read.record)
    names: Any = {"client": "hasty", "topic": read.topic, "partition": read.partition}
    history.events += [
        Positioned(at=sent.at, offset=read.offset, isolation="committed", is_seek=True, **names),
        Positioned(at=LATER, offset=read.offset + 1, isolation="committed", **names),
    ]


# -- positions of groups -------------------------------------------------------------------------------


def _fetched(history: History) -> OffsetFetched:
    return history.any(OffsetFetched, lambda event: event.group == "readers" and event.offset > 0)


@fault(Kind.COMMITTED_OFFSET_MOVED_BACK)
def a_group_is_put_back_to_an_older_position(history: History) -> None:
    fetched = history.all(OffsetFetched, lambda event: event.group == "readers")
    if not fetched:
        raise NoPlace
    older = history.any(
        OffsetCommitAsked,
        lambda event: (
            (event.group, event.topic, event.partition)
            == (fetched[-1].group, fetched[-1].topic, fetched[-1].partition)
            and event.offset < fetched[-1].offset
        ),
    )
    if len({event.offset for event in history.all(OffsetCommitAsked)}) < 3 or not _is_settled(history, older):
        raise NoPlace
    history.change(fetched[-1], offset=older.offset)


def _is_settled(history: History, commit: OffsetCommitAsked) -> bool:
    """Its offset was asked once, its answer is known, and a higher one was done after it."""
    done = {event.commit for event in history.events if hasattr(event, "answer") and event.answer == "done"}
    same = history.all(
        OffsetCommitAsked,
        lambda event: (
            (event.topic, event.partition, event.offset) == (commit.topic, commit.partition, commit.offset)
        ),
    )
    later = history.all(
        OffsetCommitAsked,
        lambda event: (
            (event.topic, event.partition) == (commit.topic, commit.partition)
            and event.at > commit.at + 0.1
            and event.offset > commit.offset
            and event.commit in done
        ),
    )
    return len(same) == 1 and commit.commit in done and bool(later)


@fault(Kind.COMMITTED_OFFSET_WRONG)
def a_group_has_a_position_that_nobody_committed(history: History) -> None:
    fetched = _fetched(history)
    history.change(fetched, offset=fetched.offset + 1_000)


@fault(Kind.COMMITTED_OFFSET_MOVED_BACK)
def a_group_forgets_its_position(history: History) -> None:
    fetched = history.all(OffsetFetched, lambda event: event.group == "readers" and event.offset > 0)
    if not fetched or not any(hasattr(event, "answer") for event in history.events):
        raise NoPlace
    history.change(fetched[-1], offset=-1)


@fault(Kind.COMMITTED_OFFSET_WRONG, Kind.COMMITTED_OFFSET_MOVED_BACK)
def the_position_of_a_committed_transaction_is_not_taken(history: History) -> None:
    fetched = history.all(OffsetFetched, lambda event: event.group == "loop" and event.offset > 0)
    if not fetched:
        raise NoPlace
    last = fetched[-1]
    before = [
        event
        for event in history.all(
            OffsetsAdded, lambda event: (event.topic, event.partition) == (last.topic, last.partition)
        )
        if event.offset < last.offset and history.outcome(event.transaction) == "committed"
    ]
    of_last = history.all(
        OffsetsAdded,
        lambda event: (
            (event.topic, event.partition, event.offset) == (last.topic, last.partition, last.offset)
        ),
    )
    if not before or not any(history.outcome(event.transaction) == "committed" for event in of_last):
        raise NoPlace
    history.change(last, offset=before[0].offset)


@fault(Kind.COMMITTED_OFFSET_WRONG)
def the_position_of_an_aborted_transaction_is_taken(history: History) -> None:
    added = history.any(OffsetsAdded, lambda event: history.outcome(event.transaction) == "aborted")
    others = history.all(
        OffsetsAdded,
        lambda event: (
            (event.topic, event.partition, event.offset) == (added.topic, added.partition, added.offset)
            and event.transaction != added.transaction
        ),
    )
    if others:
        raise NoPlace
    history.events.append(
        OffsetFetched(
            at=LATER,
            asked=LATER,
            client="member",
            group=added.group,
            topic=added.topic,
            partition=added.partition,
            offset=added.offset,
        )
    )


@fault(Kind.PARTIAL_TRANSACTION, Kind.NOT_PROCESSED, Kind.LOST)
def the_position_of_a_transaction_is_taken_but_not_its_records(history: History) -> None:
    added = history.any(
        OffsetsAdded,
        lambda event: (
            history.outcome(event.transaction) == "unknown"
            and bool(history.all(CommitAsked, lambda asked: asked.transaction == event.transaction))
        ),
    )
    if history.all(OffsetsAdded, lambda event: event.offset >= added.offset and event is not added):
        raise NoPlace
    records = {
        event.record for event in history.all(Sent, lambda event: event.transaction == added.transaction)
    }
    history.drop(
        lambda event: type(event) is Read and event.record in records and event.isolation == "committed"
    )
    history.events.append(
        OffsetFetched(
            at=LATER,
            asked=LATER,
            client="member",
            group=added.group,
            topic=added.topic,
            partition=added.partition,
            offset=added.offset,
        )
    )


@fault(Kind.NOT_PROCESSED)
def a_loop_is_moved_past_an_input(history: History) -> None:
    """As when another's position, or one of before, became the loop's: the loop never saw an input."""
    output = history.read_in("committed", "committed")
    history.drop(
        lambda event: type(event) in (Sent, Acked, Read) and getattr(event, "record", "") == output.record
    )
