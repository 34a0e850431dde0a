"""Reads checkpoints and objects from the bucket and compares the objects with a checkpoint's rows.

Read-only. It reads mixed objects only: objects that no row names are read whole; of the newest others only the footers
are read.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar
from uuid import UUID

from fastcrc.crc32 import iscsi as crc32c

from sequencer.api.commits import ObjectKind
from sequencer.checkpoint import format as checkpoint
from sequencer.checkpoint.format import Chain, CheckpointedRows, Head, HeadId, InvalidCheckpoint
from sequencer.store.rows import AbortedRow, ObjectRow, PartitionRow, RunRow, SessionRow, TopicRow, key_of
from tailrace.batches.mixed_object import Footer, InvalidObject, audit_data, read_footer
from tailrace.object_store.api import ObjectInfo, ObjectMissing, ObjectStore

READS_AT_ONCE = 8
FOLDERS = ("mixed", "parquet", "written")
"""The folders of objects of agents, of compactors, and of jobs that write. A job's write was answered when a checkpoint
named it; if no checkpoint names it, the job writes it again."""
FORGOTTEN_MS = 3_600_000
"""An object without a row, of a session without a row, is garbage if it is older than the checkpoint by this: its
session had already been deleted."""
RETRY_MS = 300_000
"""An agent may retry a batch that was refused for a sequence gap by naming its object, for at most this long:
`gap_deadline_ms` plus the difference between clocks is shorter."""
_base_offset = attrgetter("base_offset")
A = TypeVar("A")


@dataclass(slots=True)
class FoundCheckpoints:
    """The rows of the newest sound chain, and all sound heads. `problems` names the others."""

    chain: Chain | None
    rows: CheckpointedRows
    heads: dict[HeadId, Head]
    unreadable: list[HeadId]
    problems: list[str]


async def read_checkpoints(store: ObjectStore, cluster_id: str) -> FoundCheckpoints:
    """Read all heads, and the newest rows that heads and parts give. Raises StoreError."""
    heads: dict[HeadId, Head] = {}
    unreadable: list[HeadId] = []
    problems: list[str] = []

    async def read(head_id: HeadId) -> None:
        key = checkpoint.head_key(cluster_id, head_id)
        try:
            heads[head_id] = checkpoint.decode_head(await store.get(key))
        except (InvalidCheckpoint, ObjectMissing) as error:
            unreadable.append(head_id)
            problems.append(f"checkpoint {key} can't be read: {error}")

    await for_each(sorted(await list_heads(store, cluster_id)), read)
    for chain in checkpoint.chains(heads):
        try:
            return FoundCheckpoints(
                chain=chain,
                rows=await _rows_of(store, chain),
                heads=heads,
                unreadable=unreadable,
                problems=problems,
            )
        except (InvalidCheckpoint, ObjectMissing) as error:
            name = checkpoint.head_key(cluster_id, chain.snapshot.head_id)
            problems.append(f"the snapshot of checkpoint {name} can't be read: {error}")
    return FoundCheckpoints(
        chain=None, rows=CheckpointedRows(), heads=heads, unreadable=unreadable, problems=problems
    )


async def list_heads(store: ObjectStore, cluster_id: str) -> list[HeadId]:
    """Return the places of all heads, readable or not."""
    head_ids: list[HeadId] = []
    async for info in store.list(checkpoint.meta_prefix(cluster_id)):
        head_id = checkpoint.head_id_of(cluster_id, info.key)
        if head_id is not None and info.key.endswith(".head"):
            head_ids.append(head_id)
    return head_ids


async def _rows_of(store: ObjectStore, chain: Chain) -> CheckpointedRows:
    rows = CheckpointedRows()
    for part in chain.snapshot.parts:
        if not part.is_hot:
            rows.apply(checkpoint.decode_part(await store.get(part.key), part))
    for head in chain.replayed:
        if head.is_snapshot:
            hot = [part for part in head.parts if part.is_hot]
            if not hot or head is chain.snapshot:
                rows.forget_hot()
            # The parts of a later snapshot are not needed if they can't be read: the heads have all changes.
            for part in hot if head is chain.snapshot else ():
                rows.apply(checkpoint.decode_part(await store.get(part.key), part))
        rows.apply(head.tables)
    _remove_invisible_rows(chain.last.cluster_id, rows)
    return rows


def _remove_invisible_rows(cluster_id: str, rows: CheckpointedRows) -> None:
    """Remove rows that a snapshot's pages have and no head has: the database had them, but the committer had not shown
    them yet.

    The objects of such a commit are then treated like those of any later commit. The runs of a swap are kept; an
    aborted range whose marker the swap dropped is removed.
    """
    partitions = rows.by_kind[PartitionRow]
    unshown: list[RunRow] = []
    for run in rows.all(RunRow):
        partition = partitions.get((run.topic_id, run.partition))
        if isinstance(partition, PartitionRow) and run.base_offset >= partition.end_offset:
            unshown.append(run)
            del rows.by_kind[RunRow][key_of(run)]
    sessions = rows.by_kind[SessionRow]
    for object_id in {run.object_id for run in unshown}:
        stored = rows.by_kind[ObjectRow].get((object_id,))
        origin = session_of(cluster_id, stored.key) if isinstance(stored, ObjectRow) else None
        session = None if origin is None else sessions.get((origin[0],))
        is_known = (
            isinstance(session, SessionRow) and origin is not None and (origin[2] or 0) < session.next_number
        )
        if not is_known:  # otherwise it was a retried batch, whose object was committed before
            rows.by_kind[ObjectRow].pop((object_id,), None)
    compacted: dict[tuple[UUID, int], list[RunRow]] = {}
    for run in rows.all(RunRow) if rows.by_kind[AbortedRow] else ():
        if run.kind is ObjectKind.PARQUET:
            compacted.setdefault((run.topic_id, run.partition), []).append(run)
    for runs in compacted.values():
        runs.sort(key=_base_offset)
    for aborted in rows.all(AbortedRow):
        dropped = compacted.get((aborted.topic_id, aborted.partition), [])
        at = bisect_right(dropped, aborted.last_offset, key=_base_offset) - 1
        if at >= 0 and aborted.last_offset < dropped[at].end_offset:
            del rows.by_kind[AbortedRow][key_of(aborted)]


def reserved_ends(checkpoints: FoundCheckpoints) -> Callable[[UUID, int], int]:
    """Return a function that returns the offset of a partition from which on no offset was ever assigned, according to
    all heads.

    Each head, readable or not, raises what may be assigned by at most its reservation.
    """
    ends: dict[tuple[UUID, int], int] = {}
    for head in checkpoints.heads.values():
        for table in head.tables:
            if table.kind != PartitionRow.__name__:
                continue
            for row in checkpoint.decode_table(table)[1]:
                assert isinstance(row, PartitionRow)
                key = (row.topic_id, row.partition)
                ends[key] = max(ends.get(key, 0), row.end_offset)
    for row in checkpoints.rows.all(PartitionRow):
        key = (row.topic_id, row.partition)
        ends[key] = max(ends.get(key, 0), row.end_offset)
    newest = max(checkpoints.heads) if checkpoints.heads else None
    if newest is not None and not checkpoints.unreadable and checkpoints.heads[newest].reservation == 0:
        beyond = 0  # the last committer wrote that it assigns nothing more
    else:
        most = max((head.reservation for head in checkpoints.heads.values()), default=0)
        beyond = most * (1 + len(checkpoints.unreadable))
    return lambda topic_id, partition: ends.get((topic_id, partition), 0) + beyond


def later_topics(checkpoints: FoundCheckpoints) -> list[TopicRow]:
    """Return topics in heads that are newer than the chain; they were created and acknowledged after the last
    snapshot."""
    if checkpoints.chain is None:
        return []
    named: dict[UUID, TopicRow] = {}
    for head_id in sorted(
        head_id for head_id in checkpoints.heads if head_id > checkpoints.chain.last.head_id
    ):
        for table in checkpoints.heads[head_id].tables:
            if table.kind != TopicRow.__name__:
                continue
            _, puts, deletes = checkpoint.decode_table(table)
            for key in deletes:
                named = {topic_id: row for topic_id, row in named.items() if (topic_id,) != key}
            named.update((row.topic_id, row) for row in puts if isinstance(row, TopicRow))
    known = checkpoints.rows.by_kind[TopicRow]
    return [row for row in named.values() if (row.topic_id,) not in known]


@dataclass(frozen=True, slots=True)
class LaterObject:
    """A sound mixed object that no row names."""

    key: str
    size: int
    crc: int
    footer: Footer


@dataclass(slots=True)
class FoundObjects:
    """Objects in the bucket, by what a recovery does with them."""

    later: list[LaterObject] = field(default_factory=list)
    retriable: list[Footer] = field(default_factory=list)
    """Footers of the newest objects that rows name: a retry by reference may have stored a refused batch since."""
    garbage: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    missing: list[ObjectRow] = field(default_factory=list)
    prefixes: dict[UUID, str] = field(default_factory=dict)
    """The prefix of every session that left an object."""


def session_of(cluster_id: str, key: str) -> tuple[UUID, str, int | None] | None:
    """Return the session whose prefix a key has, that prefix, and the commit number (None except for agents'
    sessions)."""
    parts = key.removeprefix(f"{cluster_id}/").split("/")
    if len(parts) < 4 or parts[0] not in FOLDERS:
        return None
    try:
        session_id = UUID(parts[2])
    except ValueError:
        return None
    number = int(parts[3]) if parts[3].isdecimal() else None
    return session_id, f"{cluster_id}/{'/'.join(parts[:3])}/", number


async def find_objects(
    store: ObjectStore, cluster_id: str, rows: CheckpointedRows, head: Head
) -> FoundObjects:
    """Compare the bucket with the rows. Raises StoreError."""
    named = {row.key: row for row in rows.all(ObjectRow)}
    found = FoundObjects()
    present, unknown = await _listed(store, cluster_id, rows, head, found=found)
    found.missing = [row for key, row in named.items() if row.live_runs > 0 and present.get(key) != row.size]

    async def read(info: ObjectInfo) -> None:
        try:
            later = await _read_later(store, info)
        except (InvalidObject, ObjectMissing) as error:
            found.corrupt.append(f"{info.key}: {error}")
            return
        found.later.append(later)

    async def read_again(row: ObjectRow) -> None:
        try:
            tail = await store.get_range(row.key, row.index_start, row.size - row.index_start)
            found.retriable.append(read_footer(tail, row.size))
        except (InvalidObject, ObjectMissing) as error:
            found.corrupt.append(f"{row.key}: {error}")

    newest = [
        row
        for key, row in named.items()
        if row.kind is ObjectKind.MIXED
        and row.created_ms >= head.created_ms - RETRY_MS
        and present.get(key) == row.size
    ]
    await for_each(unknown, read)
    await for_each(newest, read_again)
    found.retriable.sort(key=lambda footer: (footer.created_ms, footer.session_id, footer.number))
    found.later.sort(key=lambda later: later.key)
    found.corrupt.sort()
    return found


async def _listed(
    store: ObjectStore, cluster_id: str, rows: CheckpointedRows, head: Head, *, found: FoundObjects
) -> tuple[dict[str, int], list[ObjectInfo]]:
    """List the bucket. Return the sizes of the objects that rows name, by key, and the objects that may have been
    written after the checkpoint. Add sessions' prefixes and garbage to `found`."""
    named = {row.key for row in rows.all(ObjectRow)}
    sessions: dict[UUID, SessionRow] = {row.session_id: row for row in rows.all(SessionRow)}
    present: dict[str, int] = {}
    unknown: list[ObjectInfo] = []
    for folder in FOLDERS:
        async for info in store.list(f"{cluster_id}/{folder}/"):
            origin = session_of(cluster_id, info.key)
            if origin is not None:
                found.prefixes[origin[0]] = origin[1]
            if info.key in named:
                present[info.key] = info.size
            elif (
                folder != "mixed"
                or origin is None
                or _is_garbage(info, sessions.get(origin[0]), origin[2], head)
            ):
                found.garbage.append(info.key)
            else:
                unknown.append(info)
    return present, unknown


def _is_garbage(info: ObjectInfo, session: SessionRow | None, number: int | None, head: Head) -> bool:
    """Whether an unnamed object was already garbage at the checkpoint."""
    if session is None:
        return info.modified_ms < head.created_ms - FORGOTTEN_MS
    return session.closed_ms is not None or (number is not None and number < session.next_number)


async def _read_later(store: ObjectStore, info: ObjectInfo) -> LaterObject:
    data = await store.get(info.key)
    footer = read_footer(data, len(data))
    if problems := audit_data(data, footer):
        raise InvalidObject("; ".join(problems))
    return LaterObject(info.key, len(data), crc32c(data), footer)


async def for_each(items: Sequence[A], act: Callable[[A], Awaitable[None]]) -> None:
    """Act on all items, a few at a time. Raises the first failure."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await act(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(READS_AT_ONCE, len(items))):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def in_order(later: Iterable[LaterObject]) -> list[LaterObject]:
    """Return the objects ordered by time, but those of each session in the order in which it sealed them."""
    by_session: dict[UUID, list[LaterObject]] = {}
    for one in later:
        by_session.setdefault(one.footer.session_id, []).append(one)
    keyed: list[tuple[int, UUID, int, LaterObject]] = []
    for session_id, objects in by_session.items():
        at = 0
        for one in sorted(objects, key=lambda one: one.footer.number):
            at = max(at, one.footer.created_ms)
            keyed.append((at, session_id, one.footer.number, one))
    keyed.sort(key=lambda entry: entry[:3])
    return [entry[3] for entry in keyed]
