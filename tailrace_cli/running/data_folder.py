"""The data folder of `tailrace serve`: its contents, the process that uses it, and its file modes.

A lock that ends with its process protects the folder, so a killed process does not block the next one. `serve.json`
says where a running `serve` listens. `served.json` says which store and database the last `serve` used.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

from tailrace.clock import Entropy
from tailrace.files import LockHeld, lock_for_this_process
from tailrace.security.credentials import make_secret_file
from tailrace_cli.errors import CommandFailed

DATABASE = "tailrace.db"
OBJECTS = "objects"
SECRET = "rpc.secret"
LOCK = "serve.lock"
SERVING = "serve.json"
SERVED = "served.json"
SECURE = "secure"
_OURS = {OBJECTS, SECRET, LOCK, SERVING, SERVED, SECURE}

_log = structlog.get_logger("tailrace.data")


class FolderInUse(CommandFailed):
    """Another process uses the folder; the message contains its pid."""


class ServerInfo(msgspec.Struct, frozen=True):
    """The contents of `serve.json`: the process, its ports, its sequencer (HOST:PORT), its store (a URL)."""

    pid: int
    kafka_port: int
    http_port: int
    rpc: str
    store: str


class ServedStores(msgspec.Struct, frozen=True):
    """The contents of `served.json`: a store and a database (URLs), each empty if it is the folder's own."""

    store: str = ""
    database: str = ""

    def within(self, folder: Path) -> ServedStores:
        """Return a copy that names the folder's own store and database where this one is empty."""
        return ServedStores(
            self.store or str(folder / OBJECTS), self.database or f"sqlite:///{folder / DATABASE}"
        )

    def without(self, folder: Path) -> ServedStores:
        """Return what to store: no password, absolute paths, and empty for the folder's own store and database."""
        own = ServedStores().within(folder)
        store = _lasting_store(self.store) if self.store else ""
        database = _lasting_database(self.database) if self.database else ""
        return ServedStores("" if store == own.store else store, "" if database == own.database else database)


@contextmanager
def held_folder(path: Path) -> Iterator[None]:
    """Lock the folder inside the block. Raises FolderInUse at once if another process holds the lock, CommandFailed
    if the folder can't be used."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise CommandFailed(f"data folder {str(path)!r} can't be used: {error.strerror}") from error
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        lock_for_this_process(descriptor)
    except LockHeld as holder:
        raise FolderInUse(
            f"data folder {str(path)!r} is in use by process {holder}; stop that one, or give another folder with "
            "--data"
        ) from None


@contextmanager
def shown_as_serving(path: Path, serving: ServerInfo, served: ServedStores) -> Iterator[None]:
    """Keep `serve.json` in the folder inside the block. Write `served.json`, which stays."""
    _write_whole(path / SERVED, served.without(path))
    _write_whole(path / SERVING, serving)
    try:
        yield
    finally:
        (path / SERVING).unlink(missing_ok=True)


def _write_whole(file: Path, contents: msgspec.Struct) -> None:
    unfinished = file.with_name(f".{file.name}")
    unfinished.write_bytes(msgspec.json.encode(contents) + b"\n")
    unfinished.replace(file)


def last_served(path: Path) -> ServedStores:
    """Return the store and database of the `serve` that uses the folder or used it last. Raises CommandFailed."""
    try:
        return msgspec.json.decode((path / SERVED).read_bytes(), type=ServedStores).within(path)
    except FileNotFoundError:  # no `serve` was ever ready in it, or only one of an older version
        return ServedStores().within(path)
    except (OSError, msgspec.DecodeError) as error:
        raise CommandFailed(
            f"{str(path / SERVED)!r} can't be read ({error}); give --store and --database in place of --data"
        ) from error


def _lasting_store(url: str) -> str:
    """Return the URL of a store; a path becomes absolute."""
    if "://" in url or url.startswith("memory:"):
        return url
    return str(Path(url).expanduser().absolute())


def _lasting_database(url: str) -> str:
    """Return the URL of a database without its password; SQLite's path becomes absolute."""
    from sequencer.store.sql.postgres_url import read_url, without_password

    read = without_password(read_url(url))
    if read.get_backend_name() == "sqlite" and read.database not in (None, "", ":memory:"):
        read = read.set(database=str(Path(str(read.database)).absolute()))
    return read.render_as_string()


def find_serving(path: Path) -> ServerInfo:
    """Read the `serve.json` of the process that uses the folder. Raises CommandFailed."""
    try:
        return msgspec.json.decode((path / SERVING).read_bytes(), type=ServerInfo)
    except (OSError, msgspec.DecodeError) as error:
        raise CommandFailed(
            f"data folder {str(path)!r} is in use, but no `tailrace serve` is ready in it yet; try again"
        ) from error


def open_data_folder(path: Path, entropy: Entropy) -> None:
    """Create the folder and its RPC secret if they are missing. Raises CommandFailed.

    Only the owner can enter the folder (0700) and read the files that this process creates from now on (0600). If
    others may enter an existing folder, this removes their permission, or logs a warning if the folder also holds
    files that are not ours.
    """
    os.umask(0o077)
    try:
        path.mkdir(parents=True, exist_ok=True)
        _close_to_others(path)
        if not (path / SECRET).exists():
            make_secret_file(path / SECRET, entropy)
    except OSError as error:
        raise CommandFailed(
            f"data folder {str(path)!r} can't be made or written: {error.strerror}; give another with --data"
        ) from error


def _close_to_others(path: Path) -> None:
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if not mode & 0o077:
        return
    is_ours = all(_is_ours(entry.name) for entry in path.iterdir())
    if is_ours and status.st_uid == os.geteuid():
        path.chmod(0o700)
        _log.info(
            "the data folder was open to other users; its mode is now 0700",
            folder=str(path),
            was=f"{mode:04o}",
        )
        return
    _log.warning(
        "other users can enter the data folder and read files older than this process; run `chmod 700` on it",
        folder=str(path), mode=f"{mode:04o}",
    )  # fmt: skip


def _is_ours(name: str) -> bool:
    """Whether `serve` creates files of this name. SQLite's begin with the database's, unfinished ones with a dot."""
    return name.startswith(DATABASE) or name.removeprefix(".") in _OURS
