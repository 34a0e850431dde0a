"""Cases that only a folder has: unfinished files, directories, a full disk."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sequencer.checkpoint.format import HeadId, cluster_key, head_key
from tailrace.object_store import folder
from tailrace.object_store.api import NotDeleted, ObjectMissing, StoreFull, StoreRefused, StoreUnavailable
from tailrace.object_store.folder import UNFINISHED, FolderStore
from tests.support.clocks import ManualClock


def open_folder(path: Path, clock: ManualClock | None = None) -> FolderStore:
    return FolderStore(path, clock or ManualClock(), ThreadPoolExecutor(4))


async def test_an_object_is_a_plain_file_with_the_clocks_time(tmp_path: Path) -> None:
    store = open_folder(tmp_path, ManualClock(wall_ms=1_234_567_890_123))
    await store.put("a/b", [b"x"])
    assert (await store.head("a/b")).modified_ms == 1_234_567_890_123
    await store.close()
    assert (tmp_path / "a" / "b").read_bytes() == b"x"


async def test_directories_go_with_their_last_object(tmp_path: Path) -> None:
    store = open_folder(tmp_path)
    await store.put("a/b/c", [b"x"])
    await store.put("a/d", [b"x"])
    await store.delete(["a/b/c"])
    assert sorted(os.listdir(tmp_path / "a")) == ["d"]
    await store.delete(["a/d"])
    assert os.listdir(tmp_path) == [UNFINISHED]
    await store.close()


async def test_puts_and_deletes_beside_each_other_lose_nothing(tmp_path: Path) -> None:
    store = open_folder(tmp_path)

    async def worker(name: str) -> None:
        for _ in range(30):
            await store.put(f"shared/dir/{name}", [name.encode()])
            assert await store.get(f"shared/dir/{name}") == name.encode()
            await store.delete([f"shared/dir/{name}"])

    await asyncio.gather(*(worker(f"w{i}") for i in range(4)))
    assert os.listdir(tmp_path) == [UNFINISHED]
    await store.close()


async def test_a_dead_process_files_are_cleaned_and_a_living_ones_kept(tmp_path: Path) -> None:
    dead = tmp_path / UNFINISHED / "dead"
    dead.mkdir(parents=True)
    (dead / "0").write_bytes(b"half")

    living = open_folder(tmp_path)
    mine = [path for path in (tmp_path / UNFINISHED).iterdir() if path.is_dir()]
    assert len(mine) == 1 and mine[0] != dead
    second = open_folder(tmp_path)
    assert mine[0].exists()
    await living.put("still/works", [b"x"])
    assert await second.get("still/works") == b"x"
    await living.close()
    await second.close()
    assert os.listdir(tmp_path / UNFINISHED) == ["lock"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EIO, StoreUnavailable),
        (errno.EACCES, StoreRefused),
    ],
)
async def test_a_disk_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    def fail(descriptor: int, buffers: object) -> int:
        raise OSError(number, os.strerror(number))

    store = open_folder(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", fail)
        with pytest.raises(expected, match="full/object"):
            await store.put("full/object", [b"x"])
    with pytest.raises(ObjectMissing):
        await store.get("full/object")
    own = next(path for path in (tmp_path / UNFINISHED).iterdir() if path.is_dir())
    assert os.listdir(own) == ["lock"]
    await store.close()


@pytest.mark.parametrize(("megabytes", "kept"), [(160, 10), (1_000_000, 256)])
async def test_the_last_room_is_for_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, megabytes: int, kept: int
) -> None:
    mebibyte = 1 << 20
    left = kept * mebibyte + 3

    def disk(descriptor: int) -> os.statvfs_result:
        blocks, free = megabytes * mebibyte, left
        return os.statvfs_result((1, 1, blocks, free + 5, free, 0, 0, 0, 0, 255))

    store = open_folder(tmp_path)
    monkeypatch.setattr(os, "fstatvfs", disk)
    await store.put("c/mixed/1", [b"ab", b"c"])
    with pytest.raises(StoreFull, match=r"c/mixed/2: No space left on device but .* kept for checkpoints"):
        await store.put("c/mixed/2", [b"ab", b"cd"])
    left = 4
    await store.put(head_key("c", HeadId(1, 1, 1)), [b"abcd"])
    await store.put(cluster_key("c"), [b"{}"])
    with pytest.raises(StoreFull):
        await store.put("c/mixed/meta/2", [b"x"])
    await store.close()


async def test_a_file_system_of_unknown_size_takes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_folder(tmp_path)
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: os.statvfs_result((1, 1, *[0] * 7, 255)))
    await store.put("c/mixed/1", [b"abc"])
    await store.close()


async def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def three_bytes(descriptor: int, buffers: list[memoryview]) -> int:
        return os.write(descriptor, b"".join(buffers)[:3])

    monkeypatch.setattr(os, "writev", three_bytes)

    store = open_folder(tmp_path)
    await store.put("k", [b"ab", b"cdefgh", b"", b"i"])
    assert await store.get("k") == b"abcdefghi"
    await store.close()


async def test_an_object_cannot_be_a_directory_of_others(tmp_path: Path) -> None:
    store = open_folder(tmp_path)
    await store.put("a", [b"x"])
    with pytest.raises(StoreRefused):
        await store.put("a/b", [b"x"])
    with pytest.raises(StoreRefused):
        await store.put(f"{UNFINISHED}/x", [b"x"])
    await store.close()


async def test_a_put_that_was_given_up_keeps_no_bytes_while_the_disk_hangs(tmp_path: Path) -> None:
    class Data(bytearray):
        """Bytes that a weak reference can watch."""

    executor, hanging = ThreadPoolExecutor(1), threading.Event()
    store = FolderStore(tmp_path, ManualClock(), executor)
    executor.submit(hanging.wait)
    data = Data(b"x")
    watched = weakref.ref(data)
    put = asyncio.create_task(store.put("a/b", [data]))
    await asyncio.sleep(0)
    put.cancel()
    await asyncio.wait({put})
    del data, put
    is_kept = watched() is not None
    hanging.set()
    await store.close()
    assert not is_kept


async def test_a_directory_that_another_process_removed_is_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(directory: str) -> int:
        synced.append(os.path.relpath(directory, tmp_path))
        return 17  # as a file system that uses the number of a removed directory again

    store, other = open_folder(tmp_path), open_folder(tmp_path)
    monkeypatch.setattr(folder, "_sync", sync)
    await store.put("a/b/1", [b"x"])
    await store.put("a/b/2", [b"x"])
    assert synced == ["a/b", "a", ".", "a/b"]
    await other.delete(["a/b/1", "a/b/2"])
    synced.clear()
    await store.put("a/b/3", [b"x"])
    assert synced == ["a/b", "a", "."]
    await store.close()
    await other.close()


async def test_the_directory_of_fsck_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lost+found").mkdir()
    really_scandir = os.scandir

    def scandir(path: str) -> object:
        if path.rstrip("/").endswith("lost+found"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return really_scandir(path)

    store = open_folder(tmp_path)
    await store.put("a/b", [b"x"])
    monkeypatch.setattr(os, "scandir", scandir)
    assert await store.list_prefixes("") == ["a/"]
    assert [info.key async for info in store.list("")] == ["a/b"]
    with pytest.raises(StoreRefused):
        await store.put("lost+found/a", [b"x"])
    monkeypatch.undo()
    await store.close()


async def test_a_file_that_cannot_be_removed_is_named_and_all_others_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_unlink = os.unlink

    def unlink(path: str, **options: int) -> None:
        if path.endswith("locked"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        really_unlink(path, **options)

    store = open_folder(tmp_path)
    for key in ("a/locked", "a/1", "b/2"):
        await store.put(key, [b"x"])
    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(NotDeleted, match="1 of 3 objects not deleted; a/locked: ") as caught:
        await store.delete(["a/locked", "a/1", "b/2"])
    assert caught.value.keys == ["a/locked"]
    assert [info.key async for info in store.list("")] == ["a/locked"]
    with pytest.raises(NotDeleted, match="1 of 1 objects not deleted"):
        await store.delete(["a/locked"])
    await store.close()
