"""Migrate a database to this version's tables, or say why that is impossible."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from sequencer.api.errors import SequencerError

_ADVISORY_LOCK = 0x7461696C72616365  # "tailrace"
_LAST_WITH_OLDER_MIGRATIONS = "c2f053fa2ab1"
"""The commit whose `tailrace` migrates databases of schemas 0006 to 0019 to 0020 (decision 64)."""


class SchemaMismatch(SequencerError):
    """The database's tables are not those of this version; the message says what to do."""

    code = "schema_mismatch"


def migrate(connection: sa.Connection, *, allowed: bool) -> None:
    """Run all new migrations inside the connection's transaction.

    Two servers that start at the same time take turns.

    Raises:
        SchemaMismatch: the tables are newer than this program or older than the first release; or they are older than
            this program and `allowed` is False.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("select pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    known = [script.revision for script in scripts.walk_revisions()]
    newest = scripts.get_current_head()
    current = MigrationContext.configure(connection).get_current_revision()
    if current == newest:
        return
    if current is not None and current < min(known):
        raise SchemaMismatch(
            f"the database has schema {current}, from before the first release: this program upgrades databases from"
            f" schema {min(known)} on. Start the tailrace of commit {_LAST_WITH_OLDER_MIGRATIONS} once, which upgrades"
            " it to 0020; or fill an empty database from the bucket with `tailrace recover`"
        )
    if current is not None and current not in known:
        raise SchemaMismatch(
            f"the database has schema {current}, this program knows up to {newest}: run a newer tailrace"
        )
    if not allowed:
        raise SchemaMismatch(
            f"the database has schema {current or 'none'}, this program needs {newest}: "
            "migrate it first (a server that may migrate does so when it starts)"
        )
    command.upgrade(config, "head")
