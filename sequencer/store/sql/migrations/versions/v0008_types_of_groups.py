"""Types of groups: those that were there are classic."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("groups", sa.Column("type", sa.Text(), nullable=False, server_default="classic"))


def downgrade() -> None:
    op.drop_column("groups", "type")
