"""What is configured for clients, such as quotas: a new table."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "client_configs",
        sa.Column("scope", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", _text, nullable=False),
        sa.Column("configs", _text, nullable=False),
        sa.PrimaryKeyConstraint("scope", "name"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("client_configs")
