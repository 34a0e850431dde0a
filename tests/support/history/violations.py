"""The kinds of faults in a history, and how they are reported."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kinds of faults; each is a broken promise of Kafka's."""

    LOST = "lost"
    """An acknowledged or once readable record is missing, although no deletion was allowed."""
    DUPLICATED = "duplicated"
    """A record is at more offsets than its producer may have sent it (once, if idempotent)."""
    REORDERED = "reordered"
    """Records of one producer, or one acknowledged before the other was sent, are in the wrong order."""
    PHANTOM = "phantom"
    """A reader got a record that nobody had sent: invented or damaged."""
    MISPLACED = "misplaced"
    """A record was read from another topic, incarnation or partition than it was sent to."""
    FAILED_SEEN = "failed-seen"
    """A record whose producer was told that it is not stored was read."""
    TORN = "torn"
    """A batch is stored in part, or not adjacently."""
    HOLE = "hole"
    """An offset without a record in a log that has no transactions and is not compacted."""
    OFFSET_REUSED = "offset-reused"
    """One offset had two different records."""
    OFFSET_MOVED = "offset-moved"
    """A record is at another offset than was reported or read before."""
    NON_MONOTONIC_READ = "non-monotonic-read"
    """A reader's offsets did not grow, although it did not seek."""
    ABORTED_SEEN = "aborted-seen"
    """read_committed returned a record of an aborted transaction."""
    OPEN_SEEN = "open-seen"
    """read_committed returned a record of a transaction that nobody had asked to commit."""
    PARTIAL_TRANSACTION = "partial-transaction"
    """A transaction is partly committed."""
    COMMITTED_OFFSET_MOVED_BACK = "committed-offset-moved-back"
    """A group's position is older than one acknowledged before it was requested."""
    COMMITTED_OFFSET_WRONG = "committed-offset-wrong"
    """A group's position is one that nobody committed, or that was aborted."""
    PROCESSED_TWICE = "processed-twice"
    """Two committed outputs of one input in a consume-transform-produce loop."""
    NOT_PROCESSED = "not-processed"
    """The group's position has passed an input that has no committed output."""
    BOUNDS_MOVED_BACK = "bounds-moved-back"
    """Log start, high watermark or last stable offset fell, or contradicts what was acknowledged or read before."""
    UNASKED_DELETION = "unasked-deletion"
    """The log's start is beyond what anybody asked or allowed to delete."""
    DELETED_SEEN = "deleted-seen"
    """A reader that started after a log start had moved read a record below it."""
    BAD_HISTORY = "bad-history"
    """The recorder contradicts itself: an answer without its request, one identity for two records."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault: the broken promise and what was seen. `at`: seconds on the history's clock."""

    kind: Kind
    message: str
    topic: str = ""
    partition: int = -1
    offset: int = -1
    record: str = ""
    at: float = 0.0

    def __str__(self) -> str:
        place = f" {self.topic}-{self.partition}" if self.topic else ""
        place += f"@{self.offset}" if self.offset >= 0 else ""
        return f"{self.kind}{place}: {self.message}"
