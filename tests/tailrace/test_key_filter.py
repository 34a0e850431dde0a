"""The filters of keys in Parquet objects: no key is missed, few are found that are not there, others read them too."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import duckdb
import numpy as np
import pytest

from tailrace.batches.records import NewRecord, encode_batch
from tailrace.ids import TopicPartition
from tailrace.parquet_object.key_filter import (
    BLOCK_BYTES,
    key_filter,
    key_hashes,
    may_hold,
    within_bounds,
)
from tailrace.parquet_object.read import ParquetIndex, read_index
from tailrace.parquet_object.write import SourceBatch, SourceRun, write_parquet


def written(keys: list[bytes | None], path: Path) -> tuple[bytes, ParquetIndex]:
    batch = encode_batch([NewRecord(key, b"v") for key in keys], timestamps=[1] * len(keys))
    run = SourceRun(TopicPartition(UUID(int=1), 0), "t", [SourceBatch(batch, 0, 0)])
    write_parquet([run], object_id=UUID(int=2), cluster_id="c", created_ms=1, path=str(path))
    data = path.read_bytes()
    return data, read_index(data, len(data))


def found(data: bytes, index: ParquetIndex, keys: list[bytes]) -> np.ndarray:
    of = key_filter(index, 0)
    assert of is not None
    hashes = key_hashes(keys)
    blocks = [np.frombuffer(data, "<u4", BLOCK_BYTES // 4, at) for at in of.places(hashes).tolist()]
    return np.asarray(may_hold(np.stack(blocks), hashes))


@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_hashes_are_xxh64_as_its_users_publish_it(data: bytes, hashed: int) -> None:
    assert key_hashes([data]).tolist() == [hashed]


@pytest.mark.parametrize("count", [1, 30, 5_000])
def test_a_filter_misses_no_key_and_finds_few_that_are_not_there(tmp_path: Path, count: int) -> None:
    keys = [b"key-%d-%s" % (number, b"x" * (number % 70)) for number in range(count)]
    data, index = written([*keys, None], tmp_path / "f.parquet")
    assert found(data, index, keys).all()
    assert found(data, index, [b"other-%d" % number for number in range(2_000)]).mean() < 0.1


def test_duckdb_reads_the_same_filter(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    keys = [b"key-%d" % number for number in range(500)]
    data, index = written(list(keys), path)
    others = [b"key-%d" % number for number in range(500, 700)]
    ours = found(data, index, others)
    assert (~ours).sum() > 0
    for key, is_found in zip(others[:40], ours[:40].tolist(), strict=True):
        probe = (
            f"select bloom_filter_excludes from parquet_bloom_probe('{path}', 'key', '{key.decode()}'::blob)"
        )
        assert duckdb.sql(probe).fetchall() == [(not is_found,)]


def test_keys_outside_of_the_bounds_are_not_there(tmp_path: Path) -> None:
    _, index = written([b"f", b"m", None], tmp_path / "f.parquet")
    assert list(within_bounds(index, 0, [b"e", b"f", b"g", b"n"])) == [False, True, True, False]
    _, index = written([None], tmp_path / "g.parquet")
    assert list(within_bounds(index, 0, [b"e"])) == [False]
    _, index = written([b"x" * 5_000], tmp_path / "h.parquet")
    assert list(within_bounds(index, 0, [b"e"])) == [True], "its bounds are too long to be written"
