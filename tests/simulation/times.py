"""Times: look-ups by time and by leader epoch, against what was read; and what retention by time removes.

`TimeReader` remembers the timestamps of all committed records that it read, and asks for offsets by time: no answer may
be behind a record that it knows to be in the log and late enough. `AgeWatch` checks each transaction of the database:
the log start of the topic that expires by time passes only records that are old enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from sequencer.api.commits import ObjectKind
from sequencer.api.reads import OffsetSpec
from sequencer.store.rows import Changes, PartitionRow, Row, RunRow
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tailrace.kafka.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.simulation.clients import Log, Reader, Stage
from tests.simulation.keyed import quiet
from tests.simulation.network import NoAnswer

AGED = "aged"
RETENTION_MS = 1_500
LAST_QUESTIONS = 8
END, START = -1, -2


@dataclass(slots=True)
class Known:
    """What is known about one partition: the committed records' timestamps by offset, and the last log start
    received."""

    times: dict[int, int] = field(default_factory=dict)
    log_start: int = 0
    position: int = 0

    def late(self, timestamp: int, start: int, end: int) -> list[int]:
        """Return the offsets in [start, end) of records at that time or later."""
        return [at for at, time in self.times.items() if start <= at < end and time >= timestamp]


class TimeReader(Reader):
    """Reads what is committed, and looks up offsets by time."""

    def __init__(self, stage: Stage, name: str = "time-reader") -> None:
        super().__init__(quiet(stage), name, "committed")
        self._known: dict[int, Known] = {}

    async def ask_for_ever(self, topic: str) -> None:
        log = await self.surely_look_up(topic)
        while True:
            for partition in range(log.partitions):
                await self._read_on(log, partition)
            await self._ask_some(log, self.luck.below(log.partitions))
            await self.pause(0.2, 1.0)

    async def ask_at_the_end(self, topic: str) -> None:
        """Ask when everything can be read and nothing is written any more."""
        log = await self.surely_look_up(topic)
        for partition in range(log.partitions):
            while await self._read_on(log, partition):
                pass
            for _ in range(LAST_QUESTIONS):
                await self._ask_some(log, partition)

    async def _read_on(self, log: Log, partition: int) -> bool:
        """Fetch once; returns whether there may be more to read."""
        known = self._known.setdefault(partition, Known())
        try:
            found = await self.fetch(self.some_agent(), log, {partition: known.position}, max_wait_ms=0)
        except NoAnswer:
            return True
        got = found.get(partition)
        if got is None or got.log_start < 0:
            return True
        known.log_start = max(known.log_start, got.log_start)
        before = known.position
        known.position = max(got.position, known.log_start)
        for record in got.records:
            known.times[record.offset] = record.timestamp
        return got.code is not ErrorCode.NONE or known.position > before

    async def _ask_some(self, log: Log, partition: int) -> None:
        known = self._known.get(partition, Known())
        if not known.times:
            return
        match self.luck.below(8):
            case 0:
                await self._ask_for_epoch(log, partition, max(known.times))
            case 1 | 2:
                await self._ask_for_time(log, partition, known, OffsetSpec.MAX_TIMESTAMP)
            case 3 | 4:  # the next record may be in the same run, and not committed
                await self._ask_for_time(log, partition, known, max(known.times.values()) + 1)
            case _:
                times = list(known.times.values())
                some = times[self.luck.below(len(times))]
                await self._ask_for_time(log, partition, known, some + self.luck.below(3) - 1)

    async def _ask_for_time(self, log: Log, partition: int, known: Known, timestamp: int) -> None:
        """Ask for a time. MAX_TIMESTAMP returns the latest record of all or, for read_committed if that one is not
        committed, nothing."""
        start, before = known.log_start, Known(dict(known.times))
        is_latest = timestamp == OffsetSpec.MAX_TIMESTAMP
        isolation = self.luck.below(2)
        row = await self._list(log, partition, timestamp, isolation)
        end = (await self._list(log, partition, END, isolation)).offset
        later_start = (await self._list(log, partition, START, isolation)).offset
        what = f"{log.name}-{partition}: asked for {timestamp}, told ({row.offset}, {row.timestamp})"
        if is_latest:
            missed = before.late(row.timestamp + 1, later_start, end)
        else:
            missed = before.late(timestamp, later_start, row.offset if row.offset >= 0 else end)
        if row.offset < 0 and (later_start > 0 or (is_latest and isolation)):
            return  # the run's late record may be out of reach: below the log start, for example
        if missed:
            self.stage.violated(f"{what}; the record at {missed[0]} is of {before.times[missed[0]]}")
        if row.offset < 0:
            return
        if not start <= row.offset < end:
            self.stage.violated(f"{what}; the log is from {start} to {end}")
        if row.timestamp < timestamp or before.times.get(row.offset, row.timestamp) != row.timestamp:
            self.stage.violated(f"{what}; known of that offset: {before.times.get(row.offset)}")

    async def _list(
        self, log: Log, partition: int, timestamp: int, isolation: int
    ) -> ListOffsetsPartitionResponse:
        asked = ListOffsetsTopic(log.topic, [ListOffsetsPartition(partition, timestamp=timestamp)])
        response = await self.until_answered(
            ApiKey.LIST_OFFSETS,
            7,
            ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[asked]),
            lambda response: response.topics[0].partitions[0].error_code == ErrorCode.NONE,
        )
        row: ListOffsetsPartitionResponse = response.topics[0].partitions[0]
        return row

    async def _ask_for_epoch(self, log: Log, partition: int, last_read: int) -> None:
        """Ask for the end of the only epoch that exists, and of one that does not exist yet."""
        for epoch in (0, 7):
            asked = OffsetForLeaderTopic(log.topic, [OffsetForLeaderPartition(partition, leader_epoch=epoch)])
            response = await self.until_answered(
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                4,
                OffsetForLeaderEpochRequest(topics=[asked]),
                lambda response: response.topics[0].partitions[0].error_code == ErrorCode.NONE,
            )
            row = response.topics[0].partitions[0]
            end = (await self._list(log, partition, END, 0)).offset
            is_right = last_read < row.end_offset <= end if epoch == 0 else row.end_offset == -1
            if not is_right:
                told = f"({row.leader_epoch}, {row.end_offset})"
                read = f"{last_read} is read, the end is {end}"
                self.stage.violated(f"{log.name}-{partition}: epoch {epoch} is told as {told}; {read}")


@dataclass(slots=True)
class AgeWatch:
    """Checks what retention by time removes. `now_ms`: the database's time; None if unknown."""

    violated: Callable[[str], None]
    now_ms: Callable[[], int | None]
    topic_id: UUID | None = None
    _runs: dict[int, RunRow] = field(default_factory=dict)
    _partition: PartitionRow | None = None

    def __call__(self, changes: Changes) -> None:
        if self.topic_id is None:
            return
        for key, row in changes.by_kind.get(RunRow, {}).items():
            if key[0] == self.topic_id:
                self._take(key, row)
        for row in changes.by_kind.get(PartitionRow, {}).values():
            if isinstance(row, PartitionRow) and row.topic_id == self.topic_id:
                self._see(row)

    @property
    def left(self) -> list[str]:
        """Return as text what has not expired yet."""
        row = self._partition
        if row is None or row.log_start_offset == row.end_offset:
            return []
        return [f"{AGED}: records from {row.log_start_offset} to {row.end_offset} have not expired"]

    def _take(self, key: tuple[object, ...], row: Row | None) -> None:
        assert isinstance(key[2], int), "runs are known by their base offset"
        self._runs.pop(key[2], None)
        if isinstance(row, RunRow):
            self._runs[row.base_offset] = row

    def _see(self, row: PartitionRow) -> None:
        now_ms = self.now_ms()
        before = 0 if self._partition is None else self._partition.log_start_offset
        self._partition = row
        for run in self._runs.values():
            # A swap may have joined a run that was planned to go with one that stays: only whole runs have a known age.
            is_passed = before < run.end_offset <= row.log_start_offset
            if not is_passed or now_ms is None or run.kind is ObjectKind.MARKERS:
                continue
            if run.max_timestamp >= now_ms - RETENTION_MS:
                age = f"{now_ms - run.max_timestamp} ms old"
                self.violated(f"{AGED}: log start {row.log_start_offset}, beyond a record that is {age}")
