"""The turn in which a transaction's position was sent; those that are there were sent in none."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("pending_offsets", sa.Column("turn", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("pending_offsets", "turn")
