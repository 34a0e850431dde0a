"""Objects: the checksum of their index, for Parquet footers, which have none of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "objects", sa.Column("index_crc", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    )
    op.execute("update cluster set schema_version = 3")


def downgrade() -> None:
    op.drop_column("objects", "index_crc")
    op.execute("update cluster set schema_version = 2")
