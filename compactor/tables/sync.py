"""Makes a topic's table refer to the live files: after each swap, and once a round for all other changes.

A comparison of the table with the sequencer's rows decides the change. So a repeated swap changes nothing, and the next
comparison repairs the table after a crash between a swap and its update, and after retention, DeleteRecords or a
topic's deletion. A change is one snapshot.

The order of steps protects files that a reader uses from collection: open the table, pin it (sequencer.rules.tables),
list, exchange, expire, move the pin. A writer that was overtaken fails at the exchange, because the table then has
another snapshot.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, TypeVar
from uuid import UUID

from compactor.columns.derive import QUARANTINE_COLUMNS, ValueFormat
from compactor.columns.registered import Registry
from compactor.tables.live import (
    FOOTERS_AT_ONCE,
    LiveFile,
    LiveRange,
    TopicFiles,
    cuts_sparse_batch,
    dead_rows,
    list_live_files,
    live_rows,
    read_footer,
)
from compactor.tables.orphan_files import OrphanFiles
from compactor.tables.table import (
    NewFile,
    ReferencedFile,
    StoredFile,
    TableChange,
    Tables,
    TableSnapshot,
    TopicTable,
    change_of,
    expired,
    is_stale,
    next_change_ms,
)
from compactor.tables.values import (
    Deriver,
    InProcessDeriver,
    TableFile,
    ValueFiles,
    dead_rows_of_part,
    stored_file,
    table_files,
)
from sequencer.api.compaction import PinTable, ReleaseTable
from sequencer.api.interface import Sequencer
from tailrace.object_store.api import ObjectStore

KNOWN_FILES = 200_000
"""The most files whose live ranges are remembered with the result, so that their footers are not read again."""
SWAPS_NAMED = 50
"""The most swaps of a snapshot whose ids are in its properties."""
LISTED_MS = "tailrace.listed-ms"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DesiredTable:
    """A topic's table. `is_wanted`: False if the topic was deleted or does not ask for a table any more.

    `values`: how the topic's values become columns. None: they stay bytes.
    """

    topic_id: UUID
    topic_name: str
    snapshot_ms: int
    is_wanted: bool = True
    values: ValueFormat | None = None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of one comparison. `quarantined`: files in the quarantine. `is_behind`: some objects have no file with
    typed columns yet.

    `settled_ms`: for how long another comparison would change nothing, if `TableSync.listing` still returns `listing`.
    """

    files: int
    change: TableChange
    expired: int
    is_dropped: bool = False
    quarantined: int = 0
    is_behind: bool = False
    listing: bytes = b""
    settled_ms: int = 0


class _Files(NamedTuple):
    """The files that a table and its quarantine must refer to. `is_complete`: they cover all live objects."""

    data: list[TableFile]
    quarantined: list[TableFile]
    is_complete: bool = True


class _Pass(NamedTuple):
    """One comparison of a table and its quarantine."""

    wanted: DesiredTable
    now_ms: int
    properties: dict[str, str]


class _Comparison(NamedTuple):
    """The result for one table. `left`: the snapshots that have not expired. `is_over`: the table is not wanted, and
    its snapshots have expired."""

    files: int
    change: TableChange
    expired: int
    left: list[TableSnapshot]
    is_over: bool


class TableSync:
    """Compares and repairs tables. Use one per process, because it caches results from footers."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: ObjectStore,
        tables: Tables,
        *,
        path_of: Callable[[str], str],
        executor: Executor,
        folder: str = "tables",
        registry: Registry | None = None,
    ) -> None:
        """Set up the comparison of tables.

        Args:
            path_of: returns the path of an object's key for other programs.
            executor: runs calls of the catalog, which block.
            folder: the prefix of the keys of the tables' own files.
            registry: has the schemas of Avro and Protobuf values.
        """
        self._sequencer = sequencer
        self._store = store
        self._tables = tables
        self._path_of = path_of
        self._executor = executor
        self._folder = folder
        self._values = ValueFiles(InProcessDeriver(store, self._blocking), self._blocking, registry)
        self._leftovers = OrphanFiles(store, self._blocking)
        self._whole: OrderedDict[str, tuple[str, bool]] = OrderedDict()

    def derive_by(self, deriver: Deriver) -> None:
        """Derive typed columns with this deriver from now on, not in this process."""
        self._values.deriver = deriver

    async def sync(self, wanted: DesiredTable) -> SyncResult:
        """Bring one table and its quarantine up to date. Return the result of the last comparison.

        Raises SequencerError, StoreError, InvalidParquetObject, TableConflict, ColumnsConflict, RegistryUnavailable,
        and what the catalog and the deriver raise.
        """
        while True:
            done = await self._step(wanted)
            if not done.is_behind:
                return done

    async def listing(self, topic_id: UUID) -> bytes:
        """Return a digest of the topic's live files and their live offsets. Raises SequencerError."""
        return digest_of(await list_live_files(self._sequencer, topic_id))

    async def replay(self, wanted: DesiredTable) -> SyncResult:
        """Retry all records in the quarantine, and bring the table up to date like `sync`."""
        table = await self._open(wanted, create=False)
        if table is not None:
            await self._blocking(table.replay)
        return await self.sync(wanted)

    async def _step(self, wanted: DesiredTable) -> SyncResult:
        """Compare and repair the table once."""
        table = await self._open(wanted, create=wanted.is_wanted)
        if table is None:
            await self._sequencer.release_table(ReleaseTable(wanted.topic_id))
            return SyncResult(0, change_of({}, {}), 0, is_dropped=True)
        pin = await self._sequencer.pin_table(PinTable(wanted.topic_id))
        work = _Pass(wanted, pin.now_ms, {LISTED_MS: str(pin.now_ms)})
        files, live, digest = _Files([], []), frozenset[UUID](), b""
        if wanted.is_wanted:
            listing = await list_live_files(self._sequencer, wanted.topic_id)
            digest = digest_of(listing)
            work.properties["tailrace.commit-number"] = str(listing.commit_number)
            live = frozenset(file.object.object_id for file in listing.files)
            files = await self._files_for(wanted, table, listing.files)
        done = await self._compare(work, table, files.data)
        quarantine = await self._sync_quarantine(work, table, files.quarantined)
        is_last = done.is_over and (quarantine is None or quarantine.is_over)
        if is_last or (wanted.is_wanted and await self._leftovers.is_due(table, work.now_ms)):
            await self._delete_leftovers(work, table, live, is_last=is_last)
        if is_last:
            await self._blocking(lambda: self._tables.drop(wanted.topic_id, wanted.topic_name))
            await self._sequencer.release_table(ReleaseTable(wanted.topic_id))
            return SyncResult(0, done.change, done.expired, is_dropped=True)
        if done.left:
            kept_from_ms = min(snapshot.listed_ms for snapshot in done.left)
            await self._sequencer.pin_table(PinTable(wanted.topic_id, kept_from_ms))
        snapshots = [done.left, [] if quarantine is None else quarantine.left]
        return SyncResult(
            done.files,
            done.change,
            done.expired,
            quarantined=len(files.quarantined),
            is_behind=not files.is_complete,
            listing=digest,
            settled_ms=min(next_change_ms(of_table, wanted.snapshot_ms) for of_table in snapshots)
            - pin.now_ms,
        )

    async def _delete_leftovers(
        self, work: _Pass, table: TopicTable, live: Collection[UUID], *, is_last: bool
    ) -> None:
        quarantine = await self._open(work.wanted, create=False, is_quarantine=True)
        prefix = f"{self._folder}/{work.wanted.topic_id}"
        await self._leftovers.delete(
            table, quarantine, prefix, live=live, now_ms=work.now_ms, is_last=is_last
        )

    async def _open(
        self, wanted: DesiredTable, *, create: bool, is_quarantine: bool = False
    ) -> TopicTable | None:
        return await self._blocking(
            lambda: self._tables.open(
                wanted.topic_id, wanted.topic_name, create=create, is_quarantine=is_quarantine
            )
        )

    async def _files_for(self, wanted: DesiredTable, table: TopicTable, files: Sequence[LiveFile]) -> _Files:
        """Return the files that the table and its quarantine must refer to for the live objects."""
        if wanted.values is None:
            return _Files([TableFile(file, file.object.key) for file in files], [])
        prefix = f"{self._folder}/{wanted.topic_id}"
        written = await self._values.names(wanted.values, table, files, prefix)
        named = [file for file in files if file.object.object_id in written.names]
        return _Files(*table_files(named, written.names, prefix), written.is_complete)

    async def _sync_quarantine(
        self, work: _Pass, table: TopicTable, files: Sequence[TableFile]
    ) -> _Comparison | None:
        """Bring the quarantine up to date after its table. Return None if there is no quarantine."""
        if await self._blocking(table.columns) is None:
            return None
        wanted = work.wanted
        quarantine = await self._open(wanted, create=bool(files), is_quarantine=True)
        if quarantine is None:
            return None
        if await self._blocking(quarantine.columns) is None:
            await self._blocking(lambda: quarantine.grow(QUARANTINE_COLUMNS))
        done = await self._compare(work, quarantine, files)
        if done.is_over:
            await self._blocking(
                lambda: self._tables.drop(wanted.topic_id, wanted.topic_name, is_quarantine=True)
            )
        return done

    async def _compare(self, work: _Pass, table: TopicTable, files: Sequence[TableFile]) -> _Comparison:
        """Make the table refer to exactly these files, and expire old snapshots."""
        wanted, properties = work.wanted, dict(work.properties)
        named = await self._blocking(table.named)
        should, new = await self._wanted_files(wanted.topic_id, files, named, table)
        change = change_of(named, should)
        if change or (wanted.is_wanted and is_stale(table.snapshots(), work.now_ms, wanted.snapshot_ms)):
            swaps = sorted(path.rpartition("/")[2].removesuffix(".parquet") for path in change.added)
            properties["tailrace.swaps"] = ",".join(swaps[:SWAPS_NAMED])
            await self._blocking(lambda: table.exchange(change, new, properties))
        over, left = await self._expire(work, table)
        is_over = not wanted.is_wanted and not should and len(left) <= 1
        return _Comparison(len(should), change, expired=over, left=left, is_over=is_over)

    async def _expire(self, work: _Pass, table: TopicTable) -> tuple[int, list[TableSnapshot]]:
        """Expire old snapshots. Return how many, and those that are left."""
        snapshots = await self._blocking(table.snapshots)
        over = expired(snapshots, work.now_ms, work.wanted.snapshot_ms)
        if over:
            await self._blocking(lambda: table.expire([snapshot.snapshot_id for snapshot in over]))
        return len(over), [snapshot for snapshot in snapshots if snapshot not in over]

    async def _wanted_files(
        self, topic_id: UUID, files: Sequence[TableFile], named: dict[str, str | None], table: TopicTable
    ) -> tuple[dict[str, str | None], dict[str, NewFile]]:
        """Return the wanted state of the table, and the files that are new or changed in it. Reads their footers."""
        should: dict[str, str | None] = {}
        unknown: list[TableFile] = []
        for file in files:
            path, deletes = self._path_of(file.key), deletes_of(file)
            is_whole = self._is_whole(file, deletes)
            if path in named and named[path] == deletes:
                should[path] = deletes
            elif path in named and named[path] is None and is_whole:
                should[path] = None
            elif is_whole is not False:
                unknown.append(file)
        new: dict[str, NewFile] = {}
        for first in range(0, len(unknown), FOOTERS_AT_ONCE):
            part = unknown[first : first + FOOTERS_AT_ONCE]
            for described in await asyncio.gather(*(self._described(topic_id, file, table) for file in part)):
                if described is not None:
                    should[described.named.path] = described.named.deletes
                    new[described.named.path] = described
        return should, new

    def _is_whole(self, file: TableFile, deletes: str) -> bool | None:
        """Whether the live ranges cover all rows (True) or none (False) of the file. None: its footer must be read."""
        read = self._whole.get(file.key)
        return read[1] if read is not None and read[0] == deletes else None

    async def _described(self, topic_id: UUID, file: TableFile, table: TopicTable) -> NewFile | None:
        """Describe the file with its dead rows; None if no row of the object is live."""
        described = file.live.object
        index = await read_footer(self._store, described)
        live = live_rows(index.header, topic_id, file.live.ranges)
        dead = dead_rows(index.header, live)
        if (file.is_partial and dead) or cuts_sparse_batch(index.header, topic_id, file.live.ranges):
            dead = await dead_rows_of_part(self._store, file)
        path, deletes = self._path_of(file.key), deletes_of(file)
        is_named = bool(live) or file.is_derived
        if not dead or not is_named:
            self._whole[file.key] = (deletes, is_named)
            if len(self._whole) > KNOWN_FILES:
                self._whole.popitem(last=False)
        if not is_named:
            return None
        stored = StoredFile(described.size, index.metadata)
        if file.is_derived:
            stored = await stored_file(self._store, file.key)
        description = await self._blocking(lambda: table.describe(path, stored))
        return NewFile(ReferencedFile(path, deletes if dead else None), description, tuple(dead))

    async def _blocking(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


def digest_of(listing: TopicFiles) -> bytes:
    """Return a digest of the live files and their live offsets."""
    files = [(file.object.object_id.hex, *sorted(map(tuple, file.ranges))) for file in listing.files]
    return blake2b(repr(files).encode(), digest_size=16).digest()


def deletes_of(file: TableFile) -> str:
    """Return the name of the deletes file for a file's live ranges. Different ranges give a different name."""
    ranges: list[LiveRange] = sorted(file.live.ranges)
    digest = blake2b(repr([tuple(live) for live in ranges]).encode(), digest_size=12).hexdigest()
    return f"{file.key.rpartition('/')[2].removesuffix('.parquet')}-{digest}"
