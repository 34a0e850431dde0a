"""Targets for Parquet objects: the header's seeds, our decoder against its plain twin, and whole objects read in a
process of their own, because Arrow may end the process on a footer that rotted."""

from __future__ import annotations

import base64
import multiprocessing
import signal
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import cramjam
from fastcrc.crc32 import iscsi as crc32c

from tailrace.batches.record_batch import InvalidBatch, read_header
from tailrace.batches.records import InvalidRecords, decode_records
from tailrace.ids import TopicPartition
from tests.fuzz.formats import NOW, UNPACK_AT_MOST, batches, sealed
from tests.fuzz.target import Target

_PATIENCE_SECONDS = 300.0
"""For an answer; the first one waits for imports and, on a fresh machine, for numba."""


@cache
def objects() -> list[bytes]:
    """Small whole objects of ours."""
    from uuid import UUID

    from tailrace.parquet_object.write import SourceBatch, SourceRun, write_parquet

    plain = [batch for batch in batches() if not read_header(batch).is_control]
    found: list[bytes] = []
    for count in (1, 3):
        runs = []
        for number in range(count):
            sources, offset = [], 10 * number
            for batch in plain[number::11]:
                sources.append(SourceBatch(batch, offset, 1))
                offset += read_header(batch).last_offset_delta + 1
            runs.append(SourceRun(TopicPartition(UUID(int=number + 1), number), f"t{number}", sources))
        written = write_parquet(
            runs, object_id=UUID(int=9), cluster_id="fuzz", created_ms=NOW, row_group_bytes=4000
        )
        assert written.data is not None
        found.append(bytes(written.data))
    return found


@cache
def metadata_seeds() -> list[bytes]:
    """The values of the `tailrace` metadata of `objects`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return [pq.read_metadata(pa.BufferReader(data)).metadata[b"tailrace"] for data in objects()]


@cache
def header_seeds() -> list[bytes]:
    """The MessagePack inside of `metadata_seeds`."""
    unpacked = []
    for value in metadata_seeds():
        packed = base64.b64decode(value[2:])
        output = bytearray(int.from_bytes(packed[:4], "big"))
        cramjam.zstd.decompress_into(packed[8:], output)
        unpacked.append(bytes(output))
    return unpacked


def check_twins(data: bytes) -> bool:
    """The compactor's compiled decoder accepts what the plain one accepts, and nothing else."""
    from tailrace.parquet_object.decode import decode_batches, unpack

    batch = sealed(data)
    try:
        header = read_header(batch)
    except InvalidBatch:
        return False
    try:
        plain = decode_records(batch, max_bytes=UNPACK_AT_MOST)
    except (InvalidRecords, InvalidBatch):
        plain = None
    if header.record_count == 0:
        return plain is not None
    try:
        rows = decode_batches([unpack(header, batch, max_bytes=UNPACK_AT_MOST)])
    except (InvalidRecords, InvalidBatch):
        assert plain is None, f"the compiled decoder refused {len(plain or [])} records"
        return False
    assert plain is not None, "the compiled decoder took what the plain one refuses"
    assert rows.row_count == len(plain)
    columns = rows.columns
    assert columns["offset"].to_pylist() == [record.offset for record in plain]
    assert columns["key"].to_pylist() == [record.key for record in plain]
    assert columns["value"].to_pylist() == [record.value for record in plain]
    times = [record.timestamp for record in plain]
    assert columns["timestamp"].cast("int64").to_pylist() == times
    read = [
        [(entry["key"], entry["value"]) for entry in entries] for entries in columns["headers"].to_pylist()
    ]
    assert read == [list(record.headers) for record in plain]
    return True


def read_whole(data: bytes) -> bool:
    """Everything that a reader does with an object. Run it in a process of its own.

    The first byte says whose row names it: that of `objects()[n]`, with the CRC of its index; from 128 on, one of
    old, which has none.
    """
    from cache.parquet_reader import _parse_index, _rebuild, _records_of
    from tailrace.parquet_object.header import InvalidParquetObject
    from tailrace.parquet_object.read import read_index

    if not data:
        return False
    number, data = data[0], data[1:]
    start, crc = max(len(data) - 4096, 0), 0
    if number < 128:
        whole = objects()[number % len(objects())]
        start = len(whole) - read_index(whole, len(whole)).footer_bytes
        crc = crc32c(whole[start:])
    try:
        index = _parse_index(data[start:], len(data), crc)
        for _ in range(4):
            if not isinstance(index, int):
                break
            assert 0 <= index < len(data)
            index = _parse_index(data[index:], len(data), crc)
        assert not isinstance(index, int), "asks for what was given"
        for group in index.row_groups:
            records = _records_of(index, group.number, data[group.start : group.start + group.length])
            for run in index.header.runs:
                _rebuild(index, group.number, records, run.topic_partition, 0)
    except InvalidParquetObject:
        return False
    return True


def object_seeds() -> list[bytes]:
    """Objects behind the byte that says how their rows name them."""
    return [bytes((number + old,)) + data for number, data in enumerate(objects()) for old in (0, 128)]


class Apart:
    """Runs `read_whole` in a child; a child that dies is a finding, and the next input gets a new one."""

    def __init__(self) -> None:
        self.aborted = 0
        self._child: Any = None
        self._pipe: Connection | None = None

    def check(self, data: bytes) -> bool:
        """As `read_whole`."""
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._child = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._child.start()
            theirs.close()
        try:
            self._pipe.send_bytes(data)
            if not self._pipe.poll(_PATIENCE_SECONDS):
                raise AssertionError(f"no answer in {_PATIENCE_SECONDS} s")
            answer = self._pipe.recv_bytes().decode()
        except (EOFError, OSError, AssertionError) as error:
            child = self._child
            self.close()
            if data[0] >= 128 and child.exitcode == -signal.SIGABRT:
                self.aborted += (
                    1  # what the CRC of an index is for: Arrow ends the process over a footer that rotted
                )
                return False
            raise AssertionError(f"the reading process ended: exit code {child.exitcode}: {error}") from error
        if answer in ("taken", "refused"):
            return answer == "taken"
        raise AssertionError(answer)

    def close(self) -> None:
        """End the child."""
        if self._pipe is not None:
            self._pipe.close()
            self._child.join(5)
            if self._child.is_alive():
                self._child.kill()
                self._child.join()
        self._pipe = self._child = None


def _serve(pipe: Connection) -> None:
    import resource
    import traceback

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while True:
        try:
            data = pipe.recv_bytes()
        except EOFError:
            return
        try:
            said = "taken" if read_whole(data) else "refused"
        except BaseException:
            said = traceback.format_exc()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if grown - before > 256 << 10 and said in ("taken", "refused"):
            said = f"{said}, and {(grown - before) >> 10} MiB more were resident"
        before = grown
        pipe.send_bytes(said.encode())


def targets() -> list[Target]:
    """All of this module."""
    apart = Apart()
    return [
        Target("compiled decoder against plain", 4, batches(), check_twins, max_seconds=20),
        Target("Parquet object", 1, object_seeds(), apart.check, apart.close),
    ]
