"""Fetch sessions: requests and answers name only changes; errors when client and agent disagree about a session."""

from __future__ import annotations

import pytest

from agent.fetch.fetch_sessions import IDLE_SECONDS, FetchContext, FetchSessions
from tailrace.clock import Clock
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tailrace.turns import at_once
from tests.support.clocks import ManualClock, SeededEntropy


def asking(session_id: int, epoch: int, *partitions: int, forget: tuple[int, ...] = ()) -> FetchRequest:
    topics = [FetchTopic("t", partitions=[FetchPartition(each, fetch_offset=epoch) for each in partitions])]
    forgotten = [ForgottenTopic("t", partitions=list(forget))] if forget else []
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=topics if partitions else [],
        forgotten_topics_data=forgotten,
    )


def sessions(limit: int = 3, clock: Clock | None = None) -> FetchSessions:
    return FetchSessions(limit, clock or ManualClock(), SeededEntropy(1))


def begun(all_sessions: FetchSessions, request: FetchRequest) -> FetchContext:
    context = at_once(all_sessions.begin(request, "client"))
    assert isinstance(context, FetchContext), context
    return context


def partitions_of(context: FetchContext) -> list[int]:
    return [requested.key.partition for requested in context.partitions]


def test_a_fetch_without_a_session_keeps_nothing() -> None:
    every = sessions()
    context = begun(every, asking(0, -1, 0, 1))
    assert (context.session_id, context.is_incremental, len(every)) == (0, False, 0)
    assert context.include_in_response(context.partitions[0], PartitionData())


def test_a_session_goes_on_with_topics_named_as_in_its_first_request() -> None:
    every = sessions()
    session_id = begun(every, asking(0, 0, 0)).session_id
    later = asking(session_id, 1)
    code = at_once(every.begin(later, "client", names_ids=True))
    assert code is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert partitions_of(begun(every, later)) == [0]


def test_an_incremental_fetch_is_of_all_that_was_asked_before() -> None:
    every = sessions()
    opened = begun(every, asking(0, 0, 0, 1, 2))
    assert opened.session_id > 0 and not opened.is_incremental
    same = begun(every, asking(opened.session_id, 1))
    assert same.is_incremental and partitions_of(same) == [0, 1, 2]
    changed = begun(every, asking(opened.session_id, 2, 1, 5, forget=(0,)))
    assert partitions_of(changed) == [1, 2, 5]
    assert [requested.fetch_offset for requested in changed.partitions] == [2, 0, 2]


def test_an_incremental_answer_has_only_changes() -> None:
    every = sessions()
    opened = begun(every, asking(0, 0, 0))
    data = PartitionData(high_watermark=5, last_stable_offset=5, log_start_offset=0)
    opened.note_sent(opened.partitions[0], data)
    again = begun(every, asking(opened.session_id, 1, 0))
    (requested,) = again.partitions
    assert not again.include_in_response(requested, data)
    assert again.include_in_response(
        requested, PartitionData(high_watermark=6, last_stable_offset=6, log_start_offset=0)
    )
    data.records = b"batch"
    assert again.include_in_response(requested, data)
    failed = PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=5, last_stable_offset=5)
    again.note_sent(requested, failed)
    assert again.include_in_response(requested, failed), "an error is told each time"


def test_a_partition_that_gave_records_is_served_last_next_time() -> None:
    every = sessions()
    opened = begun(every, asking(0, 0, 0, 1, 2))
    opened.note_sent(opened.partitions[0], PartitionData(records=b"batch"))
    assert partitions_of(begun(every, asking(opened.session_id, 1))) == [1, 2, 0]


def test_an_unknown_session_or_epoch_is_refused() -> None:
    every = sessions()
    session_id = begun(every, asking(0, 0, 0)).session_id
    assert at_once(every.begin(asking(session_id + 1, 1), "c")) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert at_once(every.begin(asking(session_id, 2), "c")) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    begun(every, asking(session_id, 1))
    assert at_once(every.begin(asking(session_id, 1), "c")) is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_session_ends_when_its_client_reports_it() -> None:
    every = sessions()
    session_id = begun(every, asking(0, 0, 0)).session_id
    assert begun(every, asking(session_id, -1, 0)).session_id == 0
    assert len(every) == 0
    session_id = begun(every, asking(0, 0, 0)).session_id
    assert begun(every, asking(session_id, 0, 0)).session_id not in (0, session_id)
    assert len(every) == 1


def test_a_session_that_is_in_use_is_not_taken_by_another_client() -> None:
    every = sessions(2)
    first, second = (begun(every, asking(0, 0, 0)).session_id for _ in range(2))
    for epoch in range(1, 4):
        assert begun(every, asking(0, 0, 0)).session_id == 0, "a full fetch, as there is no room"
        assert begun(every, asking(first, epoch)).is_incremental
        assert begun(every, asking(second, epoch)).is_incremental


def test_an_idle_session_makes_room_for_another() -> None:
    clock = ManualClock()
    every = sessions(2, clock)
    first, second = (begun(every, asking(0, 0, 0)).session_id for _ in range(2))
    clock.advance(IDLE_SECONDS / 2)
    begun(every, asking(first, 1))
    clock.advance(IDLE_SECONDS / 2)
    assert begun(every, asking(0, 0, 0)).session_id != 0
    assert len(every) == 2
    assert at_once(every.begin(asking(second, 1), "c")) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    begun(every, asking(first, 2))


def test_the_partitions_of_all_sessions_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.fetch.fetch_sessions.MAX_SESSION_PARTITIONS", 5)
    clock = ManualClock()
    every = sessions(100, clock)
    first = begun(every, asking(0, 0, 0, 1)).session_id
    clock.advance(IDLE_SECONDS)
    second = begun(every, asking(0, 0, 0, 1)).session_id
    assert begun(every, asking(0, 0, 0, 1)).session_id != 0
    assert at_once(every.begin(asking(first, 1), "c")) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "it was idle"
    assert begun(every, asking(0, 0, 0, 1)).session_id == 0, "the others are not"
    begun(every, asking(second, 1, 2))
    grown = at_once(every.begin(asking(second, 2, 3), "c"))
    assert grown is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "it would have more than there may be"
    assert len(every) == 1


def test_a_fetch_of_more_partitions_than_there_may_be_gets_no_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.fetch.fetch_sessions.MAX_SESSION_PARTITIONS", 5)
    assert begun(sessions(), asking(0, 0, 0, 1, 2, 3, 4, 5)).session_id == 0


def test_partitions_of_long_names_count_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.fetch.fetch_sessions.MAX_SESSION_PARTITIONS", 500)
    every = sessions(100)

    def naming(session_id: int, epoch: int, *names: str, forget: str = "") -> FetchRequest:
        topics = [FetchTopic(name, partitions=[FetchPartition(0)]) for name in names]
        forgotten = [ForgottenTopic(forget, partitions=[0])] if forget else []
        return FetchRequest(
            session_id=session_id, session_epoch=epoch, topics=topics, forgotten_topics_data=forgotten
        )

    long = ["x" * 32_000, "y" * 32_000, "z" * 32_000, "w" * 32_000, "v" * 32_000]
    assert begun(every, naming(0, 0, *long)).session_id == 0, "as 535 partitions"
    first = begun(every, naming(0, 0, *long[:4])).session_id
    begun(every, naming(first, 1, long[4], forget=long[0]))
    assert len(every) == 1, "one came, one went"
    begun(every, naming(0, 0, "short"))
    assert len(every) == 2
    assert begun(every, naming(0, 0, *long[:2])).session_id == 0, "too many beside the first"


def test_with_a_limit_of_none_all_fetches_are_full() -> None:
    assert begun(sessions(0), asking(0, 0, 0)).session_id == 0


def test_the_epoch_after_the_last_is_one() -> None:
    every = sessions()
    opened = begun(every, asking(0, 0, 0))
    assert opened.session is not None
    opened.session.epoch = 2**31 - 1
    begun(every, asking(opened.session_id, 2**31 - 1))
    begun(every, asking(opened.session_id, 1))


def test_a_partition_that_is_named_repeatedly_counts_once_as_named_last() -> None:
    named = [FetchPartition(partition=0, fetch_offset=offset) for offset in (1, 2, 3)]
    (requested,) = begun(
        sessions(), FetchRequest(topics=[FetchTopic(topic="t", partitions=named)])
    ).partitions
    assert requested.fetch_offset == 3
