"""The queries, for both databases. `$n` are arguments, `{now}` is the database's clock, `{in_values}` a set,
`{for_update}` a lock on the selected rows (empty on SQLite, where a transaction that writes excludes others)."""

from __future__ import annotations

from sequencer.store.sql.database import TableStatements
from sequencer.store.sql.row_codec import RUN_COLUMNS

# --- cluster ----------------------------------------------------------------------------------------------

# schema_version: see sequencer/store/sql/schema.py.
MAKE_CLUSTER = """
    insert into cluster (id, cluster_id, incarnation, schema_version,
                         committer_holder, committer_address, committer_epoch, committer_expires_ms)
    values (1, $1, 1, 20, '', '', 0, 0)
    on conflict (id) do nothing
    returning cluster_id
"""
ADOPT = """
    update cluster set cluster_id = $1, incarnation = $2 where id = 1 and committer_epoch = $3 returning id
"""
IDENTITY = "select cluster_id, incarnation from cluster where id = 1"

# Each committer that takes the lease gets a new epoch. The row is locked first (on PostgreSQL): see _FENCE there.
TAKE_COMMITTER_LEASE = """
    with free as (
        select id from cluster where id = 1 and (committer_holder = $1 or committer_expires_ms <= {now}) {for_update}
    )
    update cluster set
        committer_epoch = committer_epoch + 1,
        committer_holder = $1,
        committer_address = $2,
        committer_expires_ms = {now} + cast($3 as bigint)
    where id in (select id from free)
    returning committer_epoch
"""
# No lease ends later than $1 (the longest lease) from now, unless the database's clock went back. A holder that lives
# corrects the end when it renews; for one that is gone, whoever wants the lease does, and then waits as for any other.
CORRECT_LEASE_END = """
    update cluster set committer_expires_ms = {now} + cast($1 as bigint)
    where id = 1 and committer_expires_ms > {now} + cast($1 as bigint)
"""
# The holder keeps the lease, even when it renews late, as long as nobody else has taken it. A renewal never shortens an
# earlier one, because renewals may arrive out of order. If the end is later than $3 (the longest lease) from now, the
# database's clock went back.
RENEW_COMMITTER_LEASE = """
    update cluster set committer_expires_ms = case
        when committer_expires_ms > {now} + cast($3 as bigint) then {now} + cast($3 as bigint)
        when committer_expires_ms > {now} + cast($2 as bigint) then committer_expires_ms
        else {now} + cast($2 as bigint)
    end
    where id = 1 and committer_epoch = $1 and committer_holder <> ''
    returning id
"""
LEASE_UNTAKEN = "select id from cluster where id = 1 and committer_epoch = $1 and committer_holder <> ''"
COMMITTER_ADDRESS = """
    select committer_address from cluster
    where id = 1 and committer_expires_ms > {now} and committer_expires_ms <= {now} + cast($1 as bigint)
"""
RELEASE_COMMITTER_LEASE = """
    update cluster set committer_holder = '', committer_address = '', committer_expires_ms = 0
    where id = 1 and committer_epoch = $1
"""

# --- runs ---------------------------------------------------------------------------------------------------

_WITH_OBJECTS = "from runs r left join objects o on o.object_id = r.object_id"
_RUNS = f"select {RUN_COLUMNS}, r.topic_id, r.partition {_WITH_OBJECTS}"
_OF_PARTITION = "topic_id = $1 and partition = $2"

RUNS_OF_OBJECT = f"{_RUNS} where r.object_id = $1 order by r.topic_id, r.partition, r.base_offset"

# The run that contains $3, or the first after it. Runs don't overlap: at most one begins below $3 and ends above it.
FIRST_RUN = f"""
    select base_offset, running_max_timestamp from runs
    where {_OF_PARTITION} and end_offset > $3
      and base_offset >= coalesce(
        (select p.base_offset from runs p where p.topic_id = $1 and p.partition = $2 and p.base_offset <= $3
         order by p.base_offset desc limit 1), $3)
    order by base_offset limit 1
"""


def _first_reaching(timestamp: str) -> str:
    """Select the first run whose running maximum reaches the timestamp, by bisection: running maxima never decrease
    along the log."""
    middle = "low + (high - low) / 2"
    is_reached = f"""
        (select m.running_max_timestamp from runs m
         where m.topic_id = $1 and m.partition = $2 and m.base_offset <= {middle}
         order by m.base_offset desc limit 1) >= {timestamp}
    """
    return f"""
        with recursive search (low, high) as (
            select (select min(base_offset) from runs where {_OF_PARTITION}),
                   (select max(base_offset) from runs where {_OF_PARTITION})
            union all
            select case when {is_reached} then low else {middle} + 1 end,
                   case when {is_reached} then {middle} else high end
            from search where low < high
        )
        select base_offset from runs
        where {_OF_PARTITION} and base_offset = (select low from search where low = high)
          and running_max_timestamp >= {timestamp}
    """


FIRST_RUNNING_MAX = _first_reaching("$3")
_NEWEST_MAX = f"""
    (select running_max_timestamp from runs
     where {_OF_PARTITION} and base_offset < $4 order by base_offset desc limit 1)
"""
SCAN_BY_OWN_MAX = f"""
    {_RUNS} where r.topic_id = $1 and r.partition = $2 and r.base_offset = (
        select s.base_offset from (
            select base_offset, max_timestamp from runs
            where {_OF_PARTITION} and base_offset >= $3 order by base_offset limit $5
        ) s where s.max_timestamp >= $4 order by s.base_offset limit 1
    )
"""
_SCAN_END = f"""
    select max(s.base_offset), count(*) from (
        select base_offset from runs
        where {_OF_PARTITION} and base_offset >= $3 {{and_below}} order by base_offset limit $4
    ) s
"""
SCAN_END = _SCAN_END.replace("{and_below}", "")
SCAN_END_BELOW = _SCAN_END.replace("{and_below}", "and base_offset < $5")
# The first run at which the newest running maximum (below $4) was reached. It has the largest timestamp, unless the run
# that did was removed.
RUN_OF_RUNNING_MAX = f"""
    {_RUNS} where r.topic_id = $1 and r.partition = $2 and r.end_offset > $3
      and r.max_timestamp = r.running_max_timestamp
      and r.base_offset = ({_first_reaching(_NEWEST_MAX)})
"""
RUN_OF_OWN_MAX = f"""
    {_RUNS} where r.topic_id = $1 and r.partition = $2 and r.base_offset = (
        select s.base_offset from (
            select base_offset, max_timestamp from runs
            where {_OF_PARTITION} and base_offset >= $3 and base_offset < $5 order by base_offset limit $4
        ) s order by s.max_timestamp desc, s.base_offset limit 1
    )
"""

_BYTES = """
    select topic_id, partition, cast(sum(length) as bigint), count(*),
        cast(coalesce(sum(case when kind = 0 then length else 0 end), 0) as bigint),
        coalesce(min(case when kind = 0 then created_ms end), 0)
    from runs {where} group by topic_id, partition order by topic_id, partition
"""
PARTITION_BYTES = _BYTES.replace("{where}", "")
PARTITION_BYTES_OF = _BYTES.replace("{where}", "where topic_id {in_values}")
PARTITION_BYTES_WITHIN = _BYTES.replace(
    "{where}", "where topic_id = $1 and partition >= $2 and partition < $3"
)

# --- objects ------------------------------------------------------------------------------------------------


def objects_by_id(columns: str) -> str:
    return f"select {columns} from objects where object_id {{in_values}}"


def objects_after(columns: str) -> str:
    return f'select {columns} from objects where "key" > $1 order by "key" limit $2'


def retired_before(columns: str) -> str:
    return (
        f"select {columns} from objects where retired_ms < $1 and (kind <> 1 or retired_ms < $2)"
        ' order by retired_ms, "key" limit $3'
    )


KNOWN_KEYS = 'select "key" from objects where "key" {in_values}'

STATISTICS = """
    select
        (select count(*) from runs),
        count(*),
        count(retired_ms),
        cast(coalesce(sum(case when retired_ms is null then 0 else size end), 0) as bigint),
        cast(coalesce(sum(case when retired_ms is null then size else 0 end), 0) as bigint),
        (select cast(coalesce(sum(length), 0) as bigint) from runs where kind = 0),
        (select count(*) from producers)
    from objects
"""


def run_rows_after(columns: str) -> str:
    """Select run rows in key order, after ($1, $2, $3)."""
    return (
        f"select {columns} from runs where (topic_id, partition, base_offset) > ($1, $2, $3) "
        "order by topic_id, partition, base_offset limit $4"
    )


def first_rows(table: TableStatements) -> str:
    """Select the first rows of a table in key order."""
    return f"select {table.columns} from {table.name} order by {table.key} limit $1"


def rows_after(table: TableStatements) -> str:
    """Select rows in key order, after the key ($1, ...). The last argument is the limit."""
    count = len(table.codec.key)
    key = ", ".join(f"${position}" for position in range(1, count + 1))
    return (
        f"select {table.columns} from {table.name} where ({table.key}) > ({key}) "
        f"order by {table.key} limit ${count + 1}"
    )


def positions_of(columns: str) -> str:
    """Select a group's positions ordered by topic and partition, after ($2, $3)."""
    return (
        f"select {columns} from group_offsets where group_id = $1 and (topic_id, partition) > ($2, $3) "
        "order by topic_id, partition limit $4"
    )


def positions_of_groups(columns: str, limit: int) -> str:
    return f"select {columns} from group_offsets where group_id {{in_values}} limit {limit}"


def positions_on(columns: str) -> str:
    return f"select {columns} from group_offsets where topic_id = $1 limit $2"


JOURNAL_SIZES = "select number, length(changes) from journal order by number"


def journal_from(columns: str) -> str:
    """Select the journal from number $1 on, at most $2 rows."""
    return f"select {columns} from journal where number >= $1 order by number limit $2"
