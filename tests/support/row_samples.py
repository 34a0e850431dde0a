"""Rows for tests to store: one of each kind, with extreme values, and logs of runs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.reads import Marker, Run, RunBatch
from sequencer.api.transactions import TransactionState
from sequencer.store.batch_table import EMPTY_TABLE, NO_OBJECT, encode_markers, encode_table
from sequencer.store.rows import (
    AbortedRow,
    AclRow,
    AgentRow,
    AnswerRow,
    BrokerConfigRow,
    Changes,
    CleanedRow,
    ClientConfigRow,
    CommitRow,
    CounterRow,
    DelegationTokenRow,
    GroupOffsetRow,
    GroupRow,
    LeaseRow,
    LogEpoch,
    ObjectRow,
    OpenRangeRow,
    PartitionRow,
    PendingOffsetRow,
    ProducerRow,
    RememberedBatch,
    Row,
    RunRow,
    ScramRow,
    SessionRow,
    ShareAnswered,
    ShareLock,
    ShareRow,
    ShareSpan,
    SmallObjectRow,
    SwapRow,
    TablePinRow,
    TopicRow,
    TransactionRow,
    WriteRow,
)

BIGGEST = 2**63 - 1
HARD_TEXT = "né\x00'\"\\0\\\\ %s $1 ?1 {now} 🛩"
TOPIC = UUID(int=1)


def one_of_each_kind() -> list[Row]:
    return [
        CounterRow("commit_number", BIGGEST),
        TopicRow(TOPIC, "flights", 12, {"retention.ms": "1", HARD_TEXT: HARD_TEXT}, 5, 3),
        PartitionRow(TOPIC, 3, 1, BIGGEST, -1, [LogEpoch(0, 0), LogEpoch(4, 77)]),
        SessionRow(UUID(int=9), 2**31 - 1, "ab/cd/", None, 3, 4, None),
        SessionRow(UUID(int=10), 1, "ab/ce/", UUID(int=9), 0, 4, 5, 1, 99),
        CommitRow(UUID(int=9), 2, b"\x00\xff"),
        AgentRow(1, 7, b"", 0, True),
        ProducerRow(TOPIC, 3, BIGGEST, 32767, [RememberedBatch(0, 2, 10), RememberedBatch(3, 3, 13)], -1, 8),
        GroupRow(HARD_TEXT, -1, 0, 1, "Empty", "", ["a", HARD_TEXT], b"\x00", 1),
        GroupOffsetRow(HARD_TEXT, TOPIC, 3, 11, -1, HARD_TEXT, 1, None),
        GroupOffsetRow("g", TOPIC, 3, 11, -1, "", 1, 2),
        ShareRow(
            HARD_TEXT,
            TOPIC,
            3,
            BIGGEST - 9,
            [ShareSpan(BIGGEST - 4, 1, 2, 0), ShareSpan(BIGGEST, 0, 1, -1)],
            [ShareLock(HARD_TEXT, 7)],
            [ShareAnswered(UUID(int=5), 0, [(BIGGEST - 9, BIGGEST - 5, 2)])],
            8,
        ),
        TransactionRow(
            HARD_TEXT,
            BIGGEST,
            32766,
            9,
            TransactionState.ONGOING,
            60_000,
            5,
            [(TOPIC, 3), (UUID(int=2**127), 0)],
            ["g", HARD_TEXT],
            -1,
            -1,
            7,
            3,
            8,
            True,
            BIGGEST,
            32766,
            6,
        ),
        OpenRangeRow(TOPIC, 3, BIGGEST, 12),
        AbortedRow(TOPIC, 3, BIGGEST, 1, 9),
        PendingOffsetRow(HARD_TEXT, TOPIC, 3, BIGGEST, 11, -1, HARD_TEXT, 1, None),
        PendingOffsetRow("g", TOPIC, 3, BIGGEST, 11, -1, "", 1, 2),
        BrokerConfigRow("", {}),
        ScramRow(HARD_TEXT, 2, b"\x00\xff", b"", b"k" * 64, 16_384),
        AclRow(2, HARD_TEXT, 4, "User:" + HARD_TEXT, "*", 15, 3, 9),
        ClientConfigRow(2, HARD_TEXT, {HARD_TEXT: "1.5"}),
        DelegationTokenRow(
            "f" * 64, HARD_TEXT, "User:" + HARD_TEXT, "User:b", ["User:" + HARD_TEXT], 1, 2, BIGGEST
        ),
        LeaseRow("compactor", HARD_TEXT, 4, 5),
        TablePinRow(TOPIC, HARD_TEXT, BIGGEST),
        SmallObjectRow(TOPIC, UUID(int=76), BIGGEST, 1),
        CleanedRow(TOPIC, 3, BIGGEST, 0, 9),
        SwapRow(UUID(int=77), 8, 9),
        WriteRow(UUID(int=79), BIGGEST, 8, 9),
        AnswerRow(UUID(int=78), b"\x00\xff", 9),
    ]


def object_row(number: int, *, retired_ms: int | None = None, size: int = 1000) -> ObjectRow:
    kind = ObjectKind.PARQUET if number % 3 == 0 else ObjectKind.MIXED
    return ObjectRow(
        UUID(int=1000 + number), kind, f"k/{number:04}", size, 2**32 - 1, size - 10, number, 1, 1, retired_ms
    )


def run_row(
    base_offset: int,
    end_offset: int,
    stored: ObjectRow,
    *,
    max_timestamp: int = 0,
    running_max: int | None = None,
    partition: int = 0,
    topic_id: UUID = TOPIC,
    length: int = 100,
) -> RunRow:
    is_parquet = stored.kind is ObjectKind.PARQUET
    table = encode_table(
        [RunBatch(length, end_offset - base_offset, BatchStatus.STORED, base_offset, max_timestamp)]
    )
    return RunRow(
        topic_id=topic_id,
        partition=partition,
        base_offset=base_offset,
        end_offset=end_offset,
        object_id=stored.object_id,
        start=8,
        length=length,
        max_timestamp=max_timestamp,
        running_max_timestamp=max_timestamp if running_max is None else running_max,
        commit_number=base_offset,
        created_ms=base_offset + 5,
        kind=stored.kind,
        batches=EMPTY_TABLE if is_parquet else table,
    )


def marker_row(
    base_offset: int, *, running_max: int = -1, partition: int = 0, topic_id: UUID = TOPIC, count: int = 1
) -> RunRow:
    """Make a run of markers, which belongs to no object."""
    offsets = range(base_offset, base_offset + count)
    return RunRow(
        topic_id=topic_id,
        partition=partition,
        base_offset=base_offset,
        end_offset=base_offset + count,
        object_id=NO_OBJECT,
        start=0,
        length=78 * count,
        max_timestamp=-1,
        running_max_timestamp=running_max,
        commit_number=base_offset,
        created_ms=base_offset + 5,
        kind=ObjectKind.MARKERS,
        batches=encode_table([RunBatch(78, 1, BatchStatus.STORED, offset, -1) for offset in offsets]),
        markers=encode_markers([Marker(offset, 7, 1, offset % 2 == 0, 5) for offset in offsets]),
    )


def sample_run(base_offset: int, end_offset: int, **fields: Any) -> Run:
    """Make a run of a mixed object. Fields that are not given are 0, nil or empty."""
    made: dict[str, Any] = {
        "topic_id": NO_OBJECT, "partition": 0, "object_id": NO_OBJECT, "kind": ObjectKind.MIXED, "key": "k",
        "object_size": 0, "index_start": 0, "start": 0, "length": 0, "max_timestamp": 0,
        "running_max_timestamp": fields.get("max_timestamp", 0), "commit_number": 1, "created_ms": 0, "batches": [],
    }  # fmt: skip
    return Run(base_offset=base_offset, end_offset=end_offset, **made | fields)


def changes(*rows: Row) -> Changes:
    """Make changes that put these rows."""
    made = Changes()
    for row in rows:
        made.put(row)
    return made
