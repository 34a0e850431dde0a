"""Finds Parquet objects with records of given keys: by footers, bounds and Bloom filters, then by columns of keys.

It searches whole objects, including rows that are not live: an object stays in the store with all its bytes as long as
one of its runs is live.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.tables.live import FOOTERS_AT_ONCE, LiveFile
from tailrace.object_store.api import ObjectMissing, ObjectStore
from tailrace.parquet_object.header import InvalidParquetObject
from tailrace.parquet_object.key_filter import (
    BLOCK_BYTES,
    KeyFilter,
    key_filter,
    key_hashes,
    may_hold,
    within_bounds,
)
from tailrace.parquet_object.read import ParquetIndex, read_index, row_group_table

KEY_COLUMN = ("key",)
MAX_GAP_BYTES = 8 << 10
"""Two blocks of filters with at most this many bytes between them are read with one request."""


@dataclass(frozen=True, slots=True)
class SearchKeys:
    """Keys in the forms that the steps compare. `values`: an Arrow array. `hashes`: those of the Bloom filters."""

    keys: tuple[bytes, ...]
    values: pa.Array = field(compare=False)
    hashes: np.ndarray = field(compare=False)

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> SearchKeys:
        """Return the distinct keys in all forms."""
        distinct = tuple(dict.fromkeys(keys))
        return cls(distinct, pa.array(distinct, pa.binary()), key_hashes(distinct))


@dataclass(slots=True)
class SearchCost:
    """What a search read, and how many row groups it skipped by bounds or by filter. `false_alarms`: row groups that
    passed a filter but have none of the keys. `gone`: files that were deleted before they were read."""

    files: int = 0
    gone: int = 0
    file_bytes: int = 0
    requests: int = 0
    read_bytes: int = 0
    row_groups: int = 0
    without_by_filter: int = 0
    false_alarms: int = 0


@dataclass(frozen=True, slots=True)
class FileHits:
    """An object with records of the keys, and their number, live or not."""

    file: LiveFile
    records: int


class KeySearch:
    """Searches objects for keys. `cost` grows with each object. `corrupt` has the unreadable objects with the reason.

    Args:
        reads_all: read every row group's keys, regardless of its bounds and filter.
    """

    def __init__(self, store: ObjectStore, keys: SearchKeys, *, reads_all: bool = False) -> None:
        self._store = store
        self._keys = keys
        self._reads_all = reads_all
        self.cost = SearchCost()
        self.corrupt: dict[str, str] = {}

    async def find(self, files: Sequence[LiveFile]) -> AsyncIterator[FileHits]:
        """Yield the objects with records of the keys. Those in `corrupt` may have some too. Raises StoreError."""
        for first in range(0, len(files), FOOTERS_AT_ONCE):
            part = files[first : first + FOOTERS_AT_ONCE]
            counts = await asyncio.gather(*map(self._count, part))
            for file, count in zip(part, counts, strict=True):
                if count:
                    yield FileHits(file, count)

    async def _count(self, file: LiveFile) -> int:
        self.cost.files += 1
        self.cost.file_bytes += file.object.size
        try:
            return await self._count_rows(file)
        except ObjectMissing:  # retention has deleted it
            self.cost.gone += 1
            return 0
        except InvalidParquetObject as error:
            self.corrupt[file.object.key] = str(error)
            return 0

    async def _count_rows(self, file: LiveFile) -> int:
        described = file.object
        tail = await self._range(file, described.index_start, described.size - described.index_start)
        index = read_index(tail, described.size, crc=described.index_crc)
        self.cost.row_groups += len(index.header.row_groups)
        matching = 0
        for number in await self._row_groups(file, index):
            start, length = index.bytes_of(number, KEY_COLUMN)
            table = row_group_table(index, number, await self._range(file, start, length), KEY_COLUMN)
            count = pc.sum(pc.is_in(table.column("key"), value_set=self._keys.values)).as_py() or 0
            self.cost.false_alarms += not count
            matching += count
        return matching

    async def _row_groups(self, file: LiveFile, index: ParquetIndex) -> list[int]:
        """Return the row groups that may contain a key."""
        numbers = range(len(index.header.row_groups))
        if self._reads_all:
            return list(numbers)
        candidates: list[int] = []
        filters: list[tuple[int, KeyFilter, np.ndarray]] = []
        for number in numbers:
            within = np.fromiter(within_bounds(index, number, self._keys.keys), bool)
            of_keys = key_filter(index, number)
            if not within.any():
                continue
            if of_keys is None:
                candidates.append(number)
            else:
                filters.append((number, of_keys, self._keys.hashes[within]))
        block_offsets = np.unique(
            np.concatenate([of.places(hashes) for _, of, hashes in filters] or [np.empty(0)])
        )
        blocks = await self._blocks(file, block_offsets.astype(np.int64))
        for number, of_keys, hashes in filters:
            at = np.searchsorted(block_offsets, of_keys.places(hashes))
            if may_hold(blocks[at], hashes).any():
                candidates.append(number)
            else:
                self.cost.without_by_filter += 1
        return sorted(candidates)

    async def _blocks(self, file: LiveFile, block_offsets: np.ndarray) -> np.ndarray:
        """Read the filters' blocks at these offsets, one row of words per block."""
        blocks = np.empty((len(block_offsets), 8), np.dtype("<u4"))
        for run in _together(block_offsets):
            start = int(block_offsets[run.start])
            data = await self._range(file, start, int(block_offsets[run.stop - 1]) + BLOCK_BYTES - start)
            view = memoryview(data)
            for number in range(run.start, run.stop):
                at = int(block_offsets[number]) - start
                blocks[number] = np.frombuffer(view[at : at + BLOCK_BYTES], np.dtype("<u4"))
        return blocks

    async def _range(self, file: LiveFile, start: int, length: int) -> bytes | bytearray:
        data = await self._store.get_range(file.object.key, start, length)
        if len(data) != length:
            raise InvalidParquetObject(
                f"{file.object.key}: {len(data)} bytes from {start}; {length} expected"
            )
        self.cost.requests += 1
        self.cost.read_bytes += length
        return data


def _together(block_offsets: np.ndarray) -> Iterator[slice]:
    """Yield slices of offsets whose blocks are read with one request."""
    if len(block_offsets):
        ends = np.flatnonzero(np.diff(block_offsets) > MAX_GAP_BYTES + BLOCK_BYTES) + 1
        bounds = [0, *ends.tolist(), len(block_offsets)]
        yield from (slice(begin, end) for begin, end in itertools.pairwise(bounds))
