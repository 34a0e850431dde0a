"""MB/s of one core through the stored formats: decode, encode, Parquet write and read, header walk, CRC.

    python bench/formats.py [--megabytes 64] [--mallopt]

MB are of record batches, uncompressed; half of each value is noise. `--mallopt` keeps freed memory in the process,
as Tailrace's own processes do (M_MMAP_THRESHOLD 256 MiB, M_TRIM_THRESHOLD 512 MiB).

The bench only reports; it never passes or fails. Compare ratios within one run.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Iterator
from uuid import UUID

import numpy as np
import pyarrow as pa

from tailrace.batches.mixed_object import coordinates, seal
from tailrace.batches.record_batch import check_crc, read_header, validate_produced
from tailrace.batches.records import NewRecord, decode_records, encode_batch
from tailrace.ids import TopicPartition
from tailrace.parquet_object.decode import decode_batches, unpack
from tailrace.parquet_object.encode import encode_records
from tailrace.parquet_object.read import record_batches
from tailrace.parquet_object.verify import verify
from tailrace.parquet_object.write import SourceBatch, SourceRun, WrittenParquet, write_parquet

PARTITION = TopicPartition(UUID(int=1), 0)


def best(action: Callable[[], object], times: int = 3) -> float:
    """Return the seconds of the fastest of `times` runs, after one to warm up."""
    action()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def batches_of(record_bytes: int, megabytes: int) -> list[SourceBatch]:
    """Return batches of 64 KiB of records with a short key and a value that is half text, half noise."""
    noise = np.random.default_rng(1).bytes(32 << 20)
    per_batch = max(1, (64 << 10) // record_bytes)
    text = b'{"carrier":"UA","delay":12}' * (record_bytes // 27 + 1)
    found: list[SourceBatch] = []
    half = record_bytes // 2
    for number in range((megabytes << 20) // (per_batch * record_bytes)):
        start = (number * 7_919_003) % (len(noise) - (per_batch + 1) * half)
        records = [
            NewRecord(
                b"key-%05d" % place, text[:half] + noise[start + place * half : start + (place + 1) * half]
            )
            for place in range(per_batch)
        ]
        times = [1_700_000_000_000 + number * 10 + place // 10 for place in range(per_batch)]
        found.append(SourceBatch(encode_batch(records, timestamps=times), number * per_batch, 0))
    return found


def steps_of(batches: list[SourceBatch]) -> Iterator[tuple[str, float, Callable[[], object]]]:
    """Yield the measured steps: name, the share of the batches that it processes, and a function for one round."""
    views = [memoryview(batch.data) for batch in batches]
    headers = [read_header(view) for view in views]
    unpacked = [unpack(header, view) for header, view in zip(headers, views, strict=True)]
    groups = [unpacked[start : start + 256] for start in range(0, len(unpacked), 256)]
    yield "CRC-32C", 1, lambda: [check_crc(view) for view in views]
    yield (
        "validate_produced",
        1,
        lambda: [validate_produced(view, max_message_bytes=1 << 20) for view in views],
    )

    sealed = [(coordinates(header), [view]) for header, view in zip(headers, views, strict=True)]
    yield (
        "seal a mixed object",
        1,
        lambda: seal(
            [(PARTITION, "bench", sealed)],
            object_id=UUID(int=3),
            session_id=UUID(int=4),
            number=0,
            created_ms=0,
        ),
    )
    yield "decode to Arrow (numba)", 1, lambda: [decode_batches(group) for group in groups]

    table = pa.table(decode_batches(unpacked).columns)
    counts = [header.record_count for header in headers]
    yield "encode from Arrow (numba)", 1, lambda: encode_records(table, headers, counts)

    run = SourceRun(PARTITION, "bench", batches)

    def write() -> WrittenParquet:
        return write_parquet([run], object_id=UUID(int=2), cluster_id="bench", created_ms=0)

    written = write()
    data, index = memoryview(written.data or b""), written.index
    yield f"CRC + decode + write Parquet ({written.size / 1e6:.0f} MB)", 1, write
    yield (
        "read Parquet + rebuild batches",
        1,
        lambda: [
            record_batches(index, group.number, data[group.start : group.start + group.length])
            for group in index.row_groups
        ],
    )
    yield "verify (all of it, with CRC)", 1, lambda: verify(data, [run], size=written.size, crc=written.crc)

    few = batches[: max(1, len(batches) // 32)]
    share = len(few) / len(batches)
    yield "decode in plain Python", share, lambda: [decode_records(batch.data) for batch in few]


def main() -> None:
    """Print one table per record size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--mallopt", action="store_true")
    given = parser.parse_args()
    if given.mallopt:
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 256 << 20)
        libc.mallopt(-1, 512 << 20)
    for record_bytes in (100, 1000):
        batches = batches_of(record_bytes, given.megabytes)
        size = sum(len(batch.data) for batch in batches) / 1e6
        print(f"\nrecords of {record_bytes} B, {size:.0f} MB")
        for name, part, action in steps_of(batches):
            print(f"  {name:<38}{size * part / best(action):>10,.0f} MB/s")


if __name__ == "__main__":
    main()
