"""`tailrace query`: run SQL over topics with DuckDB in this process. A data folder needs no running server."""

from __future__ import annotations

import asyncio
import difflib
import itertools
import json
import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace_cli.commands.table import ask_log
from tailrace_cli.connections.broker import check_utf8
from tailrace_cli.errors import CommandFailed
from tailrace_cli.flags import flag, switch, with_flags
from tailrace_cli.stored_flags import LogFlags

if TYPE_CHECKING:
    from sequencer.api.topics import Topic
    from tailrace_cli.connections.opened_log import OpenLog

ROWS_AT_ONCE = 1_000
FOLLOW_PAUSE_S = 0.5
"""Pause between two checks for new records."""
CONNECTION: dict[str, str | bool | int | float | list[str]] = {"python_enable_replacements": "false"}
"""Names in the SQL are topics or files, not variables of this program."""


@with_flags
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL")],
    flags: LogFlags,
    last: Annotated[
        int | None, flag("--last -n", "N", "Read only the newest N offsets of each partition.", min=0)
    ] = None,
    follow: Annotated[
        bool, switch("--follow -f", "Continue with new records as they are committed.")
    ] = False,
) -> None:
    """Run SQL over topics, including records not yet in Parquet.

    Each topic is a table with the topic's name. Write "offset" in double quotes, because it is a keyword. Prints one
    JSON object per row, as rows arrive. With --follow, it then repeats the SQL over new records only, until Ctrl-C.
    """
    from tailrace_cli.commands.compact import cancelled_by_signals

    check_utf8("SQL", sql)

    async def ask(log: OpenLog) -> None:
        cancelled_by_signals()
        await _query(log, sql, last=last, follow=follow)

    try:
        ask_log(flags, ask)
    except asyncio.CancelledError:
        raise typer.Exit(0 if follow else 130) from None


async def _query(log: OpenLog, sql: str, *, last: int | None, follow: bool) -> None:
    import duckdb

    from compactor.spark_source.log_reader import DamagedRecords, DataLost
    from compactor.tables.query import TailTooLarge, add_functions, named_tables
    from compactor.tables.tail_reader import TopicGone
    from sequencer.api.topics import MetadataRequest

    if follow and not log.settings.sequencers:
        raise CommandFailed("--follow needs a running server: start `tailrace serve`, or give --sequencer")
    topics = {topic.name: topic for topic in (await log.sequencer.metadata(MetadataRequest())).topics or []}
    connection = duckdb.connect(config=CONNECTION)
    try:
        add_functions(connection)
        named = [topics[name] for name in named_tables(connection, sql, topics)]
        _check_names(topic.name for topic in named)
        if last is None and not follow:
            for topic in named:
                await _add(log, connection, topic)
            await _print_rows(connection, sql)
        elif len(named) == 1:
            await _tail(log, connection, sql, named[0], last=last, follow=follow)
        else:
            raise CommandFailed(
                f"the SQL reads {len(named)} topics; --last and --follow work with one topic only"
            )
    except duckdb.Error as error:
        raise CommandFailed(_explained(str(error), topics)) from error
    except DamagedRecords as error:
        raise CommandFailed(
            f"{error.damage}. Restore the object; `tailrace audit --full` lists all damaged objects"
        ) from error
    except (TailTooLarge, DataLost, TopicGone) as error:
        raise CommandFailed(str(error)) from error
    finally:
        connection.close()


def _check_names(names: Iterable[str]) -> None:
    """Raise CommandFailed for two topics that DuckDB can't tell apart, because it ignores the case of names."""
    by_lower: dict[str, str] = {}
    for name in names:
        other = by_lower.setdefault(name.lower(), name)
        if other != name:
            raise CommandFailed(
                f"the SQL reads the topics {other!r} and {name!r}, whose names differ only in case; DuckDB can't tell"
                " them apart: query one at a time"
            )


async def _tail(
    log: OpenLog, connection: Any, sql: str, topic: Topic, *, last: int | None, follow: bool
) -> None:
    from compactor.spark_source.log_index import SequencerIndex
    from compactor.tables.query import MAX_TAIL_BYTES, add_records
    from compactor.tables.tail_reader import TailReader, after_files, before_last, last_records

    index = SequencerIndex(log.sequencer)
    if last is None:
        positions = after_files(topic, await _add(log, connection, topic))
        records = TailReader(index, log.store, topic, positions)
    else:
        positions = await before_last(index, log.store, topic, last)
        records = TailReader(index, log.store, topic, positions)
        add_records(connection, topic.name, await last_records(records, MAX_TAIL_BYTES))
    await _print_rows(connection, sql)
    while follow:
        part = await records.part()
        if part is None:
            await log.runtime.clock.sleep(FOLLOW_PAUSE_S)
        else:
            add_records(connection, topic.name, part)
            await _print_rows(connection, sql)


async def _add(log: OpenLog, connection: Any, topic: Topic) -> Any:
    from compactor.tables.query import add_topic

    return await add_topic(
        connection,
        topic.name,
        topic.topic_id,
        sequencer=log.sequencer,
        store=log.store,
        store_url=log.store_url,
    )


async def _print_rows(connection: Any, sql: str) -> None:
    """Print the rows in a thread, so that the loop can renew the sequencer's lease if this process holds it."""
    printing = asyncio.ensure_future(asyncio.to_thread(_print_all, connection, sql))
    try:
        await asyncio.shield(printing)
    except asyncio.CancelledError:
        connection.interrupt()
        await asyncio.gather(printing, return_exceptions=True)
        raise


def _print_all(connection: Any, sql: str) -> None:
    connection.execute(sql)
    names = [column[0] for column in connection.description]
    while rows := connection.fetchmany(ROWS_AT_ONCE):
        for line in _lines(names, rows):
            print(line)
        sys.stdout.flush()


def _lines(names: Iterable[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    columns = _distinct(names)
    for row in rows:
        yield json.dumps(dict(zip(columns, map(_as_json, row), strict=True)))


def _distinct(names: Iterable[str]) -> list[str]:
    """Make column names distinct by numbers, as DuckDB does in CREATE TABLE AS."""
    taken: list[str] = []
    for name in names:
        spellings = (name if number == 0 else f"{name}_{number}" for number in itertools.count())
        taken.append(next(spelling for spelling in spellings if spelling not in taken))
    return taken


def _as_json(value: Any) -> Any:
    """Convert a value to JSON types. Bytes, and values of types that JSON lacks, become text."""
    match value:
        case bytes() | bytearray():
            return value.decode(errors="replace")
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {str(_as_json(key)): _as_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_as_json(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def _explained(error: str, topics: Collection[str]) -> str:
    """Add to DuckDB's message what DuckDB does not know: a similar topic, or that a name needs quotes."""
    missing = re.match(r"Catalog Error: Table with name (.+) does not exist!", error)
    if missing:
        by_lower = {topic.lower(): topic for topic in topics}
        near = difflib.get_close_matches(missing[1].lower(), by_lower, n=1)
        hint = f"did you mean {by_lower[near[0]]!r}?" if near else "`tailrace topic list` shows the topics"
        return f"there is no topic {missing[1]!r}; {hint}"
    for topic in topics if error.startswith(("Parser Error", "Catalog Error")) else ():
        if _lacks_quotes(topic, error):
            return f'{error}\nput the topic\'s name in double quotes: "{topic}"'
    if error.startswith("Parser Error") and re.search(r'(?<!")\boffset\b(?!")', error, re.IGNORECASE):
        return f'{error}\n"offset" is a keyword: put it in double quotes'
    return error


def _lacks_quotes(topic: str, error: str) -> bool:
    """Whether the topic's name is in the error's line of SQL without the quotes that it needs: it is a keyword, or has
    a dot or a hyphen."""
    if re.fullmatch(r"[A-Za-z_]\w*", topic):
        return f'syntax error at or near "{topic}"' in error
    return re.search(rf'(?<![\w.\-"]){re.escape(topic)}(?![\w.\-"])', error) is not None
