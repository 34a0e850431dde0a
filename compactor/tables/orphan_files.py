"""Finds and deletes files in a table's folder that the table does not refer to, once a day and before it is dropped.

A compactor leaves such files if it dies or if another overtakes it: files with typed columns, deletes and manifests of
a snapshot that was never committed, and metadata of snapshots that were being expired. They contain keys and values,
which retention and erasure must reach.

It deletes no file that a table refers to or will refer to:
- a search begins with a snapshot, so a writer that opened the table before it fails at its exchange;
- the files that a later writer writes are too young;
- a later writer can reuse only files with typed columns of live objects, which stay. An object that is not live does
not
  become live again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any
from uuid import UUID

import structlog

from compactor.columns.derive import ValuesName
from compactor.tables.table import TopicTable
from tailrace.object_store.api import ObjectInfo, ObjectStore, StoreError

SEARCH_EVERY_MS = 86_400_000
LEAST_AGE_MS = 86_400_000
"""The least age of a deleted file, longer than a comparison takes. Compares the store's clock with the database's."""
DELETED_AT_ONCE = 1_000
_SUFFIXES = (".parquet", ".avro", ".metadata.json")
"""The suffixes of files that the compactor writes."""

log = structlog.get_logger("tailrace.tables")


class OrphanFiles:
    """Finds and deletes leftover files. `run`: runs a blocking call."""

    def __init__(self, store: ObjectStore, run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._store = store
        self._run = run

    async def is_due(self, table: TopicTable, now_ms: int) -> bool:
        """Whether a day has passed since the last search, or since the table got its first files."""
        searched_ms: int = await self._run(table.searched_ms)
        return searched_ms > 0 and now_ms - searched_ms >= SEARCH_EVERY_MS

    async def delete(
        self,
        table: TopicTable,
        quarantine: TopicTable | None,
        prefix: str,
        *,
        live: Collection[UUID],
        now_ms: int,
        is_last: bool = False,
    ) -> int:
        """Search and delete leftover files. Return how many were deleted.

        Args:
            prefix: the start of the keys of the table's files and of its quarantine's.
            live: the ids of objects that were live after the table was opened.
            is_last: the table is dropped after this, so no file is too young, and no object's files are needed.

        Raises TableConflict. If the store fails, the rest is logged and left for the next search.
        """
        await self._run(lambda: table.begin_search(now_ms))
        named: set[str] = await self._run(table.paths)
        if quarantine is not None:
            named |= await self._run(quarantine.paths)
        before_ms = now_ms + LEAST_AGE_MS if is_last else now_ms - LEAST_AGE_MS
        try:
            left = await self._left(prefix, named, live=() if is_last else live, before_ms=before_ms)
            for first in range(0, len(left), DELETED_AT_ONCE):
                await self._store.delete(left[first : first + DELETED_AT_ONCE])
        except StoreError as error:
            log.warning(
                "files that a table does not name were not deleted; the next search tries again",
                prefix=prefix,
                reason=str(error),
            )
            return 0
        return len(left)

    async def _left(
        self, prefix: str, named: Collection[str], *, live: Collection[UUID], before_ms: int
    ) -> list[str]:
        """Return the keys of the files to delete; none if the catalog keeps the table in another place.

        Ignores the part of a path before the prefix, because a catalog may write it differently (`s3a:` for `s3:`).
        """
        left: list[str] = []
        is_here = not named
        within = {path.rpartition(prefix)[2] for path in named}
        async for info in self._store.list(prefix):
            if info.key.removeprefix(prefix) in within:
                is_here = True
            elif may_go(info, live=live, before_ms=before_ms):
                left.append(info.key)
        return left if is_here else []


def may_go(info: ObjectInfo, *, live: Collection[UUID], before_ms: int) -> bool:
    """Whether the file can be deleted: we wrote it, at or before that time, and not for a live object. Pure."""
    name = ValuesName.of(info.key)
    is_of_live = name is not None and name.object_id in live
    return info.key.endswith(_SUFFIXES) and info.modified_ms <= before_ms and not is_of_live
