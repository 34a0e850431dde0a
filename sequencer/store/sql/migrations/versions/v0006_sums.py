"""Counters of what runs and objects hold together, counted here for the last time."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_MIXED = 0
_SUMS = {
    "sum_runs": "select count(*) from runs",
    "sum_uncompacted_bytes": f"select coalesce(sum(length), 0) from runs where kind = {_MIXED}",
    "sum_objects": "select count(*) from objects",
    "sum_retired_objects": "select count(retired_ms) from objects",
    "sum_retired_bytes": "select coalesce(sum(size), 0) from objects where retired_ms is not null",
    "sum_live_bytes": "select coalesce(sum(size), 0) from objects where retired_ms is null",
}


def upgrade() -> None:
    for name, counted in _SUMS.items():
        summed = f"select cast(({counted}) as bigint) as value"
        op.execute(f"insert into counters (name, value) select '{name}', s.value from ({summed}) s where s.value <> 0")
    op.execute("update cluster set schema_version = 6")


def downgrade() -> None:
    op.execute("delete from counters where name like 'sum\\_%' escape '\\'")
    op.execute("update cluster set schema_version = 5")
