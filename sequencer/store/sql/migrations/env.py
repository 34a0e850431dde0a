"""Run by alembic, on the connection and in the transaction that `sequencer.store.sql.migrate` supplies."""

from __future__ import annotations

from alembic import context

from sequencer.store.sql.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
