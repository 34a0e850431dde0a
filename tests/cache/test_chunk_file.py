"""The disk tier's file: one contract for the file and its twin in memory, and what only a file has."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastcrc.crc32 import iscsi as crc32c

from cache import chunk_file
from cache.chunk_file import CHUNKS, LOCK, CacheFolderUnusable, ChunkFile, open_disk_file
from cache.disk_index import PAGE_BYTES
from tailrace.clock import SystemClock
from tests.support.chunk_files import MemoryChunkFile
from tests.support.clocks import ManualClock

MakeFile = Callable[[], ChunkFile]


@pytest.fixture(params=["disk", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeFile]:
    def made() -> ChunkFile:
        return open_disk_file(tmp_path, SystemClock()) if request.param == "disk" else MemoryChunkFile()

    yield made


# --- the contract -----------------------------------------------------------------------------------------------


async def test_written_chunks_are_read_with_their_checksum(make: MakeFile) -> None:
    file = make()
    first, second = os.urandom(PAGE_BYTES + 1), os.urandom(10)
    sums = await file.write(0, [first]), await file.write(2 * PAGE_BYTES, [second])
    assert await file.read(2 * PAGE_BYTES, 10) == (second, sums[1])
    assert await file.read(0, len(first)) == (first, sums[0])
    assert sums == (crc32c(first), crc32c(second))
    await file.close()


async def test_parts_are_written_one_behind_the_other_however_many(make: MakeFile) -> None:
    file = make()
    parts = [bytes([number % 256]) * (number % 5) for number in range(3_000)]
    checksum = await file.write(PAGE_BYTES, [memoryview(part) for part in parts])
    whole = b"".join(parts)
    assert await file.read(PAGE_BYTES, len(whole)) == (whole, checksum)
    await file.close()


async def test_a_write_over_another_leaves_its_neighbours(make: MakeFile) -> None:
    file = make()
    for page in range(3):
        await file.write(page * PAGE_BYTES, [bytes([page]) * PAGE_BYTES])
    await file.write(PAGE_BYTES, [b"new"])
    assert [(await file.read(page * PAGE_BYTES, 3))[0] for page in range(3)] == [b"\0\0\0", b"new", b"\2\2\2"]
    await file.close()


async def test_beyond_its_end_there_are_fewer_bytes(make: MakeFile) -> None:
    file = make()
    await file.write(0, [bytes(PAGE_BYTES)])
    assert len((await file.read(PAGE_BYTES - 10, 100))[0]) == 10
    assert (await file.read(5 * PAGE_BYTES, 100))[0] == b""
    await file.close()


# --- of a folder ------------------------------------------------------------------------------------------------


async def test_a_start_begins_with_an_empty_file_for_its_owner_alone_and_the_end_removes_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "above" / "cache"
    folder.parent.mkdir()

    file = open_disk_file(folder, SystemClock())
    modes = [path.stat().st_mode & 0o777 for path in (folder, folder / CHUNKS, folder / LOCK)]
    assert modes == [0o700, 0o600, 0o600]
    await file.close()
    assert not (folder / CHUNKS).exists()
    (folder / CHUNKS).write_bytes(b"left by a killed process")
    (folder / "another's").write_bytes(b"")
    again = open_disk_file(folder, SystemClock())
    assert await again.read(0, 100) == (b"", 0)
    await again.close()
    await again.close()
    assert (folder / "another's").exists()


async def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(b"precious")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / CHUNKS).symlink_to(kept)

    file = open_disk_file(tmp_path / "cache", SystemClock())
    await file.write(0, [b"chunk"])
    await file.close()
    assert kept.read_bytes() == b"precious"


async def test_a_second_process_is_told_who_has_the_folder_and_what_to_do(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from cache.chunk_file import open_disk_file; "
        "from tailrace.clock import SystemClock; file = open_disk_file(Path(sys.argv[1]), SystemClock()); "
        "print(flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(CacheFolderUnusable) as refused:
        open_disk_file(tmp_path, SystemClock())
    assert str(refused.value) == (
        f"cache.disk_path {str(tmp_path)!r} is in use by process {holder.pid}; give each agent a folder of its own"
    )
    holder.communicate()

    await open_disk_file(tmp_path, SystemClock()).close()


def test_a_folder_that_cannot_be_made_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        CacheFolderUnusable, match=r"file/cache' can't be used: Not a directory; give a folder that"
    ):
        open_disk_file(tmp_path / "file" / "cache", SystemClock())


async def test_the_file_grows_only_while_the_disk_has_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = 160
    free = blocks // chunk_file.FREE_SHARE + 2

    def shown(descriptor: int) -> SimpleNamespace:
        used = os.fstat(descriptor).st_size // PAGE_BYTES
        return SimpleNamespace(f_blocks=blocks, f_frsize=PAGE_BYTES, f_bavail=free - used)

    monkeypatch.setattr(os, "fstatvfs", shown)

    file = open_disk_file(tmp_path, SystemClock())
    await file.write(0, [bytes(PAGE_BYTES)])
    await file.write(PAGE_BYTES, [b"the last page"])
    with pytest.raises(OSError, match="are kept free") as refused:
        await file.write(2 * PAGE_BYTES, [b"more"])
    assert refused.value.errno == errno.ENOSPC
    await file.write(0, [b"what is there is overwritten"])
    await file.close()


async def test_a_disk_that_hangs_delays_the_end_by_so_long_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, began = threading.Event(), threading.Event()

    def hanging(descriptor: int, start: int, length: int) -> bytearray:
        began.set()
        answers.wait()
        return bytearray()

    monkeypatch.setattr(chunk_file, "read_at", hanging)

    clock = ManualClock()
    file = open_disk_file(tmp_path, clock)
    reading = asyncio.create_task(file.read(0, 1))
    await asyncio.to_thread(began.wait)
    closing = asyncio.create_task(file.close())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not closing.done()
    clock.advance(chunk_file.CLOSE_SECONDS)
    await closing
    answers.set()
    await asyncio.gather(reading, return_exceptions=True)
    await file.close()
    assert not (tmp_path / CHUNKS).exists()


async def test_where_no_thread_can_be_started_the_disk_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    file = open_disk_file(tmp_path, SystemClock())
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refused)
        for call in (file.read(0, 1), file.write(0, [b"x"])):
            with pytest.raises(OSError, match="can't start new thread"):
                await call
    await file.close()
