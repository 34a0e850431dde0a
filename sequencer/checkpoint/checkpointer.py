"""The checkpointer: exports what the committer wrote to the bucket, every few seconds, and says what is exported.

It belongs to one committer. The committer tells it, in the same turn of the loop in which it shows a write to
readers, what was written (`written`); `run` exports what has gathered. Nobody waits for it in normal operation,
but for topics' makers (`saved`).

What depends on it: no offset is assigned at or above what the last exported head reserves (`check`), and an object
is deleted only when a checkpoint without it is durable (`is_saved`).

A refusal is for good: the bucket belongs to a newer incarnation, or knows commits that this database does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec
import structlog
from fastcrc.crc32 import iscsi as crc32c

from sequencer.api import IncarnationChanged, SequencerError, SequencerUnavailable
from sequencer.checkpoint import format as checkpoint
from sequencer.checkpoint.format import ClusterFile, Head, HeadPlace, InvalidCheckpoint, Part, Table
from sequencer.store.rows import (
    AgentRow,
    Changes,
    Identity,
    LeaseRow,
    ObjectRow,
    PartitionRow,
    Row,
    RowStore,
    RunRow,
    SessionRow,
    TopicRow,
)
from sequencer.store.state import COMMIT_NUMBER, HotState, Key
from tailrace.clock import Clock, wait_for
from tailrace.object_store.api import ObjectMissing, ObjectStore, StoreError
from tailrace.object_store.keys import check_key
from tailrace.turns import Steps, Turns, in_turns

_log = structlog.get_logger(__name__)

PAGE_ROWS = 2_000
"""Rows read from the database by one query of a snapshot."""
PART_ROWS = 10_000
"""Rows in one part; so many hot rows, which a snapshot's head has itself, are encoded in one turn: some 20 ms."""
ROWS_IN_A_TURN = 4_000
"""Rows that are encoded in one turn of the loop."""
MAX_UNSAVED_ROWS = 200_000
"""Past this many, gathered while the bucket took none, the chain is broken off and begun anew."""
MIN_SNAPSHOT_BYTES = 4 << 20
CHEAP_SNAPSHOT_BYTES = 64 << 20
HEADS_FOR_CHEAP = 200
MAX_HEADS = 5_000
"""A snapshot is due when the heads since the last are as large as it, or so many (fewer, where it is small)."""
SAVED_WAIT_S = 4.0
"""Shorter than callers wait for an answer."""
FINISH_WAIT_S = 5.0
IDLE_INTERVAL_MS = 60_000
_VOLATILE: frozenset[type[Row]] = frozenset({AgentRow, SessionRow, LeaseRow})
_RETRY_S = 0.5
_DELETED_AT_ONCE = 500


class DatabaseIsOlder(IncarnationChanged):
    """The bucket knows commits of this very database that it has lost: it was restored, or a lagging standby leads."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Parts, and the hot rows as of the moment in which the head is cut; none where they are parts as well."""

    parts: list[Part]
    hot: list[Table]


@dataclass(slots=True)
class _Export:
    """A head on its way: what it has and which rows are saved with it. `head` is as of the moment in which the changes
    were cut, without its tables. `data`: the whole head as it is stored, once it is encoded."""

    head: Head
    changes: Changes
    hot: list[Table]
    data: bytes | None = None


class Checkpointer:
    """See the module. `begin`, then `open`, then `run` as a task; `finish` when the committer has ended.

    Args:
        store: where objects are.
        rows: the committer's row store, for snapshots.
        reservation: offsets that a partition may give out beyond its end in the last exported head.
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
        self._identity = Identity(cluster_id="", incarnation=0, schema_version=0)
        self._epoch = -1
        self._state = HotState({})
        self._next = 0
        self._begins = 0
        self._unsaved = Changes()
        self._unsaved_rows = 0
        self._exporting: _Export | None = None
        self._ends: dict[Key, int] = {}
        self._is_checked = False
        self._is_opened = False
        self._is_finished = False
        self._has_snapshot = False
        self._kept_from: HeadPlace | None = None
        self._restarts = 0
        self._heads_since = 0
        self._bytes_since = 0
        self._snapshot_bytes = 0
        self._scan: asyncio.Task[list[Part] | None] | None = None
        self._scan_from = -1
        self._turn = asyncio.Lock()
        self._turns = Turns(ROWS_IN_A_TURN)
        self._waiting: list[asyncio.Future[None]] = []
        self._promised: list[asyncio.Future[None]] = []
        """Of those who waited, whom the head that is being exported answers."""
        self._nudge = asyncio.Event()
        self.refusal: SequencerError | None = None
        self.last_head: Head | None = None
        """The newest durable one."""

    # --- what the committer tells

    def begin(self, identity: Identity, epoch: int, state: HotState) -> None:
        """A state was loaded: from here on the chain is a new one."""
        if (identity, epoch) != (self._identity, self._epoch):
            self._next = 0
            self._is_checked = False
        elif self._exporting is not None:
            self._next += 1  # Whether that head was stored, nobody knows; its number is used up.
        self._identity, self._epoch, self._state = identity, epoch, state
        self._begin_chain()

    def _begin_chain(self) -> None:
        self._restarts += 1
        self._begins = self._next
        self._unsaved, self._unsaved_rows = Changes(), 0
        self._exporting = None
        self._waiting, self._promised = self._promised + self._waiting, []
        self._is_opened = self._has_snapshot = False
        self._kept_from = None
        self._ends = {}
        if self._scan is not None:
            self._scan.cancel()
            self._scan = None
        self._scan_from = -1
        self._nudge.set()

    def written(self, changes: Changes) -> None:
        """These changes are durable in the database and shown."""
        for kind, rows in changes.by_kind.items():
            if kind in checkpoint.LEFT_OUT:
                continue
            mine = self._unsaved.by_kind.setdefault(kind, {})
            before = len(mine)
            mine.update(rows)
            self._unsaved_rows += len(mine) - before
        if self._unsaved_rows > MAX_UNSAVED_ROWS:
            _log.error("checkpoints can't be written: the chain is broken off", rows=self._unsaved_rows)
            if self._exporting is not None:
                self._next += 1
            self._begin_chain()

    def check_refusal(self) -> None:
        """Raise the refusal, if there is one."""
        if self.refusal is not None:
            raise self.refusal

    def check(self, changes: Changes) -> None:
        """Raise SequencerUnavailable for a request's changes that assign offsets which are not reserved."""
        partitions = changes.by_kind.get(PartitionRow)
        if not partitions:
            return
        for row in partitions.values():
            if not isinstance(row, PartitionRow):
                continue
            before = self._state.get(PartitionRow, row.topic_id, row.partition)
            if before is None or before.end_offset == row.end_offset:
                continue
            if not self._is_opened:
                self._nudge.set()
                raise SequencerUnavailable(
                    "no offsets are reserved yet: no checkpoint of this committer is durable"
                )
            reserved = self._ends.get((row.topic_id, row.partition), 0) + self._reservation
            if row.end_offset > reserved:
                self._nudge.set()
                raise SequencerUnavailable(
                    f"partition {row.topic_id}-{row.partition}: offsets up to {reserved} are reserved, {row.end_offset}"
                    " is asked; the next checkpoint reserves more"
                )

    def is_saved(self, kind: type[Row], key: tuple[object, ...]) -> bool:
        """Whether the row as it is now (or that there is none) is in a durable checkpoint."""
        if not self._has_snapshot or key in self._unsaved.by_kind.get(kind, {}):
            return False
        return self._exporting is None or key not in self._exporting.changes.by_kind.get(kind, {})

    async def saved(self) -> None:
        """Wait until what was written up to now is durable in the bucket. Raises SequencerUnavailable."""
        if self._is_opened and not self._unsaved and self._exporting is None:
            return
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(told)
        self._nudge.set()
        try:
            if not await wait_for(self._clock, told, SAVED_WAIT_S):
                raise SequencerUnavailable("it was carried out, but no checkpoint has it yet; ask again")
        finally:
            for waiting in (self._waiting, self._promised):
                if told in waiting:
                    waiting.remove(told)

    # --- exporting

    async def open(self) -> None:
        """Check that the bucket is ours, and export the first head. Raises StoreError; a refusal as what it is."""
        await self.export()

    async def run(self) -> None:
        """Export until cancelled."""
        pause = 0.0
        try:
            while self.refusal is None and not self._is_finished:
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
                    _log.exception("a checkpoint failed in a way that was not foreseen")
                    pause = _RETRY_S
        finally:
            scan, self._scan = self._scan, None
            if scan is not None:
                scan.cancel()
                await asyncio.gather(scan, return_exceptions=True)

    async def _wait(self, pause: float) -> None:
        """For the pause, or for who can't wait so long."""
        nudged = asyncio.ensure_future(self._nudge.wait())
        try:
            await wait_for(self._clock, nudged, pause)
        finally:
            nudged.cancel()
        if self._nudge.is_set() and pause == _RETRY_S:
            self._nudge.clear()
            await self._clock.sleep(_RETRY_S)  # the bucket failed just now: not as often as we are asked
        self._nudge.clear()

    async def export(self) -> None:
        """One head of what has gathered, if anything has."""
        async with self._turn:
            if self.refusal is not None:
                raise self.refusal
            if self._is_finished:
                return
            await self._retry()
            if not self._is_checked:
                while not self._is_checked:
                    await self._check_bucket()
            elif self._is_idle():
                return
            else:
                await self._check_cluster_file()
            restarts = self._restarts
            if not self._is_opened:
                await self._export_first()
            snapshot = await self._finished_scan()
            if restarts != self._restarts:
                return
            if self._unsaved or snapshot is not None:
                await self._export_changes(snapshot)
            self._begin_scan_if_due()

    def _is_idle(self) -> bool:
        """Only leases were renewed, and that is exported now and then only."""
        if not self._is_opened or self._waiting or (self._scan is not None and self._scan.done()):
            return False
        if self._unsaved.by_kind.keys() - _VOLATILE or self.last_head is None:
            return False
        return self._clock.wall_ms() - self.last_head.created_ms < IDLE_INTERVAL_MS

    async def snapshot(self) -> None:
        """Export a snapshot now, and wait for it. For a recovery's end."""
        await self.export()
        if self._scan is None:
            self._begin_scan()
        while not self._has_snapshot:
            if self._scan is not None:
                await asyncio.gather(self._scan)
            await self.export()

    async def finish(self) -> None:
        """The last head: nothing was assigned that it doesn't know. Raises StoreError."""
        async with self._turn:
            if not self._is_opened or self.refusal is not None or self._is_finished:
                return
            self._is_finished = True
            await self._retry()
            await self._put(self._head(reservation=0), self._cut())

    async def _export_first(self) -> None:
        """Reserve offsets of all partitions. What was written since the state was loaded stays to be exported."""
        first = Changes()
        for kind in (TopicRow, PartitionRow):
            first.by_kind[kind] = self._state.by_key(kind)
        restarts = self._restarts
        await self._put(self._head(), first)
        if restarts == self._restarts:
            self._is_opened = True

    async def _export_changes(self, snapshot: _Snapshot | None) -> None:
        changes = self._cut()
        if snapshot is None:
            await self._put(self._head(), changes)
            return
        head = self._head(replay_from=self._scan_from, parts=snapshot.parts)
        restarts = self._restarts
        await self._put(head, changes, snapshot.hot)
        if restarts == self._restarts:
            self._has_snapshot = True
            self._snapshot_bytes = sum(part.size for part in snapshot.parts)
            self._heads_since = self._bytes_since = 0
            # One more than is needed is kept: from the snapshot before, the heads since lead to the same rows.
            if self._kept_from is not None:
                await self._delete_older(self._kept_from)
            self._kept_from = HeadPlace(head.incarnation, head.epoch, head.replay_from)

    def _head(
        self, *, replay_from: int = -1, parts: Iterable[Part] = (), reservation: int | None = None
    ) -> Head:
        """A head as of now, without its tables."""
        return Head(
            version=checkpoint.VERSION,
            cluster_id=self._identity.cluster_id,
            incarnation=self._identity.incarnation,
            epoch=self._epoch,
            number=self._next,
            begins=self._begins,
            commit_number=self._state.counter(COMMIT_NUMBER),
            created_ms=self._clock.wall_ms(),
            interval_ms=self._interval_ms,
            reservation=self._reservation if reservation is None else reservation,
            tables=[],
            replay_from=replay_from,
            parts=list(parts),
        )

    def _cut(self) -> Changes:
        changes, self._unsaved, self._unsaved_rows = self._unsaved, Changes(), 0
        return changes

    async def _put(self, head: Head, changes: Changes, hot: Sequence[Table] = ()) -> None:
        """Store a head; should that fail, the same head is stored before anything else is."""
        self._exporting = _Export(head, changes, list(hot))
        self._waiting, self._promised = [], self._promised + self._waiting
        await self._retry()

    async def _retry(self) -> None:
        exporting = self._exporting
        if exporting is None:
            return
        if exporting.data is None:
            exporting.data = await in_turns(_encoded(exporting), self._turns)
        head, data = exporting.head, exporting.data
        if self._exporting is exporting:  # else the chain was begun anew meanwhile
            await self._store.put(checkpoint.head_key(head.cluster_id, head.place), [data])
        for key, row in exporting.changes.by_kind.get(PartitionRow, {}).items():
            if self._exporting is not exporting:
                return
            if isinstance(row, PartitionRow):
                self._ends[key] = row.end_offset
            await self._turns.did()
        if self._exporting is not exporting:
            return
        self._exporting = None
        self._next += 1
        self._heads_since += 1
        self._bytes_since += len(data)
        self.last_head = head
        saved, self._promised = self._promised, []
        if not self._unsaved:  # who asked while this head was on its way has nothing newer
            saved, self._waiting = saved + self._waiting, []
        for told in saved:
            if not told.done():
                told.set_result(None)

    # --- snapshots

    def _begin_scan_if_due(self) -> None:
        if self._scan is not None or self._is_finished:
            return
        is_cheap = self._snapshot_bytes < CHEAP_SNAPSHOT_BYTES
        if (
            not self._has_snapshot
            or self._bytes_since > max(self._snapshot_bytes, MIN_SNAPSHOT_BYTES)
            or self._heads_since >= (HEADS_FOR_CHEAP if is_cheap else MAX_HEADS)
        ):
            self._begin_scan()

    def _begin_scan(self) -> None:
        """From now on changes are in heads from the next one on; whatever is read from now on has those before."""
        self._scan_from = self._next
        place = HeadPlace(self._identity.incarnation, self._epoch, self._next)
        self._scan = asyncio.create_task(self._read_cold_rows(place), name="checkpoint: snapshot")
        self._scan.add_done_callback(lambda _: self._nudge.set())

    async def _finished_scan(self) -> _Snapshot | None:
        """The snapshot that is ready, with the hot rows as of now; None while there is none."""
        if self._scan is None or not self._scan.done():
            return None
        scan, self._scan = self._scan, None
        parts = None if scan.cancelled() else scan.result()
        if parts is None:
            return None
        count = sum(self._state.count(kind) for kind in checkpoint.KEPT_HOT)
        if count > PART_ROWS:
            return _Snapshot(await self._hot_parts(parts), [])
        hot = [checkpoint.encode_rows(kind, self._state.all(kind)) for kind in checkpoint.KEPT_HOT]
        return _Snapshot(parts, hot)

    async def _hot_parts(self, parts: list[Part]) -> list[Part]:
        """Hot rows as parts of their own: as of one moment; the head's own changes have what is written meanwhile."""
        place = HeadPlace(self._identity.incarnation, self._epoch, self._scan_from)
        rows = {kind: list(self._state.all(kind)) for kind in checkpoint.KEPT_HOT}
        for kind, found in rows.items():
            for first in range(0, len(found), PART_ROWS):
                some = {kind: found[first : first + PART_ROWS]}
                parts.append(await self._put_part(some, len(parts), place, is_hot=True))
        return parts

    async def _read_cold_rows(self, place: HeadPlace) -> list[Part] | None:
        """All objects and runs, in parts; None when it could not be done now."""
        parts: list[Part] = []
        try:
            objects: list[Row] = []
            key = ""
            while page := await self._rows.objects_after(key, PAGE_ROWS):
                objects += page
                key = page[-1].key
                if len(objects) >= PART_ROWS:
                    parts.append(await self._put_part({ObjectRow: objects}, len(parts), place))
                    objects = []
            runs: list[Row] = []
            last: tuple[UUID, int, int] | None = None
            while found := await self._rows.run_rows_after(last, PAGE_ROWS):
                runs += found
                last = (found[-1].topic_id, found[-1].partition, found[-1].base_offset)
                if len(runs) + len(objects) >= PART_ROWS:
                    some: dict[type[Row], list[Row]] = {ObjectRow: objects, RunRow: runs}
                    parts.append(await self._put_part(some, len(parts), place))
                    objects, runs = [], []
            if objects or runs:
                parts.append(await self._put_part({ObjectRow: objects, RunRow: runs}, len(parts), place))
        except (StoreError, SequencerError) as error:
            _log.warning("a checkpoint's snapshot is put off", reason=str(error))
            await self._clock.sleep(_RETRY_S)
            return None
        return parts

    async def _put_part(
        self,
        rows: Mapping[type[Row], Sequence[Row]],
        number: int,
        place: HeadPlace,
        *,
        is_hot: bool = False,
    ) -> Part:
        key = checkpoint.part_key(self._identity.cluster_id, place, number)
        data = await in_turns(checkpoint.encode_part(rows), self._turns)
        await self._store.put(key, [data])
        return Part(key, len(data), crc32c(data), sum(map(len, rows.values())), is_hot)

    async def _delete_older(self, kept_from: HeadPlace) -> None:
        """What two durable snapshots make needless."""
        cluster_id = self._identity.cluster_id
        older: list[str] = []
        try:
            async for info in self._store.list(checkpoint.meta_prefix(cluster_id)):
                place = checkpoint.place_of(cluster_id, info.key)
                if place is not None and place < kept_from:
                    older.append(info.key)
            # Oldest first: until all are gone, what is left is still a chain's end, or nothing that looks like one.
            for first in range(0, len(older), _DELETED_AT_ONCE):
                await self._store.delete(older[first : first + _DELETED_AT_ONCE])
        except StoreError as error:
            _log.warning("older checkpoints are left for the next time", reason=str(error))

    # --- is it our bucket

    async def _check_bucket(self) -> None:
        """Refuse for good where the bucket is ahead of this database."""
        identity = self._identity
        if not identity.cluster_id or identity.incarnation <= 0:
            self._refuse(
                IncarnationChanged("this database is being filled by `tailrace recover`; wait, or empty it")
            )
        await self._check_cluster_file()
        mine, restarts = (identity.incarnation, self._epoch), self._restarts
        newest: HeadPlace | None = None
        async for info in self._store.list(checkpoint.meta_prefix(identity.cluster_id)):
            place = checkpoint.place_of(identity.cluster_id, info.key)
            if place is None or not info.key.endswith(".head"):
                continue
            if place.incarnation > identity.incarnation:
                self._refuse_incarnation(place.incarnation)
            if place.incarnation == identity.incarnation and (newest is None or place > newest):
                newest = place
            if (place.incarnation, place.epoch) == mine:
                # Written in a life before: not to be written over, nor the one that may still be on its way.
                self._next = max(self._next, place.number + 2)
                self._begins = self._next
        if newest is not None:
            await self._check_head(newest)
        self._is_checked = restarts == self._restarts

    async def _check_cluster_file(self) -> None:
        identity = self._identity
        try:
            found = await read_cluster_file(self._store, identity.cluster_id)
        except InvalidCheckpoint as error:
            _log.error("cluster.json can't be read and is written anew", reason=str(error))
            found = None
        if found is None or found.incarnation < identity.incarnation:
            await write_cluster_file(self._store, identity)
        elif found.incarnation > identity.incarnation:
            self._refuse_incarnation(found.incarnation)

    def _refuse_incarnation(self, theirs: int) -> None:
        self._refuse(
            IncarnationChanged(
                f"the bucket belongs to incarnation {theirs} of cluster {self._identity.cluster_id}, this database is"
                f" of {self._identity.incarnation}: another was recovered from the bucket; use that one"
            )
        )

    async def _check_head(self, newest: HeadPlace) -> None:
        identity = self._identity
        try:
            head = checkpoint.decode_head(
                await self._store.get(checkpoint.head_key(identity.cluster_id, newest))
            )
        except (InvalidCheckpoint, ObjectMissing):
            return
        mine = self._state.counter(COMMIT_NUMBER)
        if head.epoch > self._epoch or head.commit_number > mine:
            # Raises LeaseLost if another has become the committer since: the head is that one's, nothing was lost.
            await self._rows.write(Changes(), self._epoch)
            self._refuse(
                DatabaseIsOlder(
                    f"the bucket has a checkpoint of commit {head.commit_number}, committer epoch {head.epoch}; this"
                    f" database is at {mine}, epoch {self._epoch}: it has lost what came between (an older copy, a"
                    " standby that lagged). Rebuild an empty database with `tailrace recover`"
                )
            )

    def _refuse(self, error: SequencerError) -> None:
        self.refusal = error
        for told in (*self._waiting, *self._promised):
            if not told.done():
                told.set_exception(error)
                told.exception()
        raise error


def _encoded(export: _Export) -> Steps[bytes]:
    """The whole head as it is stored."""
    tables = yield from checkpoint.encode_changes(export.changes)
    head = msgspec.structs.replace(export.head, tables=[*tables, *export.hot])
    return (yield from checkpoint.encode_head(head))


async def forget_checkpoints(store: ObjectStore, cluster_id: str) -> None:
    """Delete them all, where they are turned off: what is assigned from now on, they would not know. Raises
    StoreError."""
    keys = [info.key async for info in store.list(checkpoint.meta_prefix(cluster_id))]
    if keys:
        _log.warning("checkpoints are turned off: those that there were are deleted", objects=len(keys))
    for first in range(0, len(keys), _DELETED_AT_ONCE):
        await store.delete(keys[first : first + _DELETED_AT_ONCE])


async def read_cluster_file(store: ObjectStore, cluster_id: str) -> ClusterFile | None:
    """Whose bucket it says it is. Raises StoreError, InvalidCheckpoint."""
    try:
        return msgspec.json.decode(await store.get(checkpoint.cluster_key(cluster_id)), type=ClusterFile)
    except ObjectMissing:
        return None
    except msgspec.DecodeError as error:
        raise InvalidCheckpoint(f"{checkpoint.cluster_key(cluster_id)}: {error}") from error


async def write_cluster_file(store: ObjectStore, identity: Identity) -> None:
    """Say whose bucket it is."""
    key = checkpoint.cluster_key(identity.cluster_id)
    check_key(key)
    told = ClusterFile(
        identity.cluster_id,
        identity.incarnation,
        1,
        {"mixed": 1, "parquet": 1, "checkpoint": checkpoint.VERSION},
    )
    await store.put(key, [msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n"])
