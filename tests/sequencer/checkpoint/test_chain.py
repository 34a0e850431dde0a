"""The chain of heads as states: what each phase allows, and what is saved, with no bucket and no loop."""

from __future__ import annotations

from uuid import UUID

import pytest

from sequencer.api.errors import IncarnationChanged, SequencerUnavailable
from sequencer.checkpoint import chain as chain_module
from sequencer.checkpoint.chain import ChainState, Phase
from sequencer.checkpoint.format import Head, HeadId, Part
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.rows import AgentRow, Changes, LogEpoch, PartitionRow, Row, TopicRow
from sequencer.store.state import HotState, replace_row
from tailrace.turns import at_once
from tests.support.row_samples import one_of_each_kind

IDENTITY = DatabaseIdentity("c", 1)
ROWS: dict[type[Row], Row] = {type(row): row for row in one_of_each_kind()}
PARTITION = ROWS[PartitionRow] = PartitionRow(
    topic_id=UUID(int=1),
    partition=0,
    log_start_offset=0,
    end_offset=10,
    running_max_timestamp=-1,
    epochs=[LogEpoch(0, 0)],
)
RESERVATION = 100


def state() -> HotState:
    return HotState({kind: [ROWS[kind]] for kind in (TopicRow, PartitionRow)})


def new() -> ChainState:
    return ChainState.unknown().successor(IDENTITY, 1, state())


def checked() -> ChainState:
    chain = new()
    chain.bucket_is_ours(None)
    return chain


def opened() -> ChainState:
    chain = checked()
    chain.export_first(head(chain))
    stored(chain)
    chain.open()
    return chain


def head(chain: ChainState, *, replay_from: int = -1, size: int = 0) -> Head:
    parts = [Part("k", size, 0, 0)] if size else []
    return chain.head(
        created_ms=1_000, interval_ms=1, reservation=RESERVATION, replay_from=replay_from, parts=parts
    )


def stored(chain: ChainState, size: int = 1) -> bool:
    assert chain.exporting is not None
    at_once(chain.reserve(chain.exporting))
    return chain.exported(size)


def changes(*rows: Row) -> Changes:
    written = Changes()
    for row in rows:
        written.put(row)
    return written


def moved(records: int) -> PartitionRow:
    return replace_row(PARTITION, end_offset=PARTITION.end_offset + records)


def test_nothing_is_reserved_for_a_partition_whose_topic_is_gone() -> None:
    chain = opened()
    chain.check_reserved(changes(moved(1)), RESERVATION)
    assert len(chain._saved_ends) == 1
    gone = Changes()
    gone.delete(PartitionRow, (PARTITION.topic_id, PARTITION.partition))
    chain.written(gone)
    chain.export(head(chain), [])
    stored(chain)
    assert not chain._saved_ends


def test_a_partition_that_assigns_no_offset_takes_no_memory_after_the_first_head() -> None:
    chain = opened()
    assert not chain._saved_ends
    chain.check_reserved(changes(moved(1)), RESERVATION)
    chain.state.apply(changes(moved(1)))
    chain.check_reserved(changes(moved(RESERVATION)), RESERVATION)
    with pytest.raises(SequencerUnavailable, match="the next checkpoint reserves more"):
        chain.check_reserved(changes(moved(RESERVATION + 1)), RESERVATION)


def test_offsets_are_reserved_only_once_the_first_head_is_durable() -> None:
    for chain in (new(), checked()):
        with pytest.raises(SequencerUnavailable, match="no checkpoint of this committer is durable"):
            chain.check_reserved(changes(moved(1)), RESERVATION)
    opened().check_reserved(changes(moved(RESERVATION)), RESERVATION)
    with pytest.raises(SequencerUnavailable, match="the next checkpoint reserves more"):
        opened().check_reserved(changes(moved(RESERVATION + 1)), RESERVATION)


def test_a_head_reserves_offsets_from_the_ends_that_it_has() -> None:
    chain = opened()
    chain.check_reserved(changes(moved(90)), RESERVATION)
    chain.state.apply(changes(moved(90)))
    chain.written(changes(moved(90)))
    with pytest.raises(SequencerUnavailable):
        chain.check_reserved(changes(moved(190)), RESERVATION)
    chain.export(head(chain), [])
    with pytest.raises(SequencerUnavailable):
        chain.check_reserved(changes(moved(190)), RESERVATION)
    stored(chain)
    chain.check_reserved(changes(moved(190)), RESERVATION)


def test_changes_that_assign_no_offset_pass_in_every_phase() -> None:
    refused = opened()
    refused.refuse(IncarnationChanged("theirs"))
    for chain in (new(), checked(), opened(), refused):
        chain.check_reserved(changes(ROWS[TopicRow]), RESERVATION)


def test_a_state_loaded_under_the_same_epoch_needs_no_second_look_at_the_bucket() -> None:
    following = opened().successor(IDENTITY, 1, state())
    assert following.phase is Phase.CHECKED
    assert following.begins == following.next_number == 1


@pytest.mark.parametrize(("identity", "epoch"), [(IDENTITY, 2), (DatabaseIdentity("c", 2), 1)])
def test_another_term_or_database_begins_with_a_look_at_the_bucket(
    identity: DatabaseIdentity, epoch: int
) -> None:
    following = opened().successor(identity, epoch, state())
    assert following.phase is Phase.NEW and following.next_number == 0


def test_a_bucket_that_was_not_looked_at_is_not_taken_for_checked_by_a_second_load() -> None:
    assert new().successor(IDENTITY, 1, state()).phase is Phase.NEW


def test_the_number_of_a_head_on_its_way_is_never_used_again() -> None:
    chain = opened()
    chain.written(changes(ROWS[TopicRow]))
    chain.export(head(chain), [])
    assert chain.successor(IDENTITY, 1, state()).begins == chain.next_number + 1


def test_numbers_that_a_process_before_this_one_used_are_left_to_it() -> None:
    chain = new()
    chain.bucket_is_ours(7)
    assert chain.begins == chain.next_number == 9, "head 8 may still be on its way"


@pytest.mark.parametrize("phase", [Phase.FINISHED, Phase.REFUSED])
def test_an_end_and_a_refusal_are_for_good(phase: Phase) -> None:
    chain = opened()
    if phase is Phase.FINISHED:
        chain.finish()
    else:
        chain.refuse(IncarnationChanged("theirs"))
    following = chain.successor(IDENTITY, 2, state())
    assert following.phase is phase and following.refusal is chain.refusal
    with pytest.raises(IncarnationChanged if phase is Phase.REFUSED else SequencerUnavailable):
        following.check_reserved(changes(moved(1)), RESERVATION)


def test_a_row_is_saved_once_a_snapshot_and_every_change_since_are_durable() -> None:
    chain, key = opened(), (UUID(int=1),)
    assert not chain.is_saved(TopicRow, key), "no snapshot is durable"
    chain.snapshot_exported(head(chain, replay_from=1, size=10))
    assert chain.is_saved(TopicRow, key)
    gone = Changes()
    gone.delete(TopicRow, key)
    chain.written(gone)
    assert not chain.is_saved(TopicRow, key)
    chain.export(head(chain), [])
    assert not chain.is_saved(TopicRow, key)
    assert stored(chain)
    assert chain.is_saved(TopicRow, key)


def test_rows_written_during_an_export_are_not_saved_by_it() -> None:
    chain = opened()
    chain.written(changes(moved(1)))
    chain.export(head(chain), [])
    chain.written(changes(moved(2)))
    assert not stored(chain)
    assert chain.has_unsaved and not chain.is_all_saved


def test_the_first_head_leaves_what_was_written_since_the_load_to_the_next() -> None:
    chain = checked()
    chain.written(changes(ROWS[TopicRow]))
    chain.export_first(head(chain))
    assert not stored(chain)
    assert chain.has_unsaved


def test_the_snapshot_before_the_last_is_kept() -> None:
    chain = opened()
    assert chain.snapshot_exported(head(chain, replay_from=3, size=1)) is None
    assert chain.snapshot_exported(head(chain, replay_from=8, size=1)) == HeadId(1, 1, 3)
    assert chain.snapshot_exported(head(chain, replay_from=9, size=1)) == HeadId(1, 1, 8)


def test_a_snapshot_is_due_when_there_is_none_or_the_heads_since_are_as_large() -> None:
    chain = opened()
    assert chain.is_snapshot_due
    size = chain_module.MIN_SNAPSHOT_BYTES * 2
    chain.snapshot_exported(head(chain, replay_from=1, size=size))
    for number in (1, 2, 3):
        assert not chain.is_snapshot_due, number
        chain.written(changes(moved(number)))
        chain.export(head(chain), [])
        stored(chain, size=size // 2)
    assert chain.is_snapshot_due
    chain.finish()
    assert not chain.is_snapshot_due


def test_too_many_unsaved_rows_begin_the_chain_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "MAX_UNSAVED_ROWS", 1)
    chain = opened()
    chain.written(changes(moved(1)))
    chain.written(changes(moved(2)))
    assert not chain.is_too_long, "one row, written twice"
    chain.written(changes(ROWS[TopicRow]))
    assert chain.is_too_long
    following = chain.broken_off()
    assert following.phase is Phase.CHECKED and following.unsaved_rows == 0


def test_renewed_leases_alone_are_exported_now_and_then_only() -> None:
    chain = opened()
    last = head(chain)
    chain.written(changes(ROWS[AgentRow]))
    assert chain.is_idle(last.created_ms + chain_module.IDLE_INTERVAL_MS - 1, last)
    assert not chain.is_idle(last.created_ms + chain_module.IDLE_INTERVAL_MS, last)
    chain.written(changes(moved(1)))
    assert not chain.is_idle(last.created_ms, last)
