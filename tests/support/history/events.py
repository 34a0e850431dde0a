"""A history: the events that clients of a Kafka cluster saw.

An event is a fact that one client knows itself. No event needs the broker's internals, so any Kafka can be recorded.
Events of one history share one clock (`at`, seconds; equal times count as concurrent) and are ordered by `at` only. A
request with an effect is recorded twice, when it was sent and when it was answered. If the client dies in between, only
the first event exists, and the outcome is unknown.

- `topic` names one incarnation of a topic: `log_name("orders", 2)` is "orders@2", the second log of that name.
- `record` identifies key and value together (see `identity`). It must be unique in the history, except for the same
  record sent again by a producer that is not idempotent.
- `client` names one instance of a producer or consumer: after a crash or a fatal error the next one has a new name.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

import msgspec

Guarantee: TypeAlias = Literal["plain", "idempotent", "transactional"]
Isolation: TypeAlias = Literal["uncommitted", "committed"]
Outcome: TypeAlias = Literal["committed", "aborted", "unknown"]
Answer: TypeAlias = Literal["done", "refused", "unknown"]

UNKNOWN_OFFSET = -1


def log_name(topic: str, incarnation: int = 1) -> str:
    """Return the name of one log of a topic that may be deleted and created again; the first has the topic's own
    name."""
    return topic if incarnation == 1 else f"{topic}@{incarnation}"


def identity(key: bytes | None, value: bytes | None) -> str:
    """Return a record's identity: its key and value if they are short text, otherwise a digest of both."""
    if len(value or b"") + len(key or b"") <= 64 and key is not None and value is not None:
        try:
            return f"{key.decode('ascii')}={value.decode('ascii')}"
        except UnicodeDecodeError:
            pass
    digest = hashlib.blake2b(digest_size=16)
    for part in (key, value):
        digest.update(b"-" if part is None else len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


class Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="event", kw_only=True):
    """A fact that a client saw. `at`: seconds on the history's clock."""

    at: float


class Sent(Event, frozen=True, gc=False, tag="sent"):
    """A producer handed a record to the cluster. `at` is before it could have been sent."""

    client: str
    topic: str
    partition: int
    record: str
    number: int
    """Orders the client's records of this partition: they must be stored in this order."""
    guarantee: Guarantee = "idempotent"
    transaction: str = ""
    """Transactional producers: the transaction in which it was sent."""
    batch: str = ""
    """Set if the client knows its batches: the records of a batch are stored adjacently or not at all."""
    times: int = 1
    """Plain producers: how often the client may have sent it (1 + its retries). Sending it again is another event."""
    source: str = ""
    """In a consume-transform-produce loop: the input record from which this output was made."""
    key: str = ""
    """Compacted topics only: a later record of the same key may replace this one."""


class Acked(Event, frozen=True, gc=False, tag="acked"):
    """The cluster reported that the record is stored."""

    client: str
    record: str
    offset: int = UNKNOWN_OFFSET


class Failed(Event, frozen=True, gc=False, tag="failed"):
    """The cluster reported that the record is not stored, and will not be."""

    client: str
    record: str
    error: str = ""


class Unanswered(Event, frozen=True, gc=False, tag="unanswered"):
    """The producer gave up on the record, which may be stored now, later, or never."""

    client: str
    record: str
    error: str = ""


class Begun(Event, frozen=True, gc=False, tag="begun"):
    """A client began a transaction. `transaction` is unique in the history (it is not the transactional id)."""

    client: str
    transaction: str
    transactional_id: str = ""


class CommitAsked(Event, frozen=True, gc=False, tag="commit_asked"):
    """The client asks to commit: from now on the transaction may be committed, with everything sent in it."""

    client: str
    transaction: str


class AbortAsked(Event, frozen=True, gc=False, tag="abort_asked"):
    """The client asks to abort. A transaction that nobody asked to commit is never committed, with or without this
    event."""

    client: str
    transaction: str


class Ended(Event, frozen=True, gc=False, tag="ended"):
    """The outcome that the cluster reported to the client. Without this event the outcome is unknown."""

    client: str
    transaction: str
    outcome: Outcome
    error: str = ""


class OffsetsAdded(Event, frozen=True, gc=False, tag="offsets_added"):
    """A position that becomes the group's when the transaction is committed (TxnOffsetCommit was answered). -1: the
    position that it added there before has been deleted since."""

    client: str
    transaction: str
    group: str
    topic: str
    partition: int
    offset: int


class OffsetCommitAsked(Event, frozen=True, gc=False, tag="offset_commit_asked"):
    """A client asks to commit `offset` as the group's position; -1: to delete it. `commit` is unique in the history."""

    client: str
    commit: str
    group: str
    topic: str
    partition: int
    offset: int


class OffsetCommitEnded(Event, frozen=True, gc=False, tag="offset_commit_ended"):
    """The answer to an OffsetCommitAsked. Without this event its outcome is unknown."""

    client: str
    commit: str
    answer: Answer = "done"
    error: str = ""


class OffsetFetched(Event, frozen=True, gc=False, tag="offset_fetched"):
    """A client received the group's position: asked at `asked`, answered at `at`. -1: the group has none."""

    client: str
    group: str
    topic: str
    partition: int
    offset: int
    asked: float
    is_stable: bool = True
    """Fetched with require_stable (or without a pending transaction): the fetch waits for open transactions."""


class Positioned(Event, frozen=True, gc=False, tag="positioned"):
    """A reader's position in a partition: it received everything from its start up to here.

    `is_seek`: it starts here (assigned, sought, reset); earlier records belong to another pass.
    """

    client: str
    topic: str
    partition: int
    offset: int
    isolation: Isolation = "uncommitted"
    is_seek: bool = False


class Read(Event, frozen=True, gc=False, tag="read"):
    """A reader received a record. Its partition was Positioned (is_seek) before; offsets between two reads are
    empty."""

    client: str
    topic: str
    partition: int
    offset: int
    record: str
    isolation: Isolation = "uncommitted"


class BoundsSeen(Event, frozen=True, gc=False, tag="bounds_seen"):
    """Offsets of a partition that a client received, together or separately, after asking at `asked`. -1: not received.

    `source`: the agent that answered from its window, so that they may be a little old; '' for the sequencer.
    """

    client: str
    topic: str
    partition: int
    asked: float
    log_start: int = UNKNOWN_OFFSET
    high_watermark: int = UNKNOWN_OFFSET
    last_stable: int = UNKNOWN_OFFSET
    source: str = ""


class LogStartMoved(Event, frozen=True, gc=False, tag="log_start_moved"):
    """Records below `offset` may disappear from now on (retention, or a DeleteRecords request); `is_done`: they are
    gone."""

    topic: str
    partition: int
    offset: int
    is_done: bool = False


class TopicMade(Event, frozen=True, gc=False, tag="topic_made"):
    """A log began. Optional, except for logs that may lose records without a LogStartMoved."""

    topic: str
    may_expire: bool = False
    """Retention may move the log's start at any time."""
    is_compacted: bool = False
    """A record may disappear once a later one has its key."""


class TopicDropped(Event, frozen=True, gc=False, tag="topic_dropped"):
    """A client asked to delete the log: nothing is promised about it any more. `is_done`: it is deleted."""

    topic: str
    is_done: bool = False


class GroupDropped(Event, frozen=True, gc=False, tag="group_dropped"):
    """A client asked to remove a group's positions, or they may expire; from now on it may have none."""

    group: str


AnyEvent: TypeAlias = (
    Sent
    | Acked
    | Failed
    | Unanswered
    | Begun
    | CommitAsked
    | AbortAsked
    | Ended
    | OffsetsAdded
    | OffsetCommitAsked
    | OffsetCommitEnded
    | OffsetFetched
    | Positioned
    | Read
    | BoundsSeen
    | LogStartMoved
    | TopicMade
    | TopicDropped
    | GroupDropped
)
