"""The migrations make exactly the tables that the code names, on both databases, and only when they may."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from sequencer.api import LeaseLost
from sequencer.store.rows import Changes, GroupOffsetRow, GroupRow, Row
from sequencer.store.sql.migrate import SchemaMismatch, migrate
from sequencer.store.sql.row_codec import RowCodec
from sequencer.store.sql.schema import SCHEMA_VERSION, TABLES, metadata
from sequencer.store.sql.store import open_row_store
from tests.support.clocks import ManualClock, SeededEntropy
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


def test_a_database_of_before_the_first_release_is_refused(url: str) -> None:
    open_and_close(url)
    with engine(url).begin() as connection:
        connection.execute(sa.text("update alembic_version set version_num = '0005'"))
    with pytest.raises(SchemaMismatch, match=r"schema 0005, of before the first release.*tailrace recover"):
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


def downgrade(connection: sa.Connection, revision: str) -> None:
    """Make the tables those of an earlier migration."""
    from alembic import command
    from alembic.config import Config

    import sequencer.store.sql.migrations as migrations

    config = Config()
    config.set_main_option("script_location", str(Path(str(migrations.__file__)).parent))
    migrate(connection, allowed=True)
    config.attributes["connection"] = connection
    command.downgrade(config, revision)


def insert(connection: sa.Connection, row: Row, left_out: Collection[str] = ()) -> None:
    """Write a row, without the columns that its table does not have yet."""
    codec = RowCodec(type(row), "sqlite" if connection.dialect.name == "sqlite" else "postgresql")
    columns = zip(codec.columns, codec.encode_rows([row]), strict=True)
    values = {column.name: value for column, (value,) in columns if column.name not in left_out}
    connection.execute(TABLES[type(row)].insert().values(values))


def test_groups_of_an_older_database_count_their_positions(url: str) -> None:
    with engine(url).begin() as connection:
        downgrade(connection, "0019")
        for group_id, count, expires_ms in (("none", 0, None), ("two", 2, None), ("some", 3, 7)):
            group = GroupRow(group_id, -1, -1, 0, "Empty", "", [], b"", 1)
            insert(connection, group, left_out=("positions", "has_expiries"))
            for partition in range(count):
                insert(connection, GroupOffsetRow(group_id, UUID(int=1), partition, 5, 0, "", 1, expires_ms))

    async def groups() -> dict[str, tuple[int, bool]]:
        store = open_row_store(url, clock=ManualClock(), entropy=SeededEntropy(1))
        try:
            await store.open()
            rows = (await store.load())[GroupRow]
            return {
                row.group_id: (row.positions, row.has_expiries) for row in rows if isinstance(row, GroupRow)
            }
        finally:
            await store.close()

    assert asyncio.run(groups()) == {"none": (0, False), "two": (2, False), "some": (3, True)}


def test_an_older_server_that_leads_writes_nothing_after_the_migration_that_counts_positions(
    url: str,
) -> None:
    async def lead() -> int | None:
        store = open_row_store(url, clock=ManualClock(), entropy=SeededEntropy(1))
        try:
            await store.open()
            return await store.take_committer_lease("older", "", 60_000)
        finally:
            await store.close()

    async def write(epoch: int) -> None:
        store = open_row_store(url, clock=ManualClock(), entropy=SeededEntropy(1))
        try:
            await store.open()
            await store.write(Changes(), epoch)
        finally:
            await store.close()

    epoch = asyncio.run(lead())
    assert epoch is not None
    asyncio.run(write(epoch))
    with engine(url).begin() as connection:
        downgrade(connection, "0019")
    with pytest.raises(LeaseLost):
        asyncio.run(write(epoch))


def test_the_migration_can_be_undone(url: str) -> None:
    with engine(url).begin() as connection:
        downgrade(connection, "base")
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]
