"""The small Parquet objects that may be merged, each under its topic."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_uuid = sa.LargeBinary(16).with_variant(postgresql.UUID(as_uuid=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "small_objects",
        sa.Column("topic_id", _uuid, nullable=False),
        sa.Column("object_id", _uuid, nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "object_id"),
        sqlite_with_rowid=False,
        postgresql_with={"autovacuum_vacuum_scale_factor": 0.05, "autovacuum_analyze_scale_factor": 0.05},
    )
    op.execute(
        "insert into small_objects (topic_id, object_id, ended_ms, size)"
        " select r.topic_id, o.object_id, max(r.created_ms), max(o.size)"
        " from objects o join runs r on r.object_id = o.object_id"
        " where o.kind = 1 and o.size < 67108864 and o.retired_ms is null"
        " group by r.topic_id, o.object_id"
    )


def downgrade() -> None:
    op.drop_table("small_objects")
