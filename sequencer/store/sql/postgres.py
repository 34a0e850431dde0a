"""PostgreSQL: an asyncpg pool per lane, one statement per thousand changed rows, and the server's clock.

A write reads the committer's epoch under a lock that a server waits for when it takes the lease. So a transaction that
read its epoch has ended before the next committer loads. Connecting, waiting for locks and statements have time limits,
on the server too, so that the transaction of a lost client does not keep the lease's row locked.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from copy import copy
from itertools import chain
from typing import Any, Literal, TypeAlias, TypeVar, cast
from uuid import UUID

import asyncpg
import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from sequencer.api.commits import ObjectKind
from sequencer.api.errors import LeaseLost, RequestFailed, SequencerUnavailable
from sequencer.store.rows import Changes, CounterRow, Row, RunRow
from sequencer.store.sql.database import Lane, TableStatements, Values, split_changes, table_statements
from sequencer.store.sql.migrate import migrate as migrate_tables
from sequencer.store.sql.row_codec import (
    INTEGERS,
    RUN_COLUMNS,
    RUN_COLUMNS_WITHOUT_BATCHES,
    UUIDS,
    Dialect,
    RowColumn,
)
from sequencer.store.state import COMMIT_NUMBER, JOURNAL_NUMBER
from tailrace.background_tasks import cause_of
from tailrace.clock import Clock

CONNECT_SECONDS = 5.0
STATEMENT_SECONDS = 10.0
IDLE_SECONDS = 2.0
"""How long a transaction with a silent client may keep the next committer from the lease."""
MIGRATION_SECONDS = 300.0
CONNECTIONS: dict[Lane, int] = {"lease": 1, "commits": 4, "reads": 8}
"""Limit of connections per lane. Slow reads delay neither commits nor the lease; slow commits don't delay the lease. A
group of requests looks up the time, the objects, and the rows of each kind that is not in memory, all concurrently."""
LEASE_SECONDS = 10.0
"""A database that takes longer than this is unavailable. For a slow database and the lease see
`sequencer.engine.term`."""
WRITTEN_AT_ONCE = 1_000
"""Rows per statement, limited because encoding them blocks the event loop."""
LOAD_PAGE_SECONDS = 10.0
LOAD_IDLE_SECONDS = 60.0
"""For a load: its transaction is idle while the caller works on a page."""

_NO_TIME_LIMIT = 1e6
"""For one statement, in seconds; None would mean the connection's limit."""

T = TypeVar("T")
_Part: TypeAlias = tuple[TableStatements, Sequence[T]]
"""Rows or keys of a table."""
_Change: TypeAlias = tuple[str, list[Any]]
"""A statement and its arguments."""
_json = msgspec.json.Encoder().encode
"""Writes a list of integers as text in a tenth of the time of `str`."""
_PARAMETER = re.compile(r"\$(\d+)")

_NOW = "(extract(epoch from clock_timestamp()) * 1000)::bigint"

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.InsufficientResourcesError,  # disk full, out of memory, too many connections
    asyncpg.OperatorInterventionError,  # shutting down, starting up, statement_timeout
    asyncpg.PostgresIOError,
    asyncpg.LockNotAvailableError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidAuthorizationSpecificationError,  # no such login, a wrong password (it may just be rotated)
    asyncpg.InsufficientPrivilegeError,
    asyncpg.InvalidCatalogNameError,  # the database does not exist (any more)
    asyncpg.UndefinedTableError,  # it was emptied and waits for a recovery
    asyncpg.ReadOnlySQLTransactionError,  # connected to a standby
    asyncpg.IdleInTransactionSessionTimeoutError,
)

_UNFIT = (asyncpg.DataError, OverflowError, ValueError, msgspec.MsgspecError)
"""Errors of the driver and the encoders for values that a column can't hold."""

_FENCE = """
    select committer_epoch, (select value from counters where name = $1)
    from cluster where id = 1 for key share
"""
"""Renewing the lease does not wait for this lock; taking the lease does (`for update`)."""
# The keys of the runs come first, from an index that has their lengths: a part of a log at a time, as many runs as
# `max_bytes` may take if they are as long as those before, and at least as many as there were. Then each part is read.
# Objects are looked up one by one: for a plain join with many runs, the planner reads the whole table of objects.
_RUNS_FROM = """
    with recursive parts as (
        select q.ordinal, q.topic_id, q.partition, q.max_bytes, first.base_offset, first.base_offset as last_base,
            first.length::float8 as bytes, 1::bigint as runs
        from unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[])
            with ordinality as q (topic_id, partition, from_offset, max_bytes, ordinal)
        cross join lateral (
            select s.base_offset, s.length from runs s
            where s.topic_id = q.topic_id and s.partition = q.partition and s.end_offset > q.from_offset
              and s.base_offset >= coalesce(
                (select p.base_offset from runs p
                 where p.topic_id = q.topic_id and p.partition = q.partition
                   and p.base_offset <= q.from_offset
                 order by p.base_offset desc limit 1), q.from_offset)
            order by s.base_offset limit 1
        ) first
        union all
        select p.ordinal, p.topic_id, p.partition, p.max_bytes, p.last_base + 1, next.last_base,
            p.bytes + next.bytes, p.runs + next.runs
        from parts p
        cross join lateral (
            select max(base_offset) as last_base, sum(length::float8) as bytes, count(*) as runs
            from (
                select base_offset, length,
                    sum(length::float8) over (order by base_offset rows unbounded preceding) - length as bytes_before
                from (
                    select s.base_offset, s.length from runs s
                    where s.topic_id = p.topic_id and s.partition = p.partition and s.base_offset > p.last_base
                    order by s.base_offset
                    limit least($5 - p.runs,
                        greatest(p.runs, (p.max_bytes - p.bytes) * p.runs / greatest(p.bytes, 1) + 1))
                ) following
            ) summed
            where bytes_before < p.max_bytes - p.bytes
        ) next
        where p.bytes < p.max_bytes and p.runs < $5 and next.runs > 0
    )
    select {columns}, p.ordinal
    from parts p
    cross join lateral (
        select * from runs s
        where s.topic_id = p.topic_id and s.partition = p.partition
          and s.base_offset between p.base_offset and p.last_base
        offset 0
    ) r
    left join lateral (select * from objects where object_id = r.object_id limit 1) o on true
    order by p.ordinal, r.base_offset
"""


class PostgresDatabase:
    """The database at `url` (drivername `postgresql`; its query has asyncpg's parameters, such as sslmode).

    `clock` replaces the server's clock in tests. `password` is called for each new connection; without it the password
    comes from the URL or the environment (PGPASSWORD, PGPASSFILE).
    """

    dialect: Dialect = "postgresql"

    def __init__(
        self, url: sa.URL, *, clock: Clock | None = None, password: Callable[[], str] | None = None
    ) -> None:
        self._password = password
        self._dsn = url.render_as_string(hide_password=False)
        self._name = f"PostgreSQL at {url.host or 'local'}:{url.port or 5432}/{url.database}"
        self._tables = table_statements("postgresql")
        self._upserts = {kind: _upsert(table) for kind, table in self._tables.items()}
        self._deletes = {kind: _delete(table) for kind, table in self._tables.items()}
        self._clock = clock
        self._pools: dict[Lane, Any] = {}
        self._starting = asyncio.Lock()
        self._lane: Lane = "commits"

    def on(self, lane: Lane) -> PostgresDatabase:
        view = copy(self)
        view._lane = lane
        return view

    async def start(self, *, migrate: bool) -> None:
        """Do nothing if already started: a standby opens the store at each attempt to lead, and keeps its pools."""
        async with self._starting:
            if self._pools:
                return
            with self._unavailable():
                await self._migrate(migrate)
                try:
                    for lane in CONNECTIONS:
                        self._pools[lane] = await self._make_pool(lane)
                except BaseException:
                    await self.stop()
                    raise

    async def _make_pool(self, lane: Lane) -> Any:
        seconds = LEASE_SECONDS if lane == "lease" else STATEMENT_SECONDS
        return await asyncpg.create_pool(
            self._dsn,
            password=self._password,
            min_size=1,
            max_size=CONNECTIONS[lane],
            timeout=CONNECT_SECONDS,
            command_timeout=seconds,
            init=_commit_durably,
            reset=_as_it_is,
            server_settings={
                "application_name": f"tailrace-sequencer {lane}",
                "jit": "off",  # every statement is short
                "statement_timeout": str(int(seconds * 1000)),
                "lock_timeout": str(int(seconds * 500)),
                "idle_in_transaction_session_timeout": str(int(IDLE_SECONDS * 1000)),
            },
        )

    async def execute(self, statement: str, *arguments: Any) -> list[Values]:
        return await self.fetch(statement, *arguments)

    async def now_ms(self) -> int:
        ((now,),) = await self.fetch("select {now}")
        return int(now)

    async def fetch(self, statement: str, *arguments: Any) -> list[Values]:
        async with self._connection() as connection:
            now = _NOW if self._clock is None else f"{self._clock.wall_ms()}::bigint"
            rows: list[Values] = await connection.fetch(_in_full(statement, now), *arguments)
            return rows

    async def fetch_where_in(
        self, statement: str, kind: Literal["uuid", "text"], values: Values
    ) -> list[Values]:
        return await self.fetch(statement.replace("{in_values}", f"= any($1::{kind}[])"), values)

    async def fetch_by_keys(self, kind: type[Row], keys: Sequence[tuple[object, ...]]) -> list[Values]:
        table = self._tables[kind]
        return await self.fetch(_select(table), *_arrays(table.codec.key, table.codec.encode_keys(keys)))

    async def fetch_pages(
        self, statements: Sequence[str], rows: int
    ) -> AsyncGenerator[tuple[int, Sequence[Values]], None]:
        async with self._connection() as connection:
            # A write whose answer was lost may still hold this lock: wait for it, so that the snapshot shows what it
            # did.
            await connection.execute("select from cluster where id = 1 for update")
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                idle_ms = int(LOAD_IDLE_SECONDS * 1000)
                await connection.execute(f"set local idle_in_transaction_session_timeout = {idle_ms}")
                for index, statement in enumerate(statements):
                    cursor = await connection.cursor(statement)
                    while page := await cursor.fetch(rows, timeout=LOAD_PAGE_SECONDS):
                        yield index, page

    async def fetch_runs(
        self, queries: Sequence[tuple[UUID, int, int, int]], max_runs: int, *, with_batches: bool
    ) -> list[list[Values]]:
        statement = _RUNS_FROM.format(columns=RUN_COLUMNS if with_batches else RUN_COLUMNS_WITHOUT_BATCHES)
        columns = [list(column) for column in zip(*queries, strict=True)]
        runs: list[list[Values]] = [[] for _ in queries]
        for run in await self.fetch(statement, *columns, max_runs):
            runs[run[-1] - 1].append(run)
        return runs

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        async with self._connection() as connection, _transaction(connection):
            counter = _last_number(changes)
            current_epoch, number = await connection.fetchrow(_FENCE, counter.name) or (None, None)
            if current_epoch != committer_epoch:
                raise LeaseLost(
                    f"the committer's epoch is {current_epoch}, not {committer_epoch}: another took over"
                )
            self._check_not_older(counter, number)
            parts = split_changes(changes, self._tables)
            for deletions in _at_once([(table, deleted) for table, deleted, _ in parts]):
                await _execute_together(connection, map(self._deletion, deletions))
            upserted = [
                (table, await _appended(connection, table, rows) if table.codec.kind is RunRow else rows)
                for table, _, rows in parts
            ]
            for upserts in _at_once(upserted):
                await _execute_together(connection, map(self._upsert, upserts))

    def _deletion(self, deleted: _Part[tuple[object, ...]]) -> _Change:
        table, keys = deleted
        return self._deletes[table.codec.kind], _arrays(table.codec.key, table.codec.encode_keys(keys))

    def _upsert(self, upserted: _Part[Row]) -> _Change:
        table, rows = upserted
        return self._upserts[table.codec.kind], _arrays(table.codec.columns, table.codec.encode_rows(rows))

    def _check_not_older(self, counter: CounterRow, number: int | None) -> None:
        """Raise SequencerUnavailable for a gap in the numbers of transactions: the database was set back under a live
        committer."""
        if number is not None and number < counter.value - 1:
            raise SequencerUnavailable(
                f"{self._name}: at {counter.name} {number}, while {counter.value} is written: it has lost the commits"
                " in between"
            )

    async def stop(self) -> None:
        pools = list(self._pools.values())
        self._pools.clear()
        for pool in pools:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await pool.close()
            except (TimeoutError, *_AWAY):
                pool.terminate()

    # -- below: details ------------------------------------------------------------------------------------

    async def _migrate(self, allowed: bool) -> None:
        async def connect() -> Any:
            return await asyncpg.connect(
                self._dsn,
                password=self._password,
                timeout=CONNECT_SECONDS,
                command_timeout=MIGRATION_SECONDS,
            )

        engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(lambda plain: migrate_tables(plain, allowed=allowed))
        finally:
            await engine.dispose()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        with self._unavailable():
            pool = self._pools.get(self._lane)
            if pool is None:
                raise SequencerUnavailable(f"{self._name}: not opened")
            try:
                connection = await pool.acquire(
                    timeout=LEASE_SECONDS if self._lane == "lease" else CONNECT_SECONDS
                )
            except asyncpg.PostgresError as error:
                raise self._as_unavailable(error) from error  # the statement was not sent
            try:
                yield connection
            except asyncpg.ReadOnlySQLTransactionError:
                await self._leave_standby()
                raise
            finally:
                await pool.release(connection)

    async def _leave_standby(self) -> None:
        """Drop the connections of all lanes as they are next used: the name or the proxy in the URL led to a standby,
        and may lead to the primary now. A connection that works would otherwise be kept for good."""
        for pool in self._pools.values():
            await pool.expire_connections()

    @contextmanager
    def _unavailable(self) -> Iterator[None]:
        try:
            yield
        except _UNFIT as error:
            raise self._refused(error) from error
        except _AWAY as error:
            raise self._as_unavailable(error) from error
        except asyncpg.PostgresError as error:
            raise self._refused(error) from error
        except sa.exc.DBAPIError as error:
            if isinstance(error.driver_exception, _AWAY):
                raise self._as_unavailable(error.driver_exception) from error
            raise

    def _refused(self, error: BaseException) -> RequestFailed:
        """The server has rolled the transaction back: nothing was written."""
        return RequestFailed(f"{self._name} refuses it: {cause_of(error)}")

    def _as_unavailable(self, error: BaseException) -> SequencerUnavailable:
        words = " ".join(str(error).split())  # a hint stands on a line of its own
        if isinstance(
            error, asyncpg.InternalClientError
        ):  # the driver got the server's reason between two statements
            words = f"the server has ended this connection; its log says why ({words})"
        return SequencerUnavailable(f"{self._name}: {words or 'no answer in time'} ({type(error).__name__})")


async def _commit_durably(connection: Any) -> None:
    """Undo `synchronous_commit = off` of a server, database or role: its COMMIT is answered before it is on disk, so a
    crash of the server would lose acknowledged batches and reuse a committer's epoch. Any other value stays."""
    await connection.execute(
        "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
    )


async def _as_it_is(connection: Any) -> None:
    """Skip asyncpg's reset, which would cost a round trip after each statement: nothing here outlasts its transaction.
    asyncpg still rolls back an open transaction."""


@asynccontextmanager
async def _transaction(connection: Any) -> AsyncIterator[None]:
    """A transaction that writes. asyncpg's own would cancel a COMMIT that takes long: see `_commit`."""
    await connection.execute("begin")
    try:
        yield
    except BaseException:
        with suppress(*_AWAY):  # then the connection is dropped, which rolls the transaction back
            await connection.execute("rollback")
        raise
    await _commit(connection)


async def _commit(connection: Any) -> None:
    """Commit, or drop the connection if that takes too long or the caller is cancelled; the transaction may be stored
    nevertheless.

    The COMMIT is never cancelled. It may wait for a synchronous standby. If it is cancelled then, the server shows the
    transaction although the standby does not have it, so that a fail-over would lose what was read and answered. If its
    client is gone, the server goes on waiting and keeps the locks, so nothing is loaded meanwhile.
    """
    committing = asyncio.ensure_future(connection.execute("commit", timeout=_NO_TIME_LIMIT))
    try:
        await asyncio.wait([committing], timeout=STATEMENT_SECONDS)
        if not committing.done():
            raise TimeoutError("the COMMIT is not answered in time")
        await committing
    finally:
        if not committing.done():
            connection.terminate()
            await asyncio.gather(committing, return_exceptions=True)


def _last_number(changes: Changes) -> CounterRow:
    """Return the transaction's number in the journal, which numbers all transactions; without a journal its commit
    number. The value is 0 if it has neither."""
    counters = changes.by_kind.get(CounterRow, {})
    row = counters.get((JOURNAL_NUMBER,)) or counters.get((COMMIT_NUMBER,))
    return cast("CounterRow", row) if row is not None else CounterRow(COMMIT_NUMBER, 0)


async def _appended(connection: Any, table: TableStatements, rows: list[Row]) -> list[Row]:
    """Append the new runs among these rows by COPY, which takes a third of an upsert's CPU time. Return the other
    rows."""
    new: list[Row] = []
    others: list[Row] = []
    for row in rows:
        (new if isinstance(row, RunRow) and row.kind is ObjectKind.MIXED else others).append(row)
    names = [column.name for column in table.codec.columns]
    for first in range(0, len(new), WRITTEN_AT_ONCE):
        records = table.codec.records(new[first : first + WRITTEN_AT_ONCE])
        await connection.copy_records_to_table("runs", records=records, columns=names)
    return others


def _at_once(changes: Iterable[_Part[T]]) -> Iterator[list[_Part[T]]]:
    """Divide the changes of all tables into lists of at most WRITTEN_AT_ONCE rows."""
    parts: list[_Part[T]] = []
    left = WRITTEN_AT_ONCE
    for table, rows in changes:
        first = 0
        while first < len(rows):
            some = rows[first : first + left]
            parts.append((table, some))
            first += len(some)
            left -= len(some)
            if not left:
                yield parts
                parts, left = [], WRITTEN_AT_ONCE
    if parts:
        yield parts


async def _execute_together(connection: Any, changes: Iterable[_Change]) -> None:
    """Execute statements on different tables as one: each statement would take a round trip."""
    statements, arguments = zip(*changes, strict=True)
    await connection.execute(_in_one(statements), *chain.from_iterable(arguments))


@functools.lru_cache(maxsize=200)
def _in_one(statements: tuple[str, ...]) -> str:
    """Return one statement that executes these. Its parameters are theirs, one statement's after the other's."""
    if len(statements) == 1:
        return statements[0]
    parts: list[str] = []
    count = 0
    for number, statement in enumerate(statements):
        parameters = len(set(_PARAMETER.findall(statement)))
        parts.append(f"part_{number} as ({_renumbered(statement, count)})")
        count += parameters
    return f"with {', '.join(parts)} select"


def _renumbered(statement: str, by: int) -> str:
    """Return the statement with its parameters' numbers raised."""
    return _PARAMETER.sub(lambda found: f"${by + int(found[1])}", statement)


def _arrays(columns: Sequence[RowColumn], values: list[list[Any]]) -> list[Any]:
    """Return one argument per column. Integers and UUIDs are sent as the text of an array, which PostgreSQL parses
    quickly; asyncpg would check each element of a list for nested lists."""
    return [_array(column, value) for column, value in zip(columns, values, strict=True)]


def _array(column: RowColumn, values: list[Any]) -> Any:
    if column.array_type == INTEGERS:
        return f"{{{_json(values)[1:-1].decode()}}}"
    if column.array_type == UUIDS:
        return f"{{{','.join(_texts(values))}}}"
    return values


def _texts(ids: list[UUID]) -> Iterator[str]:
    """Yield the ids as text. Rows of one topic are adjacent and share its id object."""
    last: UUID | None = None
    text = ""
    for an_id in ids:
        if an_id is not last:
            last, text = an_id, an_id.hex
        yield text


def _in_full(statement: str, now: str) -> str:
    return statement.replace("{now}", now).replace("{for_update}", "for update")


def _upsert(table: TableStatements) -> str:
    # As values of a `select`, the arrays are walked together; as tables, PostgreSQL would store each of them first.
    arrays = ", ".join(
        f"unnest(${position}::{column.array_type})" for position, column in enumerate(table.codec.columns, 1)
    )
    return (
        f"insert into {table.name} ({table.columns}) select {arrays} "
        f"on conflict ({table.key}) do update set {table.assignments}"
    )


def _delete(table: TableStatements) -> str:
    keys, named = _keys(table)
    return f"delete from {table.name} using {keys} where {named}"


def _select(table: TableStatements) -> str:
    keys, named = _keys(table)
    return f"select {table.columns} from {keys} join {table.name} on {named}"


def _keys(table: TableStatements) -> tuple[str, str]:
    """Return the keys, given as arrays, as a table expression, and the condition that a row's key is one of them."""
    arrays = ", ".join(
        f"${position}::{column.array_type}" for position, column in enumerate(table.codec.key, 1)
    )
    named = " and ".join(f'"{column.name}" = k.{column.name}_' for column in table.codec.key)
    names = ", ".join(f"{column.name}_" for column in table.codec.key)
    return f"unnest({arrays}) as k ({names})", named
