"""Decisions about transactions, on drafts: what a contract over a whole sequencer would take too long to reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.api.commits import BatchError
from sequencer.api.errors import (
    InvalidProducerIdMapping,
    InvalidTransactionState,
    ProducerFenced,
    SequencerError,
)
from sequencer.api.groups import CommitOffsets, GroupRef, OffsetPosition
from sequencer.api.producers import InitProducer, ProducerGrant
from sequencer.api.reads import PartitionError
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import DeleteTopic
from sequencer.api.transactions import (
    AbortProducer,
    AddToTransaction,
    EndTransaction,
    TransactionRef,
    TransactionState,
)
from sequencer.rules.groups import commit_offsets, delete_group
from sequencer.rules.topics import delete_records, delete_topic, empty_partition
from sequencer.rules.transactions import (
    LAST_EPOCH,
    MARKER_LENGTH,
    MARKERS_OF_A_RUN,
    Joined,
    abort_producer,
    abort_timed_out,
    add_to_transaction,
    admit,
    end_transaction,
    init_producer,
    join_partitions,
    note_stored,
    transaction_of,
)
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import (
    HOT,
    AbortedRow,
    Changes,
    GroupOffsetRow,
    GroupRow,
    LogEpoch,
    OpenRangeRow,
    PartitionRow,
    PendingOffsetRow,
    Row,
    TopicRow,
    TransactionRow,
)
from sequencer.store.state import PRODUCER_ID, HotState, replace_row
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.batches.record_batch import TRANSACTIONAL_FLAG, MarkerKind, control_batch
from tailrace.turns import at_once

SETTINGS = SequencerSettings()
TOPICS = [UUID(int=1), UUID(int=2)]
NAMES = ["a", "b", "c"]
GROUPS = ["g", "h"]


class World:
    """A state, and one transaction on it at a time."""

    def __init__(self) -> None:
        rows: dict[type[Row], list[Row]] = {TopicRow: [], PartitionRow: []}
        for number, topic_id in enumerate(TOPICS):
            rows[TopicRow].append(TopicRow(topic_id, f"t{number}", 2, {}, 0))
            rows[PartitionRow] += [
                PartitionRow(topic_id, each, 0, 0, -1, [LogEpoch(0, 0)]) for each in (0, 1)
            ]
        self.state = HotState(rows)
        self.now_ms = 1_000

    def do(self, *decisions: Callable[[Draft], object]) -> list[object]:
        """Decide together, each on a savepoint, and make it durable; what each gave or raised."""
        draft = Draft(self.state, self.now_ms)
        self._look_positions_up(draft)
        outcomes: list[object] = []
        for decide in decisions:
            savepoint = draft.savepoint()
            try:
                decision = decide(savepoint)
                outcomes.append(at_once(decision) if isinstance(decision, Generator) else decision)
                savepoint.merge()
            except SequencerError as error:
                outcomes.append(error)
        self.state.apply(draft.changes)
        return outcomes

    def positions(self) -> list[GroupOffsetRow]:
        """All positions: so few that each is among those that were written last."""
        return [row for row in self.state.recent[GroupOffsetRow] if isinstance(row, GroupOffsetRow)]

    def _look_positions_up(self, draft: Draft) -> None:
        places = [(topic_id, partition) for topic_id in TOPICS for partition in (0, 1)]
        keys = [(group_id, *place) for group_id in GROUPS for place in places]
        at_once(draft.note_rows({GroupOffsetRow: keys}, [self.positions()]))
        draft.note_groups(GROUPS)
        for row in self.positions():
            draft.note_position(row)

    def init(self, name: str = "a") -> ProducerGrant:
        (granted,) = self.do(lambda draft: init_producer(draft, InitProducer(-1, -1, name, 60_000), SETTINGS))
        assert isinstance(granted, ProducerGrant)
        return granted

    def row(self, name: str = "a") -> TransactionRow:
        row = self.state.get(TransactionRow, name)
        assert row is not None
        return row

    def put(self, row: Row) -> None:
        self.do(lambda draft: draft.put(row))

    def at_last_epoch(self) -> ProducerGrant:
        granted = self.init()
        self.put(replace_row(self.row(), producer_epoch=LAST_EPOCH))
        return ProducerGrant(granted.producer_id, LAST_EPOCH)


def store(
    topic_id: UUID, partition: int, producer: ProducerGrant, number: int = -1
) -> Callable[[Draft], object]:
    """A batch of one record, as a commit would store it."""

    def decide(draft: Draft) -> BatchError:
        row = draft.live_partition(topic_id, partition)
        if row is None:
            return BatchError.UNKNOWN_TOPIC_OR_PARTITION
        batch = BatchCoordinates(
            100, 1, 0, 0, producer.producer_id, producer.producer_epoch, 0, TRANSACTIONAL_FLAG
        )
        error = admit(draft, topic_id, partition, batch, number, SETTINGS)
        if error is BatchError.NONE:
            joined: Joined = {}
            note_stored(draft, topic_id, partition, {producer.producer_id: row.end_offset}, joined, SETTINGS)
            join_partitions(draft, joined, SETTINGS)
            draft.put(replace_row(row, end_offset=row.end_offset + 1))
            draft.visible_change()
        return error

    return decide


def end(name: str, producer: ProducerGrant, *, commit: bool, bump: bool) -> Callable[[Draft], object]:
    ref = TransactionRef(name, producer.producer_id, producer.producer_epoch)
    return lambda draft: end_transaction(draft, EndTransaction(ref, commit, bump))


def test_a_marker_is_as_long_as_the_batch_that_readers_make_of_it() -> None:
    made = control_batch(MarkerKind.COMMIT, producer_id=1 << 60, producer_epoch=7, timestamp_ms=1 << 41)
    assert len(made) == MARKER_LENGTH


def test_after_the_last_epoch_comes_a_fresh_producer_id() -> None:
    world = World()
    old = world.at_last_epoch()
    world.do(store(TOPICS[0], 0, old))
    request = end("a", old, commit=True, bump=True)
    (answer,) = world.do(request)
    assert answer == ProducerGrant(old.producer_id + 1, 0)
    assert world.do(request) == [answer]
    assert transaction_of(world.state, old.producer_id) is None
    (late,) = world.do(end("a", old, commit=False, bump=True))
    assert isinstance(late, SequencerError)
    assert world.do(store(TOPICS[0], 0, old)) == [BatchError.TRANSACTION_CLOSED]
    assert world.do(store(TOPICS[0], 0, world.init())) == [BatchError.NONE]


def test_taking_an_id_at_its_last_epoch_gives_a_fresh_producer_id() -> None:
    world = World()
    old = world.at_last_epoch()
    world.do(store(TOPICS[0], 0, old))
    fresh = world.init()
    assert fresh == ProducerGrant(old.producer_id + 1, 0)
    assert world.state.get(AbortedRow, TOPICS[0], 0, old.producer_id, 0) is not None
    named = InitProducer(old.producer_id, old.producer_epoch, "a", 60_000)
    (refused,) = world.do(lambda draft: init_producer(draft, named, SETTINGS))
    assert isinstance(refused, SequencerError)


def test_a_time_out_at_the_last_epoch_gives_nobody_the_old_producer_id() -> None:
    world = World()
    old = world.at_last_epoch()
    world.do(store(TOPICS[0], 0, old))
    world.now_ms += 60_000
    assert world.do(abort_timed_out) == [1]
    fresh = ProducerGrant(world.state.counter(PRODUCER_ID), 0)
    assert (world.row().producer_id, world.row().producer_epoch) == (fresh.producer_id, fresh.producer_epoch)
    (refused,) = world.do(end("a", old, commit=True, bump=True))
    assert isinstance(refused, InvalidTransactionState)
    (refused,) = world.do(end("a", old, commit=False, bump=False))
    assert isinstance(refused, InvalidProducerIdMapping)
    assert world.do(end("a", old, commit=False, bump=True)) == [fresh]


@pytest.mark.parametrize("number", [-1, 2])
def test_an_end_after_a_time_out_does_not_get_the_answer_of_the_end_before(number: int) -> None:
    world = World()
    producer = world.init()
    place, ref = (TOPICS[0], 0), TransactionRef("a", producer.producer_id, producer.producer_epoch)
    added = AddToTransaction(ref, [place])
    commit = EndTransaction(ref, is_commit=True, bumps_epoch=False)
    world.do(lambda draft: add_to_transaction(draft, added, SETTINGS), store(*place, producer, 1))
    assert world.do(lambda draft: end_transaction(draft, commit)) == [producer]
    world.do(lambda draft: add_to_transaction(draft, added, SETTINGS), store(*place, producer, 2))
    world.now_ms += 60_000
    assert world.do(abort_timed_out) == [1]
    late = msgspec.structs.replace(commit, number=number)
    (refused,) = world.do(lambda draft: end_transaction(draft, late))
    assert isinstance(refused, ProducerFenced)


def test_an_end_and_what_follows_may_be_decided_together() -> None:
    world = World()
    first = world.init()
    second = ProducerGrant(first.producer_id, 1)
    place = (TOPICS[0], 0)
    outcomes = world.do(
        store(*place, first),
        end("a", first, commit=False, bump=True),
        store(*place, first),
        store(*place, second),
        end("a", second, commit=True, bump=True),
        end("a", second, commit=True, bump=True),
    )
    assert outcomes == [
        BatchError.NONE, second, BatchError.INVALID_PRODUCER_EPOCH, BatchError.NONE,
        *[ProducerGrant(first.producer_id, 2)] * 2,
    ]  # fmt: skip
    assert list(world.state.all(AbortedRow)) == [AbortedRow(*place, first.producer_id, 0, 1)]
    partition = world.state.get(PartitionRow, *place)
    assert partition is not None and partition.end_offset == 4 == world.state.last_stable_offset(partition)


def test_a_range_left_without_a_transaction_is_aborted_by_an_operator() -> None:
    world = World()
    world.put(OpenRangeRow(TOPICS[0], 1, 77, 0))
    world.put(PartitionRow(TOPICS[0], 1, 0, 5, -1, [LogEpoch(0, 0)]))
    (answer,) = world.do(lambda draft: abort_producer(draft, AbortProducer(77, 3, [(TOPICS[0], 1)])))
    assert getattr(answer, "errors", None) == [PartitionError.NONE]
    assert list(world.state.all(AbortedRow)) == [AbortedRow(TOPICS[0], 1, 77, 0, 5)]
    assert not list(world.state.open_ranges.items())


PLACE = st.tuples(st.sampled_from(TOPICS), st.integers(0, 1))
NAME = st.sampled_from(NAMES)
STEPS = st.one_of(
    st.tuples(st.just("init"), NAME),
    st.tuples(st.just("store"), NAME, PLACE, st.sampled_from([0, 0, 0, 1])),
    st.tuples(st.just("store"), NAME, PLACE, st.just(0)),
    st.tuples(st.just("add"), NAME, PLACE, st.sampled_from([None, *GROUPS])),
    st.tuples(st.just("offsets"), NAME, st.sampled_from(GROUPS), PLACE, st.booleans()),
    st.tuples(st.just("end"), NAME, st.booleans(), st.booleans(), st.sampled_from([0, 0, 0, 1])),
    st.tuples(st.just("pass"), st.sampled_from([10, 30_000])),
    st.tuples(st.just("delete records"), PLACE, st.integers(-1, 9)),
    st.tuples(st.just("delete group"), st.sampled_from(GROUPS)),
    st.tuples(st.just("abort"), NAME, PLACE),
    st.tuples(st.sampled_from(["delete topic"] + ["pass"] * 4), st.just(0)),
)


def decision(world: World, step: tuple[Any, ...]) -> Callable[[Draft], object]:
    kind, *rest = step
    if kind == "pass":
        world.now_ms += rest[0]
        return abort_timed_out
    if kind == "delete records":
        (topic_id, partition), offset = rest
        asked = DeleteRecords([DeleteRecordsPartition(topic_id, partition, offset)])
        return lambda draft: delete_records(draft, asked)
    if kind == "delete group":
        return lambda draft: delete_group(draft, GroupRef(rest[0]))
    if kind == "delete topic":
        return lambda draft: delete_topic(draft, DeleteTopic(TOPICS[1]))
    name: str = rest[0]
    row = world.state.get(TransactionRow, name)
    if kind == "init" or row is None:
        return lambda draft: init_producer(draft, InitProducer(-1, -1, name, 60_000), SETTINGS)
    now = ProducerGrant(row.producer_id, row.producer_epoch)
    ref = TransactionRef(name, *(now.producer_id, now.producer_epoch))
    if kind == "store":
        place, late = rest[1:]
        return store(place[0], place[1], ProducerGrant(now.producer_id, now.producer_epoch - late))
    if kind == "add":
        place, group = rest[1:]
        return lambda draft: add_to_transaction(
            draft,
            AddToTransaction(ref, [place], group),
            SETTINGS,
        )
    if kind == "offsets":
        group, (topic_id, partition), joins = rest[1:]
        position = OffsetPosition(topic_id, partition, 3, -1, "")
        request = CommitOffsets(group, 1, 1, -1, "", [position], -1, ref, joins)
        return lambda draft: commit_offsets(draft, request, SETTINGS)
    if kind == "abort":
        (place,) = rest[1:]
        return lambda draft: abort_producer(
            draft,
            AbortProducer(now.producer_id, now.producer_epoch, [place]),
        )
    commit, bump, late = rest[1:]
    asked_as = ProducerGrant(now.producer_id, now.producer_epoch - late)
    return end(name, asked_as, commit=commit, bump=bump)


def indexes(state: HotState) -> dict[str, object]:
    """Everything that a state keeps beside its rows, without the order in which it came."""
    return {
        "ids": state.transactional_ids,
        "open": set(state.open_transactions),
        "ranges": dict(state.open_ranges.items()),
        "pending": state.pending_of,
        "pending at": state.pending_at,
        "aborted": {
            (topic_id, partition): state.aborted_from(topic_id, partition, 0)
            for topic_id in TOPICS
            for partition in (0, 1)
        },
    }


@settings(deadline=None, max_examples=80, database=None, derandomize=True)
@given(st.lists(st.lists(STEPS, min_size=1, max_size=3), max_size=25))
def test_whatever_is_asked_the_rows_agree_with_each_other_and_with_the_indexes(
    groups: list[list[tuple[Any, ...]]],
) -> None:
    world = World()
    for steps in groups:
        before = world.state.counter("commit_number")
        ends = {(row.topic_id, row.partition): row.end_offset for row in world.state.all(PartitionRow)}
        world.do(*(decision(world, step) for step in steps))
        state = world.state
        assert state.counter("commit_number") in (before, before + 1)
        rows = {kind: list(state.all(kind)) for kind in HOT}
        assert indexes(HotState(rows)) == indexes(state)
        for opened in state.all(OpenRangeRow):
            owner = transaction_of(state, opened.producer_id)
            assert owner is not None and owner.state is TransactionState.ONGOING
            assert (opened.topic_id, opened.partition) in owner.partitions
        for place, ranges in state.open_ranges.items():
            assert (
                state.get(PartitionRow, *place) is not None and ranges
            )  # of a deleted topic: until it is removed
        for row in state.all(PartitionRow):
            place = (row.topic_id, row.partition)
            stable = state.last_stable_offset(row)
            assert row.end_offset >= ends[place] and row.log_start_offset <= stable <= row.end_offset
            lasts = [one.last_offset for one in state.aborted_from(*place, 0)]
            assert lasts == sorted(set(lasts)) and all(row.log_start_offset <= last for last in lasts)
        counts = Counter(row.group_id for row in world.positions())
        assert {row.group_id: row.positions for row in state.all(GroupRow) if row.positions} == counts
        for pending in state.all(PendingOffsetRow):
            assert pending in Draft(state, 0).pending_of(pending.group_id, pending.producer_id)
            owner = transaction_of(state, pending.producer_id)
            assert owner is not None and pending.group_id in owner.groups


def test_the_epoch_of_an_open_transaction_is_that_of_its_batches() -> None:
    world = World()
    granted = world.init()
    for late in (granted.producer_epoch - 1, granted.producer_epoch + 1):
        (refused,) = world.do(store(TOPICS[0], 0, ProducerGrant(granted.producer_id, late)))
        assert refused is BatchError.INVALID_PRODUCER_EPOCH
    with pytest.raises(AssertionError):
        world.do(lambda draft: note_stored(draft, TOPICS[0], 0, {99: 0}, {}, SETTINGS))


END_STEP = st.one_of(
    st.tuples(st.just("begin"), st.none()),
    st.tuples(st.just("begin"), st.none()),
    st.tuples(st.just("end"), st.booleans()),
    st.tuples(st.just("end late"), st.booleans()),
    st.tuples(st.just("ask again"), st.integers(0, 9)),
    st.tuples(st.just("ask again"), st.integers(0, 9)),
    st.tuples(st.just("time out"), st.none()),
    st.tuples(st.just("init"), st.booleans()),
)


@settings(deadline=None, max_examples=150, database=None, derandomize=True)
@given(st.booleans(), st.booleans(), st.lists(END_STEP, min_size=3, max_size=25))
def test_an_end_that_is_answered_says_what_became_of_its_transaction_whenever_it_comes(
    bumps: bool, is_near_last_epoch: bool, steps: list[tuple[str, Any]]
) -> None:
    world = World()
    world.init()
    if is_near_last_epoch:
        world.put(replace_row(world.row(), producer_epoch=LAST_EPOCH - 1))
    became: list[bool | None] = []  # per transaction: committed, aborted, or still open
    asked: list[tuple[EndTransaction, int]] = []  # an end, and the transaction that it is for; -1 for none

    def ask(request: EndTransaction, target: int) -> None:
        was_open = [index for index, how in enumerate(became) if how is None]
        (answer,) = world.do(lambda draft: end_transaction(draft, request))
        if isinstance(answer, ProducerGrant):
            if target in was_open:
                became[target] = request.is_commit
            assert target < 0 or became[target] is request.is_commit

    for name, value in steps:
        row = world.row()
        ref = TransactionRef("a", row.producer_id, row.producer_epoch)
        is_open = row.state is TransactionState.ONGOING
        if name == "begin" and not is_open:
            added = AddToTransaction(ref, [(TOPICS[0], 0)])
            world.do(lambda draft, added=added: add_to_transaction(draft, added, SETTINGS))  # type: ignore[misc]
            became.append(None)
        elif name.startswith("end") and (is_open or (bumps, name, value) == (True, "end", False)):
            # A client that has nothing open aborts at most, and waits for the answer. Without bumps an agent says
            # which transaction was open when it got the request.
            request = EndTransaction(ref, value, bumps, -1 if bumps else row.number)
            asked.append((request, len(became) - 1 if is_open else -1))
            if name == "end":
                ask(*asked[-1])
        elif name == "ask again" and value < len(asked):
            ask(*asked[-1 - value])
        elif name in ("time out", "init"):
            if name == "init":
                named = (row.producer_id, row.producer_epoch) if value else (-1, -1)
                taken = InitProducer(*named, "a", 60_000)
                world.do(lambda draft, taken=taken: init_producer(draft, taken, SETTINGS))  # type: ignore[misc]
                became = [False if how is None else how for how in became]
            else:
                world.now_ms += 60_000
                (aborted,) = world.do(abort_timed_out)
                assert aborted == became.count(None)
                became = [False if how is None else how for how in became]
        assert (world.row().state is TransactionState.ONGOING) == (None in became)


def test_transactions_that_end_together_in_a_partition_share_runs_of_a_bounded_number_of_markers() -> None:
    topic, count = UUID(int=1), 2 * MARKERS_OF_A_RUN + 5
    rows: dict[type[Row], list[Row]] = {
        TopicRow: [TopicRow(topic, "t", 1, {}, 0)],
        PartitionRow: [empty_partition(topic, 0, 0)],
        OpenRangeRow: [OpenRangeRow(topic, 0, producer_id, 0) for producer_id in range(count)],
        TransactionRow: [
            replace_row(
                TransactionRow.new(str(number), producer_id=number, timeout_ms=1, now_ms=0),
                state=TransactionState.ONGOING,
                partitions=[(topic, 0)],
                started_ms=0,
            )
            for number in range(count)
        ],
    }
    draft = Draft(HotState(rows), 10)
    for number in range(count):
        savepoint = draft.savepoint()
        at_once(abort_timed_out(savepoint, [str(number)]))
        savepoint.merge()
    (published,) = draft.published.values()
    assert [len(run.markers) for run in published] == [MARKERS_OF_A_RUN, MARKERS_OF_A_RUN, 5]
    assert [marker.producer_id for run in published for marker in run.markers] == list(range(count))
    ends = [0, *(run.end_offset for run in published)]
    assert [run.base_offset for run in published] == ends[:-1] and ends[-1] == count


def test_open_transactions_are_listed_from_the_oldest_on_whatever_becomes_of_them() -> None:
    row = TransactionRow.new("", producer_id=0, timeout_ms=1, now_ms=0)

    def opened(name: str, started_ms: int, number: int = 1, partitions: int = 0) -> TransactionRow:
        places = [(TOPICS[0], partition) for partition in range(partitions)]
        return replace_row(
            row,
            transactional_id=name,
            producer_id=ord(name),
            number=number,
            state=TransactionState.ONGOING,
            started_ms=started_ms,
            partitions=places,
        )

    state = HotState({TransactionRow: [opened("c", 3), opened("a", 1), opened("b", 2)]})
    assert [*state.open_transactions] == ["a", "b", "c"]
    changes = Changes()
    changes.put(opened("a", 1, partitions=1))
    changes.put(opened("d", 4))
    state.apply(changes)
    assert [*state.open_transactions] == ["a", "b", "c", "d"], "one that goes on keeps its place"
    changes.put(opened("a", 5, number=2))
    state.apply(changes)
    assert [*state.open_transactions] == ["b", "c", "d", "a"], "another one of the same id does not"
