"""The collector: deletes the data objects that nothing refers to. No other code deletes data objects.

There are two kinds of garbage, both certain: objects that the sequencer retired and whose grace period has ended, and
keys under an ended session's prefix that no row names (nothing can be committed under that session any more).

Bytes are deleted first, then rows: if a pass dies in between, the next one repeats it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

from sequencer.api.interface import Sequencer
from sequencer.api.retention import DeadSession, ForgetObjects, GarbageRequest, KnownKeys, SweptSession
from tailrace.clock import Clock
from tailrace.object_store.api import ObjectStore


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

    Raises SequencerError and StoreError; the deletions until then are done.
    """
    objects = orphans = 0
    swept: set[UUID] = set()
    while True:
        garbage = await sequencer.garbage(GarbageRequest(batch))
        if garbage.objects:
            await store.delete([key for _, key in garbage.objects])
            await sequencer.forget_objects(ForgetObjects([object_id for object_id, _ in garbage.objects]))
            objects += len(garbage.objects)
        sessions = [session for session in garbage.sessions if session.session_id not in swept]
        for session in sessions:
            orphans += await _sweep(sequencer, store, clock, session, batch=batch, pause_s=pause_s)
            swept.add(session.session_id)
        if len(garbage.objects) < batch and not sessions:
            return Collection(objects, orphans)
        await clock.sleep(pause_s)


async def _sweep(
    sequencer: Sequencer,
    store: ObjectStore,
    clock: Clock,
    session: DeadSession,
    *,
    batch: int,
    pause_s: float,
) -> int:
    """Delete the orphans under an ended session's prefix. Return how many there were."""
    assert session.prefix.endswith("/"), f"prefix {session.prefix!r} would match other sessions' keys"
    deleted = 0
    async for keys in _pages(store, session.prefix, batch):
        known = set((await sequencer.known_keys(KnownKeys(keys))).keys)
        orphans = [key for key in keys if key not in known]
        if orphans:
            await store.delete(orphans)
            deleted += len(orphans)
            await clock.sleep(pause_s)
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
