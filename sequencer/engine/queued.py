"""Requests in the committer's queue, and the commits among them that wait for an earlier number of their session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sequencer.api.commits import CommitRequest
from sequencer.store.draft import Draft
from sequencer.store.required_rows import Needs

Decide = Callable[[Draft], Any]
"""Returns the answer, the `Steps` that lead to it, or an awaitable of it (only for a request that is decided alone)."""


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request in the committer's queue: a `commit`, or another request with the function that decides it.

    `is_alone`: it awaits look-ups in the store, so it forms a group by itself. `needs`: the rows that its decision
    reads and that may not be in memory; for a commit they follow from its batches. `is_taken`: the task has taken it. A
    caller that gives up before that cancels the answer, and nothing is decided.
    """

    name: str
    answer: asyncio.Future[Any]
    decide: Decide | None = None
    is_alone: bool = False
    commit: CommitRequest | None = None
    needs: Needs | None = None
    is_taken: bool = False


class EarlyCommits:
    """Commits that wait for an earlier commit number of their session."""

    def __init__(self) -> None:
        self._by_session: dict[UUID, dict[int, QueuedRequest]] = {}

    def of(self, session_id: UUID) -> dict[int, QueuedRequest]:
        """Return the waiting commits of a session, by number."""
        return self._by_session.get(session_id, {})

    def put(self, commit: CommitRequest, request: QueuedRequest) -> None:
        self._by_session.setdefault(commit.session_id, {})[commit.number] = request

    def take(self, session_id: UUID, number: int) -> QueuedRequest | None:
        """Remove and return a waiting commit; None if it is not waiting."""
        waiting = self._by_session.get(session_id)
        if waiting is None:
            return None
        taken = waiting.pop(number, None)
        if not waiting:
            del self._by_session[session_id]
        return taken

    def take_all(self, session_id: UUID) -> list[QueuedRequest]:
        """Remove and return all waiting commits of a session."""
        return list(self._by_session.pop(session_id, {}).values())

    def __iter__(self) -> Iterator[QueuedRequest]:
        return (request for waiting in self._by_session.values() for request in waiting.values())

    def clear(self) -> None:
        self._by_session.clear()
