"""The checkpointer: exports what the committer wrote to the bucket, every few seconds, and knows what is exported.

It belongs to one committer. The committer calls `written` in the same turn of the event loop in which it shows a write
to readers; `run` exports the accumulated changes. The creation of topics and partitions waits for an export (`saved`),
and so do the writes of jobs (`recoverable`).

Two things depend on it: no offset is assigned at or above what the last exported head reserves (`check_reserved`), and
an object is deleted only when a checkpoint without it is durable (`is_saved`).

A ChainState decides what may be exported next; each loaded state gets a new chain. After each await that may take long,
the code compares its chain with the current one: an export of a replaced chain changes nothing.

A refusal is permanent: the bucket belongs to a newer incarnation, or knows commits that this database does not have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import msgspec
import structlog

from sequencer.api.errors import IncarnationChanged, SequencerError, SequencerUnavailable
from sequencer.checkpoint import format as checkpoint
from sequencer.checkpoint.chain import ChainState, Export, Phase
from sequencer.checkpoint.format import ClusterFile, Head, HeadId, InvalidCheckpoint, Part, Table
from sequencer.checkpoint.snapshot import PartWriter, has_many_hot_rows, write_cold_rows, write_hot_rows
from sequencer.store.row_store import DatabaseIdentity, RowStore
from sequencer.store.rows import Changes, Row
from sequencer.store.state import COMMIT_NUMBER, HotState, Key
from tailrace.background_tasks import cancel_and_wait
from tailrace.clock import Clock, wait_for
from tailrace.object_store.api import ObjectMissing, ObjectStore, StoreError
from tailrace.object_store.keys import check_key
from tailrace.turns import Steps, Turns, in_turns

_log = structlog.get_logger(__name__)

T = TypeVar("T")

ROWS_IN_A_TURN = 4_000
"""Rows that are encoded in one turn of the event loop."""
SAVED_WAIT_S = 4.0
"""Shorter than callers wait for an answer."""
FINISH_WAIT_S = 5.0
_RETRY_S = 0.5
_DELETED_AT_ONCE = 500


class DatabaseIsOlder(IncarnationChanged):
    """The bucket knows commits of this same database that the database has lost: it was restored, or a lagging standby
    leads."""


@dataclass(frozen=True, slots=True)
class _Scan:
    """A snapshot whose cold rows the task reads and stores."""

    writer: PartWriter
    task: asyncio.Task[None]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The parts of a snapshot, and its hot rows as of the moment in which the head is made (none if they are parts as
    well)."""

    replay_from: int
    parts: list[Part]
    hot: list[Table]


class Checkpointer:
    """See the module. Call `begin`, then `open`, then run `run` as a task; call `finish` when the committer has ended.

    Args:
        store: the object store.
        rows: the committer's row store, for snapshots.
        reservation: offsets that a partition may assign beyond its end in the last exported head.
    """

    def __init__(
        self,
        store: ObjectStore,
        rows: RowStore,
        clock: Clock,
        *,
        interval_ms: int,
        reservation: int,
    ) -> None:
        self._store = store
        self._rows = rows
        self._clock = clock
        self._interval_ms = interval_ms
        self._reservation = reservation
        self._chain = ChainState.unknown()
        self._settle: Callable[[], Awaitable[None]] | None = None
        self._scan: _Scan | None = None
        self._exporting = asyncio.Lock()
        self._turns = Turns(ROWS_IN_A_TURN)
        self._waiting: list[asyncio.Future[None]] = []
        self._promised: list[asyncio.Future[None]] = []
        """Waiters that the head in transit answers."""
        self._for_snapshot: list[asyncio.Future[None]] = []
        """Waiters that the chain's first snapshot answers."""
        self._needless_before: HeadId | None = None
        """Objects before this place are not needed any more; they are not deleted yet."""
        self._wake = asyncio.Event()
        self.last_head: Head | None = None
        """The newest durable head."""

    # --- what the committer calls

    def begin(
        self,
        identity: DatabaseIdentity,
        epoch: int,
        state: HotState,
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Begin a new chain, because a state was loaded. `settle` returns when everything is shown that was in the
        database when it was called; None if nothing is written that is not shown."""
        self._settle = settle
        self._replace_chain(self._chain.successor(identity, epoch, state))

    def _replace_chain(self, chain: ChainState) -> None:
        self._chain = chain
        self._waiting, self._promised = self._promised + self._waiting, []
        if self._scan is not None:
            self._scan.task.cancel()
            self._scan = None
        self._wake.set()

    def written(self, changes: Changes) -> None:
        """Note changes that are durable in the database and shown."""
        self._chain.written(changes)
        if self._chain.is_too_long:
            _log.error("checkpoints can't be written: the chain is broken off", rows=self._chain.unsaved_rows)
            self._replace_chain(self._chain.broken_off())

    @property
    def refusal(self) -> SequencerError | None:
        """The reason why nothing may ever be written to this bucket; None if there is none."""
        return self._chain.refusal

    def check_refusal(self) -> None:
        """Raise the refusal, if there is one."""
        if self.refusal is not None:
            raise self.refusal

    def check_reserved(self, changes: Changes) -> None:
        """Raise SequencerUnavailable if a request's changes assign offsets that are not reserved."""
        try:
            self._chain.check_reserved(changes, self._reservation)
        except SequencerUnavailable:
            self._wake.set()
            raise

    def is_saved(self, kind: type[Row], key: Key) -> bool:
        """Whether the current row (or its absence) is in a durable checkpoint."""
        return self._chain.is_saved(kind, key)

    async def saved(self) -> None:
        """Wait until a head in the bucket has everything that was written up to now. Raises SequencerUnavailable."""
        if not self._chain.is_all_saved:
            self._wake.set()
            await self._answered(self._waiting)

    async def recoverable(self) -> None:
        """Wait until a recovery would restore everything that was written up to now. As long as the chain has no
        snapshot, heads restore only topics. Raises SequencerUnavailable."""
        await self.saved()
        if self._chain.snapshot is None:
            self._wake.set()
            await self._answered(self._for_snapshot)

    async def _answered(self, waiting: list[asyncio.Future[None]]) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(answer)
        try:
            if not await wait_for(self._clock, answer, SAVED_WAIT_S):
                raise SequencerUnavailable("it was carried out, but no checkpoint has it yet; retry")
        finally:
            for others in (self._waiting, self._promised, self._for_snapshot):
                if answer in others:
                    others.remove(answer)

    # --- exporting

    async def open(self) -> None:
        """Check that the bucket belongs to this database, and export the first head. Raises StoreError, or the
        refusal."""
        await self.export()

    async def run(self) -> None:
        """Export until cancelled."""
        pause = 0.0
        try:
            while self._chain.phase not in (Phase.REFUSED, Phase.FINISHED):
                await self._wait(pause)
                try:
                    await self.export()
                    pause = self._interval_ms / 1000
                except StoreError as error:
                    _log.warning("a checkpoint is put off", reason=str(error))
                    pause = _RETRY_S
                except SequencerError as error:
                    if self.refusal is not None:
                        _log.error("checkpoints are refused", reason=str(error))
                    pause = _RETRY_S
                except Exception:  # noqa: BLE001 - the outermost edge: without exports no offset is assigned any more
                    _log.exception("a checkpoint failed unexpectedly")
                    pause = _RETRY_S
        finally:
            scan, self._scan = self._scan, None
            if scan is not None:
                await cancel_and_wait(scan.task)

    async def _wait(self, pause: float) -> None:
        """Wait for the pause to end, or for a caller that can't wait so long."""
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            await wait_for(self._clock, woken, pause)
        finally:
            woken.cancel()
        if self._wake.is_set() and pause == _RETRY_S:
            self._wake.clear()
            await self._clock.sleep(_RETRY_S)  # the bucket has just failed: don't try as often as callers ask
        self._wake.clear()

    async def export(self) -> None:
        """Export one head with the accumulated changes, if there are any."""
        async with self._exporting:
            self.check_refusal()
            if self._chain.phase is Phase.FINISHED:
                return
            await self._store_export(self._chain)
            if self._chain.phase is Phase.NEW:
                while self._chain.phase is Phase.NEW:
                    await self._check_bucket(self._chain)
            elif self._is_idle():
                return
            else:
                await self._check_cluster_file(self._chain)
            chain = self._chain
            if chain.phase is Phase.CHECKED:
                await self._export_first(chain)
            snapshot = await self._finished_scan(chain)
            if chain is not self._chain:
                return
            if chain.has_unsaved or snapshot is not None:
                await self._export_changes(chain, snapshot)
            await self._delete_needless(chain.identity.cluster_id)
            if self._scan is None and self._chain.is_snapshot_due:
                self._begin_scan()

    def _is_idle(self) -> bool:
        """Whether only leases were renewed, which are exported less often."""
        if self._waiting or self._for_snapshot or (self._scan is not None and self._scan.task.done()):
            return False
        return self._chain.is_idle(self._clock.wall_ms(), self.last_head)

    async def snapshot(self) -> None:
        """Export a snapshot now, and wait for it. For the end of a recovery."""
        await self.export()
        if self._scan is None:
            self._begin_scan()
        while self._chain.snapshot is None:
            if self._scan is not None:
                await asyncio.gather(self._scan.task)
            await self.export()

    async def finish(self) -> None:
        """Export the last head, which covers all assigned offsets. Raises StoreError."""
        async with self._exporting:
            chain = self._chain
            if chain.phase is not Phase.OPEN:
                return
            chain.finish()
            await self._store_export(chain)
            chain.export(self._head(chain, reservation=0), [])
            await self._store_head(chain)

    async def _export_first(self, chain: ChainState) -> None:
        """Reserve offsets of all partitions."""
        chain.export_first(self._head(chain))
        await self._store_head(chain)
        if chain is self._chain:
            chain.open()

    async def _export_changes(self, chain: ChainState, snapshot: _Snapshot | None) -> None:
        if snapshot is None:
            chain.export(self._head(chain), [])
        else:
            head = self._head(chain, replay_from=snapshot.replay_from, parts=snapshot.parts)
            chain.export(head, snapshot.hot)
        await self._store_head(chain)

    def _head(
        self,
        chain: ChainState,
        *,
        reservation: int | None = None,
        replay_from: int = -1,
        parts: list[Part] | None = None,
    ) -> Head:
        return chain.head(
            created_ms=self._clock.wall_ms(),
            interval_ms=self._interval_ms,
            reservation=self._reservation if reservation is None else reservation,
            replay_from=replay_from,
            parts=parts or [],
        )

    async def _store_head(self, chain: ChainState) -> None:
        """Store the head that was just made. If that fails, the same head is stored before anything else."""
        self._waiting, self._promised = [], self._promised + self._waiting
        await self._store_export(chain)

    async def _store_export(self, chain: ChainState) -> None:
        """Store the head in transit, if there is one, and answer those who wait for it."""
        export = chain.exporting
        if export is None:
            return
        if export.data is None:
            export.data = await in_turns(_encoded(export), self._turns)
        if chain is not self._chain:
            return
        head = export.head
        await self._store.put(checkpoint.head_key(head.cluster_id, head.head_id), [export.data])
        await in_turns(chain.reserve(export), self._turns)
        if chain is not self._chain:
            return
        is_all_saved = chain.exported(len(export.data))
        self.last_head = head
        saved, self._promised = self._promised, []
        if is_all_saved:  # those who asked while this head was in transit wait for nothing newer
            saved, self._waiting = saved + self._waiting, []
        if head.is_snapshot:
            self._needless_before = chain.snapshot_exported(head)
            saved, self._for_snapshot = saved + self._for_snapshot, []
        _answer(saved)

    # --- snapshots

    def _begin_scan(self) -> None:
        """Begin to read a snapshot's rows. Changes from now on are in the next head and later ones; the rows read from
        now on include all earlier changes."""
        chain = self._chain
        head_id = HeadId(chain.identity.incarnation, chain.epoch, chain.next_number)
        writer = PartWriter(self._store, chain.identity.cluster_id, head_id, self._turns)
        task = asyncio.create_task(self._write_cold_rows(writer), name="checkpoint: snapshot")
        task.add_done_callback(lambda _: self._wake.set())
        self._scan = _Scan(writer, task)

    async def _write_cold_rows(self, writer: PartWriter) -> None:
        await write_cold_rows(self._rows, writer, self._patiently)
        if self._settle is not None:
            # A page may have rows of a transaction that is not shown yet. The head must have all of that transaction.
            await self._patiently(self._settle)

    async def _patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat one step of a snapshot until it succeeds. A snapshot of many rows takes so long that it would never
        end if each error began it again."""
        while True:
            try:
                return await step()
            except (StoreError, SequencerError) as error:
                _log.warning("a checkpoint's snapshot is put off", reason=str(error))
            await self._clock.sleep(_RETRY_S)

    async def _finished_scan(self, chain: ChainState) -> _Snapshot | None:
        """Return the snapshot that is ready, with the hot rows as of now; None if there is none. If they can't be
        stored, the next call stores them again; the cold rows stay as they are."""
        scan = self._scan
        if scan is None or not scan.task.done():
            return None
        if scan.task.cancelled():
            self._scan = None
            return None
        if (error := scan.task.exception()) is not None:
            self._scan = None
            raise error
        hot: list[Table] = []
        if has_many_hot_rows(chain.state):
            await write_hot_rows(chain.state, scan.writer)
        else:
            hot = [checkpoint.encode_rows(kind, chain.state.all(kind)) for kind in checkpoint.KEPT_HOT]
        self._scan = None
        return _Snapshot(scan.writer.head_id.number, scan.writer.parts, hot)

    async def _delete_needless(self, cluster_id: str) -> None:
        """Delete the objects that two durable snapshots make unnecessary."""
        needless_before, self._needless_before = self._needless_before, None
        if needless_before is None:
            return
        older: list[str] = []
        try:
            async for info in self._store.list(checkpoint.meta_prefix(cluster_id)):
                head_id = checkpoint.head_id_of(cluster_id, info.key)
                if head_id is not None and head_id < needless_before:
                    older.append(info.key)
            # Oldest first: until all are deleted, the rest is the end of a chain, or nothing that looks like a chain.
            for first in range(0, len(older), _DELETED_AT_ONCE):
                await self._store.delete(older[first : first + _DELETED_AT_ONCE])
        except StoreError as error:
            _log.warning("older checkpoints are left for the next time", reason=str(error))

    # --- whether the bucket belongs to this database

    async def _check_bucket(self, chain: ChainState) -> None:
        """Refuse permanently if the bucket is ahead of this database."""
        identity = chain.identity
        if not identity.cluster_id or identity.incarnation <= 0:
            self._refuse(
                IncarnationChanged("this database is being filled by `tailrace recover`; wait, or empty it")
            )
        await self._check_cluster_file(chain)
        newest: HeadId | None = None
        last_number: int | None = None
        async for info in self._store.list(checkpoint.meta_prefix(identity.cluster_id)):
            head_id = checkpoint.head_id_of(identity.cluster_id, info.key)
            if head_id is None or not info.key.endswith(".head"):
                continue
            if head_id.incarnation > identity.incarnation:
                self._refuse_incarnation(identity, head_id.incarnation)
            if head_id.incarnation == identity.incarnation and (newest is None or head_id > newest):
                newest = head_id
            if (head_id.incarnation, head_id.epoch) == (identity.incarnation, chain.epoch):
                last_number = max(head_id.number, -1 if last_number is None else last_number)
        if newest is not None:
            await self._check_head(chain, newest)
        if chain is self._chain:
            chain.bucket_is_ours(last_number)

    async def _check_cluster_file(self, chain: ChainState) -> None:
        identity = chain.identity
        try:
            found = await read_cluster_file(self._store, identity.cluster_id)
        except InvalidCheckpoint as error:
            _log.error("cluster.json can't be read and is rewritten", reason=str(error))
            found = None
        if found is None or found.incarnation < identity.incarnation:
            await write_cluster_file(self._store, identity)
        elif found.incarnation > identity.incarnation:
            self._refuse_incarnation(identity, found.incarnation)

    def _refuse_incarnation(self, mine: DatabaseIdentity, theirs: int) -> NoReturn:
        self._refuse(
            IncarnationChanged(
                f"the bucket belongs to incarnation {theirs} of cluster {mine.cluster_id}, this database is"
                f" of {mine.incarnation}: another was recovered from the bucket; use that one"
            )
        )

    async def _check_head(self, chain: ChainState, newest: HeadId) -> None:
        key = checkpoint.head_key(chain.identity.cluster_id, newest)
        try:
            head = checkpoint.decode_head(await self._store.get(key))
        except (InvalidCheckpoint, ObjectMissing):
            return
        commit_number = chain.state.counter(COMMIT_NUMBER)
        if head.epoch > chain.epoch or head.commit_number > commit_number:
            # This raises LeaseLost if another committer has taken over: then the head is its own, and nothing was lost.
            await self._rows.write(Changes(), chain.epoch)
            self._refuse(
                DatabaseIsOlder(
                    f"the bucket has a checkpoint of commit {head.commit_number}, committer epoch {head.epoch}; this"
                    f" database is at {commit_number}, epoch {chain.epoch}: it has lost the commits in between"
                    " (an older copy, a standby that lagged). Rebuild an empty database with `tailrace recover`"
                )
            )

    def _refuse(self, error: SequencerError) -> NoReturn:
        self._chain.refuse(error)
        for waiter in (*self._waiting, *self._promised, *self._for_snapshot):
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()
        raise error


def _answer(waiting: Sequence[asyncio.Future[None]]) -> None:
    for waiter in waiting:
        if not waiter.done():
            waiter.set_result(None)


def _encoded(export: Export) -> Steps[bytes]:
    """Return the whole head as it is stored."""
    tables = yield from checkpoint.encode_changes(export.changes)
    head = msgspec.structs.replace(export.head, tables=[*tables, *export.hot])
    return (yield from checkpoint.encode_head(head))


async def forget_checkpoints(store: ObjectStore, cluster_id: str) -> None:
    """Delete all checkpoints because checkpoints are turned off: they would not know what is assigned from now on.
    Raises StoreError."""
    keys = [info.key async for info in store.list(checkpoint.meta_prefix(cluster_id))]
    if keys:
        _log.warning("checkpoints are turned off: existing ones are deleted", objects=len(keys))
    for first in range(0, len(keys), _DELETED_AT_ONCE):
        await store.delete(keys[first : first + _DELETED_AT_ONCE])


async def read_cluster_file(store: ObjectStore, cluster_id: str) -> ClusterFile | None:
    """Read which cluster and incarnation the bucket belongs to. Raises StoreError, InvalidCheckpoint."""
    try:
        return msgspec.json.decode(await store.get(checkpoint.cluster_key(cluster_id)), type=ClusterFile)
    except ObjectMissing:
        return None
    except msgspec.DecodeError as error:
        raise InvalidCheckpoint(f"{checkpoint.cluster_key(cluster_id)}: {error}") from error


async def write_cluster_file(store: ObjectStore, identity: DatabaseIdentity) -> None:
    """Write which cluster and incarnation the bucket belongs to."""
    key = checkpoint.cluster_key(identity.cluster_id)
    check_key(key)
    file = ClusterFile(
        identity.cluster_id,
        identity.incarnation,
        version=1,
        formats={"mixed": 1, "parquet": 1, "checkpoint": checkpoint.VERSION},
    )
    await store.put(key, [msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"])
