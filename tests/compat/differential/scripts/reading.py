"""Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords: what readers ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tailrace.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.kafka.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.compat.differential.known import Known
from tests.compat.differential.scripts.producing import batch, produced
from tests.compat.differential.steps import Ask, Script, Scripts, topic

NOT_THERE = UUID(int=79)
ONE_AT_A_TIME = 150
"""Bytes that hold one small batch, and not two."""


def wanted(offset: int = 0, partition: int = 0, max_bytes: int = 1 << 20, **more: Any) -> FetchPartition:
    """A partition as Fetch names it."""
    return FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes, **more)


def fetched(
    what: str,
    name: str | UUID,
    *rows: FetchPartition,
    version: int = 12,
    ignored: Sequence[str] = (),
    **more: Any,
) -> Ask:
    """A fetch of partitions of one topic."""
    topic_row = (
        FetchTopic(name, partitions=list(rows)) if isinstance(name, str) else FetchTopic("", name, list(rows))
    )
    more = {"max_wait_ms": 0, "min_bytes": 0, **more}
    return Ask(what, ApiKey.FETCH, version, FetchRequest(topics=[topic_row], **more), ignored=ignored)


def filled(name: str, partitions: int = 1, **configs: str) -> Script:
    """A topic with five batches, of one record each but the third, which has three."""
    known = yield from topic(name, partitions, **configs)
    for number in range(5):
        values = [b"%d" % number] * (3 if number == 2 else 1)
        step = produced(
            f"fill {name} {number}", name, batch(*values, at=1_000 * number + 1_000), is_compared=False
        )
        yield step
    return known


def fetch_versions() -> Script:
    """Fetch of every version: good, unknown, out of range."""
    known = yield from filled("read", 2)
    for version in range(4, 19):
        name, other = ("read", "read-not") if version < 13 else (known, NOT_THERE)
        yield fetched("all", name, wanted(), version=version)
        yield fetched("in a batch", name, wanted(3), version=version)
        yield fetched("at the end", name, wanted(7), version=version)
        yield fetched("beyond the end", name, wanted(8), version=version)
        yield fetched("negative", name, wanted(-1), version=version)
        yield fetched("unknown topic", other, wanted(), version=version)
        yield fetched("unknown partition", name, wanted(partition=9), version=version)
        yield fetched("negative partition", name, wanted(partition=-1), version=version)
        yield fetched("empty partition", name, wanted(partition=1), version=version)
        yield fetched("a partition twice", name, wanted(), wanted(1), version=version)
        yield fetched("committed", name, wanted(), version=version, isolation_level=1)
        yield fetched("bad isolation", name, wanted(), version=version, isolation_level=7)
    for version in (13, 18):
        yield fetched("id of zeros", UUID(int=0), wanted(), version=version)
    yield fetched("bad name", "a/b", wanted())
    yield fetched("empty name", "", wanted())


def fetch_sizes() -> Script:
    """max_bytes, partition_max_bytes and min_bytes; the first batch always comes."""
    yield from filled("sizes-read", 2)
    yield produced("second partition", "sizes-read", batch(b"other"), partition=1, is_compared=False)
    name = "sizes-read"
    for size in (0, 1, -1, ONE_AT_A_TIME):
        yield fetched(f"partition's {size}", name, wanted(max_bytes=size))
        yield fetched(f"request's {size}", name, wanted(), max_bytes=size)
        yield fetched(f"request's {size}, two", name, wanted(), wanted(partition=1), max_bytes=size)
        yield fetched(f"both {size}, two", name, wanted(max_bytes=size), wanted(0, 1, size), max_bytes=size)
    yield fetched("more than there is", name, wanted(), min_bytes=1 << 20, max_wait_ms=200)
    yield fetched(
        "more than the request's", name, wanted(6), max_bytes=1, min_bytes=1 << 20, max_wait_ms=60_000
    )
    yield fetched("waits in vain", name, wanted(7), min_bytes=1, max_wait_ms=200)
    yield fetched("negative wait", name, wanted(7), min_bytes=1, max_wait_ms=-1)
    yield fetched("negative min", name, wanted(7), min_bytes=-1, max_wait_ms=200)


def fetch_epochs() -> Script:
    """Leader epochs that are the partition's, older, newer."""
    yield from filled("epochs")
    for version in (9, 11, 12):
        yield fetched("no epoch", "epochs", wanted(), version=version)
        yield fetched("newer epoch", "epochs", wanted(current_leader_epoch=1_000_000), version=version)
        yield fetched("negative epoch", "epochs", wanted(current_leader_epoch=-2), version=version)
    yield fetched("last fetched epoch, newer", "epochs", wanted(7, last_fetched_epoch=1_000_000))
    yield fetched("log start offset", "epochs", wanted(log_start_offset=3))
    yield fetched("as a replica", "epochs", wanted(), version=12, replica_id=77)
    yield fetched("as the debugging replica", "epochs", wanted(), version=12, replica_id=-2)
    yield fetched("of a rack", "epochs", wanted(), rack_id="nowhere")
    yield fetched("of another cluster", "epochs", wanted(), cluster_id="another")


def sessions() -> Script:
    """Fetch sessions: made, continued, with changes, with mistakes."""
    known = yield from filled("sessions", 2)

    def step(
        what: str,
        session: int,
        epoch: int,
        *rows: FetchPartition,
        gone: Sequence[int] = (),
        name: Any = known,
        version: int = 17,
    ) -> Ask:
        topics = [FetchTopic("", name, list(rows))] if rows else []
        forgotten = [ForgottenTopic("", known, list(gone))] if gone else []
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            session_id=session,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )
        return Ask(what, ApiKey.FETCH, 17, request)

    made = yield step("make", 0, 0, wanted(), wanted(partition=1))
    yield step("go on", made.session_id, 1)
    yield step("again with the same epoch", made.session_id, 1)
    yield step("go on, at the end", made.session_id, 2, wanted(7))
    yield step("nothing new", made.session_id, 3)
    yield produced("more", "sessions", batch(b"new"), is_compared=False)
    yield step("something new", made.session_id, 4)
    yield step("one less", made.session_id, 5, gone=[0])
    yield step("forget what is not there", made.session_id, 6, gone=[0, 9])
    yield step("an unknown partition", made.session_id, 7, wanted(partition=9))
    yield step("an unknown topic", made.session_id, 8, wanted(), name=NOT_THERE)
    yield step("go on with errors", made.session_id, 9)
    yield step("epoch too high", made.session_id, 20)
    yield step("unknown session", 123_456_789, 1)
    yield step("unknown session, to end", 123_456_789, -1, wanted())
    yield step("no session, epoch 1", 0, 1, wanted())
    yield step("end it", made.session_id, -1, wanted())
    yield step("after its end", made.session_id, 10)
    yield step("none", 0, -1)
    again = yield step("make another", 0, 0, wanted())
    yield step("made again with its id", again.session_id, 0, wanted())
    yield step("the old one", again.session_id, 1)
    yield step("empty session", 0, 0)
    by_name = FetchRequest(
        session_id=0, session_epoch=0, topics=[FetchTopic("sessions", partitions=[wanted()])]
    )
    named = yield Ask("make by name", ApiKey.FETCH, 12, by_name)
    yield step("go on by id", named.session_id, 1)


def list_offsets() -> Script:
    """Every special timestamp in every version; times; epochs."""
    yield from filled("offsets", 2)

    def at(
        what: str, timestamp: int, version: int, partition: int = 0, name: str = "offsets", **more: Any
    ) -> Ask:
        epoch = more.pop("epoch", -1)
        rows = [ListOffsetsTopic(name, [ListOffsetsPartition(partition, epoch, timestamp)])]
        return Ask(what, ApiKey.LIST_OFFSETS, version, ListOffsetsRequest(-1, topics=rows, **more))

    for version in range(1, 12):
        for timestamp in (-1, -2, -3, -4, -5, -6, -7, -100, 0, 1_000, 2_500, 3_000, 9_999):
            yield at(f"at {timestamp}", timestamp, version)
            if timestamp in (-1, -2, -3, 0):
                yield at(f"at {timestamp} of nothing", timestamp, version, 1)
        yield at("unknown topic", -1, version, name="offsets-not")
        yield at("unknown partition", -1, version, 9)
        yield at("unknown topic and time", -7, version, name="offsets-not")
    for version in (2, 11):
        yield at("committed", -1, version, isolation_level=1)
        yield at("bad isolation", -1, version, isolation_level=5)
    for timestamp in (-1, -2, -3, 1_000):
        yield at(f"newer epoch at {timestamp}", timestamp, 7, epoch=1_000_000)
        yield at(f"epoch -2 at {timestamp}", timestamp, 7, epoch=-2)
    rows = [ListOffsetsPartition(0, -1, -1), ListOffsetsPartition(0, -1, -2), ListOffsetsPartition(1, -1, -1)]
    twice = ListOffsetsRequest(-1, topics=[ListOffsetsTopic("offsets", rows)])
    yield Ask("a partition twice", ApiKey.LIST_OFFSETS, 7, twice)
    replica = ListOffsetsRequest(77, topics=[ListOffsetsTopic("offsets", [ListOffsetsPartition(0, -1, -1)])])
    yield Ask("as a replica", ApiKey.LIST_OFFSETS, 7, replica)
    yield Ask("of none", ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(-1))
    yield at("bad name", -1, 7, name="a/b")


def epoch_ends() -> Script:
    """OffsetForLeaderEpoch: epochs that are known, newer, older."""
    yield from filled("ends")
    for version in (2, 3, 4):
        for current, epoch, name, partition in (
            (-1, 1_000_000, "ends", 0),
            (1_000_000, 1_000_000, "ends", 0),
            (-1, -1, "ends", 0),
            (-1, -5, "ends", 0),
            (-1, 0, "ends-not", 0),
            (-1, 0, "ends", 4),
        ):
            row = OffsetForLeaderPartition(partition, current, epoch)
            request = OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(name, [row])])
            yield Ask(
                f"{name} {partition} {current} {epoch}", ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request
            )


def deleted_records() -> Script:
    """DeleteRecords: up to an offset, to the end, beyond it; what can be read then."""
    yield from filled("cut", 2)

    def cut(what: str, *rows: tuple[str, int, int], version: int = 2) -> Ask:
        topics = [
            DeleteRecordsTopic(name, [DeleteRecordsPartition(index, offset)]) for name, index, offset in rows
        ]
        return Ask(
            what, ApiKey.DELETE_RECORDS, version, DeleteRecordsRequest(topics, 30_000), unordered=("topics",)
        )

    for version in range(3):
        yield cut("up to 2", ("cut", 0, 2), version=version)
        yield cut("beyond the end", ("cut", 0, 100), version=version)
        yield cut("unknown topic", ("cut-not", 0, 1), version=version)
        yield cut("unknown partition", ("cut", 9, 1), version=version)
    yield cut("back to 1", ("cut", 0, 1))
    yield cut("-2", ("cut", 0, -2))
    yield cut("0 of nothing", ("cut", 1, 0))
    yield cut("-1 of nothing", ("cut", 1, -1))
    yield cut("in a batch", ("cut", 0, 3))
    yield fetched("before the start", "cut", wanted(1))
    yield fetched("from the start", "cut", wanted(3))
    yield cut("two", ("cut", 0, 4), ("cut-not", 0, 1))
    yield cut("twice", ("cut", 0, 4), ("cut", 0, 5))
    yield cut("to the end", ("cut", 0, -1))
    at_end = fetched("at the end", "cut", wanted(7))
    yield replace(at_end, until=lambda answer: answer.responses[0].partitions[0].log_start_offset == 7)
    yield cut("none")
    yield from filled("cut-compacted", cleanup_policy="compact")
    yield cut("compacted", ("cut-compacted", 0, 1))
    yield cut("internal", ("__consumer_offsets", 0, 1))


_EPOCHS = "any agent serves any partition: it needs no metadata as new as the client's"
_BOUNDS = "the bounds of the partition are told beside the error, too"

KNOWN = (
    Known("reading.*", "*", "*.aborted_transactions", "without records there is nothing to abort", [], None),
    Known("reading.fetch_versions", "beyond the end *", "*", _BOUNDS, kafka=-1),
    Known("reading.fetch_versions", "negative *", "*", _BOUNDS, kafka=-1),
    Known("reading.deleted_records", "before the start v12", "*", _BOUNDS, kafka=-1),
    Known(
        "reading.fetch_versions",
        "bad isolation *",
        "*error_code",
        "Kafka fails; it is taken for read_uncommitted",
    ),
    Known(
        "reading.list_offsets",
        "bad isolation *",
        "*error_code",
        "Kafka fails; it is taken for read_uncommitted",
    ),
    Known("reading.fetch_sizes", "*-1*", "*", "Kafka fails; it is taken for 0"),
    Known("reading.fetch_sizes", "*150*", "*.records", "batches are sent whole; Kafka cuts the last one off"),
    Known("reading.fetch_epochs", "newer epoch *", "*.error_code", _EPOCHS),
    Known(
        "reading.fetch_epochs",
        "last fetched epoch*",
        "*.error_code",
        "logs do not diverge: they have no replicas",
    ),
    Known(
        "reading.fetch_epochs",
        "as a replica *",
        "*.error_code",
        "there are no replicas; it reads as a consumer",
    ),
    Known("reading.list_offsets", "newer epoch *", "*.error_code", _EPOCHS),
    Known("reading.list_offsets", "epoch -2 *", "*.error_code", "an epoch below 0 is none"),
    Known("reading.list_offsets", "a partition twice *", "*", "each mention is answered"),
    Known("reading.epoch_ends", "ends 0 1000000 *", "*.error_code", _EPOCHS),
    Known("reading.epoch_ends", "ends 0 -1 -5 *", "*", "an epoch below 0 is none"),
    Known(
        "reading.sessions",
        "*",
        "responses.<order>",
        "by the request's order; Kafka begins with unknown topics",
    ),
    Known(
        "reading.deleted_records",
        "*",
        "*.low_watermark",
        "the log start is told beside the error, too",
        kafka=-1,
    ),
    Known("reading.deleted_records", "twice *", "*", "each mention is carried out; Kafka takes the last"),
)


SCRIPTS = Scripts(
    {
        "fetch_versions": fetch_versions,
        "fetch_sizes": fetch_sizes,
        "fetch_epochs": fetch_epochs,
        "sessions": sessions,
        "list_offsets": list_offsets,
        "epoch_ends": epoch_ends,
        "deleted_records": deleted_records,
    },
    known=KNOWN,
)
