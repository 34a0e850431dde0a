"""The disk tier's file in memory: the reference of `cache.chunk_file.ChunkFile`, with faults."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastcrc.crc32 import iscsi as crc32c

from tailrace.buffers import Buffer


class MemoryChunkFile:
    """`error` is raised by each call while it is set. Calls wait while `open` is not set.

    `written`: bytes of all writes. `is_closed`: nothing may be called any more.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.error: OSError | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.written = 0
        self.is_closed = False

    async def write(self, start: int, parts: Sequence[Buffer]) -> int:
        await self._answer()
        whole = b"".join(parts)
        self.data.extend(bytes(max(0, start + len(whole) - len(self.data))))
        self.data[start : start + len(whole)] = whole
        self.written += len(whole)
        return crc32c(whole)

    async def read(self, start: int, length: int) -> tuple[bytearray, int]:
        await self._answer()
        data = self.data[start : start + length]
        return data, crc32c(data)

    async def close(self) -> None:
        self.is_closed = True

    async def _answer(self) -> None:
        assert not self.is_closed
        await self.open.wait()
        if self.error is not None:
            raise self.error
