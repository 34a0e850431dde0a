"""Users and access control lists: two new tables."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "scram_credentials",
        sa.Column("user_name", _text, nullable=False),
        sa.Column("mechanism", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("stored_key", sa.LargeBinary(), nullable=False),
        sa.Column("server_key", sa.LargeBinary(), nullable=False),
        sa.Column("iterations", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("user_name", "mechanism"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "acls",
        sa.Column("resource_type", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("resource_name", _text, nullable=False),
        sa.Column("pattern_type", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("principal", _text, nullable=False),
        sa.Column("host", _text, nullable=False),
        sa.Column("operation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("permission", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission"
        ),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("acls")
    op.drop_table("scram_credentials")
