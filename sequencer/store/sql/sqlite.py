"""SQLite: one file; one connection and thread that writes, one that reads; a transaction is one function on a thread.

WAL with synchronous=FULL: what was committed survives a power cut. A transaction that writes begins
IMMEDIATE, so that another process can't take the write lock in the middle. The database's clock is the one passed in.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import StaticPool

from sequencer.api import LeaseLost, RequestFailed, SequencerUnavailable
from sequencer.store.rows import Changes, Row
from sequencer.store.sql.database import Lane, Values, split_changes, table_statements
from sequencer.store.sql.migrate import migrate as migrate_tables
from sequencer.store.sql.row_codec import RUN_COLUMNS, Dialect
from tailrace.clock import Clock
from tailrace.keepers import cause_of

BUSY_SECONDS = 5.0
"""How long a write waits for another process that writes to the same file."""

_AMONG_MOST = 500  # well below SQLite's bound on parameters

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

_RUNS_FROM = f"""
    select {RUN_COLUMNS} from runs r left join objects o on o.object_id = r.object_id
    where r.topic_id = ?1 and r.partition = ?2 and r.end_offset > ?3
      and r.base_offset >= coalesce(
        (select p.base_offset from runs p
         where p.topic_id = ?1 and p.partition = ?2 and p.base_offset <= ?3
         order by p.base_offset desc limit 1), ?3)
    order by r.base_offset limit ?4
"""
_LENGTH = [name.strip() for name in RUN_COLUMNS.split(",")].index("r.length")

T = TypeVar("T")


class SqliteDatabase:
    """The file at `path` (None: in memory, lost at `stop`).

    `executor` must have one thread. Without one, the database makes and ends its own threads.
    """

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path | None, *, clock: Clock, executor: Executor | None = None) -> None:
        self._path = path
        self._clock = clock
        self._passed_in = executor
        self._owned: dict[str, Executor] = {}
        self._tables = table_statements("sqlite")
        self._plain = self._engine()
        self._writer = self._plain.execution_options(immediate=True)
        # Read beside what is being written, on a thread and a connection of its own.
        self._reader = self._plain if path is None else self._engine()
        self._lane: Lane = "commits"

    def _engine(self) -> sa.Engine:
        engine = sa.create_engine(
            "sqlite://" if self._path is None else sa.URL.create("sqlite", database=str(self._path)),
            poolclass=StaticPool,
            connect_args={"check_same_thread": False, "timeout": BUSY_SECONDS},
        )
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        return engine

    def on(self, lane: Lane) -> SqliteDatabase:
        """Only the reads have a connection of their own: SQLite allows one writer, and its transactions are short."""
        view = copy(self)
        view._lane = lane
        return view

    async def start(self, *, migrate: bool) -> None:
        if self._passed_in is None and not self._owned:
            for lane in ("commits", "reads"):
                self._owned[lane] = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sqlite {lane}")

        def run() -> None:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._writer.begin() as connection:
                migrate_tables(connection, allowed=migrate)

        await self._write(run)

    async def execute(self, statement: str, *arguments: Any) -> list[Values]:
        return await self._write(lambda: self._query(self._writer, statement, arguments))

    async def fetch(self, statement: str, *arguments: Any) -> list[Values]:
        return await self._read(lambda engine: self._query(engine, statement, arguments))

    async def fetch_where_in(
        self, statement: str, kind: Literal["uuid", "text"], values: Values
    ) -> list[Values]:
        def run(engine: sa.Engine) -> list[Values]:
            found: list[Values] = []
            with engine.begin() as connection:
                for first in range(0, len(values), _AMONG_MOST):
                    part = tuple(values[first : first + _AMONG_MOST])
                    in_part = statement.replace("{in_values}", f"in ({', '.join('?' * len(part))})")
                    found.extend(connection.exec_driver_sql(in_part, part).all())
            return found

        return await self._read(run)

    async def fetch_by_keys(self, kind: type[Row], keys: Sequence[tuple[object, ...]]) -> list[Values]:
        table = self._tables[kind]
        named = " and ".join(f'"{column.name}" = ?' for column in table.codec.key)
        statement = f"select {table.columns} from {table.name} where {named}"

        def run(engine: sa.Engine) -> list[Values]:
            found: list[Values] = []
            with engine.begin() as connection:
                for key in zip(*table.codec.encode_keys(keys), strict=True):
                    found.extend(connection.exec_driver_sql(statement, key).all())
            return found

        return await self._read(run)

    async def fetch_pages(
        self, statements: Sequence[str], rows: int
    ) -> AsyncGenerator[tuple[int, Sequence[Values]], None]:
        def run(engine: sa.Engine) -> list[Sequence[Values]]:
            with engine.begin() as connection:
                return [connection.exec_driver_sql(statement).all() for statement in statements]

        await self._write(lambda: None)  # what was being written is written
        found = await self.on("reads")._read(run)
        for index, of_one in enumerate(found):
            for first in range(0, len(of_one), rows):
                yield index, of_one[first : first + rows]

    async def fetch_runs(
        self, queries: Sequence[tuple[UUID, int, int, int]], max_runs: int
    ) -> list[list[Values]]:
        def run(engine: sa.Engine) -> list[list[Values]]:
            with engine.begin() as connection:
                return [self._runs_from(connection, query, max_runs) for query in queries]

        return await self._read(run)

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        def run() -> None:
            with self._writer.begin() as connection:
                current = connection.exec_driver_sql(
                    "select committer_epoch from cluster where id = 1"
                ).scalar()
                if current != committer_epoch:
                    raise LeaseLost(
                        f"the committer's epoch is {current}, not {committer_epoch}: another took over"
                    )
                parts = split_changes(changes, self._tables)
                for table, deleted, _ in parts:
                    if deleted:
                        named = " and ".join(f'"{column.name}" = ?' for column in table.codec.key)
                        connection.exec_driver_sql(
                            f"delete from {table.name} where {named}",
                            list(zip(*table.codec.encode_keys(deleted), strict=True)),
                        )
                for table, _, rows in parts:
                    if rows:
                        placeholders = ", ".join("?" * len(table.codec.columns))
                        connection.exec_driver_sql(
                            f"insert into {table.name} ({table.columns}) values ({placeholders}) "
                            f"on conflict ({table.key}) do update set {table.assignments}",
                            list(zip(*table.codec.encode_rows(rows), strict=True)),
                        )

        await self._write(run)

    async def stop(self) -> None:
        if self._passed_in is None and not self._owned:
            return
        await self.on("reads")._read(lambda engine: engine.dispose())
        await self._write(self._plain.dispose)
        for thread in self._owned.values():
            thread.shutdown(wait=False)
        self._owned.clear()

    # -- below: on the threads --------------------------------------------------------------------------

    async def _write(self, transaction: Callable[[], T]) -> T:
        return await self._run("commits", transaction)

    async def _read(self, transaction: Callable[[sa.Engine], T]) -> T:
        if self._lane == "reads" and self._reader is not self._plain:
            return await self._run("reads", lambda: transaction(self._reader))
        return await self._run("commits", lambda: transaction(self._plain))

    async def _run(self, lane: str, transaction: Callable[[], T]) -> T:
        def guarded() -> T:
            with _unavailable(self._path):
                return transaction()

        executor = self._passed_in or self._owned.get(lane)
        if executor is None:
            raise SequencerUnavailable(f"the database {self._path or 'in memory'}: not opened")
        return await asyncio.get_running_loop().run_in_executor(executor, guarded)

    def _query(self, engine: sa.Engine, statement: str, arguments: tuple[Any, ...]) -> list[Values]:
        plain = statement.replace("{now}", str(self._clock.wall_ms())).replace("{for_update}", "")
        numbered = plain.replace("$", "?")
        with engine.begin() as connection:
            result = connection.exec_driver_sql(numbered, arguments)
            return list(result.all()) if result.returns_rows else []

    def _runs_from(
        self, connection: sa.Connection, query: tuple[UUID, int, int, int], max_runs: int
    ) -> list[Values]:
        topic_id, partition, offset, max_bytes = query
        found: list[Values] = []
        length = 0
        with connection.exec_driver_sql(_RUNS_FROM, (topic_id.bytes, partition, offset, max_runs)) as cursor:
            for run in cursor:
                found.append(run)
                length += run[_LENGTH]
                if length >= max_bytes:
                    break
        return found


def _prepare(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("pragma cache_size = -32768")
    connection.execute("pragma journal_size_limit = 67108864")


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("begin immediate" if writes else "begin")


@contextmanager
def _unavailable(path: Path | None) -> Iterator[None]:
    try:
        yield
    except sa.exc.DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorcode", None)
        why = None if code is None else _AWAY.get(code & 0xFF)
        if why is None:
            raise RequestFailed(f"the database refuses it: {error.orig}") from error
        raise SequencerUnavailable(f"the database {path or 'in memory'}: {why} ({error.orig})") from error
    except OSError as error:
        raise SequencerUnavailable(f"the database {path}: {error}") from error
    except _UNFIT as error:
        raise RequestFailed(f"the database does not take it: {cause_of(error)}") from error
