"""`tailrace erase`: erase all records of some keys from a topic, and log the erasure."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tailrace_cli.commands.table import ask_log
from tailrace_cli.errors import CommandFailed, WrongUsage
from tailrace_cli.flags import flag, switch, with_flags
from tailrace_cli.output import JsonFlag, print_json, print_table
from tailrace_cli.record_text import Encoding, iso_time, to_bytes
from tailrace_cli.stored_flags import LogFlags

if TYPE_CHECKING:
    from compactor.erasure.erase import EraseRequest, ErasureWork
    from compactor.erasure.search import SearchCost
    from compactor.tables.schedule import TableSchedule
    from tailrace_cli.connections.opened_log import OpenLog

MAX_KEY_FILE_BYTES = 64 << 20


@with_flags
def erase(
    topic: Annotated[str, flag("--topic -t", "TOPIC", "The topic to erase from.")],
    flags: LogFlags,
    key: Annotated[list[str] | None, flag("--key -k", "KEY", "A key to erase. Can be repeated.")] = None,
    keys_file: Annotated[Path | None, flag("--keys-file", "FILE", "A file with one key per line.")] = None,
    encoding: Annotated[Encoding, switch("--encoding -e", "Encoding of the keys.")] = Encoding.TEXT,
    reason: Annotated[str, flag("--reason", "TEXT", "A reason to store in the log of erasures.")] = "",
    dry_run: Annotated[bool, switch("--dry-run", "Show the objects and counts; change nothing.")] = False,
    full: Annotated[
        bool, switch("--full", "Read all keys; do not trust key bounds and Bloom filters.")
    ] = False,
    show_log: Annotated[
        bool, switch("--log", "Show the topic's erasures, and whether erased bytes are still stored.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Erase all records that have one of these keys.

    Other records keep their offsets; consumers skip the erased ones. Records that are not in Parquet yet are compacted
    first. The old objects are deleted after a grace period, once no table snapshot refers to them; --log shows when
    they are gone.
    """
    if show_log:
        _, erasures = ask_log(flags, lambda log: _logged(log, topic))
        _show_log(erasures, as_json=as_json)
        return
    keys = _keys(key or [], keys_file, encoding)

    async def ask(log: OpenLog) -> dict[str, Any]:
        from compactor.erasure.erase import EraseFailed, EraseRequest
        from compactor.erasure.search import SearchKeys

        described = await log.topic(topic)
        request = EraseRequest(described, SearchKeys.of(keys), by=_operator(), reason=reason, reads_all=full)
        try:
            return await (_previewed if dry_run else _erased)(log, request)
        except EraseFailed as error:
            raise CommandFailed(str(error)) from error

    _, figures = ask_log(flags, ask)
    _show(figures, as_json=as_json)
    if failures := figures.get("table_failures"):
        raise CommandFailed(f"{failures} table updates failed; the compactor's next round will retry them")


def _show(figures: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(figures)
        return
    rows = [(name.replace("_", " "), value) for name, value in figures.items() if name != "objects"]
    print_table(("figure", "value"), rows)
    if objects := figures["objects"]:
        print_table(("object", "records"), [(listed["key"], listed["records"]) for listed in objects])


def _keys(given: list[str], file: Path | None, encoding: Encoding) -> list[bytes]:
    """Return the keys of the flags and of the file, sorted and distinct. Raises WrongUsage, CommandFailed."""
    from compactor.erasure.erase import MAX_KEYS

    lines = list(given)
    if file is not None:
        if file.stat().st_size > MAX_KEY_FILE_BYTES:
            raise CommandFailed(
                f"{file} is larger than {MAX_KEY_FILE_BYTES >> 20} MiB; split it into several files"
            )
        lines += _lines(file.read_bytes().decode("utf-8", "surrogateescape"))
    keys = {key for line in lines if (key := to_bytes(line, encoding)) is not None}
    if not 1 <= len(keys) <= MAX_KEYS:
        raise WrongUsage(f"{len(keys)} keys; give 1 to {MAX_KEYS} with --key or --keys-file")
    return sorted(keys)


def _lines(text: str) -> list[str]:
    """Split a file into lines at \\n, or at \\r\\n if the file ends with that.

    A key may contain any other character that Unicode counts as the end of a line.
    """
    end = "\r\n" if text.endswith("\r\n") else "\n"
    return text.removesuffix(end).split(end) if text else []


def _operator() -> str:
    import getpass
    import platform

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # a container may have no name for its user
    return f"{user}@{platform.node()}"


async def _previewed(log: OpenLog, request: EraseRequest) -> dict[str, Any]:
    from compactor.erasure.erase import find_keys

    search = await find_keys(_work(log), request)
    return {
        "records": sum(hit.records for hit in search.hits),
        "not_compacted_offsets": sum(search.unread.values()),
        "corrupt_objects": len(search.corrupt),
        **_cost(search.cost, "search"),
        "objects": [{"key": hit.file.object.key, "records": hit.records} for hit in search.hits],
    }


async def _erased(log: OpenLog, request: EraseRequest) -> dict[str, Any]:
    from compactor.erasure.erase import bytes_left, erase_keys
    from tailrace_cli.commands.compact import tables_of

    began_ms = log.runtime.clock.wall_ms()
    async with tables_of(log) as tables:
        done = await erase_keys(_work(log, tables), request)
        failures = list(tables.failures)
    (left,) = await bytes_left(log.sequencer, request.topic.name, [began_ms])
    return {
        "erased_records": done.erased_records,
        "rewritten_objects": len(done.objects),
        **_cost(done.proof, "proof"),
        **{f"{name}_left": count for name, count in asdict(left).items()},
        "table_failures": len(failures),
        "objects": [],
    }


def _cost(cost: SearchCost, of: str) -> dict[str, Any]:
    return {f"{of}_{name}": value for name, value in asdict(cost).items()}


def _work(log: OpenLog, tables: TableSchedule | None = None) -> ErasureWork:
    from compactor.erasure.erase import ErasureWork

    return ErasureWork(
        log.sequencer, log.store, log.runtime.clock, log.runtime.entropy, tables=tables, run=asyncio.to_thread
    )


async def _logged(log: OpenLog, topic: str) -> list[dict[str, Any]]:
    from compactor.erasure.erase import bytes_left
    from compactor.erasure.record import read_records
    from sequencer.api.topics import MetadataRequest

    cluster_id = (await log.sequencer.metadata(MetadataRequest())).cluster_id
    records = await read_records(log.store, cluster_id, topic)
    left = await bytes_left(log.sequencer, topic, [record.begun_ms for record in records])
    return [
        {
            "erasure_id": str(record.erasure_id),
            "begun": iso_time(record.begun_ms),
            "ended": iso_time(record.ended_ms) if record.ended_ms else None,
            "by": record.by,
            "reason": record.reason,
            "key_hashes": record.key_hashes,
            "erased_records": record.erased_records,
            "rewritten_objects": record.rewritten_objects,
            **{f"{name}_left": count for name, count in asdict(of_record).items()},
        }
        for record, of_record in zip(records, left, strict=True)
    ]


def _show_log(erasures: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(erasures)
        return
    columns = ("begun", "ended", "by", "reason", "erased_records", "live_mixed_left", "retired_left")
    rows = [[erasure[column] for column in columns] + [len(erasure["key_hashes"])] for erasure in erasures]
    names = [column.replace("_", " ") for column in columns]
    print_table((*names, "keys"), rows, if_none="nothing was erased from this topic")
