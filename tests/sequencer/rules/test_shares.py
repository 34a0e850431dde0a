"""Share requests as the committer decides them: members, retries, bounds, deleted groups and topics."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from sequencer.api.errors import GroupNotEmpty, InvalidRequest, LimitReached
from sequencer.api.groups import SHARE_GROUP
from sequencer.api.share_groups import (
    Acknowledged,
    AcknowledgeType,
    AcquiredRecords,
    AcquireSpan,
    AlterShareOffsets,
    ShareError,
    ShareLimits,
    ShareOffset,
    ShareOffsetsRequest,
    ShareOutcome,
    ShareRequest,
    ShareWork,
)
from sequencer.bounds import MAX_EDGES
from sequencer.rules import shares
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import GroupRow, LogEpoch, PartitionRow, Row, ShareRow, ShareSpan, TopicRow
from sequencer.store.state import HotState
from tailrace.turns import at_once

TOPIC, ASKED = UUID(int=1), UUID(int=7)
LIMITS = ShareLimits(from_earliest=True)
SETTINGS = SequencerSettings()


def draft(members: Sequence[str] = ("a", "b"), end: int = 100, now_ms: int = 1_000) -> Draft:
    rows = {
        TopicRow: [TopicRow(TOPIC, "t", 1, {}, 0)],
        PartitionRow: [PartitionRow(TOPIC, 0, 10, end, 0, [LogEpoch(0, 0)])],
        GroupRow: [GroupRow("g", 1, 1, 1, "Stable", "share", list(members), b"", 0, type=SHARE_GROUP)],
    }
    return Draft(HotState(rows), now_ms)


def shared(
    draft: Draft,
    member: str,
    acquire: tuple[int, int] | None = None,
    acknowledged: list[Acknowledged] | None = None,
    asked: UUID | None = None,
    limits: ShareLimits = LIMITS,
) -> ShareOutcome:
    span = None if acquire is None else AcquireSpan(*acquire, max_records=1_000)
    work = ShareWork(TOPIC, 0, acknowledged or [], acquire=span)
    request = ShareRequest("g", member, limits, [work], asked)
    (outcome,) = at_once(shares.share_records(draft, request, SETTINGS)).partitions
    return outcome


def test_a_group_begins_where_its_limits_say() -> None:
    assert shared(draft(), "a").available == (10, 2_010)
    assert shared(draft(), "a", limits=ShareLimits()).available == (100, 2_100)


def test_a_request_sent_twice_is_carried_out_once_and_gets_its_answer_again() -> None:
    rows = draft()
    first = shared(rows, "a", (10, 20), asked=ASKED)
    shared(rows, "b", (20, 30), asked=UUID(int=8))

    again = shared(rows, "a", (10, 20), asked=ASKED)

    assert first.acquired == again.acquired == [AcquiredRecords(10, 19, 1)]
    accepted = [Acknowledged(10, 19, [AcknowledgeType.ACCEPT])]
    assert shared(rows, "a", acknowledged=accepted, asked=UUID(int=9)).error is ShareError.NONE
    row = rows.get(ShareRow, "g", TOPIC, 0)
    assert row is not None and row.start_offset == 20
    refused = [Acknowledged(25, 25, [AcknowledgeType.ACCEPT])]
    for _ in range(2):
        outcome = shared(rows, "a", acknowledged=refused, asked=UUID(int=10))
        assert outcome.error is ShareError.INVALID_RECORD_STATE


def test_the_answers_that_are_kept_are_bounded() -> None:
    rows = draft()
    for number in range(20):
        shared(rows, "a", (10 + number, 11 + number), asked=UUID(int=100 + number))

    row = rows.get(ShareRow, "g", TOPIC, 0)
    assert row is not None and len(row.answered) == shares.KEPT_ANSWERS


def test_a_look_writes_nothing_once_the_partition_is_known() -> None:
    rows = draft()
    shared(rows, "a", (10, 20))
    before = rows.get(ShareRow, "g", TOPIC, 0)

    later = Draft(rows.durable, 100_000, rows)
    assert shared(later, "b").available == (10, 2_010), "the lock is over"

    assert later.get(ShareRow, "g", TOPIC, 0) is before and not later.changes


def test_a_client_that_is_not_a_member_acquires_nothing_and_creates_no_row() -> None:
    rows = draft()

    outcome = shared(rows, "stranger", (10, 20))

    assert (outcome.acquired, outcome.available) == ([], None)
    assert not rows.changes


@pytest.mark.parametrize(
    "acknowledged",
    [
        [Acknowledged(5, 4, [AcknowledgeType.ACCEPT])],
        [Acknowledged(5, 7, [AcknowledgeType.ACCEPT] * 2)],
        [Acknowledged(5, 7, [])],
        [Acknowledged(5, 7, [AcknowledgeType.ACCEPT]), Acknowledged(7, 8, [AcknowledgeType.ACCEPT])],
        [Acknowledged(1, MAX_EDGES + 1, [AcknowledgeType.ACCEPT] * (MAX_EDGES + 1))],
    ],
)
def test_a_nonsensical_request_is_invalid(acknowledged: list[Acknowledged]) -> None:
    with pytest.raises(InvalidRequest):
        shared(draft(), "a", acknowledged=acknowledged)


def test_offsets_beyond_the_log_cannot_be_acquired() -> None:
    with pytest.raises(InvalidRequest):
        shared(draft(), "a", (10, 101))


def test_a_partition_too_many_is_refused_and_the_others_are_served() -> None:
    rows = draft()
    rows.put(PartitionRow(TOPIC, 1, 0, 5, 0, [LogEpoch(0, 0)]))
    rows.put(ShareRow("g", TOPIC, 0, 10, [], [], [], 0))
    works = [ShareWork(TOPIC, 1), ShareWork(TOPIC, 0, acquire=AcquireSpan(10, 12, 9))]

    answer = at_once(
        shares.share_records(
            rows, ShareRequest("g", "a", LIMITS, works), SequencerSettings(max_share_partitions=1)
        )
    )

    assert [each.error for each in answer.partitions] == [ShareError.LIMIT_REACHED, ShareError.NONE]
    assert answer.partitions[1].acquired == [AcquiredRecords(10, 11, 1)]


def test_above_the_limit_of_spans_new_records_come_one_at_a_time() -> None:
    rows = draft(end=3_000)
    settings = SequencerSettings(max_share_spans=1_000)

    def worked(acquire: tuple[int, int], accepted: Sequence[int] = ()) -> list[AcquiredRecords]:
        accept = [Acknowledged(each, each, [AcknowledgeType.ACCEPT]) for each in accepted]
        work = ShareWork(TOPIC, 0, accept, acquire=AcquireSpan(*acquire, max_records=1_500))
        request = ShareRequest("g", "a", LIMITS, [work])
        (outcome,) = at_once(shares.share_records(rows, request, settings)).partitions
        assert outcome.error is ShareError.NONE
        rows.durable.apply(rows.changes)
        return outcome.acquired

    assert worked((10, 3_000)) == [AcquiredRecords(10, 1_509, 1)]
    assert worked((1_510, 3_000), range(11, 1_510, 2)) == [AcquiredRecords(1_510, 2_009, 1)]
    assert rows.durable.share_spans > 1_000
    assert worked((2_010, 3_000)) == []
    assert worked((2_010, 3_000), [*range(10, 1_510, 2), *range(1_510, 2_010)]) == [
        AcquiredRecords(2_010, 2_010, 1)
    ]
    assert rows.durable.share_spans < 1_000
    assert worked((2_011, 3_000)) == [AcquiredRecords(2_011, 2_999, 1)]


class CountedDraft(Draft):
    """Knows how often its rows were counted, which takes as long as there are changed rows."""

    counts = 0

    def count(self, kind: type[Row]) -> int:
        self.counts += 1
        return super().count(kind)


def a_wide_draft(known: Sequence[int], members: Sequence[str]) -> CountedDraft:
    """Thirty partitions, of which the group has read some."""
    narrow = draft(members)
    state = narrow.durable
    for number in range(30):
        narrow.put(PartitionRow(TOPIC, number, 0, 100, 0, [LogEpoch(0, 0)]))
    for number in known:
        narrow.put(ShareRow("g", TOPIC, number, 10, [], [], [], 0))
    state.apply(narrow.changes)
    return CountedDraft(state, 1_000)


@pytest.mark.parametrize(("known", "counts"), [(range(30), 0), (range(10), 1)])
def test_rows_are_counted_once_for_a_request_and_never_if_it_adds_none(
    known: Sequence[int], counts: int
) -> None:
    rows = a_wide_draft(known, ["a"])
    works = [ShareWork(TOPIC, number, acquire=AcquireSpan(0, 90, 5)) for number in range(30)]
    settings = SequencerSettings(max_share_partitions=25)

    answer = at_once(shares.share_records(rows, ShareRequest("g", "a", LIMITS, works), settings))

    refused = [number for number, each in enumerate(answer.partitions) if each.error]
    assert refused == ([] if counts == 0 else list(range(25, 30)))
    assert rows.counts == counts


def test_rows_are_counted_once_when_offsets_are_altered() -> None:
    rows = a_wide_draft(range(5), [])
    altered = [ShareOffset(TOPIC, number, -1) for number in range(5)]
    altered += [ShareOffset(TOPIC, number, 50) for number in range(5, 30)]
    request = AlterShareOffsets("g", altered)

    with pytest.raises(LimitReached):
        at_once(
            shares.alter_share_offsets(rows.savepoint(), request, SequencerSettings(max_share_partitions=24))
        )
    settings = SequencerSettings(max_share_partitions=25)
    assert len(at_once(shares.alter_share_offsets(rows, request, settings)).errors) == 30

    assert rows.counts == 1


def test_offsets_are_altered_within_the_log_and_only_without_members() -> None:
    with pytest.raises(GroupNotEmpty):
        at_once(shares.alter_share_offsets(draft(), AlterShareOffsets("g", []), SETTINGS))
    rows = draft(members=())

    at_once(
        shares.alter_share_offsets(rows, AlterShareOffsets("g", [ShareOffset(TOPIC, 0, 5_000)]), SETTINGS)
    )

    row = rows.get(ShareRow, "g", TOPIC, 0)
    assert row is not None and row.start_offset == 100


def test_a_lag_is_what_is_not_done_up_to_the_end() -> None:
    rows = draft()
    shared(rows, "a", (10, 20))
    shared(rows, "a", acknowledged=[Acknowledged(12, 13, [AcknowledgeType.ACCEPT])])
    rows.durable.apply(rows.changes)

    (offset,) = shares.share_offsets(rows.durable, ShareOffsetsRequest("g")).offsets

    assert (offset.start_offset, offset.lag) == (10, 88)


def test_a_page_of_offsets_examines_a_bounded_number_of_spans() -> None:
    spans = [ShareSpan(10 + number, 0, 0, -1) for number in range(1, 6_000)]
    rows = [ShareRow("g", TOPIC, number, 10, spans, [], [], 0) for number in range(3)]
    partitions = [PartitionRow(TOPIC, number, 10, 10_000, 0, [LogEpoch(0, 0)]) for number in range(3)]
    topic = TopicRow(TOPIC, "t", 3, {}, 0)
    state = HotState({ShareRow: rows, PartitionRow: partitions, TopicRow: [topic]})
    page = shares.share_offsets(state, ShareOffsetsRequest("g"))
    assert [offset.partition for offset in page.offsets] == [0] and page.next == (TOPIC, 0)
    page = shares.share_offsets(state, ShareOffsetsRequest("g", (TOPIC, 1)))
    assert [offset.partition for offset in page.offsets] == [2] and page.next is None
