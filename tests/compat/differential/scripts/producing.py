"""Produce: every version, acks, topics, and batches that are refused."""

from __future__ import annotations

import struct
import time
from typing import Any
from uuid import UUID

from tailrace.batches.record_batch import Compression, crc_of
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka import ApiKey
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.compat.differential.known import Known, says_why
from tests.compat.differential.steps import Ask, Script, Scripts, topic

NOT_THERE = UUID(int=78)
DAY_MS = 86_400_000
MAGIC_AT, CRC_AT, ATTRIBUTES_AT, LAST_DELTA_AT, COUNT_AT = 16, 17, 21, 23, 57


def batch(*values: bytes, at: int = 1_000, key: bytes | None = b"k", **more: Any) -> bytes:
    """A batch of records with these values."""
    records = [NewRecord(key, value) for value in values or (b"v",)]
    return encode_batch(records, timestamps=[at] * len(records), **more)


def changed(data: bytes, position: int, form: str, value: int, is_summed: bool = True) -> bytes:
    """The batch with another number at a place, and its sum set anew."""
    out = bytearray(data)
    struct.pack_into(form, out, position, value)
    if is_summed:
        struct.pack_into(">I", out, CRC_AT, crc_of(out))
    return bytes(out)


def produced(
    what: str,
    name: str,
    *batches: bytes | None,
    version: int = 12,
    acks: int = -1,
    partition: int = 0,
    transactional_id: str | None = None,
    **more: Any,
) -> Ask:
    """A request with each of the batches for one partition, each in a row of its own."""
    rows = [PartitionProduceData(partition, None if data is None else memoryview(data)) for data in batches]
    request = ProduceRequest(transactional_id, acks, 30_000, [TopicProduceData(name, partition_data=rows)])
    return Ask(what, ApiKey.PRODUCE, version, request, is_answered=acks != 0, **more)


def log(name: str, what: str = "log", partition: int = 0, **more: Any) -> Ask:
    """All records of a partition."""
    wanted = FetchPartition(partition, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic(name, partitions=[wanted])])
    return Ask(what, ApiKey.FETCH, 12, request, **more)


def versions() -> Script:
    """A good batch, an unknown topic and an unknown partition in every version."""
    yield from topic("produce")
    for version in range(3, 13):
        yield produced("good", "produce", batch(b"%d" % version), version=version)
        yield produced("unknown topic", "produce-not", batch(), version=version)
        yield produced("unknown partition", "produce", batch(), version=version, partition=7)
    for version in range(3):
        empty = b"\x00\x01\x00\x00\x75\x30\x00\x00\x00\x00"
        yield Ask("too old", ApiKey.PRODUCE, version, empty)
    known = yield from topic("produce-by-id")
    for what, topic_id in (("good", known), ("unknown id", NOT_THERE), ("no id", UUID(int=0))):
        rows = [PartitionProduceData(0, memoryview(batch()))]
        request = ProduceRequest(None, -1, 30_000, [TopicProduceData(topic_id=topic_id, partition_data=rows)])
        yield Ask(what, ApiKey.PRODUCE, 13, request)
    rows = [PartitionProduceData(9, memoryview(batch()))]
    request = ProduceRequest(None, -1, 30_000, [TopicProduceData(topic_id=known, partition_data=rows)])
    yield Ask("unknown partition", ApiKey.PRODUCE, 13, request)
    yield log("produce")


def acks() -> Script:
    """Each number of acknowledgements; without one errors close the connection."""
    yield from topic("acks")
    for count in (-1, 1, 2, -2, 32767):
        for version in (3, 8, 9, 12):
            yield produced(f"acks={count}", "acks", batch(), acks=count, version=version)
    yield produced("acks=0", "acks", batch(), acks=0)
    yield produced("acks=0, unknown topic", "acks-not", batch(), acks=0)
    yield produced("acks=0, unknown partition", "acks", batch(), acks=0, partition=5)
    yield produced("acks=0, bad sum", "acks", changed(batch(), CRC_AT, ">I", 1, False), acks=0)
    request = ProduceRequest(None, -1, 30_000, [])
    yield Ask("no topics", ApiKey.PRODUCE, 12, request)
    yield Ask(
        "no partitions", ApiKey.PRODUCE, 12, ProduceRequest(None, -1, 30_000, [TopicProduceData("acks")])
    )
    yield Ask(
        "negative time-out",
        ApiKey.PRODUCE,
        12,
        ProduceRequest(
            None,
            -1,
            -5,
            [TopicProduceData("acks", partition_data=[PartitionProduceData(0, memoryview(batch()))])],
        ),
    )


def refused() -> Script:
    """Batches whose bytes are no good."""
    yield from topic("refused", 2)

    def sent(what: str, name: str, *batches: bytes | None, **more: Any) -> Ask:
        return produced(what, name, *batches, ignored=("base_offset",), **more)

    good = batch()
    yield sent("no records", "refused", None)
    yield sent("empty records", "refused", b"")
    yield sent("one byte", "refused", b"\0")
    yield sent("a header's half", "refused", good[:30])
    yield sent("a batch's half", "refused", good[:-1])
    yield sent("a byte more", "refused", good + b"\0")
    yield sent("bad sum", "refused", changed(good, CRC_AT, ">I", 1, False))
    for magic in (0, 1, 3, -1):
        yield sent(f"magic {magic}", "refused", changed(good, MAGIC_AT, ">b", magic, False))
    yield sent("two batches", "refused", good + good)
    yield sent(
        "two batches, idempotent", "refused", batch(producer_id=7, producer_epoch=0, base_sequence=0) * 2
    )
    yield sent("no such codec", "refused", changed(good, ATTRIBUTES_AT, ">h", 5))
    yield sent("attributes without a meaning", "refused", changed(good, ATTRIBUTES_AT, ">h", 1 << 8))
    yield sent("log append time", "refused", changed(good, ATTRIBUTES_AT, ">h", 8))
    yield sent("control batch", "refused", changed(good, ATTRIBUTES_AT, ">h", 32))
    yield sent("delete horizon", "refused", changed(good, ATTRIBUTES_AT, ">h", 64))
    yield sent("count too large", "refused", changed(good, COUNT_AT, ">i", 2))
    yield sent("count 0", "refused", changed(good, COUNT_AT, ">i", 0))
    yield sent("count negative", "refused", changed(good, COUNT_AT, ">i", -1))
    yield sent("last delta too large", "refused", changed(good, LAST_DELTA_AT, ">i", 5))
    yield sent("last delta negative", "refused", changed(good, LAST_DELTA_AT, ">i", -1))
    yield sent("base offset 5", "refused", batch(base_offset=5))
    yield sent("base offset -5", "refused", batch(base_offset=-5))
    yield sent("leader epoch 9", "refused", batch(leader_epoch=9))
    yield sent("length too large", "refused", changed(good, 8, ">i", 1 << 20, False))
    yield sent("length negative", "refused", changed(good, 8, ">i", -1, False))
    yield sent("length 0", "refused", changed(good, 8, ">i", 0, False))
    yield sent("a partition twice", "refused", good, batch(b"second"), partition=1)
    yield sent("one version older", "refused", changed(good, CRC_AT, ">I", 1, False), version=7)
    yield sent("transactional id, plain batch", "refused", good, transactional_id="refused-t")


def codecs() -> Script:
    """Compressed batches, where a topic has a codec of its own, too."""
    yield from topic("codecs")
    yield from topic("codecs-broken")
    yield from topic("codec-gzip", compression_type="gzip")
    yield from topic("codec-none", compression_type="uncompressed")
    for codec in Compression:
        data = batch(b"a" * 100, b"b" * 100, compression=codec)
        yield produced(f"{codec.name}", "codecs", data)
        yield produced(f"{codec.name} in the old version", "codecs", data, version=3)
        yield produced(f"{codec.name} to gzip", "codec-gzip", data)
        yield produced(f"{codec.name} to none", "codec-none", data)
        broken = bytearray(data)
        broken[-20:] = b"\xff" * 20
        yield produced(
            f"{codec.name}, broken",
            "codecs-broken",
            changed(bytes(broken), 0, ">q", 0),
            ignored=("base_offset",),
        )
    yield log("codecs", ignored=("length", "base_offset", "offset"))


def sizes() -> Script:
    """Batches beyond max.message.bytes, and at it."""
    yield from topic("sizes", max_message_bytes="1000")
    data = batch(b"x" * 800)
    spare = 1_000 - len(data)
    yield produced("at the bound", "sizes", batch(b"x" * (800 + spare)))
    yield produced("beyond the bound", "sizes", batch(b"x" * (801 + spare)))
    yield produced("in an older version", "sizes", batch(b"x" * 1_000), version=3)
    yield produced(
        "large, and small once compressed", "sizes", batch(b"x" * 5_000, compression=Compression.GZIP)
    )
    yield from topic("sizes-default")
    yield produced("a megabyte", "sizes-default", batch(b"x" * 1_048_576))
    yield produced("the default's bound", "sizes-default", batch(b"x" * 1_048_000))


def times() -> Script:
    """Timestamps beyond a topic's bounds, and the broker's time."""
    yield from topic(
        "times", message_timestamp_before_max_ms="1000000", message_timestamp_after_max_ms="1000000"
    )
    now = int(time.time() * 1000)
    yield produced("now", "times", batch(at=now))
    yield produced("long ago", "times", batch(at=now - DAY_MS))
    yield produced("far ahead", "times", batch(at=now + DAY_MS))
    yield produced("without a time", "times", batch(at=-1))
    yield produced("long ago, in an old version", "times", batch(at=now - DAY_MS), version=7)
    records = [NewRecord(None, b"a"), NewRecord(None, b"b")]
    yield produced("one of two", "times", encode_batch(records, timestamps=[now, now + DAY_MS]))
    yield from topic("times-append", message_timestamp_type="LogAppendTime")
    yield produced("stamped", "times-append", batch(at=5))
    yield produced("stamped, compressed", "times-append", batch(at=5, compression=Compression.GZIP))
    yield log("times-append", ignored=("length",))
    yield from topic("times-default")
    yield produced("of 1970", "times-default", batch(at=0))
    yield produced("before 1970", "times-default", batch(at=-5))
    yield produced("without a time, by default", "times-default", batch(at=-1))
    yield produced("two days ahead", "times-default", batch(at=now + 2 * DAY_MS))
    yield produced("largest", "times-default", batch(at=(1 << 63) - 1))
    lying = changed(batch(at=now), 35, ">q", now + 5)
    yield produced("max timestamp lies", "times-default", lying)


def compacted() -> Script:
    """Topics that are compacted want keys."""
    yield from topic("compacted", cleanup_policy="compact")
    yield produced("with a key", "compacted", batch())
    yield produced("without a key", "compacted", batch(key=None))
    yield produced("without a key, in an old version", "compacted", batch(key=None), version=7)
    records = [NewRecord(b"k", b"a"), NewRecord(None, b"b"), NewRecord(None, b"c")]
    yield produced("some without", "compacted", encode_batch(records, timestamps=[1, 2, 3]))
    yield produced("compressed, without", "compacted", batch(key=None, compression=Compression.LZ4))
    yield log("compacted")


def internal() -> Script:
    """Topics of the broker's own."""
    yield produced("offsets", "__consumer_offsets", batch())
    yield produced("transactions", "__transaction_state", batch())
    yield produced("bad name", "a/b", batch())
    yield produced("empty name", "", batch())


_TEXT = "Tailrace says what is wrong with the batch; it does not look into records, so it names none"

KNOWN = (
    says_why("producing.refused"),
    says_why("producing.sizes"),
    Known(
        "producing.versions",
        "too old *",
        "",
        "listed for librdkafka, and refused",
        kafka="<closed>",
    ),
    Known("producing.acks", "no partitions v12", "*", "a row for each topic of the request"),
    Known(
        "producing.*",
        "*",
        "*.log_start_offset",
        "no client reads it beside such an error",
        kafka=0,
        tailrace=-1,
    ),
    Known("producing.*", "*", "*.record_errors.*", _TEXT),
    Known("producing.refused", "no records v12", "", "Kafka does not answer", kafka="<waiting>"),
    Known("producing.refused", "one byte v12", "*.error_code", "a batch that is cut off is corrupt"),
    Known("producing.refused", "* half v12", "*.error_code", "a batch that is cut off is corrupt"),
    Known("producing.refused", "length too large v12", "*.error_code", "a batch that is cut off is corrupt"),
    Known("producing.refused", "a byte more v12", "*.error_code", "Kafka ignores what follows the batch"),
    Known(
        "producing.refused",
        "no such codec v12",
        "*.error_code",
        "Kafka fails where Tailrace has an error for it",
    ),
    Known(
        "producing.refused",
        "log append time v12",
        "*.error_code",
        "only the broker may say that it gave the time",
    ),
    Known("producing.refused", "delete horizon v12", "*.error_code", "only the broker may set it"),
    Known(
        "producing.refused", "a partition twice v12", "*", "both batches are stored; Kafka stores the last"
    ),
    Known(
        "producing.codecs",
        "*, broken v12",
        "*.error_code",
        "agents do not look into records",
    ),
)


SCRIPTS = Scripts(
    {
        "versions": versions,
        "acks": acks,
        "refused": refused,
        "codecs": codecs,
        "sizes": sizes,
        "times": times,
        "compacted": compacted,
        "internal": internal,
    },
    known=KNOWN,
)
