"""Two indexes of runs less. Times are looked up by halving the log; bytes are summed up in the primary key's index."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_KEY = "topic_id, partition, base_offset"


def upgrade() -> None:
    op.drop_index("runs_by_time", "runs")
    op.drop_index("runs_by_form", "runs")
    if op.get_bind().dialect.name == "postgresql":
        _replace_key(f"({_KEY}) include (kind, length, created_ms)")


def downgrade() -> None:
    op.create_index("runs_by_time", "runs", ["topic_id", "partition", "running_max_timestamp", "base_offset"])
    op.create_index("runs_by_form", "runs", ["topic_id", "partition", "kind", "length", "created_ms"])
    if op.get_bind().dialect.name == "postgresql":
        _replace_key(f"({_KEY})")


def _replace_key(columns: str) -> None:
    op.execute(f"create unique index runs_key on runs {columns}")
    op.execute(
        "alter table runs drop constraint runs_pkey, add constraint runs_pkey primary key using index runs_key"
    )
