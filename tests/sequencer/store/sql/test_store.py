"""The SQL store on both databases: what is written is what is read, by the committer only."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

import sequencer.store.sql.postgres as postgres_module
import sequencer.store.sql.store as store_module
from sequencer.api.commits import ObjectKind
from sequencer.api.errors import LeaseLost, RequestFailed, SequencerUnavailable
from sequencer.store.row_store import LONGEST_LEASE_MS, ObjectRowMissing
from sequencer.store.rows import (
    LOOKED_UP,
    Changes,
    CounterRow,
    JournalRow,
    LogEpoch,
    ObjectRow,
    PartitionRow,
    RunRow,
    key_of,
)
from sequencer.store.sql.store import SqlRowStore, UnknownDatabase
from tailrace.limits import INT64_MAX
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.row_samples import BIGGEST, TOPIC, changes, object_row, one_of_each_kind, run_row
from tests.support.servers import PostgresServer

Place = Callable[[], SqlRowStore]
CLOCK = ManualClock()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Makes stores on one and the same database."""
    entropy = SeededEntropy(1)
    if request.param == "sqlite":
        yield lambda: SqlRowStore(f"sqlite:///{tmp_path}/rows.db", clock=CLOCK, entropy=entropy)
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create_database()
    yield lambda: SqlRowStore(url, clock=CLOCK, entropy=entropy)
    server.drop_database(url)


@asynccontextmanager
async def opened_store(place: Place) -> AsyncIterator[tuple[SqlRowStore, int]]:
    """An open store whose committer we are, and the epoch of our lease."""
    store = place()
    try:
        await store.open()
        epoch = await store.take_committer_lease("test", "here:1", 60_000)
        assert epoch is not None
        yield store, epoch
    finally:
        await store.close()


async def test_an_sqlite_database_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    store = SqlRowStore(f"sqlite:///{tmp_path}/mistyped/rows.db", clock=CLOCK, entropy=SeededEntropy(1))
    with pytest.raises(SequencerUnavailable, match="its folder does not exist"):
        await store.open()
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_new_cluster_in_an_empty_database_is_logged_once(place: Place) -> None:
    with capture_logs() as logs:
        for _ in range(2):
            store = place()
            await store.open()
            await store.close()
    assert [line["event"] for line in logs] == ["the database was empty: a new cluster begins"]


async def test_loaded_partitions_of_a_topic_share_its_id_and_equal_epochs(place: Place) -> None:
    topics = (UUID(int=1), UUID(int=2))
    rows = [
        PartitionRow(topic, partition, 0, 0, -1, [LogEpoch(topic.int, 0)])
        for topic in topics
        for partition in range(3)
    ]

    async with opened_store(place) as (store, epoch):
        await store.write(changes(*rows), epoch)
        loaded = cast("list[PartitionRow]", (await store.load())[PartitionRow])
        assert sorted(loaded, key=repr) == sorted(rows, key=repr)
        assert len({id(row.topic_id) for row in loaded}) == len({id(row.epochs) for row in loaded}) == 2


async def test_rows_of_every_kind_come_back_as_they_were_written_also_after_a_restart(place: Place) -> None:
    rows = one_of_each_kind()
    async with opened_store(place) as (store, epoch):
        await store.write(changes(*rows), epoch)
    async with opened_store(place) as (store, _):
        loaded = await store.load()
        found = [row for of_kind in loaded.values() for row in of_kind]
        for kind in LOOKED_UP:
            found += await store.rows_after(kind, None, 100)  # these are not loaded
        assert sorted(map(repr, found)) == sorted(map(repr, rows))
        assert set(loaded[CounterRow]) == {CounterRow("commit_number", BIGGEST)}


async def test_a_row_that_is_written_again_replaces_the_first_and_a_deleted_one_is_gone(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        rows = one_of_each_kind()
        await store.write(changes(*rows, CounterRow("other", 1)), epoch)
        await store.write(changes(*rows, CounterRow("other", 2)), epoch)
        assert CounterRow("other", 2) in (await store.load())[CounterRow]
        removal = Changes()
        for row in rows:
            removal.delete(type(row), key_of(row))
        await store.write(removal, epoch)
        left = [row for found in (await store.load()).values() for row in found]
        assert left == [CounterRow("other", 2)]


@pytest.mark.parametrize("at_once", [1, 4, 1_000])
async def test_on_postgresql_a_statement_changes_rows_of_many_tables_up_to_a_number(
    database: str, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(postgres_module, "WRITTEN_AT_ONCE", at_once)
    execute_together, statements = postgres_module._execute_together, 0

    def counted(*args: Any) -> Awaitable[None]:
        nonlocal statements
        statements += 1
        return execute_together(*args)

    monkeypatch.setattr(postgres_module, "_execute_together", counted)
    rows = [*one_of_each_kind(), *(CounterRow(f"n{number}", number) for number in range(10))]

    async with opened_store(lambda: SqlRowStore(database, clock=CLOCK, entropy=SeededEntropy(1))) as (
        store,
        epoch,
    ):
        await store.write(changes(*rows), epoch)
        upserted = [row for row in rows if not (isinstance(row, RunRow) and row.kind is ObjectKind.MIXED)]
        assert statements == math.ceil(len(upserted) / at_once), "runs of mixed objects are copied"
        changed = Changes()
        for number in range(5):
            changed.delete(CounterRow, (f"n{number}",))
            changed.put(CounterRow(f"n{number + 5}", 0))
        await store.write(changed, epoch)
        kept = [row for row in rows if not isinstance(row, CounterRow) or row.name == "commit_number"]
        kept += [CounterRow(f"n{number}", 0) for number in range(5, 10)]
        found = [row for of_kind in (await store.load()).values() for row in of_kind]
        for kind in LOOKED_UP:
            found += await store.rows_after(kind, None, 100)
        assert sorted(map(repr, found)) == sorted(map(repr, kept))


async def test_a_key_can_move_to_another_object_in_one_write(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        old = object_row(1)
        await store.write(changes(old), epoch)
        made = Changes()
        new = ObjectRow(UUID(int=5), *[getattr(old, name) for name in old.__struct_fields__[1:]])
        made.put(new)
        made.delete(ObjectRow, key_of(old))
        await store.write(made, epoch)
        assert await store.objects_after("", 10) == [new]


async def test_the_identity_stays_and_two_databases_have_two(place: Place, tmp_path: Path) -> None:
    stores = [
        place(),
        place(),
        SqlRowStore(f"sqlite:///{tmp_path}/b.db", clock=CLOCK, entropy=SeededEntropy(7)),
    ]
    first, again, other = [await store.open() for store in stores]
    assert first == again
    assert first.incarnation == 1
    assert first.cluster_id != other.cluster_id
    for store in stores:
        await store.close()


async def test_two_servers_that_open_an_empty_database_together_find_one_cluster(place: Place) -> None:
    stores = [place(), place(), place()]
    found = await asyncio.gather(*(store.open() for store in stores))
    assert len({identity.cluster_id for identity in found}) == 1
    for store in stores:
        await store.close()


async def test_the_lease_has_one_holder_and_each_that_takes_it_has_a_higher_epoch(place: Place) -> None:
    a, b = place(), place()
    await a.open()
    await b.open()
    assert await a.committer_address() is None
    epoch = await a.take_committer_lease("a", "a:1", 60_000)
    assert epoch is not None
    assert await b.take_committer_lease("b", "b:1", 60_000) is None
    assert await a.renew_committer_lease(epoch, 60_000)
    again = await a.take_committer_lease("a", "a:1", 60_000)  # its first answer was lost
    assert again == epoch + 1
    assert not await a.renew_committer_lease(epoch, 60_000)
    assert await b.committer_address() == "a:1"
    await a.release_committer_lease(again)
    assert not await a.renew_committer_lease(again, 60_000)
    assert await b.committer_address() is None
    taken = await b.take_committer_lease("b", "b:1", 0)  # lapses at once
    assert taken == again + 1
    assert await b.renew_committer_lease(taken, 0)  # late, but nobody else took it
    assert await a.committer_address() is None
    assert await a.take_committer_lease("a", "a:1", 60_000) == taken + 1
    assert not await b.renew_committer_lease(taken, 60_000)
    await b.release_committer_lease(taken)  # not its own any more
    assert await b.committer_address() == "a:1"
    await a.close()
    await b.close()


async def test_a_lease_ends_soon_when_the_databases_clock_has_gone_back_and_its_holder_is_gone(
    place: Place,
) -> None:
    a, b = place(), place()
    await a.open()
    await b.open()
    epoch = await a.take_committer_lease("a", "a:1", 2_000)
    assert epoch is not None
    # As when the clock goes back by an hour: no renewal sets such an end.
    await a._database.execute(
        "update cluster set committer_expires_ms = committer_expires_ms + 3600000 returning id"
    )
    assert await b.committer_address() is None
    assert await b.take_committer_lease("b", "b:1", 2_000) is None
    assert await b.committer_address() == "a:1", "the lease may be valid until its new end"
    ((left_ms,),) = await b._database.fetch("select committer_expires_ms - {now} from cluster")
    assert 2_000 < left_ms <= LONGEST_LEASE_MS
    assert await a.renew_committer_lease(epoch, 2_000), "nobody has taken it"
    await a.close()
    await b.close()


async def test_a_file_says_by_reading_that_nobody_took_the_lease_and_a_server_that_may_be_a_standby_does_not(
    place: Place,
) -> None:
    a, b = place(), place()
    await a.open()
    await b.open()
    epoch = await a.take_committer_lease("a", "a:1", 0)
    assert epoch is not None
    assert await a.is_lease_free(epoch) == (a._dialect == "sqlite")
    assert await b.take_committer_lease("b", "b:1", 0)
    assert not await a.is_lease_free(epoch)
    await a.close()
    await b.close()


async def test_a_renewal_that_arrives_late_shortens_no_lease(place: Place) -> None:
    a, b = place(), place()
    await a.open()
    await b.open()
    epoch = await a.take_committer_lease("a", "a:1", 0)
    assert epoch is not None
    assert await a.renew_committer_lease(epoch, 30_000)
    assert await a.renew_committer_lease(epoch, 0)  # was sent before the one above
    assert await b.take_committer_lease("b", "b:1", 60_000) is None
    await a.close()
    await b.close()


async def test_a_write_with_a_value_that_does_not_fit_is_refused_whole(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        for unfit in (CounterRow("big", 1 << 63), CounterRow("lone \ud800", 1)):
            with pytest.raises(RequestFailed):
                await store.write(changes(CounterRow("good", 1), unfit), epoch)
        assert (await store.load())[CounterRow] == []
        await store.write(changes(CounterRow("good", 1)), epoch)
        assert (await store.load())[CounterRow] == [CounterRow("good", 1)]


async def test_one_of_many_concurrent_requests_gets_the_lease(place: Place) -> None:
    stores = [place() for _ in range(4)]
    for store in stores:
        await store.open()
    epochs = await asyncio.gather(
        *(store.take_committer_lease(f"s{n}", "", 60_000) for n, store in enumerate(stores))
    )
    assert [epoch for epoch in epochs if epoch is not None] == [1]
    for store in stores:
        await store.close()


async def test_a_committer_that_was_followed_by_another_writes_nothing(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        await store.release_committer_lease(epoch)
        assert await store.take_committer_lease("next", "", 60_000) == epoch + 1
        with pytest.raises(LeaseLost):
            await store.write(changes(CounterRow("n", 1)), epoch)
        assert (await store.load())[CounterRow] == []


async def test_a_write_that_fails_half_way_leaves_nothing(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        await store.write(changes(object_row(1)), epoch)
        twin = ObjectRow(
            UUID(int=5), *[getattr(object_row(1), name) for name in ObjectRow.__struct_fields__[1:]]
        )
        with pytest.raises(
            Exception, match=r"(?i)unique"
        ) as caught:  # two objects of one key: a bug of the caller
            await store.write(changes(CounterRow("n", 1), twin), epoch)
        assert not isinstance(caught.value, SequencerUnavailable)
        assert (await store.load())[CounterRow] == []


async def test_runs_are_read_from_an_offset_until_enough_bytes(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        stored = object_row(1)
        rows = [run_row(base, base + 10, stored) for base in range(0, 100, 10)]
        await store.write(changes(stored, *rows), epoch)
        bases = [[run.base_offset for run in await store.runs_from(TOPIC, 0, *query)] for query in
                 [(0, 1), (9, 1), (10, 101), (95, 10_000), (100, 1), (0, 10_000, 3)]]  # fmt: skip
        assert bases == [[0], [0], [10, 20], [90], [], [0, 10, 20]]
        many = await store.runs_from_many([(TOPIC, 0, 95, 1), (TOPIC, 1, 0, 1), (TOPIC, 0, 15, 200)])
        assert [[run.base_offset for run in runs] for runs in many] == [[90], [], [10, 20]]
        assert await store.runs_from_many([]) == []


async def test_runs_of_uneven_lengths_are_read_until_enough_bytes(place: Place) -> None:
    lengths = [1_000, 1, 1, 30, 1, 1, 500, 1, 70_000, 1, 1, 1, 0, 0, 9] * 6
    async with opened_store(place) as (store, epoch):
        stored = object_row(1)
        rows = [run_row(base, base + 1, stored, length=length) for base, length in enumerate(lengths)]
        await store.write(changes(stored, *rows), epoch)
        for first in (0, 1, 12, 80):
            for max_bytes in (0, 1, 2, 3, 1_002, 71_000, 200_000, INT64_MAX):
                for max_runs in (1, 2, 7, 1_000):
                    read = await store.runs_from(TOPIC, 0, first, max_bytes, max_runs)
                    before = accumulate(lengths[first:], initial=0)
                    count = sum(
                        number == 0 or sum_before < max_bytes for number, sum_before in enumerate(before)
                    )
                    most = min(count, len(lengths) - first, max_runs)
                    assert [run.base_offset for run in read] == list(range(first, first + most))


async def test_a_time_is_found_behind_a_run_from_the_future_that_is_gone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "SCAN_RUNS", 3)

    async with opened_store(place) as (store, epoch):
        stored = object_row(1)
        future = 4_000_000
        rows = [run_row(n, n + 1, stored, max_timestamp=n, running_max=future) for n in range(20)]
        await store.write(changes(stored, *rows), epoch)
        found = (await store.first_run_reaching(TOPIC, 0, 15, 2, 100)).run
        assert found is not None and found.base_offset == 15
        assert (await store.first_run_reaching(TOPIC, 0, 20, 0, 100)).run is None
        assert (await store.first_run_reaching(TOPIC, 0, future + 1, 0, 100)).run is None
        newest = (await store.run_of_max_timestamp(TOPIC, 0, 0, 100)).run
        assert newest is not None and newest.base_offset == 19


async def test_a_scan_by_own_timestamps_looks_at_no_more_runs_than_it_may(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        stored = object_row(1)
        future = 4_000_000
        rows = [run_row(n, n + 1, stored, max_timestamp=n, running_max=future) for n in range(20)]
        await store.write(changes(stored, *rows), epoch)
        pages = [await store.first_run_reaching(TOPIC, 0, 15, 0, 7)]
        pages.append(await store.first_run_reaching(TOPIC, 0, 15, pages[0].next_offset or -1, 7))
        pages.append(await store.first_run_reaching(TOPIC, 0, 15, pages[1].next_offset or -1, 7))
        assert [(page.scanned, page.next_offset) for page in pages] == [(7, 7), (7, 14), (7, None)]
        assert pages[2].run is not None and pages[2].run.base_offset == 15
        newest = [await store.run_of_max_timestamp(TOPIC, 0, offset, 8) for offset in (0, 8, 16)]
        assert [(page.scanned, page.next_offset) for page in newest] == [(8, 8), (8, 16), (4, None)]
        assert [page.run and page.run.base_offset for page in newest] == [7, 15, 19]


async def test_large_sets_of_keys_and_ids_are_asked_whole(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        rows = [object_row(n) for n in range(1200)]
        await store.write(changes(*rows), epoch)
        assert await store.object_rows([row.object_id for row in reversed(rows)]) == rows[::-1]
        keys = [row.key for row in rows]
        assert await store.keys_known([*keys, "unknown", "nul\x00"]) == keys
        assert await store.object_rows([]) == [] and await store.keys_known([]) == []


async def test_the_databases_clock_is_near_ours(place: Place) -> None:
    async with opened_store(place) as (store, _):
        assert await store.now_ms() >= CLOCK.wall_ms()


async def test_a_run_that_names_no_object_is_not_passed_on(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        await store.write(changes(run_row(0, 1, object_row(1))), epoch)
        with pytest.raises(ObjectRowMissing, match="has no row"):
            await store.runs_from(TOPIC, 0, 0, 1)
        assert [run.key for run in await store.runs_from(TOPIC, 0, 0, 1, with_batches=False)] == [""]
        removal = Changes()
        removal.delete(RunRow, (TOPIC, 0, 0))
        await store.write(removal, epoch)
        assert await store.runs_from(TOPIC, 0, 0, 1) == []


def test_a_url_that_names_no_known_database_is_refused() -> None:
    for url in ("mysql://host/db", "nothing", "duckdb:///x", "sqlite://rows.db", "sqlite://data/rows.db"):
        with pytest.raises(UnknownDatabase, match="sqlite"):
            SqlRowStore(url, clock=CLOCK, entropy=SeededEntropy(1))


@pytest.mark.parametrize("counter", ["commit_number", "journal_number"])
async def test_a_postgresql_that_went_back_under_its_committer_is_not_written_to(
    database: str, counter: str
) -> None:
    async with opened_store(lambda: SqlRowStore(database, clock=CLOCK, entropy=SeededEntropy(1))) as (
        store,
        epoch,
    ):
        for number in range(1, 4):
            await store.write(changes(CounterRow(counter, number)), epoch)
        await store._database.execute("update counters set value = 1 where name = $1", counter)
        with pytest.raises(SequencerUnavailable, match=f"at {counter} 1,"):
            await store.write(changes(CounterRow(counter, 4)), epoch)


async def test_run_rows_come_page_by_page_in_the_order_of_their_keys(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        stored = object_row(1)
        rows = [
            run_row(base, base + 5, stored, partition=partition, topic_id=topic)
            for topic in (UUID(int=1), UUID(int=2**127 + 1))
            for partition in (0, 3)
            for base in (0, 5, 10)
        ]
        await store.write(changes(stored, *reversed(rows)), epoch)
        assert await store.run_rows_after(None, 100) == rows
        found: list[RunRow] = []
        while page := await store.run_rows_after(key_of(found[-1]) if found else None, 4):  # type: ignore[arg-type]
            found += page
        assert found == rows


async def test_a_database_takes_over_anothers_identity(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        await store.adopt("other", 3, epoch)
        assert (await store.identity()).incarnation == 3
        assert (await store.open()).cluster_id == "other"
        with pytest.raises(LeaseLost):
            await store.adopt("third", 4, epoch + 1)


async def test_the_journal_is_read_from_a_number_on_in_order(place: Place) -> None:
    async with opened_store(place) as (store, epoch):
        rows = [JournalRow(number, 7 * number, bytes([number])) for number in (3, 1, 2, 11)]
        await store.write(changes(*rows), epoch)
        gone = Changes()
        gone.delete(JournalRow, (1,))
        await store.write(gone, epoch)
        assert [row.number for row in await store.journal_from(0, 2)] == [2, 3]
        assert await store.journal_from(3, 10) == [rows[0], rows[3]]
        assert list((await store.journal_sizes()).items()) == [(2, 1), (3, 1), (11, 1)]
