"""Transactions that an operator aborts by force: which ones producers have open, and which aborts the operator
requested.

An abort names a producer's id and epoch. Before version 2 an epoch has many transactions, so an abort may end a later
one than the operator saw, as in Kafka. But it never ends one that began after the abort was answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

DatabaseIdentity = tuple[int, int]
"""A producer's id and epoch."""


@dataclass(slots=True, eq=False)
class Open:
    """A transaction as its producer knows it."""

    name: str
    began_at: float
    is_end_asked: bool = False


@dataclass(slots=True, eq=False)
class Attempt:
    """One request to abort. Without an answer it may still be carried out."""

    asked_at: float
    answered_at: float = inf


class AbortWatch:
    """The newest transaction of each producer, and the requests to abort it."""

    def __init__(self) -> None:
        self._open: dict[DatabaseIdentity, Open] = {}
        self._attempts: dict[DatabaseIdentity, list[Attempt]] = {}

    def began(self, producer: DatabaseIdentity, name: str, at: float) -> None:
        """Note that a producer begins a transaction, before it sends any of it."""
        self._open[producer] = Open(name, at)

    def end_asked(self, producer: DatabaseIdentity) -> None:
        """Note that a producer asks to end its transaction."""
        if producer in self._open:
            self._open[producer].is_end_asked = True

    def asked(self, producer: DatabaseIdentity, at: float) -> Attempt:
        """Note that the operator asks to abort this producer's open transaction."""
        attempt = Attempt(at)
        self._attempts.setdefault(producer, []).append(attempt)
        return attempt

    def may_have_fenced(self, producer: DatabaseIdentity) -> bool:
        """Return whether one of these requests may have ended this producer's newest transaction."""
        newest, attempts = self._open.get(producer), self._attempts.get(producer, ())
        return newest is not None and any(each.answered_at >= newest.began_at for each in attempts)

    def surely_aborted(self, producer: DatabaseIdentity, seen_at: float) -> str | None:
        """Return the transaction that an abort has ended, when the abort is answered. It must have been seen open by a
        request sent at `seen_at`, and its producer must not have asked to end it."""
        newest = self._open.get(producer)
        if newest is None or newest.is_end_asked or newest.began_at >= seen_at:
            return None
        return newest.name
