"""Alembic's migrations. Run by `sequencer.sql.migrate`; there is no ini file."""
