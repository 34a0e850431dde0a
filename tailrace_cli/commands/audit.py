"""`tailrace audit`: compare the database with the bucket. Exits with 0: no findings, 1: findings, 2: could not run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace_cli.errors import CommandFailed
from tailrace_cli.flags import flag, switch, with_flags
from tailrace_cli.output import JsonFlag, print_json, print_table
from tailrace_cli.stored_flags import StoredFlags

if TYPE_CHECKING:
    from sequencer.recovery.audit import AuditReport, AuditSettings
    from tailrace_cli.settings import Settings

FOUND, COULD_NOT = 1, 2
MAX_OVERDUE_HOURS = 1_000_000.0


def register(app: typer.Typer) -> None:
    """Add this module's command to `app`."""
    app.command()(audit)


@with_flags
def audit(
    stored: StoredFlags,
    sample: Annotated[
        float, flag("--sample", "SHARE", "Fraction of objects to read in full.", min=0.0, max=1.0)
    ] = 0.01,
    full: Annotated[bool, switch("--full", "Read all objects in full.")] = False,
    overdue_hours: Annotated[
        float,
        flag("--overdue-hours", "HOURS", "Report garbage older than this.", min=0.0, max=MAX_OVERDUE_HOURS),
    ] = 48.0,
    as_json: JsonFlag = False,
) -> None:
    """Compare the database with the bucket; verify checksums.

    Changes nothing, and can run while the cluster runs. Exits with 0 if it finds nothing, 1 if it finds something, 2
    if it could not run.
    """
    from sequencer.api.errors import SequencerError
    from sequencer.recovery.audit import AuditSettings
    from sequencer.store.sql.store import UnknownDatabase
    from tailrace.object_store.api import StoreError
    from tailrace.object_store.open import BadStoreUrl
    from tailrace_cli.running.loop import run

    options = AuditSettings(sample=1.0 if full else sample, overdue_ms=round(overdue_hours * 3_600_000))
    try:
        report = run(_audit(stored.load(), options))
    except (CommandFailed, SequencerError, StoreError, BadStoreUrl, UnknownDatabase, OSError) as error:
        print(f"tailrace: the audit could not run: {error}", file=sys.stderr)
        raise typer.Exit(COULD_NOT) from None
    if as_json:
        import msgspec

        print_json({"clean": report.is_clean, **msgspec.to_builtins(report)})
    else:
        _show(report)
    if not report.is_clean:
        raise typer.Exit(FOUND)


async def _audit(settings: Settings, options: AuditSettings) -> AuditReport:
    from sequencer.recovery.audit import audit as run_audit
    from sequencer.store.sql.store import SqlRowStore
    from tailrace.clock import SystemClock, SystemEntropy
    from tailrace.object_store.open import open_store
    from tailrace_cli.connections.connecting import check_exists, store_urls
    from tailrace_cli.running.security import database_password

    store_url, database_url = store_urls(settings)
    check_exists(store_url, database_url)
    clock, entropy = SystemClock(), SystemEntropy()
    rows = SqlRowStore(
        database_url, clock=clock, entropy=entropy, auto_migrate=False, password=database_password(settings)
    )
    store = open_store(store_url, clock=clock)
    try:
        await rows.open()
        return await run_audit(rows, store, clock, entropy, options)
    finally:
        await store.close()
        await rows.close()


def _show(report: AuditReport) -> None:
    print(f"cluster {report.cluster_id}, incarnation {report.incarnation}, commit {report.commit_number}")
    figures = [(name, count) for name, count in report.checked.items()]
    figures += [(f"garbage: {name}", count) for name, count in report.garbage.items()]
    print_table(("checked", "count"), figures)
    for note in report.notes:
        print(f"note: {note}")
    if report.findings:
        rows = [(finding.kind, finding.subject, finding.detail) for finding in report.findings]
        print_table(("finding", "where", "seen"), rows)
        print(f"{len(rows)} finding{'' if len(rows) == 1 else 's'}")
    else:
        print("no findings")
