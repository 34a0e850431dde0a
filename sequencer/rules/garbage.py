"""Garbage: objects that no run refers to any more, and prefixes of ended sessions to search for orphans.

Invariants:
- an object is offered for deletion only after its grace period, which starts when its last run is deleted; a Parquet
  object only if no unexpired snapshot of a table refers to it (sequencer.rules.tables);
- a session's row is deleted only after its prefix was found empty twice, a sweep interval apart, so that a late PUT is
  still found.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from itertools import chain
from operator import attrgetter

import structlog

from sequencer.api.commits import ObjectKind
from sequencer.api.errors import InvalidRequest
from sequencer.api.reads import Run
from sequencer.api.retention import DeadSession, ForgetObjects, Garbage, SweptSession
from sequencer.api.values import Empty
from sequencer.rules.tables import kept_from_ms
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.row_store import RowStore
from sequencer.store.rows import CommitRow, ObjectRow, SessionRow
from sequencer.store.state import HotState, replace_row
from tailrace.turns import Turns, in_turns

_log = structlog.get_logger(__name__)

EMPTY_SWEEPS_NEEDED = 2
SESSIONS_IN_A_TURN = 2_000
REMOVED_IN_A_TURN = 2_000
"""Runs and objects that are removed in one turn of the event loop."""


async def find_garbage(state: HotState, store: RowStore, limit: int, settings: SequencerSettings) -> Garbage:
    """Return at most `limit` objects to delete, and at most `limit` sessions to sweep, oldest first."""
    if limit <= 0:
        raise InvalidRequest(f"limit {limit}; at least 1")
    now = await store.now_ms()
    before = now - settings.deletion_grace_ms
    retired = await store.retired_before(before, min(before, kept_from_ms(state)), limit)
    dead: list[DeadSession] = []
    async for some in Turns(SESSIONS_IN_A_TURN).parts(list(state.all(SessionRow))):
        due = (
            DeadSession(row.session_id, row.prefix, row.closed_ms)
            for row in some
            if row.closed_ms is not None and _is_due(row, now, settings)
        )
        dead = nsmallest(limit, chain(dead, due), key=attrgetter("closed_ms", "session_id.int"))
    return Garbage([(row.object_id, row.key) for row in retired], dead)


def _is_due(row: SessionRow, now_ms: int, settings: SequencerSettings) -> bool:
    return now_ms - row.swept_ms >= settings.sweep_interval_ms


async def release_runs(draft: Draft, store: RowStore, runs: Sequence[Run]) -> int:
    """Delete runs and lower their objects' run counts; return how many objects this retires.

    A run whose object has no row contradicts the other rows. It is deleted like the others: if it could not be removed,
    nothing that is removed with it could.
    """
    ids = {run.object_id: None for run in runs if run.kind is not ObjectKind.MARKERS}
    unknown = [object_id for object_id in ids if object_id not in draft.objects]
    for row in await store.object_rows(unknown) if unknown else ():
        draft.objects[row.object_id] = row
    lost = {object_id for object_id in ids if draft.get(ObjectRow, object_id) is None}
    for run in runs if lost else ():
        if run.object_id in lost:
            _log.error(
                "a run is removed whose object has no row: run `tailrace audit`",
                partition=f"{run.topic_id}-{run.partition}",
                base_offset=run.base_offset,
                object=str(run.object_id),
            )
            draft.delete_run(run)
    named = [run for run in runs if run.object_id not in lost]
    return await in_turns(draft.remove_runs(named), Turns(REMOVED_IN_A_TURN))


async def forget_objects(draft: Draft, store: RowStore, request: ForgetObjects, grace_ms: int) -> Empty:
    """Delete the rows of objects whose bytes are deleted. Ignore unknown objects, refuse live ones."""
    kept_from = kept_from_ms(draft)
    for row in await store.object_rows(request.object_ids):
        if row.retired_ms is None or row.retired_ms + grace_ms > draft.now_ms:
            raise InvalidRequest(f"object {row.object_id} has {row.live_runs} runs or its grace is not over")
        if row.kind is ObjectKind.PARQUET and row.retired_ms >= kept_from:
            raise InvalidRequest(f"object {row.object_id} is kept for a table's snapshots")
        draft.objects[row.object_id] = row
        draft.delete(ObjectRow, row.object_id)
    return Empty()


def session_swept(draft: Draft, request: SweptSession, settings: SequencerSettings) -> Empty:
    """Record that an ended session's prefix was swept; delete the session if it was empty often enough."""
    row = draft.get(SessionRow, request.session_id)
    if row is None:
        return Empty()
    if row.closed_ms is None:
        raise InvalidRequest(f"session {row.session_id} is open; only ended ones are swept")
    if not request.was_empty:
        draft.put(replace_row(row, empty_sweeps=0, swept_ms=draft.now_ms))
    elif _is_due(row, draft.now_ms, settings):
        if row.empty_sweeps + 1 >= EMPTY_SWEEPS_NEEDED:
            draft.delete(SessionRow, row.session_id)
            for number in draft.durable.commits_of.get(row.session_id, ()):
                draft.delete(CommitRow, row.session_id, number)
        else:
            draft.put(replace_row(row, empty_sweeps=row.empty_sweeps + 1, swept_ms=draft.now_ms))
    return Empty()
