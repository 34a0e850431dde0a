"""A retried change gets its first answer and changes nothing.

A caller that lost its answer retries, and its first request may still arrive later, from a process that was stopped.
Both carry the same request id. The id and the answer are stored in the transaction that carries out the request, so the
rule also holds for the next committer.

The answer is stored even if nothing was changed, because a late copy of the request could find something to change. A
refusal to delete a group or its offsets is stored too, because a late copy could find another group of this name. After
any other refusal a retry is decided again.

Pure: the caller supplies the draft and drives a decision that takes several turns.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Sequence
from operator import attrgetter
from typing import TypeVar
from uuid import UUID

import msgspec

from sequencer.api.errors import ERRORS, GroupNotEmpty, SequencerError, UnknownGroup
from sequencer.api.values import Value
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import REFUSED, AnswerRow
from sequencer.store.state import HotState
from tailrace.turns import Steps, in_parts

A = TypeVar("A", bound=Value)
COMPRESSED_FROM = 1_000
"""Answers of at least this many bytes are compressed; they have an entry for each of many partitions."""
_COMPRESSED = zlib.compress(b"")[:1]
"""The first byte of a compressed answer; no uncompressed answer begins with it."""
REFUSALS_PART = 10
"""At most one answer in this many is a refusal, so that a client that is refused in a loop evicts no other answers."""
LOOKED_AT_ONCE = 10_000
FORGOTTEN_AT_ONCE = 10_000
"""Answers beyond the limit in number that one decision deletes."""


def decide_once(
    draft: Draft, request_id: UUID | None, answer: type[A], decide: Callable[[Draft], A | Steps[A]]
) -> Steps[A | SequencerError]:
    """Return the first answer to this request; if there is none, decide the request and store the answer. The answer to
    a request without an id is not stored. A refusal that is stored is returned, not raised: raising it would discard
    the draft's changes."""
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
        return ERRORS[stored[1:].decode()]("this request was refused at its first attempt")
    if stored.startswith(_COMPRESSED):
        stored = zlib.decompress(stored)
    return msgspec.msgpack.decode(stored, type=answer)


def is_answered(draft: Draft, request_id: UUID | None) -> bool:
    """Whether this request was carried out."""
    return request_id is not None and draft.get(AnswerRow, request_id) is not None


def are_too_large(state: HotState, settings: SequencerSettings) -> bool:
    """Whether the answers exceed their limit in bytes. The cost does not depend on their number."""
    return state.answer_bytes > settings.max_request_answer_bytes


def has_surplus(state: HotState, settings: SequencerSettings) -> bool:
    """Whether there are answers or refusals beyond their limits. The cost does not depend on their number."""
    most = settings.max_request_answers
    return (
        state.count(AnswerRow) > most
        or len(state.refusals) > most // REFUSALS_PART
        or are_too_large(state, settings)
    )


def forget_surplus(draft: Draft, settings: SequencerSettings) -> Steps[None]:
    """Delete the oldest refusals beyond their share, then the oldest answers beyond the limits, a limited number of
    them. If the limit in bytes is exceeded, delete a quarter of the bytes, so that this is rare. Two decisions of one
    draft choose the same answers."""
    state = draft.durable
    most, most_bytes = settings.max_request_answers, settings.max_request_answer_bytes
    count, size = state.count(AnswerRow), state.answer_bytes
    if size > most_bytes:
        most_bytes -= most_bytes // 4
    surplus = min(len(state.refusals) - most // REFUSALS_PART, FORGOTTEN_AT_ONCE)
    refused = yield from _oldest(list(state.rows(AnswerRow, state.refusals)), surplus)
    gone = {row.request_id for row in refused}
    for row in refused:
        draft.delete(AnswerRow, row.request_id)
        count, size = count - 1, size - len(row.answer)
    more = count if size > most_bytes else min(count - most, FORGOTTEN_AT_ONCE - len(refused))
    if more <= 0:
        return
    for row in (yield from _oldest(list(state.all(AnswerRow)), more + len(refused))):
        if more == 0 or (count <= most and size <= most_bytes):
            break
        if row.request_id not in gone:
            draft.delete(AnswerRow, row.request_id)
            count, size, more = count - 1, size - len(row.answer), more - 1


def _oldest(rows: Sequence[AnswerRow], count: int) -> Steps[Sequence[AnswerRow]]:
    """Return the `count` oldest rows, oldest first."""
    oldest: list[AnswerRow] = []
    if count > 0:
        for some in in_parts(rows, LOOKED_AT_ONCE):
            oldest = sorted([*oldest, *some], key=attrgetter("created_ms"))[:count]
            yield len(some)
    return oldest
