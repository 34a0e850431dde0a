"""The migrations make exactly the tables that the code names, on both databases, and only when they may."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from sequencer.api import ObjectKind
from sequencer.store.batch_table import EMPTY_TABLE
from sequencer.store.rows import CounterRow
from sequencer.store.sql.migrate import SchemaMismatch, migrate
from sequencer.store.sql.schema import SCHEMA_VERSION, TABLES, metadata
from sequencer.store.sql.store import open_row_store
from sequencer.store.sums import statistics_of
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.row_samples import changes, marker_row
from tests.support.servers import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/rows.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    made = server.create_database()
    yield made
    server.drop_database(made)


def engine(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("+asyncpg", "+psycopg"), poolclass=sa.NullPool)


def open_and_close(url: str, *, auto_migrate: bool = True) -> None:
    async def run() -> None:
        store = open_row_store(url, clock=ManualClock(), entropy=SeededEntropy(1), auto_migrate=auto_migrate)
        try:
            await store.open()
        finally:
            await store.close()

    asyncio.run(run())


def test_the_migrations_make_exactly_the_schema(url: str) -> None:
    open_and_close(url)
    with engine(url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == f"{SCHEMA_VERSION:04}"


OLD_RUNS = [(0, 5, False, 100), (5, 9, True, 40), (9, 12, False, 30)]


def make_first_version(connection: sa.Connection) -> None:
    """A database of schema 0001, with a topic's runs in it."""
    from alembic import command
    from alembic.config import Config

    import sequencer.store.sql.migrations as migrations

    config = Config()
    config.set_main_option("script_location", str(Path(str(migrations.__file__)).parent))
    config.attributes["connection"] = connection
    command.upgrade(config, "0001")
    is_sqlite = connection.dialect.name == "sqlite"

    def uuid(number: int) -> object:
        return UUID(int=number).bytes if is_sqlite else UUID(int=number)

    connection.execute(sa.text("insert into cluster values (1, 'me', 3, 1, '', '', 0, 0)"))
    for kind in (0, 1):
        connection.execute(
            sa.text(
                "insert into objects (object_id, kind, key, size, crc, index_start, created_ms, format_version,"
                " live_runs) values (:id, :kind, :key, 500, 1, 400, 1, 1, 2)"
            ),
            {"id": uuid(10 + kind), "kind": kind, "key": f"k{kind}"},
        )
    for base_offset, end_offset, is_parquet, length in OLD_RUNS:
        connection.execute(
            sa.text(
                "insert into runs values (:topic, 0, :base, :end, :object, 8, :length, 5, 5, 1, 2, :form, :table)"
            ),
            {
                "topic": uuid(1), "base": base_offset, "end": end_offset, "object": uuid(10 + is_parquet),
                "length": length, "form": is_parquet, "table": EMPTY_TABLE,
            },
        )  # fmt: skip


def test_a_database_with_data_of_the_first_version_goes_on(url: str) -> None:
    with engine(url).begin() as connection:
        make_first_version(connection)

    async def run() -> None:
        store = open_row_store(url, clock=ManualClock(), entropy=SeededEntropy(1))
        try:
            identity = await store.open()
            assert (identity.cluster_id, identity.incarnation) == ("me", 3)
            assert identity.schema_version == SCHEMA_VERSION
            found = await store.runs_from(UUID(int=1), 0, 0, 1 << 30)
            assert [(one.base_offset, one.end_offset, one.kind) for one in found] == [
                (0, 5, ObjectKind.MIXED), (5, 9, ObjectKind.PARQUET), (9, 12, ObjectKind.MIXED),
            ]  # fmt: skip
            assert all(one.markers == [] for one in found)
            (size,) = await store.partition_bytes(None)
            assert (size.bytes, size.uncompacted_bytes) == (170, 130)
            counters = {row.name: row.value for row in (await store.load())[CounterRow]}  # type: ignore[attr-defined]
            assert statistics_of(lambda name: counters.get(name, 0)) == await store.statistics()
            assert counters["sum_runs"] == 3
            epoch = await store.take_committer_lease("test", "", 60_000)
            assert epoch is not None
            marked = marker_row(12, topic_id=UUID(int=1), count=2)
            await store.write(changes(marked), epoch)
            (run,) = await store.runs_from(UUID(int=1), 0, 12, 1)
            assert (run.kind, [one.offset for one in run.markers]) == (ObjectKind.MARKERS, [12, 13])
        finally:
            await store.close()

    asyncio.run(run())


def test_the_first_version_is_not_gone_back_to_where_markers_stand(url: str) -> None:
    from alembic import command
    from alembic.config import Config

    import sequencer.store.sql.migrations as migrations

    test_a_database_with_data_of_the_first_version_goes_on(url)
    config = Config()
    config.set_main_option("script_location", str(Path(str(migrations.__file__)).parent))
    with engine(url).connect() as connection:
        config.attributes["connection"] = connection
        with pytest.raises(RuntimeError, match="markers"):
            command.downgrade(config, "0001")


def storage_options(connection: sa.Connection) -> dict[str, set[str]]:
    found = connection.execute(
        sa.text(
            "select relname, reloptions from pg_class "
            "where relkind = 'r' and relnamespace = 'public'::regnamespace"
        )
    )
    return {name: set(options or ()) for name, options in found if name != "alembic_version"}


def test_on_postgresql_the_migrations_set_the_storage_options_of_the_schema(postgres: PostgresServer) -> None:
    by_migration, by_metadata = postgres.create_database(), postgres.create_database()
    open_and_close(by_migration)
    with engine(by_metadata).begin() as connection:
        metadata.create_all(connection)
        wanted = storage_options(connection)
    with engine(by_migration).connect() as connection:
        assert storage_options(connection) == wanted
    assert "fillfactor=70" in wanted["partitions"]
    postgres.drop_database(by_migration)
    postgres.drop_database(by_metadata)


def test_every_kind_of_row_has_a_table_with_its_fields_in_order() -> None:
    for kind, table in TABLES.items():
        assert tuple(column.name for column in table.columns) == kind.__struct_fields__


def test_an_empty_database_is_left_alone_where_migrating_is_not_allowed(url: str) -> None:
    with pytest.raises(SchemaMismatch, match="migrate it first"):
        open_and_close(url, auto_migrate=False)
    with engine(url).connect() as connection:
        assert sa.inspect(connection).get_table_names() == []


def test_a_database_of_a_newer_program_is_refused(url: str) -> None:
    open_and_close(url)
    with engine(url).begin() as connection:
        connection.execute(sa.text("update alembic_version set version_num = '9999'"))
    with pytest.raises(SchemaMismatch, match="run a newer tailrace"):
        open_and_close(url)


def test_a_migration_that_fails_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("in the middle")

    from alembic.operations import Operations

    monkeypatch.setattr(Operations, "create_index", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        open_and_close(url)
    with engine(url).connect() as connection:
        assert sa.inspect(connection).get_table_names() == []


def test_the_migration_can_be_undone(url: str) -> None:
    from alembic import command
    from alembic.config import Config

    import sequencer.store.sql.migrations as migrations

    config = Config()
    config.set_main_option("script_location", str(Path(str(migrations.__file__)).parent))
    with engine(url).begin() as connection:
        migrate(connection, allowed=True)
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]
