"""An index of the newest offset of each key, in bounded memory: rows of 24 bytes that spill into files by hash.

Rows are added in blocks. A block is sorted and reduced to the newest row of each key. If the rows may not fit into
memory, it is then divided among bucket files by the first bits of the hash. The first look-up sorts and reduces each
bucket in the same way. A look-up reads one bucket after another, so it should have many keys.

One bucket is in memory at a time. It has at most one row per key and block, so a key that occurs a million times does
not make a bucket large.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from compactor.by_key.keyed_hash import hash_keys

Array = Any

ROW_BYTES = 24
"""The two halves of the hash, and the offset."""
BYTES_A_ROW = 5 * ROW_BYTES
"""Memory per row while rows are sorted: the rows twice, their order, the sorted copy, and its reduction."""
MAX_BITS = 9
"""The most bits of the hash that select a bucket."""
MIN_MEMORY_BYTES = 1 << 20


class KeyIndex:
    """The newest offset of each key. Use it as a context manager, which removes its files.

    Args:
        rows: the most rows that will be added.
        memory_bytes: the memory that the index may use.
        secret: 16 random bytes.
        folder: the folder for its files; None for the system's temporary folder.
    """

    def __init__(self, rows: int, *, memory_bytes: int, secret: bytes, folder: Path | None = None) -> None:
        self._secret = np.frombuffer(secret, np.uint64)
        assert len(self._secret) == 2, "a secret has 16 bytes"
        self._in_memory = rows_in(memory_bytes)
        is_spilling = rows > self._in_memory
        self._bits = min((2 * rows // self._in_memory).bit_length(), MAX_BITS) if is_spilling else 0
        self._block: list[Array] = []
        self._block_rows = 0
        self._is_complete = False
        self._held: Array = _nothing()
        self._stack = ExitStack()
        self._files: list[Path] = []
        self._folder = folder
        self.newest = -1
        """The largest offset that was added."""
        self.spilled_bytes = 0

    def __enter__(self) -> KeyIndex:
        if self._bits:
            made = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="keys-", dir=self._folder))
            self._files = [Path(made, str(number)) for number in range(1 << self._bits)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def hashes(self, keys: Any) -> Array:
        """Return the hashes of a binary Arrow array as rows of two numbers. A null has the hash of an empty key."""
        _, offsets, data = keys.buffers()
        count = len(keys)
        hashed = np.empty((count, 2), np.uint64)
        if count:
            starts = np.frombuffer(offsets, np.int32, count + 1, keys.offset * 4)
            bytes_of = np.frombuffer(b"" if data is None else data, np.uint8)
            hash_keys(starts, bytes_of, self._secret, hashed)
        return hashed

    def add(self, keys: Any, offsets: Array) -> None:
        """Add records: a binary Arrow array of keys, and their offsets, above all earlier ones. Ignores null keys."""
        if not len(offsets):
            return
        self.newest = max(self.newest, int(offsets[-1]))
        hashes = self.hashes(keys)
        if keys.null_count:
            has_key = keys.is_valid().to_numpy(zero_copy_only=False)
            hashes, offsets = hashes[has_key], offsets[has_key]
        self._add_hashes(hashes, offsets)

    def _add_hashes(self, hashes: Array, offsets: Array) -> None:
        assert not self._is_complete, "rows are added before the first look-up"
        for begin in range(0, len(offsets), self._in_memory):
            part = slice(begin, begin + self._in_memory)
            rows = np.empty((len(offsets[part]), 3), np.uint64)
            rows[:, :2], rows[:, 2] = hashes[part], offsets[part].astype(np.uint64)
            if self._block_rows + len(rows) > self._in_memory:
                self._end_block()
            self._block.append(rows)
            self._block_rows += len(rows)

    def find(self, hashes: Array) -> Array:
        """Return the newest offset for each hash; -1 if its key was not added."""
        self._complete()
        offsets = np.full(len(hashes), -1, np.int64)
        if not self._bits:
            _look_up(self._held, hashes, offsets, np.arange(len(hashes)))
            return offsets
        buckets = self._bucket_of(hashes[:, 0])
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(len(self._files) + 1))
        for number, path in enumerate(self._files):
            rows = order[ends[number] : ends[number + 1]]
            if len(rows):
                _look_up(_read(path), hashes, offsets, rows)
        return offsets

    def _bucket_of(self, first: Array) -> Array:
        return (first >> np.uint64(64 - self._bits)).astype(np.int64)

    def _end_block(self) -> None:
        if not self._block:
            return
        rows = _unique(np.concatenate([self._held, *self._block]))
        self._block.clear()
        self._block_rows = 0
        if not self._bits:
            self._held = rows
            return
        ends = np.searchsorted(self._bucket_of(rows[:, 0]), np.arange(len(self._files) + 1))
        for number, path in enumerate(self._files):
            part = rows[ends[number] : ends[number + 1]]
            if len(part):
                with path.open("ab") as file:
                    file.write(part.tobytes())
                self.spilled_bytes += part.nbytes

    def _complete(self) -> None:
        if self._is_complete:
            return
        self._end_block()
        for path in self._files:
            rows = _unique(_read(path))
            written = path.with_suffix(".sorted")
            written.write_bytes(rows.tobytes())
            os.replace(written, path)
        self._is_complete = True


def rows_in(memory_bytes: int) -> int:
    """Return how many rows fit into memory."""
    if memory_bytes < MIN_MEMORY_BYTES:
        raise ValueError(f"{memory_bytes} bytes for an index of keys; at least {MIN_MEMORY_BYTES}")
    return memory_bytes // BYTES_A_ROW


def most_rows(memory_bytes: int) -> int:
    """Return how many rows an index may have so that a bucket of distinct keys fits into memory."""
    return rows_in(memory_bytes) << (MAX_BITS - 1)


def _nothing() -> Array:
    return np.empty((0, 3), np.uint64)


def _read(path: Path) -> Array:
    return np.fromfile(path, np.uint64).reshape(-1, 3) if path.exists() else _nothing()


def _unique(rows: Array) -> Array:
    """Sort rows by hash, and keep the row with the largest offset of each hash."""
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    is_last = np.ones(len(rows), bool)
    if len(rows):
        is_last[:-1] = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
    return rows[is_last]


def _look_up(rows: Array, hashes: Array, offsets: Array, sought: Array) -> None:
    """Look up the sought hashes in `rows` and write their offsets to `offsets`."""
    firsts = np.ascontiguousarray(rows[:, 0])
    positions = np.searchsorted(firsts, hashes[sought, 0])
    while len(sought):
        is_there = positions < len(rows)
        sought, positions = sought[is_there], positions[is_there]
        has_first = firsts[positions] == hashes[sought, 0]
        sought, positions = sought[has_first], positions[has_first]
        is_it = rows[positions, 1] == hashes[sought, 1]
        offsets[sought[is_it]] = rows[positions[is_it], 2].astype(np.int64)
        sought, positions = sought[~is_it], positions[~is_it] + 1
