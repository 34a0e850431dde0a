"""`tailrace table`: show, repair and replay Iceberg tables, and list a topic's Parquet files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tailrace_cli.command_group import group_of_commands
from tailrace_cli.flags import with_flags
from tailrace_cli.output import JsonFlag, print_json, print_table
from tailrace_cli.stored_flags import LogFlags

if TYPE_CHECKING:
    from compactor.tables.live import FileRows, TopicFiles
    from compactor.tables.opening import CatalogTables
    from compactor.tables.sync import DesiredTable, SyncResult, TableSync
    from tailrace_cli.connections.opened_log import OpenLog

T = TypeVar("T")

app = group_of_commands("Iceberg tables: files, list, show, repair, replay.")

TopicName = Annotated[str, typer.Argument(metavar="TOPIC")]


@app.command()
@with_flags
def files(topic: TopicName, flags: LogFlags, as_json: JsonFlag = False) -> None:
    """List a topic's live Parquet files.

    All files belong to one state of the log. DeleteRecords, retention or another file can remove part of a file's
    rows: read and count only its live offset ranges.
    """

    async def ask(log: OpenLog) -> tuple[TopicFiles, list[FileRows]]:
        from compactor.tables.live import count_rows, list_live_files

        listing = await list_live_files(log.sequencer, (await log.topic(topic)).topic_id)
        return listing, await count_rows(log.store, listing)

    store_url, (listing, counted) = ask_log(flags, ask)
    if as_json:
        print_json(_as_json(topic, store_url, listing, counted))
    else:
        _show(listing, counted)


@app.command("list")
@with_flags
def list_tables(flags: LogFlags, as_json: JsonFlag = False) -> None:
    """List all tables.

    A table that its topic no longer asks for is dropped when its snapshots have expired.
    """

    async def ask(log: OpenLog) -> list[DesiredTable]:
        from compactor.tables.schedule import wanted_tables

        return await wanted_tables(log.sequencer)

    _, tables = ask_log(flags, ask)
    rows = [(table.topic_name, str(table.topic_id), table.is_wanted) for table in tables]
    if as_json:
        print_json([{"topic": name, "topic_id": id_, "wanted": is_wanted} for name, id_, is_wanted in rows])
        return
    print_table(
        ("topic", "topic id", "state"),
        [
            (name, id_, "kept" if is_wanted else "dropped when its snapshots expire")
            for name, id_, is_wanted in rows
        ],
        if_none="no tables; `tailrace topic alter TOPIC --config tailrace.table=iceberg` creates one",
    )


@app.command()
@with_flags
def show(topic: TopicName, flags: LogFlags, as_json: JsonFlag = False) -> None:
    """Show a topic's table and its snapshots."""

    import asyncio

    async def ask(log: OpenLog) -> dict[str, Any]:
        from compactor.tables.iceberg import COLUMNS
        from compactor.tables.schedule import wanted_tables

        ids = [table.topic_id for table in await wanted_tables(log.sequencer) if table.topic_name == topic]
        async with _tables(log) as (tables, _):
            table, quarantine = await asyncio.to_thread(
                lambda: [
                    tables.iceberg.find_of(ids[0], topic, is_quarantine=is_quarantine) if ids else None
                    for is_quarantine in (False, True)
                ]
            )
            if table is None:
                raise await _no_table(log, topic)
            return {
                "table": ".".join(table.name()),
                "quarantine": None if quarantine is None else ".".join(quarantine.name()),
                "metadata": table.metadata_location,
                "columns": table.properties.get(COLUMNS),
                "snapshots": [
                    {
                        "snapshot_id": snapshot.snapshot_id,
                        "timestamp_ms": snapshot.timestamp_ms,
                        **(snapshot.summary.additional_properties if snapshot.summary is not None else {}),
                    }
                    for snapshot in table.metadata.snapshots
                ],
            }

    _, shown = ask_log(flags, ask)
    if as_json:
        print_json(shown)
        return
    print(f"table: {shown['table']}\nmetadata: {shown['metadata']}")
    if shown["quarantine"] is not None:
        print(f"quarantine: {shown['quarantine']}")
    if shown["columns"] is not None:
        print(f"columns: {shown['columns']}")
    columns = ("snapshot_id", "timestamp_ms", "total-data-files", "total-records", "total-position-deletes")
    rows = [[snapshot.get(column, "") for column in columns] for snapshot in shown["snapshots"]]
    print_table([column.replace("_", " ").replace("-", " ") for column in columns], rows)


@app.command()
@with_flags
def repair(topic: TopicName, flags: LogFlags, as_json: JsonFlag = False) -> None:
    """Compare a topic's table with its log and repair it.

    A round of compaction does the same.
    """
    _synced(topic, flags, as_json=as_json, is_replay=False)


@app.command()
@with_flags
def replay(topic: TopicName, flags: LogFlags, as_json: JsonFlag = False) -> None:
    """Retry the records in a topic's quarantine.

    Records whose columns can now be derived move into the table, for example because a missing schema is in the
    registry now. A change of columns retries them automatically.
    """
    _synced(topic, flags, as_json=as_json, is_replay=True)


def _synced(topic: str, flags: LogFlags, *, as_json: bool, is_replay: bool) -> None:
    """Bring a table up to date, and print what changed."""

    async def ask(log: OpenLog) -> SyncResult:
        from compactor.tables.schedule import wanted_tables

        for table in await wanted_tables(log.sequencer):
            if table.topic_name == topic:
                async with _tables(log) as (_, syncing):
                    return await (syncing.replay(table) if is_replay else syncing.sync(table))
        raise await _no_table(log, topic)

    _, done = ask_log(flags, ask)
    figures = {
        "files": done.files,
        "added": len(done.change.added),
        "removed": len(done.change.removed),
        "deletes_added": len(done.change.covered),
        "deletes_removed": len(done.change.uncovered),
        "quarantined_files": done.quarantined,
        "snapshots_expired": done.expired,
        "dropped": done.is_dropped,
    }
    if as_json:
        print_json(figures)
    else:
        print_table(("figure", "value"), [(name.replace("_", " "), value) for name, value in figures.items()])


async def _no_table(log: OpenLog, topic: str) -> Exception:
    from compactor.tables.schedule import wanted_tables
    from tailrace_cli.errors import CommandFailed

    if any(table.topic_name == topic for table in await wanted_tables(log.sequencer)):
        return CommandFailed(
            f"topic {topic!r} has no table yet: `tailrace compact` creates it with the first Parquet file"
        )
    await log.topic(topic)  # raises if the topic does not exist
    return CommandFailed(
        f"topic {topic!r} has no table; `tailrace topic alter {topic} --config tailrace.table=iceberg` creates one"
    )


@asynccontextmanager
async def _tables(log: OpenLog) -> AsyncIterator[tuple[CatalogTables, TableSync]]:
    """Open the tables' catalog. Raises CommandFailed for errors of the catalog, the registry or the columns."""
    from pyiceberg.exceptions import RESTError
    from sqlalchemy.exc import SQLAlchemyError

    from compactor.columns.registered import RegistryUnavailable
    from compactor.tables.opening import CatalogMissing, opened_tables
    from compactor.tables.table import CatalogUnavailable, TableConflict
    from tailrace.configs.columns import ColumnsConflict
    from tailrace_cli.errors import CommandFailed

    opening = opened_tables(
        log.sequencer, log.store, log.store_url, address=log.catalog, settings=log.settings.tables
    )
    try:
        async with opening as opened:
            yield opened
    except (RESTError, SQLAlchemyError) as error:
        raise CommandFailed(f"the tables' catalog can't be used: {str(error).splitlines()[0]}") from error
    except (CatalogMissing, CatalogUnavailable, TableConflict, ColumnsConflict, RegistryUnavailable) as error:
        raise CommandFailed(str(error)) from error


def ask_log(flags: LogFlags, question: Callable[[OpenLog], Awaitable[T]]) -> tuple[str, T]:
    """Open the log that the flags name and call `question` with it. Return the URL of its store and the result.

    Raises CommandFailed.
    """
    from tailrace_cli.connections.opened_log import opened_log
    from tailrace_cli.errors import CommandFailed
    from tailrace_cli.running.loop import run

    settings = flags.load()

    async def ask() -> tuple[str, T]:
        async with opened_log(settings) as log:
            return log.store_url, await question(log)

    try:
        return run(ask())
    except ImportError as error:
        raise CommandFailed(
            f"tables need {error.name or error}; install it with `pip install 'tailrace[compactor]'`"
        ) from error


def _as_json(topic: str, store_url: str, listing: TopicFiles, counted: Sequence[FileRows]) -> dict[str, Any]:
    from tailrace.object_store.open import object_url

    return {
        "topic": topic,
        "topic_id": str(listing.topic_id),
        "commit_number": listing.commit_number,
        "files": [
            {
                "path": object_url(store_url, file.file.object.key),
                "name": file.file.object.key.rpartition("/")[2],
                "bytes": file.file.object.size,
                "rows": file.rows,
                "live_rows": file.live_count,
                "live": [
                    {"partition": part.partition, "start": part.start, "end": part.end, "rows": rows}
                    for part, rows in file.live
                ],
            }
            for file in counted
        ],
        "partitions": [
            {
                "partition": bounds.partition,
                "log_start_offset": bounds.log_start_offset,
                "last_stable_offset": bounds.last_stable_offset,
                "uncompacted_offsets": bounds.uncompacted_offsets,
            }
            for bounds in listing.partitions
        ],
    }


def _show(listing: TopicFiles, counted: Sequence[FileRows]) -> None:
    rows = [
        (
            file.file.object.key,
            file.file.object.size,
            file.rows,
            file.live_count,
            _in_short([f"{part.partition}: {part.start}-{part.end - 1}" for part, _ in file.live]),
        )
        for file in counted
    ]
    print_table(
        ("key", "bytes", "rows", "live rows", "partition: live offsets"), rows, if_none="no Parquet files"
    )
    uncompacted = sum(partition.uncompacted_offsets for partition in listing.partitions)
    live = sum(file.live_count for file in counted)
    small = sum(file.file.object.size < 64 << 20 for file in counted)
    print(
        f"commit {listing.commit_number}: {len(counted)} files ({small} below 64 MiB), {live} live rows;"
        f" {uncompacted} offsets are in no Parquet file yet"
    )


def _in_short(parts: Sequence[str]) -> str:
    shown = ", ".join(parts[:4])
    return shown if len(parts) <= 4 else f"{shown}, and {len(parts) - 4} more"
