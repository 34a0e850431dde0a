"""`tailrace query`: SQL over topics, by DuckDB in this process. For a data folder no server need run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace_cli.commands.table import ask_log
from tailrace_cli.errors import CommandFailed
from tailrace_cli.flags import LogFlags, with_flags

if TYPE_CHECKING:
    from tailrace_cli.connections.opened_log import OpenedLog

ROWS_AT_ONCE = 1_000


@with_flags
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL")],
    flags: LogFlags,
) -> None:
    """Run SQL over topics: Parquet files and tail as one.

    Each topic is a table of its name; quote "offset", a keyword. Prints one JSON object a row, as rows come.
    """

    async def ask(log: OpenedLog) -> None:
        await _query(log, sql)

    ask_log(flags, ask)


async def _query(log: OpenedLog, sql: str) -> None:
    import asyncio

    import duckdb

    from compactor.tables.query import TailTooLarge, add_topic
    from sequencer.api import MetadataRequest

    if log.store_url.startswith("s3:"):
        raise CommandFailed("query reads a store in a folder; for S3 open the Iceberg table, or use Spark")
    connection = duckdb.connect()
    try:
        for topic in (await log.sequencer.metadata(MetadataRequest())).topics or []:
            if topic.name in sql:
                await add_topic(
                    connection,
                    topic.name,
                    topic.topic_id,
                    sequencer=log.sequencer,
                    store=log.store,
                    store_url=log.store_url,
                )
        # Beside the loop, which keeps the sequencer's lease where this process has it.
        await asyncio.to_thread(_print_rows, connection, sql)
    except (duckdb.Error, TailTooLarge) as error:
        raise CommandFailed(str(error)) from error
    finally:
        connection.close()


def _print_rows(connection: Any, sql: str) -> None:
    connection.execute(sql)
    names = [column[0] for column in connection.description]
    while rows := connection.fetchmany(ROWS_AT_ONCE):
        for line in _lines(names, rows):
            print(line)


def _lines(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    for row in rows:
        yield json.dumps(dict(zip(names, row, strict=True)), default=_shown)


def _shown(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)
