"""Recovery: fills an empty database from the bucket.

Records in the newest complete checkpoint are *certain*: they come back at their old offsets. Records that were written
after it are in mixed objects that no row names. Their batches are checked again with the producers' states in the
checkpoint, and *re-sequenced*: they get offsets from the partition's reserved end on, which no record ever had, and the
log's epoch increases there. So no offset ever means two records. Between the two kinds of records is a hole, which
readers skip as they skip offsets that compaction left out.

What can't come back is *lost* and reported: group offsets, topic configs and transactions after the checkpoint.
Transactions without a known end are aborted, and producers with a transactional id are fenced.

This module carries the recovery out; `bucket_scan` reads the bucket, and `plan` decides.
"""

from __future__ import annotations

from typing import Any

import structlog

from sequencer.api.errors import SequencerError
from sequencer.checkpoint import format as checkpoint
from sequencer.checkpoint.chain import IDLE_INTERVAL_MS
from sequencer.checkpoint.checkpointer import Checkpointer, read_cluster_file, write_cluster_file
from sequencer.checkpoint.format import CheckpointedRows
from sequencer.recovery.bucket_scan import (
    FoundCheckpoints,
    FoundObjects,
    find_objects,
    list_heads,
    read_checkpoints,
)
from sequencer.recovery.plan import plan_recovery
from sequencer.recovery.report import RecoveryReport
from sequencer.settings import SequencerSettings
from sequencer.store.row_store import DatabaseIdentity, RowStore
from sequencer.store.rows import KEYS, Changes
from sequencer.store.state import HotState
from tailrace.clock import Clock
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.keys import is_key

log = structlog.get_logger(__name__)

WRITTEN_AT_ONCE = 5_000
LEASE_MS = 60_000


class RecoveryRefused(Exception):
    """The bucket or the database does not allow a recovery; the message says why. Nothing was changed."""


async def find_cluster(store: ObjectStore, cluster_id: str | None) -> str:
    """Return the cluster whose checkpoints are in the bucket, which may be shared with other programs. Raises
    RecoveryRefused."""
    if cluster_id is not None and await store.list_prefixes(checkpoint.meta_prefix(cluster_id)):
        return cluster_id
    prefixes = [prefix.rstrip("/") for prefix in await store.list_prefixes("")]
    clusters = [
        name for name in prefixes if is_key(name) and await store.list_prefixes(checkpoint.meta_prefix(name))
    ]
    if cluster_id is not None:
        raise RecoveryRefused(
            f"the bucket has no checkpoints of cluster {cluster_id!r}; it has {clusters or 'none'}"
        )
    if len(clusters) != 1:
        raise RecoveryRefused(
            f"the bucket has checkpoints of {len(clusters)} clusters{': ' if clusters else ''}{', '.join(clusters)};"
            + (" name one with --cluster" if clusters else " there is nothing to recover from")
        )
    return clusters[0]


async def read_bucket(
    store: ObjectStore, clock: Clock, cluster_id: str, *, is_watched: bool = True
) -> tuple[FoundCheckpoints, FoundObjects, int]:
    """Return everything that a recovery is planned from, and its incarnation. Raises RecoveryRefused, StoreError."""
    checkpoints = await read_checkpoints(store, cluster_id)
    if checkpoints.chain is None:
        problems = "; ".join(checkpoints.problems[:3])
        raise RecoveryRefused(
            f"no checkpoint of cluster {cluster_id!r} is complete{': ' if problems else ''}{problems}"
        )
    if is_watched:
        await _check_is_dead(store, clock, cluster_id, checkpoints)
    objects = await find_objects(store, cluster_id, checkpoints.rows, checkpoints.chain.last)
    cluster_file = await read_cluster_file(store, cluster_id)
    incarnation = max(
        [head_id.incarnation for head_id in checkpoints.heads]
        + [0 if cluster_file is None else cluster_file.incarnation]
    )
    return checkpoints, objects, incarnation + 1


async def _check_is_dead(
    store: ObjectStore, clock: Clock, cluster_id: str, checkpoints: FoundCheckpoints
) -> None:
    """Wait until a live committer would have written another head. Raises RecoveryRefused if there is one.

    A live committer writes a head within its interval if there are changes, and within IDLE_INTERVAL_MS if its agents
    only renew their leases. A committer that was stopped has written a last head, which reserves nothing.
    """
    newest = checkpoints.heads[max(checkpoints.heads)]
    if newest.reservation == 0:
        return
    pause_ms = newest.interval_ms * 2.5
    age_ms = min(max(clock.wall_ms() - newest.created_ms, 0), IDLE_INTERVAL_MS)
    wait_ms = IDLE_INTERVAL_MS - age_ms + pause_ms
    if age_ms < IDLE_INTERVAL_MS:
        log.warning(
            "waiting for a checkpoint that only a live committer would write", seconds=wait_ms // 1000
        )
    while wait_ms > 0:
        await clock.sleep(min(pause_ms, wait_ms) / 1000)
        wait_ms -= pause_ms
        if max(await list_heads(store, cluster_id)) > max(checkpoints.heads):
            raise RecoveryRefused(
                f"a committer of cluster {cluster_id!r} is alive: it wrote a checkpoint just now. Stop it first"
            )


async def check_is_empty(rows: RowStore) -> None:
    """Raise RecoveryRefused unless the database is empty."""
    loaded = await rows.load()
    kinds = sorted(kind.__name__.removesuffix("Row").lower() for kind, some in loaded.items() if some)
    if await rows.objects_after("", 1):
        kinds.append("objects")
    if kinds:
        raise RecoveryRefused(
            f"the database is not empty (it has {', '.join(kinds)} rows): a recovery fills an empty one only"
        )


async def recover(
    store: ObjectStore,
    rows: RowStore | None,
    clock: Clock,
    *,
    holder: str,
    cluster_id: str | None = None,
    settings: SequencerSettings | None = None,
    is_watched: bool = True,
) -> RecoveryReport:
    """Fill an empty database from the bucket; a dry run if `rows` is None.

    The caller has opened `rows`. Raises RecoveryRefused before anything is changed. Raises StoreError and
    SequencerError at any time; the database is then unusable and must be emptied before the next attempt.
    """
    cluster_id = await find_cluster(store, cluster_id)
    epoch: int | None = None
    if rows is not None:
        await check_is_empty(rows)
        epoch = await rows.take_committer_lease(holder, "", LEASE_MS)
        if epoch is None:
            address = await rows.committer_address()
            raise RecoveryRefused(
                f"the database has a live committer{f' at {address}' if address else ''}; stop it"
            )
    try:
        checkpoints, objects, incarnation = await read_bucket(
            store, clock, cluster_id, is_watched=is_watched and rows is not None
        )
        identity = DatabaseIdentity(cluster_id=cluster_id, incarnation=incarnation)
        now_ms = clock.wall_ms() if rows is None else await rows.now_ms()
        plan = plan_recovery(checkpoints, objects, identity, now_ms)
        if rows is None or epoch is None:
            plan.report.is_dry_run = True
            return plan.report
        await check_is_empty(rows)
        await write_cluster_file(store, identity)
        await _fill(rows, plan.rows, identity, epoch)
        await _export(
            store=store, rows=rows, clock=clock, epoch=epoch, settings=settings or SequencerSettings()
        )
        return plan.report
    finally:
        if rows is not None and epoch is not None:
            await rows.release_committer_lease(epoch)


async def _fill(rows: RowStore, planned: CheckpointedRows, identity: DatabaseIdentity, epoch: int) -> None:
    await rows.adopt(identity.cluster_id, 0, epoch)
    # Objects come before the runs that name them.
    for kind in KEYS:
        rows_of_kind: list[Any] = planned.all(kind)
        for first in range(0, len(rows_of_kind), WRITTEN_AT_ONCE):
            changes = Changes()
            for row in rows_of_kind[first : first + WRITTEN_AT_ONCE]:
                changes.put(row)
            if not await rows.renew_committer_lease(epoch, LEASE_MS):
                raise SequencerError(
                    "another took the database's lease while it was filled; empty it and start again"
                )
            await rows.write(changes, epoch)
    await rows.adopt(identity.cluster_id, identity.incarnation, epoch)


async def _export(
    store: ObjectStore, rows: RowStore, clock: Clock, epoch: int, settings: SequencerSettings
) -> None:
    """Write the recovered rows as a checkpoint, so that another recovery can start from it."""
    checkpointer = Checkpointer(
        store,
        rows,
        clock,
        interval_ms=settings.checkpoint_interval_ms or SequencerSettings().checkpoint_interval_ms,
        reservation=settings.checkpoint_reservation,
    )
    checkpointer.begin(await rows.identity(), epoch, HotState(await rows.load()))
    await checkpointer.snapshot()
    await checkpointer.finish()
