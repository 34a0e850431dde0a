"""Bounds of the product's answers and groups, low enough that histories of a few hundred records reach them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest import mock

from agent.fetch import tail
from agent.groups import coordinator
from agent.produce import lane
from cache import framed, in_place, layout, mixed_reader
from sequencer import bounds
from sequencer.checkpoint import chain, snapshot
from sequencer.engine import expiry, group_commit, group_deletion, row_lookup
from sequencer.reading import positions, subscriptions, view
from sequencer.reading import queries as reading
from sequencer.recovery import recover
from sequencer.rules import compaction, deleted_topics, garbage, retention_watch, sizes
from sequencer.store import recent_rows
from tests.simulation.scenario import FEW_BUFFERED, Scenario

LOW: tuple[tuple[ModuleType, str, object], ...] = (
    (bounds, "MAX_ANSWER_RUNS", 3),
    (bounds, "MAX_ANSWER_BYTES", 1_500),
    (reading, "PARTITIONS_AT_ONCE", 2),
    (reading, "MAX_SCANNED", 2),
    (group_commit, "ROWS_OF_A_GROUP", 8),
    (group_commit, "WORK_IN_A_TURN", 1),
    (row_lookup, "POSITIONS_AT_ONCE", 2),
    (group_deletion, "POSITIONS_AT_ONCE", 1),
    (reading, "LEAST_RUNS", 2),
    (reading, "LEAST_BYTES", 300),
    (recent_rows, "MOST", dict.fromkeys(recent_rows.MOST, 2)),
    (expiry, "PRODUCERS_OF_A_PAGE", 3),
    (expiry, "POSITIONS_AT_ONCE", 2),
    (expiry, "MOST_POSITIONS", 3),
    (positions, "MAX_LAGS", 2),
    (positions, "LEAST_AT_ONCE", 1),
    (deleted_topics, "LOOKED_UP_AT_ONCE", 1),
    (snapshot, "PART_ROWS", 5),
    (compaction, "MAX_PAGE_BYTES", 2_000),
    (compaction, "MAX_LOOKED_AT", 1),
    (sizes, "TOPICS_AT_ONCE", 1),
    (garbage, "REMOVED_IN_A_TURN", 1),
    (retention_watch, "PARTITIONS_IN_A_TURN", 1),
    (subscriptions, "UNWATCHED_AT_ONCE", 1),
    (view, "QUEUED_IN_A_TURN", 1),
    (compaction, "MOST_AT_ONCE", 2),
    (coordinator, "ASSIGNED_IN_A_TURN", 1),
    (coordinator, "ANSWERS_IN_A_TURN", 1),
    (tail, "WOKEN_IN_A_TURN", 1),
)

SMALL_PIECES: tuple[tuple[ModuleType, str, object], ...] = (
    (layout, "PIECE_BYTES", 1_000),
    (layout, "LARGE_BATCH_BYTES", 400),
    (framed, "PIECE_BYTES", 1_000),
    (framed, "LEAST_JOINED", 2),
    (framed, "JOINED_AT_ONCE", 2),
    (framed, "LEAST_VIEW_BYTES", 500),
    (framed, "RUN_BYTES", 100),
    (mixed_reader, "LEAST_VIEW_BYTES", 500),
    (mixed_reader, "BATCHES_IN_A_TURN", 3),
    (in_place, "FEW_RUNS", 4),
)
"""A few runs make a joined run, batches of two or three records are large, and a chunk remembers few runs."""

SHORT_WAITS: tuple[tuple[ModuleType, str, object], ...] = (
    (chain, "IDLE_INTERVAL_MS", 3_000),
    (recover, "IDLE_INTERVAL_MS", 3_000),
    (retention_watch, "PUT_OFF_MS", 3_000),
)
"""In all histories, seconds in place of a minute: a recovery should race with the end of the leases, and runs that
could not be removed should be gone at the end."""

SMALL_BUFFERS: tuple[tuple[ModuleType, str, object], ...] = ((lane, "MAX_BUFFERED_RECORDS", FEW_BUFFERED),)


@contextmanager
def low_bounds(scenario: Scenario) -> Iterator[None]:
    """Within the block, answers come in pages and runs in small pieces."""
    low = LOW if scenario.has_low_bounds else ()
    pieces = SMALL_PIECES if scenario.rereads else ()
    buffers = SMALL_BUFFERS if scenario.reserves_few else ()
    with ExitStack() as stack:
        for module, name, value in (*SHORT_WAITS, *low, *pieces, *buffers):
            stack.enter_context(mock.patch.object(module, name, value))
        yield
