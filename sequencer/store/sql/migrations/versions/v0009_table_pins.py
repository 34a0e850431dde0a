"""Which topics have a table, and from when on its snapshots keep retired objects."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_uuid = sa.LargeBinary(16).with_variant(postgresql.UUID(as_uuid=True), "postgresql")
_text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "table_pins",
        sa.Column("topic_id", _uuid, nullable=False),
        sa.Column("topic_name", _text, nullable=False),
        sa.Column("kept_from_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("table_pins")
