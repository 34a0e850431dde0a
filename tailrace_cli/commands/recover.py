"""`tailrace recover`: rebuild a lost database from the bucket."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace_cli.errors import CommandFailed
from tailrace_cli.flags import flag, switch, with_flags
from tailrace_cli.output import JsonFlag, print_json, print_table
from tailrace_cli.stored_flags import StoredFlags

if TYPE_CHECKING:
    from sequencer.recovery.report import RecoveryReport
    from tailrace_cli.settings import Settings

SHOWN_PARTITIONS = 50


def register(app: typer.Typer) -> None:
    """Add this module's command to `app`."""
    app.command()(recover)


@with_flags
def recover(
    stored: StoredFlags,
    cluster: Annotated[
        str | None, flag("--cluster", "ID", "The cluster to recover, if the bucket has several.")
    ] = None,
    dry_run: Annotated[bool, switch("--dry-run", "Report what would be recovered; change nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Rebuild a lost database from the bucket.

    Stop all agents and sequencers first. The database must exist and be empty. The report says what is restored from
    the checkpoint, what is re-sequenced, and what is lost.
    """
    from sequencer.recovery.recover import RecoveryRefused
    from tailrace_cli.running.loop import run

    settings = stored.load()
    try:
        report = run(_recover(settings, cluster, dry_run))
    except RecoveryRefused as error:
        raise CommandFailed(f"nothing was recovered: {error}") from error
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(report))
    else:
        _show(report)


async def _recover(settings: Settings, cluster: str | None, dry_run: bool) -> RecoveryReport:
    from sequencer.recovery.recover import recover as run_recovery
    from sequencer.store.sql.store import SqlRowStore
    from tailrace.clock import SystemClock, SystemEntropy
    from tailrace.object_store.open import open_store
    from tailrace_cli.connections.connecting import check_exists, store_urls
    from tailrace_cli.running.security import database_password

    store_url, database_url = store_urls(settings)
    check_exists(store_url, None)
    clock, entropy = SystemClock(), SystemEntropy()
    holder = f"recover#{entropy.uuid()}"
    store = open_store(store_url, clock=clock)
    password = database_password(settings)
    rows = None if dry_run else SqlRowStore(database_url, clock=clock, entropy=entropy, password=password)
    try:
        if rows is not None:
            await rows.open()
        return await run_recovery(
            store, rows, clock, holder=holder, cluster_id=cluster, settings=settings.sequencer
        )
    finally:
        await store.close()
        if rows is not None:
            await rows.close()


def _show(report: RecoveryReport) -> None:
    at = datetime.datetime.fromtimestamp(report.checkpoint_ms / 1000, datetime.UTC).isoformat(
        timespec="seconds"
    )
    print(f"cluster {report.cluster_id}, new incarnation {report.incarnation}")
    print(f"checkpoint {report.checkpoint} of {at}, commit {report.commit_number}")
    print_table(("certain", "count"), list(report.certain.items()))
    moved = [partition for partition in report.partitions if partition.records]
    if moved:
        rows = [
            (
                row.topic,
                row.partition,
                row.certain_end,
                row.resumed_at,
                row.end_offset,
                row.batches,
                row.records,
            )
            for row in moved[:SHOWN_PARTITIONS]
        ]
        columns = ("topic", "partition", "certain below", "resumed at", "end", "batches", "records")
        print_table(columns, rows, title="re-sequenced: records written after the checkpoint")
        if len(moved) > SHOWN_PARTITIONS:
            print(f"and {len(moved) - SHOWN_PARTITIONS} more partitions; --json lists all")
    count = report.resequenced
    print(
        f"re-sequenced: {count.records} records in {count.batches} batches of {count.objects} objects; left out:"
        f" {count.duplicates} duplicates, {count.refused} refused, {count.out_of_sequence} out of sequence,"
        f" {count.transactional} of transactions, {count.of_deleted_topics} of deleted topics"
    )
    for transactional_id in report.aborted_transactions:
        print(f"aborted: transaction of {transactional_id!r}")
    for note in report.notes:
        print(f"note: {note}")
    for loss in report.lost:
        print(f"lost: {loss}")
    if report.is_exact:
        print("exact: the cluster had been stopped, and nothing was written after the checkpoint")
    if report.is_dry_run:
        print("dry run: nothing was changed")
