"""An answer as plain values, without what differs between any two servers: hosts, numbers of nodes, ids, times.

Where such a value is there or not, null or not, -1 or not is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from tailrace.batches.record_batch import InvalidBatch, split
from tailrace.batches.records import InvalidRecords, decode_records
from tailrace.kafka.error_codes import ErrorCode
from tests.compat.differential.steps import Ask

NODES = frozenset(
    (
        *("leader_id", "node_id", "broker_id", "controller_id", "coordinator_id", "leader", "broker_ids"),
        *("replica_nodes", "isr_nodes", "offline_replicas", "eligible_leader_replicas", "last_known_elr"),
        *("replicas", "adding_replicas", "removing_replicas", "preferred_read_replica"),
    )
)
WORDS = frozenset(("host", "cluster_id", "log_dir"))
TIMES = frozenset(
    (
        *(
            "timestamp",
            "log_append_time_ms",
            "last_timestamp",
            "transaction_start_time_ms",
            "commit_timestamp",
        ),
        *("base_timestamp", "max_timestamp"),
        *("issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms"),
    )
)
SIZES = frozenset(("total_bytes", "usable_bytes", "partition_size", "finalized_features_epoch"))
EPOCHS = frozenset(("member_epoch", "group_epoch", "assignment_epoch"))
"""Kafka and Tailrace count them up by different steps."""
MEMBERS = frozenset(("member_id", "leader"))
TEXTS = frozenset(("error_message", "message"))
DROPPED = frozenset(("throttle_time_ms", "port"))
FIRST_TIME = 1_600_000_000_000
"""Times from here on are clocks'; others are those of the scripts."""
FIRST_SCRIPTED_ID = 1 << 64
"""UUIDs below this are the scripts' own."""


class Ids:
    """The names of ids that one server gave out in one script."""

    def __init__(self) -> None:
        self._topics: dict[UUID, str] = {}
        self._numbers: dict[str, dict[int | str, int]] = {}

    def learn(self, topic_id: UUID, name: str) -> None:
        """A topic's id, seen beside its name."""
        self._topics[topic_id] = name

    def topic(self, topic_id: UUID) -> str:
        """The id's name."""
        if topic_id.int < FIRST_SCRIPTED_ID:
            return f"<uuid {topic_id.int}>"
        return f"<id of {self._topics.get(topic_id, 'a topic')}>"

    def numbered(self, kind: str, value: int | str) -> str:
        """The value as the nth one of its kind."""
        known = self._numbers.setdefault(kind, {})
        return f"<{kind} {known.setdefault(value, len(known) + 1)}>"


def plain(answer: Any, step: Ask, ids: Ids) -> Any:
    """The answer in dicts, lists, numbers and strings."""
    return _value(answer, "", step, ids)


def _value(value: Any, name: str, step: Ask, ids: Ids) -> Any:
    if isinstance(value, msgspec.Struct):
        return _fields(value, step, ids)
    if name == "records":
        return None if value is None else _batches(b"".join(_buffers(value)), ids)
    if isinstance(value, list | tuple):
        return [_value(item, name, step, ids) for item in value]
    if isinstance(value, UUID):
        return ids.topic(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return _number(value, name, ids)
    if isinstance(value, str):
        return _string(value, name, step, ids)
    return value


def _fields(value: msgspec.Struct, step: Ask, ids: Ids) -> dict[str, Any]:
    names = [name for name in value.__struct_fields__ if name not in DROPPED and name not in step.ignored]
    topic_id = getattr(value, "topic_id", None)
    topic = getattr(value, "name", None) or getattr(value, "topic", None)
    if isinstance(topic_id, UUID) and topic and not getattr(value, "error_code", 0):
        ids.learn(topic_id, topic)
    return {name: _value(getattr(value, name), name, step, ids) for name in names}


def _number(value: int, name: str, ids: Ids) -> int | str:
    if name.endswith("error_code"):
        return error_name(value)
    if name in NODES and value >= 0:
        return "<node>"
    if name == "producer_id" and 0 <= value < 1 << 40:
        return ids.numbered("producer", value)
    if name == "session_id" and value > 0:
        return "<session>"
    if name in TIMES and value >= FIRST_TIME:
        return "<time>"
    if (name in EPOCHS and value >= 1) or (name == "leader_epoch" and value >= 0):
        return "<epoch>"
    if name in SIZES and value >= 0:
        return "<size>"
    return value


def _string(value: str, name: str, step: Ask, ids: Ids) -> str:
    if name in WORDS and value:
        return f"<{name}>"
    if name in TEXTS and value and not step.texts:
        return "<text>"
    if name in MEMBERS and value:
        return ids.numbered("member", value)
    return value


def error_name(code: int) -> str:
    """NAME(code)."""
    try:
        return f"{ErrorCode(code).name}({code})"
    except ValueError:
        return f"?({code})"


def _buffers(records: Any) -> Sequence[Any]:
    return [records] if isinstance(records, bytes | bytearray | memoryview) else records


def _batches(data: bytes, ids: Ids) -> list[dict[str, Any]] | str:
    """Each batch: its header but for the sum, and its records."""
    rows = []
    try:
        for header, batch in split(memoryview(data)):
            row = {name: getattr(header, name) for name in header.__struct_fields__ if name != "crc"}
            row = {name: _number(value, name, ids) for name, value in row.items()}
            row["records"] = _records(batch)
            rows.append(row)
    except InvalidBatch as error:
        return f"{len(data)} bytes: {type(error).__name__}"
    return rows


def _records(batch: memoryview) -> list[dict[str, Any]] | str:
    try:
        return [_record(record) for record in decode_records(batch)]
    except InvalidRecords:
        return "<records that can't be read>"


def _record(record: Any) -> dict[str, Any]:
    time: Callable[[int], int | str] = lambda at: "<time>" if at >= FIRST_TIME else at  # noqa: E731
    return {**record._asdict(), "timestamp": time(record.timestamp)}
