"""`tailrace table`: the Parquet files that hold a topic's records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tailrace_cli.bare import group_of_commands
from tailrace_cli.output import JsonFlag, print_json, print_table

if TYPE_CHECKING:
    from compactor.tables.live import FileRows, TopicFiles
    from tailrace_cli.opened_log import OpenedLog

T = TypeVar("T")

app = group_of_commands("Tables over the Parquet files of topics: files.")

TopicName = Annotated[str, typer.Argument(metavar="TOPIC")]
Data = Annotated[
    str | None, typer.Option("--data", metavar="DIR", help="The folder of `tailrace serve`, running or not.")
]
Store = Annotated[str | None, typer.Option("--store", metavar="URL", help="The agents' object store.")]
Database = Annotated[
    str | None, typer.Option("--database", metavar="URL", help="The sequencer's database, where none runs.")
]
Sequencers = Annotated[
    str | None, typer.Option("--sequencer", metavar="HOST:PORT,...", help="Running sequencers.")
]
SecretFile = Annotated[
    Path | None, typer.Option("--rpc-secret-file", metavar="FILE", help="The cluster's secret.")
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings as TOML.")]


@app.command()
def files(
    topic: TopicName,
    data: Data = None,
    store: Store = None,
    database: Database = None,
    sequencer: Sequencers = None,
    rpc_secret_file: SecretFile = None,
    config: Config = None,
    as_json: JsonFlag = False,
) -> None:
    """Name the live Parquet files of a topic, as of one state of its log.

    A file is partly live where DeleteRecords, retention or another file took rows from it: count and read the
    live ranges of offsets only.
    """

    async def ask(log: OpenedLog) -> tuple[TopicFiles, list[FileRows]]:
        from compactor.tables.live import count_rows, list_live_files

        found = await list_live_files(log.sequencer, (await log.topic(topic)).topic_id)
        return found, await count_rows(log.store, found)

    given = {
        "data": data, "store": store, "database": database, "sequencers": sequencer,
        "rpc_secret_file": rpc_secret_file,
    }  # fmt: skip
    store_url, (found, counted) = _ask(given, config, ask)
    if as_json:
        print_json(_as_json(topic, store_url, found, counted))
    else:
        _show(found, counted)


def _ask(
    given: dict[str, Any], config: Path | None, question: Callable[[OpenedLog], Awaitable[T]]
) -> tuple[str, T]:
    from tailrace.settings import load_settings
    from tailrace.telemetry import configure_logging
    from tailrace_cli.errors import CommandFailed
    from tailrace_cli.loop import run
    from tailrace_cli.opened_log import opened_log
    from tailrace_cli.security import refuse_password_in_command
    from tailrace_cli.settings import Settings

    configure_logging("warning", "auto")
    refuse_password_in_command("--database", given["database"])

    async def ask() -> tuple[str, T]:
        async with opened_log(load_settings(Settings, flags=given, file=config)) as log:
            return log.store_url, await question(log)

    try:
        return run(ask())
    except ImportError as error:
        raise CommandFailed(
            f"tables need {error.name or error}; install it with `pip install 'tailrace[compactor]'`"
        ) from error


def _as_json(topic: str, store_url: str, found: TopicFiles, counted: Sequence[FileRows]) -> dict[str, Any]:
    from tailrace.object_store.open import object_url

    return {
        "topic": topic,
        "topic_id": str(found.topic_id),
        "commit_number": found.commit_number,
        "files": [
            {
                "path": object_url(store_url, each.file.object.key),
                "name": each.file.object.key.rpartition("/")[2],
                "bytes": each.file.object.size,
                "rows": each.rows,
                "live_rows": each.live_count,
                "live": [
                    {"partition": part.partition, "start": part.start, "end": part.end, "rows": rows}
                    for part, rows in each.live
                ],
            }
            for each in counted
        ],
        "partitions": [
            {
                "partition": bounds.partition,
                "log_start_offset": bounds.log_start_offset,
                "last_stable_offset": bounds.last_stable_offset,
                "uncompacted_offsets": bounds.uncompacted_offsets,
            }
            for bounds in found.partitions
        ],
    }


def _show(found: TopicFiles, counted: Sequence[FileRows]) -> None:
    rows = [
        (
            each.file.object.key,
            each.file.object.size,
            each.rows,
            each.live_count,
            _in_short([f"{part.partition}: {part.start}-{part.end - 1}" for part, _ in each.live]),
        )
        for each in counted
    ]
    print_table(
        ("key", "bytes", "rows", "live rows", "partition: live offsets"), rows, if_none="no Parquet files"
    )
    uncompacted = sum(each.uncompacted_offsets for each in found.partitions)
    live = sum(each.live_count for each in counted)
    print(
        f"commit {found.commit_number}: {len(counted)} files, {live} live rows;"
        f" {uncompacted} offsets are in no Parquet file yet"
    )


def _in_short(parts: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(parts[:most])
    return shown if len(parts) <= most else f"{shown}, and {len(parts) - most} more"
