"""Alembic's migrations. Run by `sequencer.store.sql.migrate`; there is no ini file."""
