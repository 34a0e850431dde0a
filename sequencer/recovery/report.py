"""What a recovery reports: what came back unchanged, what was re-sequenced, and what is lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec


class PartitionReport(msgspec.Struct):
    """[log_start_offset, certain_end) came back unchanged; [resumed_at, end_offset) was re-sequenced.

    `resumed_at` is `certain_end` if no offset was assigned after the checkpoint.
    """

    topic: str
    partition: int
    log_start_offset: int
    certain_end: int
    resumed_at: int
    end_offset: int
    batches: int = 0
    records: int = 0


class ResequencedCounts(msgspec.Struct):
    """What happened to the batches that were written after the checkpoint, in counts."""

    objects: int = 0
    batches: int = 0
    records: int = 0
    duplicates: int = 0
    refused: int = 0
    out_of_sequence: int = 0
    transactional: int = 0
    of_deleted_topics: int = 0


class RecoveryReport(msgspec.Struct):
    """What a recovery did, or would do in a dry run. `certain`: counts by kind. `lost`, `notes`: sentences."""

    cluster_id: str
    incarnation: int
    checkpoint: str
    checkpoint_ms: int
    commit_number: int
    is_exact: bool
    certain: dict[str, int]
    resequenced: ResequencedCounts
    partitions: list[PartitionReport]
    aborted_transactions: list[str]
    made_up_topics: list[str]
    lost: list[str]
    notes: list[str]
    is_dry_run: bool = False


def what_is_lost(report: RecoveryReport, corrupt_objects: Iterable[str]) -> Iterator[str]:
    """Describe what was lost after the checkpoint, by the report's counts."""
    for problem in corrupt_objects:
        yield f"object {problem} can't be read: its batches are not re-sequenced"
    if report.aborted_transactions:
        yield f"{len(report.aborted_transactions)} transactions without a known end are aborted"
    if report.resequenced.transactional:
        yield (
            f"{report.resequenced.transactional} batches of transactions after the checkpoint are left out: their end"
            " is unknown"
        )
    if not report.is_exact:
        yield "group offsets, deletions, configs and swaps after the checkpoint: groups continue at its offsets"
