"""`tailrace object`: list, show and audit objects on the store, without the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tailrace_cli.command_group import group_of_commands
from tailrace_cli.errors import CommandFailed
from tailrace_cli.flags import flag
from tailrace_cli.output import JsonFlag, print_json, print_table

if TYPE_CHECKING:
    from tailrace.object_store.api import ObjectStore

T = TypeVar("T")

app = group_of_commands("Objects on the store: list, show, audit.")

StoreFlag = Annotated[str, flag("--store", "URL", "s3://bucket/prefix or a folder.", envvar="TAILRACE_STORE")]
Key = Annotated[str, typer.Argument(metavar="KEY")]
DEFAULT_STORE = "data/objects"
PARQUET_MAGIC = b"PAR1"


@app.command("list")
def list_objects(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX")] = "",
    limit: Annotated[int, flag("--limit", "N", "Show at most this many objects.", min=1)] = 1000,
    store: StoreFlag = DEFAULT_STORE,
    as_json: JsonFlag = False,
) -> None:
    """List objects by key, with their sizes."""

    async def run(opened: ObjectStore) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        async for info in opened.list(prefix):
            rows.append({"key": info.key, "size": info.size})
            if len(rows) >= limit:
                break
        return rows

    objects = _with_store(store, run)
    if as_json:
        print_json(objects)
        return
    print_table(("key", "bytes"), [(row["key"], row["size"]) for row in objects], if_none="no objects")
    if len(objects) == limit:
        print(f"showing the first {limit}; --limit shows more")


@app.command()
def show(key: Key, store: StoreFlag = DEFAULT_STORE, as_json: JsonFlag = False) -> None:
    """Print an object's footer or index."""

    async def run(opened: ObjectStore) -> dict[str, Any]:
        size = (await opened.head(key)).size
        if size and await opened.get_range(key, max(0, size - 4), min(4, size)) == PARQUET_MAGIC:
            return await _parquet_index(opened, key, size)
        return await _mixed_footer(opened, key, size)

    content = _with_store(store, run)
    if as_json:
        print_json(content)
        return
    runs = content["runs"]
    for name, value in content.items():
        if name != "runs":
            print(f"{name.replace('_', ' ')}: {value}")
    if runs:
        print_table(list(runs[0]), [list(run.values()) for run in runs])


@app.command()
def audit(key: Key, store: StoreFlag = DEFAULT_STORE, as_json: JsonFlag = False) -> None:
    """Read a whole object and verify its checksums.

    Exits with 1 if the object is corrupt.
    """

    async def run(opened: ObjectStore) -> tuple[str, list[str]]:
        data = await opened.get(key)
        if data[-4:] == PARQUET_MAGIC:
            from tailrace.parquet_object.verify import audit as audit_parquet

            return "parquet", audit_parquet(data)
        from tailrace.batches.mixed_object import audit as audit_mixed

        return "mixed", audit_mixed(data)

    kind, problems = _with_store(store, run)
    if as_json:
        print_json({"key": key, "kind": kind, "sound": not problems, "problems": problems})
    elif not problems:
        print(f"sound: {key} ({kind})")
    if problems:
        raise CommandFailed(f"{kind} object {key} is corrupt: {'; '.join(problems)}")


def _with_store(url: str, question: Callable[[ObjectStore], Awaitable[T]]) -> T:
    from pathlib import Path

    from tailrace.clock import SystemClock
    from tailrace.object_store.api import ObjectMissing
    from tailrace.object_store.open import open_store
    from tailrace_cli.running.loop import run

    if "://" not in url and not Path(url).expanduser().is_dir():
        raise CommandFailed(f"--store {url!r}: there is no such folder; give the --store that the agents use")

    async def ask() -> T:
        store = open_store(url, clock=SystemClock())
        try:
            return await question(store)
        except ObjectMissing as error:
            raise CommandFailed(
                f"no such object in {url}: {error}; `tailrace object list` shows keys"
            ) from error
        finally:
            await store.close()

    return run(ask())


async def _tail(store: ObjectStore, key: str, size: int, length: int) -> bytes | bytearray:
    """Read the last `length` bytes of an object, or all of a shorter one."""
    length = min(size, length)
    return await store.get_range(key, size - length, length)


async def _mixed_footer(store: ObjectStore, key: str, size: int) -> dict[str, Any]:
    from tailrace.batches.mixed_object import TAIL_BYTES, InvalidObject, TailTooShort, read_footer

    try:
        try:
            footer = read_footer(await _tail(store, key, size, TAIL_BYTES), size)
        except TailTooShort as error:
            footer = read_footer(await _tail(store, key, size, error.needed), size)
    except InvalidObject as error:
        raise CommandFailed(f"{key} is not a readable Tailrace object: {error}") from error
    return {
        "key": key,
        "kind": "mixed",
        "size": size,
        "object_id": str(footer.object_id),
        "session_id": str(footer.session_id),
        "number": footer.number,
        "created_ms": footer.created_ms,
        "data_crc": f"{footer.data_crc:#010x}",
        "runs": [
            {
                "topic": run.topic_name,
                "partition": run.partition,
                "start": run.start,
                "bytes": run.length,
                "batches": len(run.batches),
                "records": sum(batch.record_count for batch in run.batches),
                "max_timestamp": max((batch.max_timestamp for batch in run.batches), default=-1),
            }
            for run in footer.runs
        ],
    }


async def _parquet_index(store: ObjectStore, key: str, size: int) -> dict[str, Any]:
    from tailrace.parquet_object.header import InvalidParquetObject
    from tailrace.parquet_object.read import TAIL_BYTES, FooterNeedsMore, read_index

    try:
        try:
            index = read_index(await _tail(store, key, size, TAIL_BYTES), size)
        except FooterNeedsMore as error:
            index = read_index(await _tail(store, key, size, error.needed), size)
    except InvalidParquetObject as error:
        raise CommandFailed(f"{key} is not a Tailrace Parquet object: {error}") from error
    header = index.header
    return {
        "key": key,
        "kind": "parquet",
        "size": size,
        "rows": index.metadata.num_rows,
        "row_groups": len(header.row_groups),
        "batches": header.batch_count,
        "runs": [
            {
                "topic": run.topic_name,
                "partition": run.partition,
                "rows": run.row_count,
                "batches": run.batch_count,
                "base_offset": run.base_offset,
                "end_offset": run.end_offset,
                "max_timestamp": run.max_timestamp,
            }
            for run in header.runs
        ],
    }
