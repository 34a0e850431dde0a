"""The durable rows: `SqlRowStore`, on SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from copy import copy
from itertools import repeat
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import structlog
from sqlalchemy import URL

from sequencer.api.errors import LeaseLost, SequencerUnavailable
from sequencer.api.reads import Run
from sequencer.store.quick_ids import quick_id, quick_id_of
from sequencer.store.row_store import (
    LONGEST_LEASE_MS,
    DatabaseIdentity,
    PartitionBytes,
    ScannedRuns,
    StoreStatistics,
)
from sequencer.store.rows import HOT, Changes, GroupOffsetRow, JournalRow, ObjectRow, Row, RunRow
from sequencer.store.sql import statements
from sequencer.store.sql.database import Database, Values, table_statements
from sequencer.store.sql.postgres import PostgresDatabase
from sequencer.store.sql.postgres_url import UnknownDatabase as UnknownDatabase
from sequencer.store.sql.postgres_url import check_files, read_url
from sequencer.store.sql.row_codec import decode_run, text_to_database, uuid_to_database
from sequencer.store.sql.sqlite import SqliteDatabase
from tailrace.clock import Clock, Entropy
from tailrace.gc_freeze import GcFreezer
from tailrace.limits import INT64_MAX
from tailrace.turns import Turns

R = TypeVar("R", bound=Row)
_log = structlog.get_logger(__name__)

DECODED_IN_A_TURN = 500
"""Runs decoded in one turn of the event loop."""
BATCHES_AS_A_RUN = 32
"""A batch table of this length doubles the time to decode a run."""
LOADED_AT_ONCE = 1_000
"""Rows that a load decodes in one turn of the event loop."""
KEYS_AT_ONCE = 10_000
"""Keys that one statement looks up."""
SCAN_RUNS = 10_000
"""Runs that one statement scans by their own timestamps."""
FIRST_SCAN_RUNS = 8
"""Runs that the first statement scans; few, because the run that raised the running maximum nearly always still
exists."""


def open_database(
    url: str,
    *,
    clock: Clock,
    postgres_clock: Clock | None = None,
    password: Callable[[], str] | None = None,
) -> Database:
    """Return the database that a URL names: `sqlite:///relative`, `sqlite:////absolute`,
    `postgresql://user:pass@host/name`.

    Raises UnknownDatabase.
    """
    parsed = _parsed(url)
    if parsed.get_backend_name() == "sqlite":
        in_memory = parsed.database in (None, "", ":memory:")
        return SqliteDatabase(None if in_memory else Path(str(parsed.database)), clock=clock)
    return PostgresDatabase(parsed, clock=postgres_clock, password=password)


def check_database_url(url: str) -> None:
    """Raise UnknownDatabase like `open_database`, but connect to nothing."""
    _parsed(url)


def _parsed(url: str) -> URL:
    parsed = read_url(url)
    kind = parsed.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise UnknownDatabase(f"{kind} is not a known database: want sqlite:///PATH or postgresql://...")
    if kind == "postgresql":
        check_files(parsed)
    return parsed


class SqlRowStore:
    """`sequencer.store.row_store.RowStore` in SQL. Nothing is connected before `open`.

    A `write` that raises SequencerUnavailable or is cancelled may have been applied; a `load` shows whether it was. A
    `write` that raises RequestFailed or LeaseLost has written nothing.

    Args:
        url: see `open_database`.
        clock: SQLite's "database clock"; PostgreSQL has its own.
        entropy: makes the cluster's id if the database is empty.
        auto_migrate: whether `open` may migrate older tables.
        postgres_clock: replaces PostgreSQL's own clock in tests.
        password: returns PostgreSQL's password for each new connection; it replaces the URL's.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        entropy: Entropy,
        auto_migrate: bool = True,
        postgres_clock: Clock | None = None,
        password: Callable[[], str] | None = None,
    ) -> None:
        self._database = open_database(url, clock=clock, postgres_clock=postgres_clock, password=password)
        self._leases = self._database.on("lease")
        self._clock = clock
        self._entropy = entropy
        self._auto_migrate = auto_migrate
        dialect = self._database.dialect
        self._dialect = dialect
        self._tables = table_statements(dialect)
        self._objects = self._tables[ObjectRow]
        self._uuid = uuid_to_database(dialect)
        self._text = text_to_database(dialect)

    def reads(self) -> SqlRowStore:
        """Return the same rows over other connections, so that these reads don't delay the committer."""
        view = copy(self)
        view._database = self._database.on("reads")
        return view

    # -- identity and lease ----------------------------------------------------------------------------

    async def open(self) -> DatabaseIdentity:
        await self._database.start(migrate=self._auto_migrate)
        made = await self._database.execute(statements.MAKE_CLUSTER, str(self._entropy.uuid()))
        if made:
            _log.info("the database was empty: a new cluster begins", cluster_id=made[0][0])
        return await self.identity()

    async def identity(self) -> DatabaseIdentity:
        rows = await self._database.fetch(statements.IDENTITY)
        if not rows:
            raise SequencerUnavailable("the database has no cluster row: it was emptied since it was opened")
        cluster_id, incarnation = rows[0]
        return DatabaseIdentity(cluster_id, incarnation)

    async def adopt(self, cluster_id: str, incarnation: int, committer_epoch: int) -> None:
        if not await self._database.execute(statements.ADOPT, cluster_id, incarnation, committer_epoch):
            raise LeaseLost(f"committer epoch {committer_epoch} is over: another has taken the lease")

    async def now_ms(self) -> int:
        return await self._database.now_ms()

    async def take_committer_lease(self, holder: str, address: str, lease_ms: int) -> int | None:
        assert holder, "a committer has a name"
        taken = await self._database.execute(
            statements.TAKE_COMMITTER_LEASE, self._text(holder), self._text(address), lease_ms
        )
        if taken:
            return int(taken[0][0])
        await self._database.execute(statements.CORRECT_LEASE_END, LONGEST_LEASE_MS)
        return None

    async def renew_committer_lease(self, epoch: int, lease_ms: int) -> bool:
        longest_ms = max(lease_ms, LONGEST_LEASE_MS)
        return bool(await self._leases.execute(statements.RENEW_COMMITTER_LEASE, epoch, lease_ms, longest_ms))

    async def is_lease_free(self, epoch: int) -> bool:
        if self._dialect != "sqlite":
            return False
        return bool(await self._leases.fetch(statements.LEASE_UNTAKEN, epoch))

    async def committer_address(self) -> str | None:
        rows = await self._leases.fetch(statements.COMMITTER_ADDRESS, LONGEST_LEASE_MS)
        return str(rows[0][0]) if rows else None

    async def release_committer_lease(self, epoch: int) -> None:
        await self._leases.execute(statements.RELEASE_COMMITTER_LEASE, epoch)

    # -- hot rows --------------------------------------------------------------------------------------

    async def load(self) -> dict[type[Row], list[Row]]:
        tables = [self._tables[kind] for kind in HOT]
        loaded: dict[type[Row], list[Row]] = {kind: [] for kind in HOT}
        count = GcFreezer()
        async with aclosing(
            self._database.fetch_pages([table.select_all for table in tables], LOADED_AT_ONCE)
        ) as pages:
            async for index, page in pages:
                codec = tables[index].codec
                loaded[codec.kind] += [codec.decode_row(values) for values in page]
                count.add(len(page))
                await self._clock.sleep(0)  # other tasks run, so that the lease is renewed
        return loaded

    async def rows_under(self, kind: type[R], keys: Sequence[tuple[object, ...]]) -> list[R]:
        decoded: list[R] = []
        for first in range(0, len(keys), KEYS_AT_ONCE):
            rows = await self._database.fetch_by_keys(kind, keys[first : first + KEYS_AT_ONCE])
            decoded += await self._decoded(kind, rows)
        return decoded

    async def rows_after(self, kind: type[R], key: tuple[object, ...] | None, limit: int) -> list[R]:
        table = self._tables[kind]
        if key is None:
            return await self._decoded(kind, await self._database.fetch(statements.first_rows(table), limit))
        values = [column[0] for column in table.codec.encode_keys([key])]
        return await self._decoded(
            kind, await self._database.fetch(statements.rows_after(table), *values, limit)
        )

    async def positions_of(
        self, group_id: str, after: tuple[UUID, int] | None, limit: int
    ) -> list[GroupOffsetRow]:
        topic_id, partition = after or (UUID(int=0), -1)
        statement = statements.positions_of(self._tables[GroupOffsetRow].columns)
        last_key = (self._text(group_id), self._uuid(topic_id), partition)
        return await self._decoded(GroupOffsetRow, await self._database.fetch(statement, *last_key, limit))

    async def positions_of_groups(self, group_ids: Sequence[str], limit: int) -> list[GroupOffsetRow]:
        statement = statements.positions_of_groups(self._tables[GroupOffsetRow].columns, limit)
        ids = [self._text(group_id) for group_id in dict.fromkeys(group_ids)]
        rows = await self._database.fetch_where_in(statement, "text", ids)
        return await self._decoded(GroupOffsetRow, rows[:limit])

    async def positions_on(self, topic_id: UUID, limit: int) -> list[GroupOffsetRow]:
        statement = statements.positions_on(self._tables[GroupOffsetRow].columns)
        return await self._decoded(
            GroupOffsetRow, await self._database.fetch(statement, self._uuid(topic_id), limit)
        )

    async def _decoded(self, kind: type[R], rows: Sequence[Values]) -> list[R]:
        decode, turns = self._tables[kind].codec.decode_row, Turns(LOADED_AT_ONCE)
        decoded: list[R] = []
        for values in rows:
            decoded.append(decode(values))
            await turns.did()
        return decoded

    async def journal_from(self, number: int, limit: int) -> list[JournalRow]:
        table = self._tables[JournalRow]
        rows = await self._database.fetch(statements.journal_from(table.columns), number, limit)
        return [table.codec.decode_row(values) for values in rows]

    async def journal_sizes(self) -> dict[int, int]:
        rows = await self._database.fetch(statements.JOURNAL_SIZES)
        return {row[0]: row[1] for row in rows}

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        await self._database.write(changes, committer_epoch)

    # -- runs ------------------------------------------------------------------------------------------

    async def runs_from(
        self,
        topic_id: UUID,
        partition: int,
        offset: int,
        max_bytes: int,
        max_runs: int = 1000,
        *,
        with_batches: bool = True,
    ) -> list[Run]:
        query = (topic_id, partition, offset, max_bytes)
        (runs,) = await self.runs_from_many([query], max_runs, with_batches=with_batches)
        return runs

    async def runs_from_many(
        self,
        queries: Sequence[tuple[UUID, int, int, int]],
        max_runs: int = 1000,
        *,
        with_batches: bool = True,
    ) -> list[list[Run]]:
        if not queries:
            return []
        turns = Turns(DECODED_IN_A_TURN)
        fetched = await self._database.fetch_runs(queries, max_runs, with_batches=with_batches)
        return [
            await self._runs(
                zip(repeat((quick_id(topic_id), partition)), rows), turns, with_batches=with_batches
            )
            for (topic_id, partition, _, _), rows in zip(queries, fetched, strict=True)
        ]

    async def first_run_reaching(
        self, topic_id: UUID, partition: int, timestamp: int, from_offset: int, max_scanned: int
    ) -> ScannedRuns:
        where = (self._uuid(topic_id), partition)
        first = await self._database.fetch(statements.FIRST_RUN, *where, from_offset)
        if not first:
            return ScannedRuns(None)
        base_offset, running_max = first[0]
        if running_max < timestamp:
            reached = await self._database.fetch(statements.FIRST_RUNNING_MAX, *where, timestamp)
            if not reached:
                return ScannedRuns(None)
            base_offset = max(base_offset, reached[0][0])
        scanned, most = 0, min(FIRST_SCAN_RUNS, max_scanned)
        while True:
            rows = await self._database.fetch(
                statements.SCAN_BY_OWN_MAX, *where, base_offset, timestamp, most
            )
            if rows:
                return ScannedRuns(decode_run((topic_id, partition), rows[0], self._dialect), scanned + most)
            # This happens only if the run that raised the running maximum was deleted.
            ((last, count),) = await self._database.fetch(statements.SCAN_END, *where, base_offset, most)
            scanned += count
            if count < most:
                return ScannedRuns(None, scanned)
            if scanned >= max_scanned:
                return ScannedRuns(None, scanned, last + 1)
            base_offset = last + 1
            most = min(SCAN_RUNS, max_scanned - scanned)

    async def run_of_max_timestamp(
        self, topic_id: UUID, partition: int, from_offset: int, max_scanned: int, end_offset: int = INT64_MAX
    ) -> ScannedRuns:
        where = (self._uuid(topic_id), partition)
        rows = await self._database.fetch(statements.RUN_OF_RUNNING_MAX, *where, from_offset, end_offset)
        if rows:
            return ScannedRuns(decode_run((topic_id, partition), rows[0], self._dialect), 1)
        first = await self._database.fetch(statements.FIRST_RUN, *where, from_offset)
        if not first:
            return ScannedRuns(None)
        page = (*where, first[0][0], max_scanned, end_offset)
        rows = await self._database.fetch(statements.RUN_OF_OWN_MAX, *page)
        ((last, count),) = await self._database.fetch(statements.SCAN_END_BELOW, *page)
        run = decode_run((topic_id, partition), rows[0], self._dialect) if rows else None
        return ScannedRuns(run, count, last + 1 if count == max_scanned else None)

    async def runs_of_object(self, object_id: UUID) -> list[Run]:
        rows = await self._database.fetch(statements.RUNS_OF_OBJECT, self._uuid(object_id))
        of_sqlite = self._dialect == "sqlite"
        places = [
            (quick_id_of(topic_id) if of_sqlite else topic_id, partition) for *_, topic_id, partition in rows
        ]
        return await self._runs(zip(places, rows, strict=True), Turns(DECODED_IN_A_TURN))

    async def run_rows_after(self, key: tuple[UUID, int, int] | None, limit: int) -> list[RunRow]:
        topic_id, partition, base_offset = key or (UUID(int=0), -1, -1)
        table = self._tables[RunRow]
        rows = await self._database.fetch(
            statements.run_rows_after(table.columns), self._uuid(topic_id), partition, base_offset, limit
        )
        return [table.codec.decode_row(values) for values in rows]

    async def partition_bytes(self, topic_ids: Sequence[UUID] | None) -> list[PartitionBytes]:
        if topic_ids is None:
            rows = await self._database.fetch(statements.PARTITION_BYTES)
        else:
            ids = [self._uuid(topic_id) for topic_id in dict.fromkeys(topic_ids)]
            rows = await self._database.fetch_where_in(statements.PARTITION_BYTES_OF, "uuid", ids)
        return self._partition_bytes(rows)

    async def partition_bytes_within(self, topic_id: UUID, first: int, end: int) -> list[PartitionBytes]:
        return self._partition_bytes(
            await self._database.fetch(statements.PARTITION_BYTES_WITHIN, self._uuid(topic_id), first, end)
        )

    def _partition_bytes(self, rows: Sequence[Values]) -> list[PartitionBytes]:
        return [
            PartitionBytes(UUID(bytes=topic_id) if self._dialect == "sqlite" else topic_id, *numbers)
            for topic_id, *numbers in rows
        ]

    # -- objects ---------------------------------------------------------------------------------------

    async def object_rows(self, object_ids: Sequence[UUID]) -> list[ObjectRow]:
        """Return the rows that exist, in the order of the ids."""
        ids = [self._uuid(object_id) for object_id in dict.fromkeys(object_ids)]
        rows = await self._object_rows(
            await self._database.fetch_where_in(statements.objects_by_id(self._objects.columns), "uuid", ids)
        )
        by_id = {row.object_id: row for row in rows}
        return [by_id[object_id] for object_id in object_ids if object_id in by_id]

    async def objects_after(self, key: str, limit: int) -> list[ObjectRow]:
        return await self._object_rows(
            await self._database.fetch(
                statements.objects_after(self._objects.columns), self._text(key), limit
            )
        )

    async def retired_before(self, retired_ms: int, parquet_ms: int, limit: int) -> list[ObjectRow]:
        statement = statements.retired_before(self._objects.columns)
        return await self._object_rows(await self._database.fetch(statement, retired_ms, parquet_ms, limit))

    async def keys_known(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that have a row, in the order given."""
        encoded = [self._text(key) for key in keys]
        rows = await self._database.fetch_where_in(
            statements.KNOWN_KEYS, "text", list(dict.fromkeys(encoded))
        )
        known = {values[0] for values in rows}
        return [key for key, asked in zip(keys, encoded, strict=True) if asked in known]

    async def statistics(self) -> StoreStatistics:
        (values,) = await self._database.fetch(statements.STATISTICS)
        return StoreStatistics(*values)

    async def close(self) -> None:
        await self._database.stop()

    async def _runs(
        self, rows: Iterable[tuple[tuple[UUID, int], Values]], turns: Turns, *, with_batches: bool = True
    ) -> list[Run]:
        """Decode runs, each with its topic id and partition."""
        runs: list[Run] = []
        for place, values in rows:
            run = decode_run(place, values, self._dialect, may_lack_object=not with_batches)
            runs.append(run)
            if turns.fills(1 + len(run.batches) // BATCHES_AS_A_RUN):
                await turns.give()
        return runs

    async def _object_rows(self, rows: Sequence[Values]) -> list[ObjectRow]:
        turns, decode = Turns(LOADED_AT_ONCE), self._objects.codec.decode_row
        return [decode(values) async for values in turns.over(rows)]
