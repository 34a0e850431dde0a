"""Databases of a given schema, and what their catalogs say about their tables."""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

import sequencer.store.sql.migrations as migrations

_ON_SQLITE = "select sql from sqlite_master where sql is not null and name != 'alembic_version' order by name"
_ON_POSTGRESQL = """
    select c.relname, format('%s (%s) with (%s)', c.relname, (
        select string_agg(concat_ws(' ',
            attname, format_type(atttypid, atttypmod), 'collate ' || collname,
            case when attnotnull then 'not null' end, 'default ' || pg_get_expr(adbin, adrelid)), ', ' order by attnum)
        from pg_attribute
        left join pg_attrdef on adrelid = attrelid and adnum = attnum
        left join pg_collation on pg_collation.oid = attcollation
        where attrelid = c.oid and attnum > 0 and not attisdropped
    ), array_to_string(array(select unnest(c.reloptions) order by 1), ', '))
    from pg_class c where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace
    union all
    select conrelid::regclass::text, format('%s: %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
    from pg_constraint where contype != 'n' and connamespace = 'public'::regnamespace
    union all
    select tablename, indexdef from pg_indexes where schemaname = 'public'
"""


def upgrade_to(connection: sa.Connection, revision: str) -> None:
    """Create the tables of this migration, which may be older than the newest."""
    config = Config()
    config.set_main_option("script_location", str(Path(str(migrations.__file__)).parent))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def catalog_of(connection: sa.Connection) -> list[str]:
    """Return the tables with their columns in order, types, collations, defaults, keys, indexes and storage options,
    one a line; without alembic's own table."""
    if connection.dialect.name == "sqlite":
        return [re.sub(r"\s+", " ", sql).strip() for (sql,) in connection.execute(sa.text(_ON_SQLITE))]
    found = connection.exec_driver_sql(_ON_POSTGRESQL.replace("%", "%%"))
    return sorted(line for table, line in found if table != "alembic_version")
