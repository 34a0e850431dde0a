"""Runs in the form in which they are sent: small batches side by side, offsets and leader epoch written into each.

What a batch says of its place in the log (base offset, leader epoch) is outside its CRC, and is not known when its
object is uploaded. So a batch out of a chunk needs a head of its own, each time it is sent. A run of small batches is
copied once, with its heads written; from then on it is sent as one view for each piece. Large batches are not copied.

Only checked bytes are kept here: who frames a piece has compared each batch with its CRC, or knows its bytes.

Pure: a data structure, owned by one event loop.
"""

from __future__ import annotations

from cache.eviction import S3Fifo
from cache.layout import Layout
from sequencer.api import ObjectKind, Run

_RunKey = tuple[str | int, int, int]


class FramedRun(Layout):
    """A run's layout, and of each piece the bytes to send, where they were made and are not those of a large batch."""

    __slots__ = ("_framed", "_leader_epoch")

    def __init__(self, run: Run, chunk_bytes: int) -> None:
        super().__init__(run, chunk_bytes)
        self._leader_epoch = -1
        self._framed: list[memoryview | None] = [None] * (len(self.pieces) - 1)

    def framed(self, piece: int, leader_epoch: int) -> memoryview | None:
        """The piece as it is sent under this epoch; None where it is not there."""
        return self._framed[piece] if leader_epoch == self._leader_epoch else None

    def whole(self, leader_epoch: int) -> memoryview | None:
        """All of a run that is one piece, as it is sent under this epoch; None where it is not, or not there."""
        if len(self._framed) == 1 and leader_epoch == self._leader_epoch:
            return self._framed[0]
        return None

    def keep(self, piece: int, leader_epoch: int, framed: memoryview) -> None:
        """Keep a piece; those of another epoch go."""
        if leader_epoch != self._leader_epoch:
            self._leader_epoch = leader_epoch
            self._framed = [None] * len(self._framed)
        self._framed[piece] = framed


class FramedRuns:
    """The runs that were read last, within `budget_bytes`; each is counted as if all its pieces were made."""

    def __init__(self, budget_bytes: int, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._held: S3Fifo[_RunKey, FramedRun] = S3Fifo(budget_bytes)

    @property
    def bytes_held(self) -> int:
        """Bytes of pieces and layouts together."""
        return self._held.bytes_held

    def of(self, run: Run) -> FramedRun:
        """The run, made where it is not held."""
        key = _key_of(run)
        found = self._held.get(key)
        if found is None:
            found = FramedRun(run, self._chunk_bytes)
            self._held.put(key, found, found.copied_bytes + found.memory_bytes)
        return found


def _key_of(run: Run) -> _RunKey:
    """A run by what it can't share with another: its place in an object and in the log."""
    if run.kind is ObjectKind.MARKERS:
        return run.topic_id.int, run.partition, run.base_offset
    return run.key, run.start, run.base_offset
