"""The migrations make exactly the tables that the code names, on both databases, and only when they may."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from sequencer.store.sql.migrate import SchemaMismatch
from sequencer.store.sql.schema import SCHEMA_VERSION, TABLES, metadata
from sequencer.store.sql.store import SqlRowStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.schemas import catalog_of, upgrade_to
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
        store = SqlRowStore(url, clock=ManualClock(), entropy=SeededEntropy(1), auto_migrate=auto_migrate)
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


def test_the_first_migration_makes_the_tables_that_it_always_made(url: str) -> None:
    """The recordings beside this file are of the fifteen migrations that were there before it (decision 64)."""
    with engine(url).begin() as connection:
        upgrade_to(connection, "0020")
        recorded = Path(__file__).with_name(f"schema_0020.{connection.dialect.name}").read_text()
        assert catalog_of(connection) == recorded.splitlines()


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


@pytest.mark.parametrize("revision", ["0001", "0006", "0019"])
def test_a_database_of_before_the_first_release_is_refused_and_left_alone(url: str, revision: str) -> None:
    with engine(url).begin() as connection:
        connection.execute(sa.text("create table alembic_version (version_num varchar(32) not null)"))
        connection.execute(sa.text(f"insert into alembic_version values ('{revision}')"))
    advice = r"from before the first release.*tailrace of commit [0-9a-f]{12} once.*tailrace recover"
    for auto_migrate in (True, False):
        with pytest.raises(SchemaMismatch, match=f"schema {revision}, {advice}"):
            open_and_close(url, auto_migrate=auto_migrate)
    with engine(url).connect() as connection:
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]


def test_a_migration_that_fails_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("in the middle")

    from alembic.operations import Operations

    monkeypatch.setattr(Operations, "create_index", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        open_and_close(url)
    with engine(url).connect() as connection:
        assert sa.inspect(connection).get_table_names() == []
