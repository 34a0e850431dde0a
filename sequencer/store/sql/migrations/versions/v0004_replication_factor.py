"""Topics: the replication factor that was asked for."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "topics",
        sa.Column("replication_factor", sa.Integer(), nullable=False, server_default=sa.text("1")),
    )
    op.execute("update cluster set schema_version = 4")


def downgrade() -> None:
    op.drop_column("topics", "replication_factor")
    op.execute("update cluster set schema_version = 3")
