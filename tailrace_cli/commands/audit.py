"""`tailrace audit`: do the database and the bucket agree? Exit 0: yes, 1: findings, 2: it could not run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace_cli.errors import CommandFailed
from tailrace_cli.output import JsonFlag, print_json, print_table

if TYPE_CHECKING:
    from sequencer.recovery.audit import AuditReport, AuditSettings

FOUND, COULD_NOT = 1, 2


def register(app: typer.Typer) -> None:
    """Add this module's command to `app`."""
    app.command()(audit)


def audit(
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="The agents' object store.")
    ] = None,
    database: Annotated[
        str | None, typer.Option("--database", metavar="URL", help="The sequencer's database.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DIR", help="Instead of both: the folder of `tailrace serve`."),
    ] = None,
    sample: Annotated[
        float, typer.Option("--sample", min=0.0, max=1.0, help="Share of objects to read whole.")
    ] = 0.01,
    full: Annotated[bool, typer.Option("--full", help="Read all objects whole.")] = False,
    overdue_hours: Annotated[
        float, typer.Option("--overdue-hours", min=0.0, help="Report garbage older than this.")
    ] = 48.0,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings as TOML.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare database and bucket; check sums and invariants.

    Changes nothing; the cluster may run. Exit status 0: no findings. 1: findings. 2: the audit could not run.
    """
    from sequencer.api import SequencerError
    from sequencer.recovery.audit import AuditSettings
    from sequencer.store.sql.store import UnknownDatabase
    from tailrace.object_store.api import StoreError
    from tailrace.object_store.open import BadStoreUrl
    from tailrace.settings import load_settings
    from tailrace.telemetry import configure_logging
    from tailrace_cli.running.loop import run
    from tailrace_cli.running.security import refuse_password_in_command
    from tailrace_cli.settings import Settings

    configure_logging("warning", "auto")
    options = AuditSettings(sample=1.0 if full else sample, overdue_ms=round(overdue_hours * 3_600_000))
    try:
        refuse_password_in_command("--database", database)
        settings = load_settings(
            Settings, flags={"store": store, "database": database, "data": data}, file=config
        )
        report = run(_audit(settings, options))
    except (CommandFailed, SequencerError, StoreError, BadStoreUrl, UnknownDatabase, OSError) as error:
        print(f"tailrace: no audit: {error}", file=sys.stderr)
        raise typer.Exit(COULD_NOT) from None
    if as_json:
        import msgspec

        print_json({"clean": report.is_clean, **msgspec.to_builtins(report)})
    else:
        _show(report)
    if not report.is_clean:
        raise typer.Exit(FOUND)


async def _audit(settings: object, options: AuditSettings) -> AuditReport:
    from sequencer.recovery.audit import audit as run_audit
    from sequencer.store.sql.store import open_row_store
    from tailrace.clock import SystemClock, SystemEntropy
    from tailrace.object_store.open import open_store
    from tailrace_cli.connections.connecting import check_exists, store_urls
    from tailrace_cli.running.security import database_password
    from tailrace_cli.settings import Settings

    assert isinstance(settings, Settings)
    store_url, database_url = store_urls(settings)
    check_exists(store_url, database_url)
    clock, entropy = SystemClock(), SystemEntropy()
    rows = open_row_store(
        database_url,
        clock=clock,
        entropy=entropy,
        auto_migrate=False,
        password=database_password(settings),
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
        print(f"{len(report.findings)} findings")
    else:
        print("no findings")
