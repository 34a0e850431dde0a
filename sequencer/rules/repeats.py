"""A retried change gets its first answer and changes nothing.

A caller whose answer was lost retries; and its first request may still arrive later, through a process that was
stopped. Both carry the same request id. The id and the answer are stored in the transaction that carries out the
request, so that this holds for the next committer too.

The answer is stored even if nothing was changed: a late copy could find something to change. So is a refusal to delete
a group or its offsets: a late copy could meet another group of this name. After other refusals a retry is decided anew.

Pure: the caller passes the draft in and drives a decision that takes several turns.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Sequence
from operator import attrgetter
from typing import TypeVar
from uuid import UUID

import msgspec

from sequencer.api import ERRORS, GroupNotEmpty, SequencerError, UnknownGroup, Value
from sequencer.settings import SequencerSettings
from sequencer.store.rows import REFUSED, AnswerRow
from sequencer.store.state import Draft, HotState
from tailrace.turns import Steps, in_parts

A = TypeVar("A", bound=Value)
COMPRESSED_FROM = 1_000
"""Bytes of an answer from which on it is compressed: one that has a row for each of many partitions."""
_COMPRESSED = zlib.compress(b"")[:1]
"""Begins no encoded answer."""
REFUSALS_PART = 10
"""Refusals are this part of the answers at most: a client that is refused in a loop pushes out no other answers."""
LOOKED_AT_ONCE = 10_000


def decide_once(
    draft: Draft, request_id: UUID | None, answer: type[A], decide: Callable[[Draft], A | Steps[A]]
) -> Steps[A | SequencerError]:
    """The first answer to this request, decided and stored now unless it was before. That of a request without an id is
    not stored. A refusal that is stored is returned: raised here, it would take the draft's changes with it."""
    row = None if request_id is None else draft.get(AnswerRow, request_id)
    if row is not None:
        return _kept(row.answer, answer)
    decided: A | SequencerError
    try:
        decision = decide(draft)
        decided = (yield from decision) if isinstance(decision, Generator) else decision
    except (UnknownGroup, GroupNotEmpty) as refusal:
        decided = refusal
    if request_id is not None:
        draft.put(AnswerRow(request_id=request_id, answer=_encoded(decided), created_ms=draft.now_ms))
    return decided


def _encoded(decided: Value | SequencerError) -> bytes:
    if isinstance(decided, SequencerError):
        return REFUSED + decided.code.encode()
    encoded = msgspec.msgpack.encode(decided)
    return encoded if len(encoded) < COMPRESSED_FROM else zlib.compress(encoded, level=1)


def _kept(stored: bytes, answer: type[A]) -> A | SequencerError:
    if stored.startswith(REFUSED):
        return ERRORS[stored[1:].decode()]("this was refused when it was first asked for")
    if stored.startswith(_COMPRESSED):
        stored = zlib.decompress(stored)
    return msgspec.msgpack.decode(stored, type=answer)


def is_answered(draft: Draft, request_id: UUID | None) -> bool:
    """Whether this request was carried out."""
    return request_id is not None and draft.get(AnswerRow, request_id) is not None


def are_too_large(state: HotState, settings: SequencerSettings) -> bool:
    """Whether the answers take more than their bytes. Costs nothing, however many there are."""
    return state.answer_bytes > settings.max_request_answer_bytes


def forget_surplus(draft: Draft, settings: SequencerSettings) -> Steps[None]:
    """Delete the oldest refusals beyond their part, then the oldest answers beyond the bounds. Above the bytes a
    quarter goes, so that this is rare. Two decisions of one draft choose the same ones."""
    state = draft.durable
    most, most_bytes = settings.max_request_answers, settings.max_request_answer_bytes
    count, size = state.count(AnswerRow), state.answer_bytes
    if size > most_bytes:
        most_bytes -= most_bytes // 4
    refused = yield from _oldest(
        list(state.rows(AnswerRow, state.refusals)), len(state.refusals) - most // REFUSALS_PART
    )
    gone = {row.request_id for row in refused}
    for row in refused:
        draft.delete(AnswerRow, row.request_id)
        count, size = count - 1, size - len(row.answer)
    if count <= most and size <= most_bytes:
        return
    surplus = count - most + len(refused) if size <= most_bytes else count
    for row in (yield from _oldest(list(state.all(AnswerRow)), surplus)):
        if count <= most and size <= most_bytes:
            break
        if row.request_id not in gone:
            draft.delete(AnswerRow, row.request_id)
            count, size = count - 1, size - len(row.answer)


def _oldest(rows: Sequence[AnswerRow], count: int) -> Steps[Sequence[AnswerRow]]:
    """So many of them that are the oldest, the oldest first."""
    oldest: list[AnswerRow] = []
    if count > 0:
        for some in in_parts(rows, LOOKED_AT_ONCE):
            oldest = sorted([*oldest, *some], key=attrgetter("created_ms"))[:count]
            yield len(some)
    return oldest
