"""A topic that is compacted by key: its writers, its readers, and its invariants.

Compaction removes records of such a topic on purpose, so it is in no history. Instead: a reader that reads from the
start to a stable end gets the last value of each key, as far as it is known, and nothing that a tombstone deleted.

In some runs one of the keys is erased again and again. A reader that begins after a successful erasure gets none of the
key's records that were known before it; for all other keys the rule above holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka.error_codes import ErrorCode
from tests.simulation.clients import Admin, Got, Log, OutBatch, Reader, Stage
from tests.simulation.network import NoAnswer
from tests.simulation.transactions import Progress, TransactionalProducer
from tests.support.history.events import Outcome

KEYED = "keyed"
KEYS = 5
LONG_MS, SHORT_MS = 600_000, 3_000
"""How long tombstones stay: longer than a run, or not."""
TRANSACTIONS = 8
ERASED = b"key-0"
SWAP_IS_KNOWN_S = 5.0
"""After this time every agent that serves knows about a swap, because windows are dropped after two seconds."""
Value = bytes | None
Offsets = dict[int, set[int]]


class Quiet:
    """A stage that keeps no history."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def record(self, event: object) -> None:
        """Discard the event."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


def quiet(stage: Stage) -> Stage:
    """Return the same stage without its history."""
    return cast(Stage, Quiet(stage))


@dataclass(slots=True)
class KeyedWatch:
    """The records that are known to be committed, by partition and offset, and what readers must find of them."""

    violated: Callable[[str], None]
    keeps_tombstones: bool
    now: Callable[[], float]
    note: Callable[[str], None]
    known: dict[int, dict[int, tuple[bytes, Value]]] = field(default_factory=dict)
    erased_keys: set[bytes] = field(default_factory=set)
    _erased: list[tuple[float, Offsets]] = field(default_factory=list)

    def erasure_begins(self, key: bytes) -> Offsets:
        """Return the records of the key that are known to be committed."""
        self.erased_keys.add(key)
        return {
            partition: {offset for offset, (held, _) in records.items() if held == key}
            for partition, records in self.known.items()
        }

    def erasure_ended(self, begun: Offsets, count: int) -> None:
        """Note that an erasure reports success."""
        self.note(f"erased {count} records")
        self._erased.append((self.now(), begun))

    def erasure_failed(self, error: Exception) -> None:
        """Note that an erasure did not complete."""
        self.note(f"erasure: {type(error).__name__}")

    def gone(self, partition: int) -> set[int]:
        """Return the offsets that no reader that begins now may read."""
        known_from = self.now() - SWAP_IS_KNOWN_S
        return {
            offset
            for ended, begun in self._erased
            if ended <= known_from
            for offset in begun.get(partition, ())
        }

    def learn(self, partition: int, offset: int, key: bytes, value: Value) -> None:
        """Note that a record is committed."""
        held = self.known.setdefault(partition, {}).setdefault(offset, (key, value))
        if held != (key, value):
            self.violated(f"{KEYED}-{partition}: {held} at {offset} became {(key, value)}")

    def check(self, partition: int, end: int, read: dict[int, tuple[bytes, Value]], *, is_last: bool) -> None:
        """Check one reading of a partition from its start to `end`."""
        for offset, (key, value) in read.items():
            self.learn(partition, offset, key, value)
        newest = _newest(self.known.get(partition, {}), end)
        found = _newest(read, end)
        for key, (offset, value) in newest.items():
            if key in self.erased_keys:
                continue
            seen = found.get(key)
            # A reader that read a value before it was removed may reach its tombstone too late, if tombstones go soon.
            may_be_gone = not self.keeps_tombstones and (seen is None or not is_last)
            if value is None and may_be_gone:
                continue
            if seen != (offset, value):
                self.violated(
                    f"{KEYED}-{partition}: of {key!r} was read {seen}, its last is {(offset, value)}"
                )


def _newest(records: dict[int, tuple[bytes, Value]], end: int) -> dict[bytes, tuple[int, Value]]:
    return {key: (offset, value) for offset, (key, value) in sorted(records.items()) if offset < end}


class KeyedWriter(TransactionalProducer):
    """Writes values and tombstones in transactions."""

    def __init__(self, stage: Stage, watch: KeyedWatch) -> None:
        super().__init__(quiet(stage), "keyed-writer", "keyed-writer", is_second_version=True)
        self._watch = watch
        self._number = 0
        self._values: dict[int, list[tuple[bytes, Value]]] = {}
        self._stored: list[tuple[int, int, list[tuple[bytes, Value]]]] = []

    async def write(self, progress: Progress) -> None:
        """Run transactions until none is left or another instance took over."""
        await self.run([KEYED], progress)

    def begin(self) -> str:
        self._stored.clear()
        return super().begin()

    def make(self, log: Log, partition: int, sequence: int = -1, **rest: Any) -> OutBatch:
        made: list[tuple[bytes, Value]] = []
        for _ in range(1 + self.luck.below(3)):
            self._number += 1
            value = None if self.luck.below(4) == 0 else f"{self.name}/{self._number}".encode()
            made.append((b"key-%d" % self.luck.below(KEYS), value))
        data = encode_batch(
            [NewRecord(key, value) for key, value in made],
            timestamps=[self.clock.wall_ms()] * len(made),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        batch = OutBatch(log, partition, data, [str(self._number)] * len(made), sequence)
        self._values[id(batch)] = made
        return batch

    async def end(self, transaction: str, *, is_commit: bool, is_whole: bool = True) -> None:
        await self.pause(0.0, 1.5)  # compaction runs while the transaction is open
        await super().end(transaction, is_commit=is_commit, is_whole=is_whole)

    def _acked(self, batch: OutBatch, base_offset: int) -> None:
        super()._acked(batch, base_offset)
        if base_offset >= 0:
            self._stored.append((batch.partition, base_offset, self._values[id(batch)]))

    def _ended(self, transaction: str, outcome: Outcome, error: str = "") -> None:
        if outcome == "committed":
            for partition, base_offset, made in self._stored:
                for place, (key, value) in enumerate(made):
                    self._watch.learn(partition, base_offset + place, key, value)


class KeyedReader(Reader):
    """Reads partitions from the start to their stable end, again and again, in small steps."""

    def __init__(self, stage: Stage, name: str, watch: KeyedWatch) -> None:
        super().__init__(quiet(stage), name, "committed")
        self._watch = watch

    async def read_for_ever(self, topic: str = KEYED) -> None:
        log = await self.surely_look_up(topic)
        while True:
            for partition in range(log.partitions):
                await self.read_partition(log, partition, is_last=False)

    async def read_all(self) -> None:
        """Read once, when nobody writes any more. It does not wait for partitions without known records."""
        log = await self.surely_look_up(KEYED)
        for partition in sorted(self._watch.known):
            await self.read_partition(log, partition, is_last=True)

    async def read_partition(self, log: Log, partition: int, *, is_last: bool) -> None:
        position, end, read = 0, 1, dict[int, tuple[bytes, Value]]()
        gone = self._watch.gone(partition)
        while position < end:
            got = await self._fetch_one(log, partition, position, is_last)
            if got.code is not ErrorCode.NONE:
                continue
            end = max(end, got.last_stable)  # agents' views differ in age
            if got.position == position and position < end and is_last:
                self.stage.note(f"{KEYED}-{partition}: nothing at {position} below {end} yet")
            for record in got.records:
                assert record.key is not None
                read[record.offset] = (record.key, record.value)
            position = got.position
        if still := sorted(gone & read.keys()):
            self._watch.violated(f"{KEYED}-{partition}: erased records at {still[:5]} were read")
        self._watch.check(partition, position, read, is_last=is_last)

    async def _fetch_one(self, log: Log, partition: int, position: int, is_last: bool) -> Got:
        largest = 1 << 20 if is_last else (1, 150, 400)[self.luck.below(3)]
        try:
            found = await self.fetch(self.some_agent(), log, {partition: position}, max_bytes=largest)
        except NoAnswer:
            found = {}
        await self.pause(0.01, 0.05 if is_last else 0.4)
        return found.get(partition) or Got(code=ErrorCode.UNKNOWN_SERVER_ERROR)


async def make_keyed_topic(admin: Admin, watch: KeyedWatch, partitions: int) -> None:
    """Create the topic, which is compacted whenever it has new records."""
    await admin.make_topic(
        KEYED,
        partitions,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0",
        delete_retention_ms=str(LONG_MS if watch.keeps_tombstones else SHORT_MS),
    )
