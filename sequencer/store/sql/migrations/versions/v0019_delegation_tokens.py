"""Delegation tokens: a new table."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "delegation_tokens",
        sa.Column("fingerprint", _text, nullable=False),
        sa.Column("token_id", _text, nullable=False),
        sa.Column("owner", _text, nullable=False),
        sa.Column("requester", _text, nullable=False),
        sa.Column("renewers", sa.LargeBinary(), nullable=False),
        sa.Column("issued_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("max_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("delegation_tokens")
