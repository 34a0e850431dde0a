"""The collector: deletes the data objects that nothing refers to. No other code deletes data objects.

There are two kinds of garbage, both certain: objects that the sequencer retired and whose grace period has ended, and
keys under an ended session's prefix that no row names (nothing can be committed under that session any more).

Bytes are deleted first, then rows: if a pass dies in between, the next one repeats it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from sequencer.api.interface import Sequencer
from sequencer.api.retention import DeadSession, ForgetObjects, GarbageRequest, KnownKeys, SweptSession
from tailrace.clock import Clock
from tailrace.object_store.api import NotDeleted, ObjectStore, StoreError, StoreRefused


@dataclass(frozen=True, slots=True)
class Collection:
    """The counts of one pass."""

    objects_deleted: int
    orphans_deleted: int


async def collect(
    sequencer: Sequencer, store: ObjectStore, clock: Clock, *, batch: int = 500, pause_s: float = 0.1
) -> Collection:
    """Run one pass: delete everything that is garbage now, `batch` objects at a time with `pause_s` in between, so that
    reads continue.

    Raises SequencerError and StoreError; the deletions until then are done. An object that can't be deleted does not
    stop the pass: its error is raised at the end, and the next pass tries again.
    """
    objects = orphans = 0
    swept: set[UUID] = set()
    failure: StoreError | None = None
    while True:
        garbage = await sequencer.garbage(GarbageRequest(batch))
        gone: list[UUID] = []
        if garbage.objects:
            gone, not_deleted = await _delete(store, garbage.objects)
            failure = not_deleted or failure
            if gone:
                await sequencer.forget_objects(ForgetObjects(gone))
            objects += len(gone)
        sessions = [session for session in garbage.sessions if session.session_id not in swept]
        for session in sessions:
            try:
                orphans += await _sweep(sequencer, store, clock, session, batch=batch, pause_s=pause_s)
            except NotDeleted as error:
                failure = error
            swept.add(session.session_id)
        if (len(garbage.objects) < batch or not gone) and not sessions:
            if failure is not None:
                raise failure
            return Collection(objects, orphans)
        await clock.sleep(pause_s)


async def _delete(
    store: ObjectStore, objects: Sequence[tuple[UUID, str]]
) -> tuple[list[UUID], StoreError | None]:
    """Delete objects. Return the ids of those that are deleted, and the error if some are left."""
    try:
        await store.delete([key for _, key in objects])
    except NotDeleted as error:
        left = set(error.keys)
        return [object_id for object_id, key in objects if key not in left], error
    except StoreRefused as error:
        return [], error
    return [object_id for object_id, _ in objects], None


async def _sweep(
    sequencer: Sequencer,
    store: ObjectStore,
    clock: Clock,
    session: DeadSession,
    *,
    batch: int,
    pause_s: float,
) -> int:
    """Delete the orphans under an ended session's prefix. Return how many there were. Raises NotDeleted at the end if
    some are left."""
    assert session.prefix.endswith("/"), f"prefix {session.prefix!r} would match other sessions' keys"
    deleted = 0
    failure: NotDeleted | None = None
    async for keys in _pages(store, session.prefix, batch):
        known = set((await sequencer.known_keys(KnownKeys(keys))).keys)
        orphans = [key for key in keys if key not in known]
        if orphans:
            try:
                await store.delete(orphans)
            except NotDeleted as error:
                failure = error
            deleted += len(orphans)
            await clock.sleep(pause_s)
    if failure is not None:
        raise failure
    await sequencer.session_swept(SweptSession(session.session_id, deleted == 0))
    return deleted


async def _pages(store: ObjectStore, prefix: str, size: int) -> AsyncIterator[list[str]]:
    page: list[str] = []
    async for info in store.list(prefix):
        page.append(info.key)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page
