"""Makes a topic's table name the files that are live: after each swap, and once a round for all else that happened.

The table is compared with the sequencer's rows, whatever happened in between: so a swap that was repeated changes
nothing, and a crash between the swap and the table, retention, DeleteRecords and a topic's deletion are repaired by the
next comparison. A change is one snapshot.

The order keeps files from being collected under a reader: open the table, pin it (sequencer.rules.tables), list,
exchange, expire, move the pin. A writer that was overtaken fails at the exchange: the table has another snapshot by
then.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar
from uuid import UUID

from compactor.tables.live import (
    FOOTERS_AT_ONCE,
    LiveFile,
    LiveRange,
    dead_rows,
    list_live_files,
    live_rows,
    read_footer,
)
from compactor.tables.table import (
    Named,
    NewFile,
    TableChange,
    Tables,
    TopicTable,
    change_of,
    expired,
    is_stale,
)
from sequencer.api import PinTable, ReleaseTable, Sequencer
from tailrace.object_store.api import ObjectStore

KNOWN_FILES = 200_000
"""Files whose live ranges are remembered with what they mean, so that their footers are not read again."""
SWAPS_NAMED = 50
"""Swaps of a snapshot whose ids its properties tell."""
LISTED_MS = "tailrace.listed-ms"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WantedTable:
    """A topic's table. `is_wanted`: False where the topic or its table is no longer there to be read."""

    topic_id: UUID
    topic_name: str
    snapshot_ms: int
    is_wanted: bool = True


@dataclass(frozen=True, slots=True)
class SyncedTable:
    """What one comparison found and did."""

    files: int
    change: TableChange
    expired: int
    is_dropped: bool = False


class TableSync:
    """Compares and repairs tables. Use one per process: it remembers footers."""

    def __init__(
        self,
        sequencer: Sequencer,
        store: ObjectStore,
        tables: Tables,
        *,
        path_of: Callable[[str], str],
        executor: Executor,
    ) -> None:
        """`path_of`: an object's key as other programs name it. `executor`: for calls of the catalog, which block."""
        self._sequencer = sequencer
        self._store = store
        self._tables = tables
        self._path_of = path_of
        self._executor = executor
        self._whole: OrderedDict[UUID, tuple[str, bool]] = OrderedDict()

    async def sync(self, wanted: WantedTable) -> SyncedTable:
        """Bring one table up to date.

        Raises SequencerError, StoreError, InvalidParquetObject, TableConflict, and what the catalog raises.
        """
        create = wanted.is_wanted
        table = await self._blocking(
            lambda: self._tables.open(wanted.topic_id, wanted.topic_name, create=create)
        )
        if table is None:
            await self._sequencer.release_table(ReleaseTable(wanted.topic_id))
            return SyncedTable(0, change_of({}, {}), 0, is_dropped=True)
        pin = await self._sequencer.pin_table(PinTable(wanted.topic_id))
        properties = {LISTED_MS: str(pin.now_ms)}
        files: Sequence[LiveFile] = ()
        if wanted.is_wanted:
            listing = await list_live_files(self._sequencer, wanted.topic_id)
            files = listing.files
            properties["tailrace.commit-number"] = str(listing.commit_number)
        named = await self._blocking(table.named)
        should, new = await self._wanted_files(wanted.topic_id, files, named, table)
        change = change_of(named, should)
        if change or (wanted.is_wanted and is_stale(table.snapshots(), pin.now_ms, wanted.snapshot_ms)):
            swaps = sorted(path.rpartition("/")[2].removesuffix(".parquet") for path in change.added)
            properties["tailrace.swaps"] = ",".join(swaps[:SWAPS_NAMED])
            await self._blocking(lambda: table.exchange(change, new, properties))
        return await self._expire(
            wanted=wanted, table=table, change=change, files=len(should), now_ms=pin.now_ms
        )

    async def _expire(
        self, wanted: WantedTable, table: TopicTable, change: TableChange, files: int, now_ms: int
    ) -> SyncedTable:
        snapshots = await self._blocking(table.snapshots)
        over = expired(snapshots, now_ms, wanted.snapshot_ms)
        if over:
            await self._blocking(lambda: table.expire([snapshot.snapshot_id for snapshot in over]))
        left = [snapshot for snapshot in snapshots if snapshot not in over]
        if not wanted.is_wanted and not files and len(left) <= 1:
            await self._blocking(lambda: self._tables.drop(wanted.topic_id, wanted.topic_name))
            await self._sequencer.release_table(ReleaseTable(wanted.topic_id))
            return SyncedTable(0, change, len(over), is_dropped=True)
        if left:
            kept_from_ms = min(snapshot.listed_ms for snapshot in left)
            await self._sequencer.pin_table(PinTable(wanted.topic_id, kept_from_ms))
        return SyncedTable(files, change, len(over))

    async def _wanted_files(
        self, topic_id: UUID, files: Sequence[LiveFile], named: dict[str, str | None], table: TopicTable
    ) -> tuple[dict[str, str | None], dict[str, NewFile]]:
        """What the table is to say, and the files that it does not say it of yet. Footers of these are read."""
        should: dict[str, str | None] = {}
        unknown: list[LiveFile] = []
        for file in files:
            path, deletes = self._path_of(file.object.key), deletes_of(file)
            is_whole = self._known(file, deletes)
            if path in named and named[path] == deletes:
                should[path] = deletes
            elif path in named and named[path] is None and is_whole:
                should[path] = None
            elif is_whole is not False:
                unknown.append(file)
        new: dict[str, NewFile] = {}
        for first in range(0, len(unknown), FOOTERS_AT_ONCE):
            some = unknown[first : first + FOOTERS_AT_ONCE]
            for found in await asyncio.gather(*(self._described(topic_id, file, table) for file in some)):
                if found is not None:
                    should[found.named.path] = found.named.deletes
                    new[found.named.path] = found
        return should, new

    def _known(self, file: LiveFile, deletes: str) -> bool | None:
        """Whether these live ranges are all rows (True) or none (False) of the file; None: its footer says."""
        known = self._whole.get(file.object.object_id)
        return known[1] if known is not None and known[0] == deletes else None

    async def _described(self, topic_id: UUID, file: LiveFile, table: TopicTable) -> NewFile | None:
        """The file with its dead rows; None where no row is live."""
        index = await read_footer(self._store, file.object)
        live = live_rows(index.header, topic_id, file.ranges)
        dead = dead_rows(index.header, live)
        path, deletes = self._path_of(file.object.key), deletes_of(file)
        if not live or not dead:
            self._whole[file.object.object_id] = (deletes, bool(live))
            if len(self._whole) > KNOWN_FILES:
                self._whole.popitem(last=False)
        if not live:
            return None
        description = await self._blocking(lambda: table.describe(path, file.object, index))
        return NewFile(Named(path, deletes if dead else None), description, tuple(dead))

    async def _blocking(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


def deletes_of(file: LiveFile) -> str:
    """The name of the deletes that leave a file's live ranges: another one for other ranges."""
    ranges: list[LiveRange] = sorted(file.ranges)
    digest = blake2b(repr([tuple(each) for each in ranges]).encode(), digest_size=12).hexdigest()
    return f"{file.object.object_id}-{digest}"
