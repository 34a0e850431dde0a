"""What a group's row says of its positions, as not all of them are in memory; and an index to find a topic's."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_OF_THE_GROUP = "from group_offsets o where o.group_id = groups.group_id"


def upgrade() -> None:
    op.add_column("groups", sa.Column("positions", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("groups", sa.Column("has_expiries", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(
        f"update groups set positions = (select count(*) {_OF_THE_GROUP}),"
        f" has_expiries = exists (select 1 {_OF_THE_GROUP} and o.expires_ms is not null)"
    )
    op.create_index("group_offsets_by_topic", "group_offsets", ["topic_id"])
    # What an older server has under way is refused: it would not count the positions that it writes.
    op.execute("update cluster set committer_epoch = committer_epoch + 1")


def downgrade() -> None:
    op.drop_index("group_offsets_by_topic", table_name="group_offsets")
    op.drop_column("groups", "has_expiries")
    op.drop_column("groups", "positions")
