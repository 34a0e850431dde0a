"""SQLite: one file; one connection and thread for writing, one for reading; a transaction is one function on a thread.

Statements go directly to the standard library's driver, because an agent on a folder pays for them with each object
that it writes. SQLAlchemy migrates the tables.

WAL with synchronous=FULL: committed transactions survive a power cut. A transaction that writes begins IMMEDIATE, so
that another process can't take the write lock in the middle. The database's clock is the one passed in.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from sequencer.api.errors import LeaseLost, RequestFailed, SequencerUnavailable
from sequencer.store.rows import Changes, Row
from sequencer.store.sql.database import Lane, Values, split_changes, table_statements
from sequencer.store.sql.migrate import migrate as migrate_tables
from sequencer.store.sql.row_codec import RUN_COLUMNS, RUN_COLUMNS_WITHOUT_BATCHES, Dialect
from tailrace.background_tasks import cause_of
from tailrace.clock import Clock

BUSY_SECONDS = 5.0
"""How long a write waits for another process that writes to the same file."""

_WAL_ATTEMPTS = 100
_AMONG_MOST = 500  # well below SQLite's limit of parameters

_AWAY = {
    sqlite3.SQLITE_BUSY: "another process holds its lock",
    sqlite3.SQLITE_LOCKED: "another connection holds its lock",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "reading or writing failed",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_NOMEM: "out of memory",
}

_UNFIT = (OverflowError, ValueError, msgspec.MsgspecError)
"""Errors of the driver and the encoders for values that a column can't hold."""

_RUNS_FROM = """
    select {columns} from runs r left join objects o on o.object_id = r.object_id
    where r.topic_id = ?1 and r.partition = ?2 and r.end_offset > ?3
      and r.base_offset >= coalesce(
        (select p.base_offset from runs p
         where p.topic_id = ?1 and p.partition = ?2 and p.base_offset <= ?3
         order by p.base_offset desc limit 1), ?3)
    order by r.base_offset limit ?4
"""
_PRAGMAS = (
    "journal_mode = wal",
    "synchronous = full",
    "cache_size = -32768",
    "journal_size_limit = 67108864",
)
_LENGTH = [name.strip() for name in RUN_COLUMNS.split(",")].index("r.length")

T = TypeVar("T")


class SqliteDatabase:
    """The file at `path` (None: in memory, lost at `stop`)."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path | None, *, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._owned: dict[str, Executor] = {}
        self._tables = table_statements("sqlite")
        file = None if path is None else _SameFile(path)
        self._writer = _Connection(file)
        # Reads run concurrently with writes, on a separate thread and connection.
        self._reader = self._writer if file is None else _Connection(file)
        self._lane: Lane = "commits"

    def on(self, lane: Lane) -> SqliteDatabase:
        """Only reads have a separate connection: SQLite allows one writer, and write transactions are short."""
        view = copy(self)
        view._lane = lane
        return view

    async def start(self, *, migrate: bool) -> None:
        if not self._owned:
            for lane in ("commits", "reads"):
                self._owned[lane] = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sqlite {lane}")

        def run() -> None:
            if self._path is not None and not self._path.parent.is_dir():
                raise SequencerUnavailable(
                    f"the database {self._path}: its folder does not exist; correct the path, or create the folder"
                )
            self._writer.migrate(allowed=migrate)

        await self._write(run)

    async def now_ms(self) -> int:
        self._thread("commits")  # raises before `start`
        return self._clock.wall_ms()

    async def execute(self, statement: str, *arguments: Any) -> list[Values]:
        return await self._write(lambda: self._query(self._writer.writing(), statement, arguments))

    async def fetch(self, statement: str, *arguments: Any) -> list[Values]:
        return await self._read(lambda reader: self._query(reader.reading(), statement, arguments))

    async def fetch_where_in(
        self, statement: str, kind: Literal["uuid", "text"], values: Values
    ) -> list[Values]:
        def run(reader: _Connection) -> list[Values]:
            rows: list[Values] = []
            with reader.reading() as connection:
                for first in range(0, len(values), _AMONG_MOST):
                    part = tuple(values[first : first + _AMONG_MOST])
                    in_part = statement.replace("{in_values}", f"in ({', '.join('?' * len(part))})")
                    rows += connection.execute(in_part, part)
            return rows

        return await self._read(run)

    async def fetch_by_keys(self, kind: type[Row], keys: Sequence[tuple[object, ...]]) -> list[Values]:
        table = self._tables[kind]
        named = " and ".join(f'"{column.name}" = ?' for column in table.codec.key)
        statement = f"select {table.columns} from {table.name} where {named}"

        def run(reader: _Connection) -> list[Values]:
            rows: list[Values] = []
            with reader.reading() as connection:
                for key in zip(*table.codec.encode_keys(keys), strict=True):
                    rows += connection.execute(statement, key)
            return rows

        return await self._read(run)

    async def fetch_pages(
        self, statements: Sequence[str], rows: int
    ) -> AsyncGenerator[tuple[int, Sequence[Values]], None]:
        def run(reader: _Connection) -> list[Sequence[Values]]:
            with reader.reading() as connection:
                return [connection.execute(statement).fetchall() for statement in statements]

        # Wait until the writes in progress have ended. After a write that was refused because the file is gone, a load
        # must not show it either: the committer would acknowledge it.
        await self._write(self._writer.check_files)
        of_statements = await self.on("reads")._read(run)
        for index, of_one in enumerate(of_statements):
            for first in range(0, len(of_one), rows):
                yield index, of_one[first : first + rows]

    async def fetch_runs(
        self, queries: Sequence[tuple[UUID, int, int, int]], max_runs: int, *, with_batches: bool
    ) -> list[list[Values]]:
        statement = _RUNS_FROM.format(columns=RUN_COLUMNS if with_batches else RUN_COLUMNS_WITHOUT_BATCHES)

        def run(reader: _Connection) -> list[list[Values]]:
            with reader.reading() as connection:
                return [_runs_from(connection, statement, query, max_runs) for query in queries]

        return await self._read(run)

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        def run() -> None:
            with self._writer.writing() as connection:
                (current,) = connection.execute(
                    "select committer_epoch from cluster where id = 1"
                ).fetchone() or (None,)
                if current != committer_epoch:
                    raise LeaseLost(
                        f"the committer's epoch is {current}, not {committer_epoch}: another took over"
                    )
                parts = split_changes(changes, self._tables)
                for table, deleted, _ in parts:
                    if deleted:
                        named = " and ".join(f'"{column.name}" = ?' for column in table.codec.key)
                        connection.executemany(
                            f"delete from {table.name} where {named}",
                            zip(*table.codec.encode_keys(deleted), strict=True),
                        )
                for table, _, rows in parts:
                    if rows:
                        placeholders = ", ".join("?" * len(table.codec.columns))
                        connection.executemany(
                            f"insert into {table.name} ({table.columns}) values ({placeholders}) "
                            f"on conflict ({table.key}) do update set {table.assignments}",
                            zip(*table.codec.encode_rows(rows), strict=True),
                        )

        await self._write(run)

    async def stop(self) -> None:
        if not self._owned:
            return
        await self.on("reads")._read(lambda reader: reader.close())
        await self._write(self._writer.close)
        for thread in self._owned.values():
            thread.shutdown(wait=False)
        self._owned.clear()

    # -- below: on the threads --------------------------------------------------------------------------

    async def _write(self, transaction: Callable[[], T]) -> T:
        return await self._run("commits", transaction)

    async def _read(self, transaction: Callable[[_Connection], T]) -> T:
        if self._lane == "reads" and self._reader is not self._writer:
            return await self._run("reads", lambda: transaction(self._reader))
        return await self._run("commits", lambda: transaction(self._writer))

    async def _run(self, lane: str, transaction: Callable[[], T]) -> T:
        def guarded() -> T:
            with _unavailable(self._path):
                return transaction()

        return await asyncio.get_running_loop().run_in_executor(self._thread(lane), guarded)

    def _thread(self, lane: str) -> Executor:
        executor = self._owned.get(lane)
        if executor is None:
            raise SequencerUnavailable(f"the database {self._path or 'in memory'}: not opened")
        return executor

    def _query(
        self,
        transaction: AbstractContextManager[sqlite3.Connection],
        statement: str,
        arguments: tuple[Any, ...],
    ) -> list[Values]:
        plain = statement.replace("{now}", str(self._clock.wall_ms())).replace("{for_update}", "")
        with transaction as connection:
            return connection.execute(plain.replace("$", "?"), arguments).fetchall()


class _Connection:
    """A connection to the file (None: to a database in memory), opened on first use. One thread uses it at a time."""

    def __init__(self, file: _SameFile | None) -> None:
        self._file = file
        self._wal: _SameFile | None = None
        self._opened: sqlite3.Connection | None = None

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a transaction on one snapshot."""
        return self._transaction("begin")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the file's only write lock from its beginning.

        Raises SequencerUnavailable after the commit if the file was deleted or replaced: the next start would not find
        the transaction.
        """
        with self._transaction("begin immediate") as connection:
            yield connection
        self.check_files()

    def check_files(self) -> None:
        """Raise SequencerUnavailable if a file of the open connection was deleted or replaced."""
        for file in (self._file, self._wal):
            if file is not None:
                file.check()

    def migrate(self, *, allowed: bool) -> None:
        """Create the tables, or migrate them; see `migrate`."""
        opened = self._open()
        engine = sa.create_engine("sqlite://", creator=lambda: opened, poolclass=StaticPool)
        with engine.connect() as connection, self.writing():
            migrate_tables(connection, allowed=allowed)

    def close(self) -> None:
        """Close the connection. May be called twice; the next transaction opens it again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        connection = self._open()
        connection.execute(begin)
        try:
            yield connection
            connection.execute("commit")
        finally:
            if connection.in_transaction:
                connection.execute("rollback")

    def _open(self) -> sqlite3.Connection:
        if self._opened is None:
            if self._file is not None:
                self._file.check()  # SQLite would create it
            connection = sqlite3.connect(
                ":memory:" if self._file is None else self._file.path,
                timeout=BUSY_SECONDS,
                isolation_level=None,  # this class issues BEGIN itself
                check_same_thread=False,
            )
            try:
                _use_wal(connection)
                for pragma in _PRAGMAS:
                    connection.execute(f"pragma {pragma}")
                if self._file is not None:
                    connection.execute("select 1 from sqlite_master").fetchall()  # creates the -wal file
                    self._wal = _SameFile(Path(f"{self._file.path.resolve()}-wal"))
                    self._file.remember()
                    self._wal.remember()
            except BaseException:
                connection.close()
                raise
            self._opened = connection
        return self._opened


class _SameFile:
    """A path that must keep its file. SQLite does not notice if the file is deleted or replaced: it goes on writing to
    the one that it has opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._first: tuple[int, int] | None = None

    def remember(self) -> None:
        """Remember the file, if none was remembered before."""
        self._first = self._first or self._device_and_inode()

    def check(self) -> None:
        """Raise SequencerUnavailable if the path has no file any longer, or another one than remembered."""
        if self._first is not None and self._device_and_inode() != self._first:
            raise SequencerUnavailable(
                f"{self.path} was deleted or replaced while the database was open, and writes to the opened file would "
                "be lost; move that file back, or restart this process on what is there now"
            )

    def _device_and_inode(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino


def _runs_from(
    connection: sqlite3.Connection, statement: str, query: tuple[UUID, int, int, int], max_runs: int
) -> list[Values]:
    topic_id, partition, offset, max_bytes = query
    runs: list[Values] = []
    length = 0
    for run in connection.execute(statement, (topic_id.bytes, partition, offset, max_runs)):
        runs.append(run)
        length += run[_LENGTH]
        if length >= max_bytes:
            break
    return runs


def _use_wal(connection: sqlite3.Connection) -> None:
    """Change the file to WAL. If two connections do so with a new file, one of them fails at once with "locked": SQLite
    does not wait here, as it does at the beginning of a transaction."""
    for attempt in range(_WAL_ATTEMPTS):
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt + 1 == _WAL_ATTEMPTS:
                raise
            connection.execute("begin immediate")
            connection.execute("rollback")
        else:
            return


@contextmanager
def _unavailable(path: Path | None) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        why = None if code is None else _AWAY.get(code & 0xFF)
        if why is None:
            raise RequestFailed(f"the database refuses it: {error}") from error
        raise SequencerUnavailable(f"the database {path or 'in memory'}: {why} ({error})") from error
    except OSError as error:
        raise SequencerUnavailable(f"the database {path}: {error}") from error
    except _UNFIT as error:
        raise RequestFailed(f"the database does not take it: {cause_of(error)}") from error
