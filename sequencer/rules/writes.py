"""Writes: the commits of jobs that are not agents. All objects that a job's tasks uploaded become visible together.

Invariants:
- a write is stored whole or not at all, in one transaction: every reader sees all of its records or none;
- an epoch of a write id is stored once. A request is a repeat if its epoch is not above the last one, whatever its
  objects: a job that is restarted runs its tasks again, and they upload other objects;
- the last epoch is stored in the same transaction as its records;
- each object is new and under the prefix of an open session, which no collector has searched for orphans;
- its batches have no producer and belong to no transaction.
"""

from __future__ import annotations

from sequencer.api.commits import (
    BatchError,
    CommitRequest,
    ObjectKind,
    RunOutcome,
    WriteAnswer,
    WriteRequest,
    WrittenObject,
)
from sequencer.api.errors import InvalidRequest, LimitReached, UnknownPartition
from sequencer.rules.upload_sessions import (
    WRITER_BROKER_ID,
    check_commit,
    check_object,
    check_offsets,
    commit_object,
    live_session,
)
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.row_store import RowStore
from sequencer.store.rows import SessionRow, WriteRow
from tailrace.batches.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from tailrace.ids import NO_PRODUCER_ID
from tailrace.turns import Steps, Turns, in_turns

WORK_IN_A_TURN = 200
"""Work per turn of the loop in runs, as for commits."""
MAX_OBJECTS = 10_000


async def commit_write(
    draft: Draft, store: RowStore, request: WriteRequest, settings: SequencerSettings
) -> WriteAnswer:
    """Store all objects of a write's epoch, once."""
    last = draft.get(WriteRow, request.write_id)
    if last is not None and request.epoch <= last.epoch:
        return WriteAnswer(last.commit_number, is_repeat=True)
    turns = Turns(WORK_IN_A_TURN)
    await in_turns(_check(draft, request, settings), turns)
    known = await store.object_rows([written.object.object_id for written in request.objects])
    if known:
        raise InvalidRequest(f"object {known[0].object_id} is stored already; each write brings its own")
    number = draft.visible_change()
    for written in request.objects:
        await in_turns(_store(draft, written, settings), turns)
    kept_ms = settings.stream_epochs_ms if request.is_stream else settings.request_answers_ms
    draft.put(
        WriteRow(
            write_id=request.write_id,
            epoch=request.epoch,
            commit_number=number,
            expires_ms=draft.now_ms + kept_ms,
        )
    )
    return WriteAnswer(number, is_repeat=False)


def _check(draft: Draft, request: WriteRequest, settings: SequencerSettings) -> Steps[None]:
    """Raise an error for a write that can't be stored, whatever the partitions contain."""
    if request.epoch < 0:
        raise InvalidRequest(f"epoch {request.epoch}; epochs start at 0")
    objects = request.objects
    if len({written.object.object_id for written in objects}) != len(objects):
        raise InvalidRequest("an object occurs twice")
    runs = sum(len(written.runs) for written in objects)
    batches = sum(len(run.batches) for written in objects for run in written.runs)
    for count, of, limit, name in (
        (len(objects), "objects", MAX_OBJECTS, "the limit"),
        (runs, "runs (partitions of objects)", settings.max_runs_per_commit, "max_runs_per_commit"),
        (batches, "batches", settings.max_batches_per_commit, "max_batches_per_commit"),
    ):
        if count > limit:
            raise LimitReached(f"a write of {count} {of}; {name} is {limit}")
    if runs:
        check_offsets((run for written in objects for run in written.runs), settings)
    is_new = draft.get(WriteRow, request.write_id) is None
    if is_new and draft.count(WriteRow) >= settings.max_writes:
        raise LimitReached(
            f"{draft.count(WriteRow)} writes are remembered; max_writes is {settings.max_writes}"
        )
    for written in objects:
        _check_object(written, _writers_session(draft, written))
        yield from check_commit(
            CommitRequest(
                session_id=written.session_id,
                number=0,
                answered_below=0,
                object=written.object,
                runs=written.runs,
            ),
            settings,
        )


def _writers_session(draft: Draft, written: WrittenObject) -> SessionRow:
    session = live_session(draft, written.session_id)
    if session.broker_id != WRITER_BROKER_ID:
        raise InvalidRequest(f"session {session.session_id} is no writer's")
    return session


def _check_object(written: WrittenObject, session: SessionRow) -> None:
    check_object(written.object, session.prefix)
    if written.object.kind is not ObjectKind.MIXED:
        raise InvalidRequest(
            f"object {written.object.key!r} is of kind {written.object.kind.name}, not MIXED"
        )
    special = TRANSACTIONAL_FLAG | CONTROL_FLAG
    if any(
        batch.producer_id != NO_PRODUCER_ID or batch.flags & special
        for run in written.runs
        for batch in run.batches
    ):
        raise InvalidRequest(f"object {written.object.key!r}: a write's batches are of no producer")


def _store(draft: Draft, written: WrittenObject, settings: SequencerSettings) -> Steps[None]:
    outcomes = yield from commit_object(
        draft,
        _writers_session(draft, written),
        described=written.object,
        proposals=written.runs,
        settings=settings,
    )
    for run, outcome in zip(written.runs, outcomes, strict=True):
        _check_stored(f"{run.topic_id}-{run.partition}", outcome)


def _check_stored(partition: str, outcome: RunOutcome) -> None:
    refused = {batch_outcome.error for batch_outcome in outcome.outcomes} - {BatchError.NONE}
    if BatchError.UNKNOWN_TOPIC_OR_PARTITION in refused:
        raise UnknownPartition(f"{partition} does not exist (any more); nothing was written")
    assert not refused, f"{partition}: {refused} for batches of no producer"
