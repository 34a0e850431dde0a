"""Tables over topics: which retired objects their snapshots may still refer to.

The writer of a topic's table pins it before it lists the files of a snapshot. Objects that are retired at or after the
pin's time are not collected. As snapshots expire, the pin moves to the time at which the files of the oldest remaining
snapshot were listed. So a writer that dies leaves too many objects, never too few.

One time applies to the Parquet objects of all topics, that of the oldest pin, because an object's row does not name its
topic.
"""

from __future__ import annotations

import heapq

from sequencer.api.compaction import PinTable, ReleaseTable, TablePin, TablePins, TablePinsRequest
from sequencer.api.errors import UnknownTopic
from sequencer.api.values import Empty
from sequencer.bounds import MAX_PAGE, PageBudget, text_bytes
from sequencer.store.draft import Draft
from sequencer.store.rows import TablePinRow, TopicRow
from sequencer.store.state import HotState, replace_row

_ENDLESS_MS = (1 << 63) - 1


def pin_table(draft: Draft, request: PinTable) -> TablePin:
    """Keep a topic's objects for its table, from now or from a later time on. Raises UnknownTopic."""
    row = draft.get(TablePinRow, request.topic_id)
    if row is None:
        topic = draft.get(TopicRow, request.topic_id)
        if topic is None:
            raise UnknownTopic(f"no topic has the id {request.topic_id}")
        row = TablePinRow(topic.topic_id, topic.name, draft.now_ms)
        draft.put(row)
    kept_from_ms = min(request.kept_from_ms, draft.now_ms)
    if kept_from_ms > row.kept_from_ms:
        row = replace_row(row, kept_from_ms=kept_from_ms)
        draft.put(row)
    return TablePin(row.topic_id, row.topic_name, row.kept_from_ms, draft.now_ms)


def release_table(draft: Draft, request: ReleaseTable) -> Empty:
    """Stop keeping objects for the topic's table."""
    if draft.get(TablePinRow, request.topic_id) is not None:
        draft.delete(TablePinRow, request.topic_id)
    return Empty()


def table_pins(state: HotState, request: TablePinsRequest, now_ms: int) -> TablePins:
    """Return a page of the topics that have a table."""
    after = request.after
    ids = (row.topic_id for row in state.all(TablePinRow) if after is None or row.topic_id > after)
    budget = PageBudget()
    pins: list[TablePin] = []
    for topic_id in heapq.nsmallest(MAX_PAGE + 1, ids):
        row = state.get(TablePinRow, topic_id)
        assert row is not None, "it was found just now"
        if not budget.takes(50 + text_bytes(row.topic_name)):
            return TablePins(pins, pins[-1].topic_id)
        pins.append(TablePin(topic_id, row.topic_name, row.kept_from_ms, now_ms))
    return TablePins(pins)


def kept_from_ms(state: HotState | Draft) -> int:
    """Return a time: Parquet objects that were retired at or after it are kept."""
    return min((row.kept_from_ms for row in state.all(TablePinRow)), default=_ENDLESS_MS)
