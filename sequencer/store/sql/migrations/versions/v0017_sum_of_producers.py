"""How many producers there are: a counter, as not all of them are in memory."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "insert into counters (name, value)"
        " select 'sum_producers', n from (select count(*) as n from producers) counted where n > 0"
    )


def downgrade() -> None:
    op.execute("delete from counters where name = 'sum_producers'")
