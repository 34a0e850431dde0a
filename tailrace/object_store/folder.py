"""Objects as files in one folder: the store for a laptop or an edge device.

A file becomes visible atomically: it is written under a temporary name, synced and renamed (linked for `if_absent`),
and the directory entries are synced before `put` returns.

The last space of a file system is reserved for checkpoints (`_check_room`). Until a checkpoint is written, the
collector deletes nothing, so a full folder would stay full.

This store has two limits that S3 does not have: `a` and `a/b` can't both be objects (the second one is refused), and a
path part has at most 255 bytes.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tailrace.buffers import Buffer
from tailrace.clock import Clock
from tailrace.files import read_at, write_all
from tailrace.object_store.api import (
    NotDeleted,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from tailrace.object_store.keys import check_key, check_prefix, check_range

T = TypeVar("T")

UNFINISHED = ".unfinished"
"""The directory below the root in which files are written before they get their names."""

_NOT_OBJECTS = (UNFINISHED, "lost+found")
"""Directories of the root without objects: the store's own, and that of ext4's fsck, which other users can't read."""
_LOCK = "lock"
_PLACE_ATTEMPTS = 100
CHECKPOINT_ROOM_BYTES = 256 << 20
CHECKPOINT_ROOM_SHARE = 16
"""Only checkpoints may use the last CHECKPOINT_ROOM_BYTES, or 1 / CHECKPOINT_ROOM_SHARE of the file system if that is
less."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
}


class FolderStore:
    """One file per object below `path`.

    Several processes may share a folder. Each writes its unfinished files into its own directory, which it keeps
    locked. The next store that opens removes the directories of dead processes.

    Args:
        path: the root. The constructor creates it if it is missing.
        clock: gives objects their modification time.
        executor: runs all blocking calls. The store owns it and shuts it down in `close`.
        list_page: how many keys a listing fetches per call to a thread.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock,
        executor: ThreadPoolExecutor,
        *,
        list_page: int = 1000,
    ) -> None:
        self._root = Path(path).absolute()
        self._clock = clock
        self._executor = executor
        self._list_page = list_page
        self._names = itertools.count()  # next() is atomic: one C call under the GIL
        # Directories whose whole chain of entries is on disk, with their inode numbers. If somebody else removed a
        # directory and created it again, it has another inode, and is synced again.
        self._synced_directories: dict[str, int] = {}
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            _sync(str(self._root.parent))
            self._unfinished, self._lock = _claim_unfinished(self._root / UNFINISHED)
        except OSError as error:
            raise _as_store_error(error, str(self._root)) from error

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        path = self._path(key)
        await self._run(key, lambda: self._write(key, path, parts, if_absent))

    async def get(self, key: str) -> bytes:
        path = self._path(key)
        return await self._run(key, lambda: bytes(_read(path, 0, None)))

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        check_range(start, length)
        path = self._path(key)
        return await self._run(key, lambda: _read(path, start, length))

    async def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        return await self._run(key, lambda: _describe(key, path))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        walk = self._walk(prefix, start_after)
        while page := await self._run(prefix, lambda: list(itertools.islice(walk, self._list_page))):
            for info in page:
                yield info

    async def list_prefixes(self, prefix: str) -> Sequence[str]:
        check_prefix(prefix)
        return await self._run(prefix, lambda: self._directories_below(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        paths = {self._path(key): key for key in keys}
        if paths:
            await self._run(f"{keys[0]} (of {len(keys)} to delete)", lambda: self._remove(paths))

    async def close(self) -> None:
        """Wait for running calls, then release the threads and the lock. May be called twice."""
        await asyncio.get_running_loop().run_in_executor(None, self._shut_down)

    # --- blocking, runs on the executor

    def _shut_down(self) -> None:
        self._executor.shutdown(wait=True)
        if self._lock >= 0:
            shutil.rmtree(self._unfinished, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    async def _run(self, what: str, call: Callable[[], T]) -> T:
        # While a disk hangs, the executor keeps cancelled calls in its queue. They must not keep their bytes.
        calls = [call]
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: calls.pop()())
        except OSError as error:
            raise _as_store_error(error, what) from error
        finally:
            calls.clear()

    def _path(self, key: str) -> str:
        check_key(key)
        if key.split("/", 1)[0] in _NOT_OBJECTS:
            raise StoreRefused(f"key {key!r}: {' and '.join(_NOT_OBJECTS)} hold no objects")
        return os.path.join(self._root, key)

    def _write(self, key: str, path: str, parts: Sequence[Buffer], if_absent: bool) -> None:
        unfinished = os.path.join(self._unfinished, str(next(self._names)))
        is_renamed = False
        try:
            try:
                descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileNotFoundError as error:
                raise StoreRefused(
                    f"{key}: the folder {self._root} was removed while it was in use"
                ) from error
            try:
                if not _is_checkpoint(key):
                    _check_room(key, descriptor, parts)
                write_all(descriptor, parts)
                modified_ns = self._clock.wall_ms() * 1_000_000
                os.utime(descriptor, ns=(modified_ns, modified_ns))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if if_absent:
                self._place(path, lambda: os.link(unfinished, path))
            else:
                self._place(path, lambda: os.rename(unfinished, path))
                is_renamed = True
        except FileExistsError as error:
            raise ObjectExists(f"{key}: exists already") from error
        finally:
            if not is_renamed:
                _unlink_if_there(unfinished)

    def _place(self, path: str, place: Callable[[], None]) -> None:
        """Give a finished file its name durably, while other calls may create and remove directories."""
        directory = os.path.dirname(path)
        for _ in range(_PLACE_ATTEMPTS):
            try:
                place()
            except FileNotFoundError:
                # It never existed, or a concurrent delete removed it while it was empty. If that was another process's,
                # the new directory may have the old one's inode number.
                self._synced_directories.pop(directory, None)
                _make_directories(directory)
            else:
                self._sync_directory(directory)
                return
        raise StoreUnavailable(f"{path}: its directory was removed {_PLACE_ATTEMPTS} times while we wrote")

    def _sync_directory(self, directory: str) -> None:
        try:
            inode = _sync(directory)
            if self._synced_directories.get(directory) == inode:
                return
            above = directory
            while above != str(self._root):
                above = os.path.dirname(above)
                _sync(above)
        except FileNotFoundError:
            return  # the object was already deleted, and its directory with it: nothing to sync
        self._synced_directories[directory] = inode

    def _remove(self, paths: Mapping[str, str]) -> None:
        """Remove files, given with their keys, and the directories that are empty then."""
        directories: dict[str, None] = {}
        left: dict[str, str] = {}
        for path, key in paths.items():
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if not os.path.isdir(path):  # `a` is not an object if `a/b` is one
                    left[key] = error.strerror or str(error)
                continue
            directories[os.path.dirname(path)] = None
        for directory in directories:
            self._remove_if_empty(directory)
        if left:
            raise NotDeleted(left, len(paths))

    def _remove_if_empty(self, directory: str) -> None:
        """Remove a directory and its parents as far as they are empty, then sync the first one left."""
        while directory != str(self._root):
            try:
                os.rmdir(directory)  # fails atomically if a put was faster; a slower put creates it again
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                    break
                raise
            self._synced_directories.pop(directory, None)
            directory = os.path.dirname(directory)
        try:
            _sync(directory)
        except FileNotFoundError:
            return

    def _walk(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        above, _, _ = prefix.rpartition("/")
        yield from self._walk_directory(f"{above}/" if above else "", prefix, start_after)

    def _walk_directory(self, directory: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Yield all objects below `directory` (empty, or with its slash) in ascending order of their keys."""
        for name in _names_in_key_order(os.path.join(self._root, directory)):
            key = directory + name
            if key.rstrip("/") in _NOT_OBJECTS:
                continue
            if name.endswith("/"):
                may_match = key.startswith(prefix) or prefix.startswith(key)
                is_past = key < start_after and not start_after.startswith(key)
                if may_match and not is_past:
                    yield from self._walk_directory(key, prefix, start_after)
            elif key > start_after and key.startswith(prefix):
                try:
                    yield _describe(key, os.path.join(self._root, key))
                except FileNotFoundError:
                    continue  # deleted after we read the directory

    def _directories_below(self, prefix: str) -> Sequence[str]:
        above, _, beginning = prefix.rpartition("/")
        directory = f"{above}/" if above else ""
        names = _names_in_key_order(os.path.join(self._root, directory))
        directories = [name for name in names if name.endswith("/") and name.startswith(beginning)]
        # A directory may be empty for a moment: before its first file is placed and after its last is deleted.
        return [
            name[len(beginning) :]
            for name in directories
            if (directory + name).rstrip("/") not in _NOT_OBJECTS
            and next(self._walk_directory(directory + name, "", ""), None)
        ]


def _claim_unfinished(place: Path) -> tuple[str, int]:
    """Remove what dead processes left below `place`, then create and lock our own directory there.

    Another starting process may have created its directory and not locked it yet. The lock on `place` prevents us from
    taking that directory for a dead process's.
    """
    place.mkdir(exist_ok=True)
    with open(place / _LOCK, "w") as everybody:
        fcntl.flock(everybody, fcntl.LOCK_EX)
        for left in place.iterdir():
            if left.is_dir():
                _remove_unless_alive(left)
        own = tempfile.mkdtemp(dir=place)
        lock = os.open(os.path.join(own, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return own, lock


def _remove_unless_alive(left: Path) -> None:
    try:
        with open(left / _LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    except BlockingIOError:
        return  # its process is alive
    except FileNotFoundError:
        return  # its process has removed it


def _is_checkpoint(key: str) -> bool:
    """Whether the key is one of `sequencer.checkpoint.format`: CLUSTER/meta/..., or CLUSTER/cluster.json, which must
    exist before a checkpoint is written."""
    return key.split("/", 2)[1:2] in (["meta"], ["cluster.json"])


def _check_room(key: str, descriptor: int, parts: Sequence[Buffer]) -> None:
    """Raise StoreFull if these bytes would use the space reserved for checkpoints. A file system that does not report
    its size is not checked."""
    disk = os.fstatvfs(descriptor)
    kept = min(CHECKPOINT_ROOM_BYTES, disk.f_blocks * disk.f_frsize // CHECKPOINT_ROOM_SHARE)
    left = disk.f_bavail * disk.f_frsize - sum(memoryview(part).nbytes for part in parts)
    if kept and left < kept:
        raise StoreFull(
            f"{key}: No space left on device but {kept:,} bytes, which are kept for checkpoints; "
            "free some space, or lower the topics' retention"
        )


def _read(path: str, start: int, length: int | None) -> bytearray:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "no object, but a directory of objects", path)
        end = status.st_size if length is None else min(start + length, status.st_size)
        return read_at(descriptor, start, max(0, end - start))
    finally:
        os.close(descriptor)


def _describe(key: str, path: str) -> ObjectInfo:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "no object, but a directory of objects", path)
    return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)


def _names_in_key_order(directory: str) -> list[str]:
    """Return a directory's names in S3's order: directories are sorted with their slash."""
    try:
        with os.scandir(directory) as entries:
            return sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _make_directories(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except FileNotFoundError:
        return  # a concurrent delete removed one of them: the caller tries again
    except FileExistsError as error:
        raise NotADirectoryError(
            errno.ENOTDIR, "an object has the name of this directory", directory
        ) from error


def _sync(directory: str) -> int:
    """Sync a directory's entries to disk. Return its inode number."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


def _unlink_if_there(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _as_store_error(error: OSError, what: str) -> StoreError:
    message = f"{what}: {error.strerror or error}"
    if isinstance(error, FileNotFoundError):
        return ObjectMissing(message)
    if error.errno in _FULL:
        return StoreFull(message)
    if error.errno in _REFUSED:
        return StoreRefused(message)
    return StoreUnavailable(message)
