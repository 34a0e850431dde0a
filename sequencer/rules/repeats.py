"""A retried change gets its first answer and changes nothing.

A caller whose answer was lost retries; and its first request may still arrive later, through a process that was
stopped. Both carry the same request id. The id and the answer are stored in the transaction that carries out the
request, so that this holds for the next committer too.

A refusal changes nothing and is not stored: the retry is decided anew.

Pure: the caller passes the draft in and drives a decision that takes several turns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import nsmallest
from operator import attrgetter
from typing import TypeVar
from uuid import UUID

import msgspec

from sequencer.api import Value
from sequencer.store.rows import AnswerRow
from sequencer.store.state import Draft
from tailrace.turns import Steps

A = TypeVar("A", bound=Value)


def decide_once(
    draft: Draft, request_id: UUID | None, answer: type[A], decide: Callable[[Draft], A | Steps[A]]
) -> Steps[A]:
    """The first answer to this request, decided and stored now unless it was before. A request without an id, or one
    that changes nothing, is not stored."""
    row = None if request_id is None else draft.get(AnswerRow, request_id)
    if row is not None:
        return msgspec.msgpack.decode(row.answer, type=answer)
    decision = decide(draft)
    decided = (yield from decision) if isinstance(decision, Generator) else decision
    if draft.changes and request_id is not None:
        draft.put(
            AnswerRow(request_id=request_id, answer=msgspec.msgpack.encode(decided), created_ms=draft.now_ms)
        )
    return decided


def forget_surplus(draft: Draft, most: int) -> None:
    """Delete the oldest answers beyond `most`."""
    surplus = draft.count(AnswerRow) - most
    if surplus > 0:
        for row in nsmallest(surplus, draft.all(AnswerRow), key=attrgetter("created_ms")):
            draft.delete(AnswerRow, row.request_id)
