"""Bytes that an earlier version wrote stay readable. A new version adds files and changes none.

`python tests/contracts/test_golden_bytes.py` writes the files that are missing.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from tailrace.batches.mixed_object import audit, coordinates, read_footer, seal
from tailrace.batches.record_batch import MarkerKind, control_batch, read_header
from tailrace.batches.records import NewRecord, decode_records, encode_batch
from tailrace.ids import TopicPartition
from tailrace.parquet_object.read import read_index, record_batches
from tailrace.parquet_object.verify import verify
from tailrace.parquet_object.write import SourceBatch, SourceRun, write_parquet

GOLDEN = Path(__file__).parent / "golden"
PARTITION = TopicPartition(UUID(int=0x1234), 2)
IDS = {"object_id": UUID(int=7), "session_id": UUID(int=8)}


def batch_v2() -> bytes:
    records = [
        NewRecord(b"key", b"value", [("h", b"1"), ("n", None)]),
        NewRecord(None, b""),
        NewRecord(b"", None),
    ]
    return encode_batch(
        records,
        timestamps=[1_700_000_000_000, 1_700_000_000_007, 1_699_999_999_999],
        producer_id=11,
        producer_epoch=1,
        base_sequence=5,
    )


def mixed_v1() -> bytes:
    batch = batch_v2()
    run = (PARTITION, "flights", [(coordinates(read_header(batch)), [batch])])
    return b"".join(seal([run], **IDS, number=3, created_ms=1_700_000_000_100).parts)


def runs() -> list[SourceRun]:
    return [SourceRun(PARTITION, "flights", [SourceBatch(batch_v2(), 100, 4)])]


def parquet_v1() -> bytes:
    written = write_parquet(runs(), object_id=UUID(int=9), cluster_id="golden", created_ms=1_700_000_000_200)
    assert written.data is not None
    return bytes(written.data)


def marker_v0() -> bytes:
    return control_batch(MarkerKind.COMMIT, producer_id=11, producer_epoch=1, timestamp_ms=9)


FILES = {
    "record_batch_v2.bin": batch_v2,
    "commit_marker_v0.bin": marker_v0,
    "mixed_object_v1.bin": mixed_v1,
    "parquet_object_v1.parquet": parquet_v1,
}


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def test_record_batches_and_markers_are_written_as_ever() -> None:
    assert batch_v2() == golden("record_batch_v2.bin")
    assert marker_v0() == golden("commit_marker_v0.bin")
    assert len(decode_records(golden("record_batch_v2.bin"))) == 3


def test_a_mixed_object_of_version_1_is_read() -> None:
    data = golden("mixed_object_v1.bin")
    footer = read_footer(data, len(data))

    assert audit(data) == []
    assert (footer.version, footer.number, footer.object_id) == (1, 3, UUID(int=7))
    (run,) = footer.runs
    assert (run.topic_partition, run.topic_name, run.record_count) == (PARTITION, "flights", 3)
    assert data[run.start : run.start + run.length] == golden("record_batch_v2.bin")


def test_a_parquet_object_of_version_1_is_read() -> None:
    data = golden("parquet_object_v1.parquet")
    index = read_index(data, len(data))
    (group,) = index.row_groups
    (stored,) = record_batches(index, 0, data[group.start : group.start + group.length])

    assert index.header.version == 1
    assert (stored.partition, stored.base_offset, stored.end_offset) == (PARTITION, 100, 103)
    assert stored.data[16:] == golden("record_batch_v2.bin")[16:]
    from fastcrc.crc32 import iscsi

    assert verify(data, runs(), size=len(data), crc=iscsi(data)) == []


if __name__ == "__main__":
    for name, make in FILES.items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(make())
