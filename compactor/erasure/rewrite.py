"""Rewrites an object without the records of given keys, reads it back and verifies it.

The new object gets all live runs, also those without such a record, because the old object is retired and deleted only
when none of its runs is live. Offsets do not change: a run covers the same offsets as before, and a batch that lost
records keeps its first and last offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow.compute as pc

from compactor.blocking_calls import Blocking, run_here
from compactor.erasure.search import SearchKeys
from compactor.rewrite import (
    OutputLocation,
    RewriteFailed,
    RewriteResult,
    replacement_of,
    result_of,
    store_object,
)
from compactor.run_groups import PackedBatches, PackedGroup, ParquetRuns, RunGroup
from sequencer.api.reads import Run
from tailrace.batches.record_batch import InvalidBatch
from tailrace.batches.records import InvalidRecords
from tailrace.clock import Clock, Entropy
from tailrace.ids import TopicPartition
from tailrace.object_store.api import ObjectStore
from tailrace.parquet_object.schema import REPLAY_COLUMNS
from tailrace.parquet_object.write import SourceRun


@dataclass(frozen=True, slots=True)
class RewriteContext:
    """What a rewrite works with. `run`: makes calls that block."""

    store: ObjectStore
    output: OutputLocation
    clock: Clock
    entropy: Entropy
    run: Blocking[Any] = run_here


@dataclass(slots=True)
class _RunRemainder:
    """The rest of a run after its records were filtered."""

    run: Run
    packed: list[PackedGroup] = field(default_factory=list)
    records: int = 0
    erased: int = 0


async def rewrite_without(
    keys: SearchKeys, topic_name: str, runs: Sequence[Run], of: RewriteContext
) -> tuple[RewriteResult, int]:
    """Write all live runs of one object without the keys' records. Return the new object and the number of removed
    records.

    Needs about four times the object's bytes in memory. Raises RewriteFailed, StoreError, InvalidParquetObject.
    """
    objects = ParquetRuns(of.store)
    try:
        left = [await _filtered(objects, run, keys, of.run) for run in runs]
    except (InvalidBatch, InvalidRecords, ValueError) as error:
        raise RewriteFailed(f"{topic_name}: {error}") from error
    sources = [
        SourceRun(
            partition=TopicPartition(rest.run.topic_id, rest.run.partition),
            topic_name=topic_name,
            batches=PackedBatches(rest.packed),
            base_offset=rest.run.base_offset,
            end_offset=rest.run.end_offset,
        )
        for rest in left
    ]
    described, written = await store_object(
        sources, of.store, of.output, clock=of.clock, entropy=of.entropy, run=of.run
    )
    replacements = [replacement_of([rest.run], written, rest.records) for rest in left]
    result = result_of(described, written, replacements, source_bytes=sum(run.length for run in runs))
    return result, sum(rest.erased for rest in left)


async def _filtered(
    objects: ParquetRuns, run: Run, keys: SearchKeys, blocking: Blocking[Any]
) -> _RunRemainder:
    left = _RunRemainder(run)
    async for group in objects.groups(run, REPLAY_COLUMNS):
        await blocking(partial(_add_without, left, group, keys))
    return left


def _add_without(left: _RunRemainder, group: RunGroup, keys: SearchKeys) -> None:
    is_sought = pc.is_in(group.column("key"), value_set=keys.values)
    dropped = is_sought.to_numpy(zero_copy_only=False)
    if not dropped.all():
        left.packed.append(PackedGroup.of(group.without(dropped, {})))
    left.erased += int(dropped.sum())
    left.records += int(len(dropped) - dropped.sum())
