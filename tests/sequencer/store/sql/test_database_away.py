"""A database that is away, full, locked or slow is said to be unavailable, and used again after."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest
import sqlalchemy as sa
import uvloop

import sequencer.store.sql.postgres as postgres_module
import sequencer.store.sql.sqlite as sqlite_module
import sequencer.store.sql.store as store_module
from sequencer.api.errors import LeaseLost, RequestFailed, SequencerUnavailable
from sequencer.store.rows import CommitRow, CounterRow
from sequencer.store.sql.store import SqlRowStore
from tailrace.background_tasks import cancel_and_wait
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS
from tests.support.row_samples import TOPIC, changes
from tests.support.servers import postgres_server
from tests.support.tls_postgres import make_certificates, tls_before

T = TypeVar("T")


def store_at(url: str) -> SqlRowStore:
    return SqlRowStore(url, clock=ManualClock(), entropy=SeededEntropy(1))


async def become_committer(store: SqlRowStore) -> int:
    await store.open()
    epoch = await store.take_committer_lease("test", "", 60_000)
    assert epoch is not None
    return epoch


async def connect(database: str) -> asyncpg.Connection:
    return await asyncpg.connect(database.replace("+asyncpg", ""))


@contextlib.asynccontextmanager
async def locked(database: str, table_and_mode: str) -> AsyncIterator[asyncpg.Connection]:
    """Hold a lock on a table. Yields a connection that sees who waits; the one with the lock sees only who waited at
    its first look, because a transaction looks once."""
    holder, watcher = await connect(database), await connect(database)
    async with holder.transaction():
        await holder.execute(f"lock table {table_and_mode}")
        yield watcher
    await holder.close()
    await watcher.close()


async def once_available(do: Callable[[], Awaitable[T]]) -> T:
    """Its result, as soon as the database is not said to be unavailable: bounds are short here."""
    while True:
        with contextlib.suppress(SequencerUnavailable):
            return await do()


# -- SQLite ------------------------------------------------------------------------------------------------


async def test_a_file_that_another_process_has_locked_is_unavailable_until_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "BUSY_SECONDS", 0.01)

    store = store_at(f"sqlite:///{tmp_path}/rows.db")
    epoch = await become_committer(store)
    other = sqlite3.connect(tmp_path / "rows.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(SequencerUnavailable, match="another process holds its lock"):
        await store.write(changes(CounterRow("n", 1)), epoch)
    assert await store.runs_from(TOPIC, 0, 0, 1) == []  # readers don't wait for writers
    other.execute("rollback")
    other.close()
    await store.write(changes(CounterRow("n", 2)), epoch)
    assert (await store.load())[CounterRow] == [CounterRow("n", 2)]
    await store.close()


async def test_a_full_disk_refuses_the_write_whole_and_takes_the_next_that_fits(tmp_path: Path) -> None:
    store = store_at(f"sqlite:///{tmp_path}/rows.db")
    epoch = await become_committer(store)
    ((pages,),) = await store._database.fetch("pragma page_count")
    await store._database.fetch(f"pragma max_page_count = {pages + 2}")
    large = CommitRow(TOPIC, 1, bytes(1_000_000))
    with pytest.raises(SequencerUnavailable, match="the disk is full"):
        await store.write(changes(CounterRow("n", 1), large), epoch)
    await store.write(changes(CounterRow("n", 2)), epoch)
    loaded = await store.load()
    assert loaded[CounterRow] == [CounterRow("n", 2)] and loaded[CommitRow] == []
    await store.close()


async def test_on_sqlite_slow_reads_keep_neither_the_lease_nor_commits_waiting(tmp_path: Path) -> None:
    store = store_at(f"sqlite:///{tmp_path}/rows.db")
    epoch = await become_committer(store)
    may_end = threading.Event()
    reads: Any = store.reads()
    reading = asyncio.create_task(reads._database._read(lambda engine: may_end.wait(PATIENCE_SECONDS)))
    assert await store.renew_committer_lease(epoch, 60_000)
    await store.write(changes(CounterRow("n", 1)), epoch)
    assert not reading.done()
    may_end.set()
    await reading
    assert (await store.load())[CounterRow] == [CounterRow("n", 1)]
    await store.close()


@pytest.mark.parametrize("ending", ["", "-wal"])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_write_is_refused_while_the_file_at_the_path_is_not_the_opened_one(
    tmp_path: Path, is_replaced: bool, ending: str
) -> None:
    """SQLite goes on writing to a file that was deleted or renamed; the next start would not find these writes."""
    path, aside = tmp_path / f"rows.db{ending}", tmp_path / "aside"
    store = store_at(f"sqlite:///{tmp_path}/rows.db")
    epoch = await become_committer(store)
    path.rename(aside)
    if is_replaced:
        path.write_bytes(aside.read_bytes())
    with pytest.raises(SequencerUnavailable, match=f"{path} was deleted or replaced"):
        await store.write(changes(CounterRow("n", 1)), epoch)
    with pytest.raises(SequencerUnavailable, match=f"{path} was deleted or replaced"):
        await store.renew_committer_lease(epoch, 60_000)
    with pytest.raises(SequencerUnavailable, match=f"{path} was deleted or replaced"):
        await store.load()  # the committer would find the write, and acknowledge it when it is retried
    if not ending:
        await store.close()
        with pytest.raises(SequencerUnavailable, match=f"{path} was deleted or replaced"):
            await store.open()
        assert path.exists() == is_replaced, "an empty database began at the path"
    aside.rename(path)
    await store.open()
    await store.write(changes(CounterRow("m", 2)), epoch)
    await store.close()
    await store.open()
    assert CounterRow("m", 2) in (await store.load())[CounterRow]
    await store.close()


async def test_a_path_that_cannot_be_a_file_is_unavailable_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")

    for path in (tmp_path, tmp_path / "taken" / "rows.db"):
        store = store_at(f"sqlite:///{path}")
        with pytest.raises(SequencerUnavailable, match=str(path)):
            await store.open()
        await store.close()


async def test_a_store_that_is_not_open_reports_it_and_one_that_was_closed_opens_again(
    tmp_path: Path,
) -> None:
    store = store_at(f"sqlite:///{tmp_path}/rows.db")
    with pytest.raises(SequencerUnavailable, match="not opened"):
        await store.now_ms()
    await store.close()
    first = await store.open()
    await store.close()
    await store.close()
    assert await store.open() == first
    await store.close()


async def test_a_write_whose_caller_is_cancelled_is_still_whole(tmp_path: Path) -> None:
    store = store_at(f"sqlite:///{tmp_path}/rows.db")
    epoch = await become_committer(store)
    rows = [CounterRow(f"n{number}", 1) for number in range(500)]
    writing = asyncio.create_task(store.write(changes(*rows), epoch))
    await asyncio.sleep(0)
    await cancel_and_wait(writing)
    assert len((await store.load())[CounterRow]) in (0, 500)
    await store.close()


# -- PostgreSQL --------------------------------------------------------------------------------------------


async def test_a_server_that_refuses_connections_is_unavailable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    store = store_at(f"postgresql://somebody:secret@127.0.0.1:{port}/rows")
    with pytest.raises(SequencerUnavailable, match=f"PostgreSQL at 127.0.0.1:{port}/rows") as caught:
        await store.open()
    assert "secret" not in str(caught.value)
    await store.close()


async def test_lost_connections_are_at_most_unavailable_and_made_again(database: str) -> None:
    store = store_at(database)
    epoch = await become_committer(store)
    other = await connect(database)
    await other.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )
    with contextlib.suppress(SequencerUnavailable):  # unless the pool has seen it already
        await store.write(changes(CounterRow("n", 1)), epoch)
    await store.write(changes(CounterRow("n", 2)), epoch)
    assert (await store.load())[CounterRow] == [CounterRow("n", 2)]
    await other.close()
    await store.close()


async def test_a_server_that_takes_no_writes_is_left_so_that_the_next_connection_may_find_the_primary(
    database: str,
) -> None:
    """A name or a proxy leads to the standby during a fail-over, and to the new primary after it."""
    standby = f"alter database {sa.engine.make_url(database).database}"
    other = await connect(database)
    store = store_at(database)
    await become_committer(store)
    await store.close()
    await other.execute(f"{standby} set default_transaction_read_only = on")
    with pytest.raises(SequencerUnavailable, match="read-only"):
        await store.open()
    await other.execute(f"{standby} reset default_transaction_read_only")
    epoch = await become_committer(store)
    assert await store.renew_committer_lease(epoch, 60_000)
    await store.write(changes(CounterRow("n", 1)), epoch)
    read_only = "select current_setting('default_transaction_read_only')"
    assert await store.reads()._database.fetch(read_only) == [("off",)], "a standby's reads would be old"
    await other.close()
    await store.close()


@pytest.mark.parametrize(
    ("of_the_database", "of_ours"), [("off", "on"), ("on", "on"), ("remote_apply", "remote_apply")]
)
async def test_a_commit_is_answered_once_it_is_on_disk_whatever_the_databases_default_is(
    database: str, of_the_database: str, of_ours: str
) -> None:
    other = await connect(database)
    name = sa.engine.make_url(database).database
    await other.execute(f"alter database {name} set synchronous_commit = {of_the_database}")
    store = store_at(database)
    epoch = await become_committer(store)
    setting = "select current_setting('synchronous_commit')"
    for connections in (store._database, store._leases):
        assert await connections.fetch(setting) == [(of_ours,)]
    await store.write(changes(CounterRow("n", 1)), epoch)
    assert await store._database.fetch(setting) == [(of_ours,)], "it lasts beyond a transaction"
    await other.close()
    await store.close()


async def test_a_connection_is_given_back_without_a_round_trip_and_with_nothing_open(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "CONNECTIONS", {"lease": 1, "commits": 1, "reads": 1})

    store = store_at(database)
    epoch = await become_committer(store)
    other = await connect(database)
    await store.load()
    assert await store.journal_from(1, 1) == []
    left = await other.fetch(
        "select state, query from pg_stat_activity where application_name = 'tailrace-sequencer commits'"
    )
    assert [(row["state"], "from journal" in row["query"]) for row in left] == [("idle", True)]

    await other.execute("begin; lock table counters")
    writing = asyncio.create_task(store.write(changes(CounterRow("n", 1)), epoch))
    while not await other.fetchval("select count(*) from pg_locks where not granted"):
        await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    await other.execute("rollback")
    await store.write(changes(CounterRow("n", 2)), epoch)
    assert (await store.load())[CounterRow] == [CounterRow("n", 2)]
    await other.close()
    await store.close()


async def test_a_store_that_is_opened_at_every_try_to_lead_keeps_its_connections(database: str) -> None:
    store = store_at(database)
    first = await store.open()
    count = "select count(*) from pg_stat_activity where datname = current_database()"
    ((before,),) = await store._database.fetch(count)
    assert [await store.open() for _ in range(5)] == [first] * 5
    ((after,),) = await store._database.fetch(count)
    assert after == before
    await store.close()
    assert await store.open() == first
    await store.close()


async def test_taking_the_lease_waits_for_the_transaction_that_saw_the_old_epoch(
    database: str,
) -> None:
    store, next_store = store_at(database), store_at(database)
    epoch = await become_committer(store)
    await next_store.open()
    await store.release_committer_lease(epoch)
    async with locked(database, "counters in exclusive mode") as watcher:
        writing = asyncio.create_task(store.write(changes(CounterRow("n", 1)), epoch))
        await until_waiting(watcher, 1)
        taking = asyncio.create_task(next_store.take_committer_lease("next", "", 60_000))
        await until_waiting(watcher, 2)
        assert not taking.done()
        # Its own renewal waits for neither.
        assert not await asyncio.wait_for(store.renew_committer_lease(epoch, 60_000), PATIENCE_SECONDS)
    await writing
    assert await taking == epoch + 1
    assert (await next_store.load())[CounterRow] == [CounterRow("n", 1)]
    with pytest.raises(LeaseLost):
        await store.write(changes(CounterRow("n", 2)), epoch)
    await store.close()
    await next_store.close()


async def test_a_lease_is_renewed_while_a_write_takes_long(database: str) -> None:
    store = store_at(database)
    epoch = await become_committer(store)
    async with locked(database, "counters in exclusive mode") as watcher:
        writing = asyncio.create_task(store.write(changes(CounterRow("n", 1)), epoch))
        await until_waiting(watcher, 1)
        assert await asyncio.wait_for(store.renew_committer_lease(epoch, 60_000), PATIENCE_SECONDS)
        assert not writing.done()
    await writing
    await store.close()


async def test_a_load_sees_a_write_whose_commit_was_still_under_way(database: str) -> None:
    store = store_at(database)
    await become_committer(store)
    watcher = await connect(database)
    lost = await connect(database)
    writing = lost.transaction()
    await writing.start()
    await lost.execute("select committer_epoch from cluster for key share")
    await lost.execute("insert into counters values ('n', 1)")
    loading = asyncio.create_task(store.load())
    await until_waiting(watcher, 1)
    await writing.commit()
    assert (await loading)[CounterRow] == [CounterRow("n", 1)]
    for opened in (store, lost, watcher):
        await opened.close()


async def test_a_statement_that_takes_too_long_is_ended(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(database)
    await store.open()
    await store.close()
    monkeypatch.setattr(postgres_module, "STATEMENT_SECONDS", 2.0)
    await store.open()
    with pytest.raises(SequencerUnavailable):
        await store._database.fetch("select pg_sleep(600)")
    assert await store.now_ms() > 0
    await store.close()


def test_a_write_that_waits_for_a_synchronous_standby_shows_nothing_before_the_standby_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that is asked to cancel such a COMMIT ends the wait and shows the transaction, which a fail-over to the
    standby would lose."""
    monkeypatch.setattr(postgres_module, "STATEMENT_SECONDS", 2.0)

    async def act(url: str) -> None:
        store = store_at(url)
        epoch = await become_committer(store)
        other = await connect(url)
        await other.execute("alter system set synchronous_standby_names = 'nobody'")
        await other.execute("select pg_reload_conf()")
        stored = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(SequencerUnavailable):
                while True:  # until the server has read its settings
                    await store.write(changes(CounterRow("n", stored + 1)), epoch)
                    stored += 1
        shown = await other.fetchval("select coalesce(max(value), 0) from counters where name = 'n'")
        assert shown == stored
        await other.execute("alter system reset synchronous_standby_names")
        await other.execute("select pg_reload_conf()")
        async with asyncio.timeout(PATIENCE_SECONDS):
            loaded = await once_available(store.load)
        assert loaded[CounterRow] == [CounterRow("n", stored + 1)], "nobody needs to have it now"
        await store.write(changes(CounterRow("n", stored + 2)), epoch)
        await other.close()
        await store.close()

    with postgres_server(fsync=True) as server:
        asyncio.run(act(server.create_database()))


async def test_a_name_that_is_too_long_for_an_index_is_refused_and_nothing_is_written(
    database: str,
) -> None:
    store = store_at(database)
    epoch = await become_committer(store)
    entropy = SeededEntropy(3)
    name = "".join(entropy.uuid().hex for _ in range(1_000))
    with pytest.raises(RequestFailed, match="index row"):
        await store.write(changes(CounterRow("n", 1), CounterRow(name, 1)), epoch)
    assert (await store.load())[CounterRow] == []
    await store.close()


async def test_slow_reads_keep_neither_the_lease_nor_commits_waiting(database: str) -> None:
    store = store_at(database)
    epoch = await become_committer(store)
    async with locked(database, "runs in access exclusive mode") as watcher:
        reads = store.reads()
        slow = [asyncio.create_task(reads.statistics()) for _ in range(20)]
        await until_waiting(watcher, 8)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await store.renew_committer_lease(epoch, 60_000)
            await store.write(changes(CounterRow("n", 1)), epoch)
            assert await store.now_ms() > 0
        assert not any(task.done() for task in slow)
    await asyncio.gather(*slow)
    await store.close()


async def test_a_load_may_take_longer_than_a_statement(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LOADED_AT_ONCE", 2)

    class SlowTurns(ManualClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(1.0)

    store = SqlRowStore(database, clock=SlowTurns(), entropy=SeededEntropy(1))
    epoch = await become_committer(store)
    rows = [CounterRow(f"n{number}", number) for number in range(6)]
    await store.write(changes(*rows), epoch)
    await store.close()
    monkeypatch.setattr(postgres_module, "STATEMENT_SECONDS", 2.0)
    monkeypatch.setattr(postgres_module, "IDLE_SECONDS", 0.5)
    await store.open()
    assert (await store.load())[CounterRow] == rows
    await store.close()


@pytest.mark.parametrize("is_mute_from", ["before the query", "during the query"])
def test_a_tls_front_that_stalls_blocks_nobody_and_is_used_again(
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_mute_from: str,
) -> None:
    """Also the driver's requests to cancel a statement go through it, each by a connection of its own."""
    for bound in ("STATEMENT_SECONDS", "CONNECT_SECONDS", "LEASE_SECONDS"):
        monkeypatch.setattr(postgres_module, bound, 1.0)
    certificates = make_certificates(tmp_path, "127.0.0.1")

    async def act(front: int) -> None:
        proxy = MuteableProxy("127.0.0.1", front)
        behind = sa.engine.make_url(database).set(
            host="127.0.0.1",
            port=await proxy.start(),
            query={"sslmode": "verify-full", "sslrootcert": str(certificates.ca)},
        )
        store = store_at(behind.render_as_string(hide_password=False))
        epoch = await once_available(lambda: become_committer(store))
        blocker = await connect(database)

        async def work() -> list[object]:
            """Everything that a committing task asks, more often than there are connections."""
            asked = [store.write(changes(CounterRow("n", 1)), epoch), store.load(), store.now_ms()]
            asked += [store.renew_committer_lease(epoch, 60_000), store.committer_address()]
            return await asyncio.gather(*asked, return_exceptions=True)

        async with blocker.transaction():
            await blocker.execute("select from cluster for update")
            if is_mute_from == "before the query":
                proxy.mute()
            working = asyncio.create_task(work())
            if is_mute_from != "before the query":
                await until_waiting(blocker, 1)
            proxy.mute()
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert any(isinstance(answer, SequencerUnavailable) for answer in await working)
                with pytest.raises(SequencerUnavailable):
                    await store.write(changes(CounterRow("n", 2)), epoch)
        proxy.speak()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(isinstance(answer, Exception) for answer in await work()):
                pass
        proxy.mute()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await store.close()
        await blocker.close()
        await proxy.stop()

    place = sa.engine.make_url(database)
    assert place.port is not None
    with tls_before(place.port, certificates) as front:
        uvloop.run(act(front))


class MuteableProxy:
    """In front of a database: while it is mute, nothing passes and no connection ends, as behind a cut network."""

    def __init__(self, host: str, port: int) -> None:
        self._place = host, port
        self._passing = asyncio.Event()
        self._passing.set()
        self._pumps: list[asyncio.Task[None]] = []
        self.passes_ends = True
        """Whether the end of one connection ends the other."""
        self.passed = 0
        """Pieces of data that were passed on."""

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def mute(self) -> None:
        self._passing.clear()

    def speak(self) -> None:
        self._passing.set()

    async def stop(self) -> None:
        self._server.close()
        await cancel_and_wait(*self._pumps)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(*self._place)
        self._pumps.append(asyncio.create_task(self._pump(reader, there[1])))
        self._pumps.append(asyncio.create_task(self._pump(there[0], writer)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._passing.wait()
                writer.write(data)
                self.passed += 1
        if self.passes_ends:
            writer.close()


@pytest.mark.parametrize("work", ["write", "load"])
async def test_a_database_that_falls_silent_blocks_nobody_and_is_used_again(
    database: str, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    monkeypatch.setattr(postgres_module, "STATEMENT_SECONDS", 2.0)
    monkeypatch.setattr(postgres_module, "CONNECT_SECONDS", 1.0)

    place = sa.engine.make_url(database)
    assert place.host is not None and place.port is not None
    proxy = MuteableProxy(place.host, place.port)
    behind = place.set(host="127.0.0.1", port=await proxy.start())
    store = store_at(behind.render_as_string(hide_password=False))
    epoch = await once_available(lambda: become_committer(store))

    async def do() -> None:
        if work == "write":
            await store.write(changes(CounterRow("n", 1)), epoch)
        else:
            await store.load()

    await once_available(do)
    other = await connect(database)
    async with other.transaction():
        await other.execute("select from cluster for update")
        doing = asyncio.create_task(do())
        await until_waiting(other, 1)  # within its transaction
        proxy.mute()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(SequencerUnavailable):
                await doing
    await other.close()
    proxy.speak()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await once_available(do)
    await store.close()
    await proxy.stop()


async def test_a_connection_that_the_server_ends_between_two_statements_names_where_the_reason_stands(
    database: str,
) -> None:
    """The driver forgets the server's words if it asked nothing at that time."""
    place = sa.engine.make_url(database)
    assert place.host is not None and place.port is not None
    proxy = MuteableProxy(place.host, place.port)
    behind = place.set(host="127.0.0.1", port=await proxy.start())
    store = store_at(behind.render_as_string(hide_password=False))
    epoch = await become_committer(store)
    other = await connect(database)
    proxy.passes_ends = False  # the words arrive first
    passed = proxy.passed
    await other.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tailrace-sequencer commits'"
    )
    while proxy.passed == passed:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    with pytest.raises(SequencerUnavailable, match="ended this connection; its log says why"):
        await store.write(changes(CounterRow("n", 1)), epoch)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await once_available(lambda: store.write(changes(CounterRow("n", 2)), epoch))
    proxy.passes_ends = True
    await other.close()
    await store.close()
    await proxy.stop()


async def until_waiting(connection: asyncpg.Connection, count: int) -> None:
    asked = (
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock'"
    )
    while await connection.fetchval(asked) < count:
        await asyncio.sleep(0)
