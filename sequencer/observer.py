"""Events that a sequencer reports for metrics: of the committer, its database, and RPC calls on both ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar, cast

from sequencer.store.row_store import RowStore
from tailrace.clock import Clock

T = TypeVar("T")
DatabaseWork = Literal["write", "load", "look_up", "read", "lease"]
"""The committer waits for a `look_up`; only its caller waits for a `read`."""


class SequencerObserver:
    """Called for each event when it is over. Must not raise or take long. This class ignores all events."""

    def queue_changed(self, requests: int) -> None:
        """The length of the committer's queue has changed."""

    def group_performed(self, requests: int, seconds: float) -> None:
        """The committer has decided and written a group."""

    def database_answered(self, work: DatabaseWork, seconds: float) -> None:
        """The database has answered or failed after this time."""

    def request_failed_alone(self, request: str) -> None:
        """A request could not be carried out for an unforeseen reason."""

    def term_began(self) -> None:
        """This process has become the committer."""

    def call_answered(self, side: Literal["server", "client"], method: str, seconds: float) -> None:
        """An attempt of an RPC call was answered or failed. The client's time includes the network and the queue."""


async def timed(observer: SequencerObserver, clock: Clock, work: DatabaseWork, answer: Awaitable[T]) -> T:
    """Await an answer and report how long it took."""
    began = clock.monotonic()
    try:
        return await answer
    finally:
        observer.database_answered(work, clock.monotonic() - began)


class _TimedReads:
    """A row store that reports every call as a read."""

    def __init__(self, store: RowStore, observer: SequencerObserver, clock: Clock) -> None:
        self._store = store
        self._observer = observer
        self._clock = clock

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._store, name)

        async def asked(*arguments: Any, **named: Any) -> Any:
            return await timed(self._observer, self._clock, "read", method(*arguments, **named))

        return asked


def timed_reads(store: RowStore, observer: SequencerObserver, clock: Clock) -> RowStore:
    """Return the store for reading; the time of each call is reported."""
    return cast(RowStore, _TimedReads(store, observer, clock))
