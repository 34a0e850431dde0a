"""Time to live: rows that are kept for some time after their last use, and then deleted.

Pure: the caller says which rows are due (sequencer.reading.maintenance).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from sequencer.api.transactions import TransactionState
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import (
    AnswerRow,
    DelegationTokenRow,
    OpenRangeRow,
    ProducerRow,
    Row,
    SwapRow,
    TransactionRow,
    WriteRow,
    key_of,
)
from sequencer.store.state import Key

_used = attrgetter("updated_ms")


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """Rows of a kind are kept for `ms` from their time `since`, and as long as they are in use."""

    ms: int
    since: Callable[[Any], int]
    is_in_use: Callable[[Draft, Any], bool] = lambda draft, row: False

    def until_ms(self, row: Row) -> int:
        """Return the time until which this row is kept in any case."""
        return self.since(row) + self.ms


def row_lifetimes(settings: SequencerSettings) -> Mapping[type[Row], TimeToLive]:
    """Return the row kinds that are entirely in memory and get forgotten, and how long each is kept."""
    created = attrgetter("created_ms")
    return {
        TransactionRow: TimeToLive(settings.transactional_id_expiration_ms, _used, _is_ongoing),
        SwapRow: TimeToLive(settings.swap_answers_ms, created),
        AnswerRow: TimeToLive(settings.request_answers_ms, created),
        WriteRow: TimeToLive(0, attrgetter("expires_ms")),
        DelegationTokenRow: TimeToLive(0, attrgetter("expires_ms")),
    }


def producer_lifetime(settings: SequencerSettings) -> TimeToLive:
    """Return how long producers are kept."""
    return TimeToLive(settings.producer_expiry_ms, _used, _has_open_range)


def forget(draft: Draft, kind: type[Row], keys: Iterable[Key], lifetime: TimeToLive) -> int:
    """Delete those of these rows that are no longer kept; return how many."""
    forgotten = 0
    for key in keys:
        row = draft.get(kind, *key)
        if row is not None and lifetime.until_ms(row) <= draft.now_ms and not lifetime.is_in_use(draft, row):
            draft.delete(kind, *key)
            forgotten += 1
    return forgotten


def _has_open_range(draft: Draft, row: ProducerRow) -> bool:
    return draft.get(OpenRangeRow, *key_of(row)) is not None


def _is_ongoing(draft: Draft, row: TransactionRow) -> bool:
    return row.state is TransactionState.ONGOING
