"""Well-formed requests with extreme values, and with the names of things that exist.

A request is built from the declared message of its API and version, field by field. A value is at a bound of its type,
or fits the field's name (a topic, a member's id, a producer's epoch) and is known from earlier answers. kio checks that
the bytes are well-formed (test_hostile.py).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tailrace.batches.record_batch import assemble
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka import ApiKey
from tailrace.kafka.apis import APIS
from tailrace.kafka.schema import Field, MessageType, Wire, fields_of
from tailrace.limits import MAX_NAME_BYTES
from tests.hostile.known import QUIET_GROUP, QUIET_TOPIC, WIDE_GROUP, WIDE_TOPIC, Known, Member, parts_of

READING = frozenset({
    ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.SHARE_GROUP_DESCRIBE, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
})  # fmt: skip
"""Requests that may name what belongs to the bystanders, and what must stay."""
OF_CONSUMERS = frozenset({ApiKey.CONSUMER_GROUP_HEARTBEAT})
OF_CLASSIC_TOO = frozenset({ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.TXN_OFFSET_COMMIT})
"""Requests that members of either protocol send."""
OF_SHARERS = frozenset({ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE})
OF_ACLS = frozenset({ApiKey.CREATE_ACLS, ApiKey.DESCRIBE_ACLS, ApiKey.DELETE_ACLS})

INCOMPRESSIBLE = "".join(map(chr, random.Random(0).choices(range(33, 127), k=32_767)))
"""PostgreSQL compresses index entries: a long row of one letter would fit."""
LONG_NAMES = tuple(INCOMPRESSIBLE[:size] for size in (MAX_NAME_BYTES, MAX_NAME_BYTES + 1, 9_000, 32_767))
TEXTS = (
    "", "a", "x" * 249, "x" * 250, "x" * MAX_NAME_BYTES, "x" * (MAX_NAME_BYTES + 1), "x" * 32_767,
    "\\" * MAX_NAME_BYTES, "\x00", "\x00" * MAX_NAME_BYTES, "é" * 16_383, "😀" * 600, ".", "..", "a/b", "%s{}\n", "²",
    "9" * 5_000, "-1", "'; drop table runs; --", "consumer", "range", "(" * 2_000, "(a*)*" * 100,
)  # fmt: skip
SMALL_NUMBERS = (
    "key_type", "acks", "config_operation", "isolation_level", "session_epoch", "member_epoch", "mechanism",
    "share_acquire_mode",
)  # fmt: skip
ACL_NUMBERS = {
    "resource_type": range(1, 8), "resource_type_filter": range(1, 8),
    "resource_pattern_type": (3, 3, 4), "pattern_type_filter": range(1, 5),
    "operation": range(1, 16), "permission_type": (1, 2, 3, 3),
}  # fmt: skip
"""Kafka's numbers, of which some fit together."""
QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "connection_creation_rate")
CONFIGS = (
    "retention.ms", "retention.bytes", "cleanup.policy", "max.message.bytes", "message.timestamp.type",
    "follower.replication.throttled.replicas", "min.cleanable.dirty.ratio", "log.retention.ms", "no.such.config",
    "segment.ms", "delete.retention.ms", "max.compaction.lag.ms", "min.compaction.lag.ms", "flush.ms",
)  # fmt: skip
CONFIG_VALUES = (
    "", "-1", "0", "1", "9223372036854775807", "9223372036854775808", "1e400", "nan", "delete", "compact", "1_0",
    "x" * 4_097, "LogAppendTime", ",,,", "true",
)  # fmt: skip
WIDE_CONFIGS = frozenset(name for name in CONFIGS if name.endswith((".ms", ".bytes")))
"""Configs whose numbers may have 64 bits: half of their values are `WIDE_VALUES`."""
WIDE_VALUES = tuple(map(str, (2**63 - 1, 2**63 - 2, 2**63, -1, 0, -(2**63))))
STATES = ("Stable", "Empty", "Dead", "Ongoing", "CompleteCommit", "classic", "consumer")
WIDTHS = {Wire.INT8: 8, Wire.INT16: 16, Wire.INT32: 32, Wire.INT64: 64}
BROKER_RESOURCE = 4
SOUND_FOR_EVER = 1 << 30
MANY = 300
REST_OF_REQUEST = 100
"""More than the elements that a request has outside its large array."""
SHORT = 32
"""The longest value in a repeated element: such a request has many elements, not many bytes."""
TIME = 1_790_000_000_000


@dataclass(frozen=True, slots=True)
class Count:
    """An array of a request (a field of a structure in it), and the number of elements to give it, if that many can be
    decoded."""

    kind: MessageType
    array: Field
    elements: int


def hostile_request(api: ApiKey, version: int, known: Known, rng: random.Random) -> Any:
    """Make one well-formed request of a hostile client."""
    request = _Maker(api, version, known, rng).message(APIS[api].request)
    return request if known.changes_defaults else _without_change_of_defaults(api, request)


def _without_change_of_defaults(api: ApiKey, request: Any) -> Any:
    if api in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        # The broker would carry out a change of the default for all topics, and it would affect the bystanders.
        is_of_brokers = any(each.resource_type == BROKER_RESOURCE for each in request.resources)
        request.validate_only = request.validate_only or is_of_brokers
    if api is ApiKey.ALTER_CLIENT_QUOTAS:
        is_default = any(part.entity_name is None for each in request.entries for part in each.entity)
        request.validate_only = request.validate_only or is_default
    return request


def wide_fields(api: ApiKey) -> list[tuple[MessageType, Field]]:
    """Return the fields of 64 bits in all versions of a request, each with the message it is in."""
    return [at for at in _fields(api) if at[1].kind is Wire.INT64 and not at[1].is_array]


def array_fields(api: ApiKey) -> list[tuple[MessageType, Field]]:
    """Return the arrays in all versions of a request, each with the message it is in."""
    return [at for at in _fields(api) if at[1].is_array]


def _fields(api: ApiKey) -> list[tuple[MessageType, Field]]:
    found: list[tuple[MessageType, Field]] = []
    left = [APIS[api].request]
    while left:
        kind = left.pop()
        for each in fields_of(kind):
            if (kind, each) not in found:
                found.append((kind, each))
            if not isinstance(each.kind, Wire):
                left.append(each.kind)
    return found


def request_of_many(api: ApiKey, version: int, count: Count, known: Known, rng: random.Random) -> Any:
    """Make a request that is valid except for one array, which repeats one element."""
    maker = _Maker(api, version, known, rng, count=count)
    return _without_change_of_defaults(api, maker.message(APIS[api].request))


def request_at_an_end(
    api: ApiKey, version: int, at: tuple[MessageType, Field], known: Known, rng: random.Random
) -> Any:
    """Make a request that is valid except for one field of 64 bits, which is at an end of its type."""
    maker = _Maker(api, version, known, rng, at_an_end=at)
    request = maker.message(APIS[api].request)
    return _without_change_of_defaults(api, request)


def _items_in(element: Any) -> int:
    values = [getattr(part, name) for part in parts_of(element) for name in part.__struct_fields__]
    return sum(len(value) for value in values if isinstance(value, list))


class _Maker:
    """Fills in the fields of one request. Half of the requests have a single extreme value, because an otherwise valid
    request gets further. `is_outsider`: all fields together say that the sender is not a member of any group."""

    def __init__(
        self,
        api: ApiKey,
        version: int,
        known: Known,
        rng: random.Random,
        *,
        at_an_end: tuple[MessageType, Field] | None = None,
        count: Count | None = None,
    ) -> None:
        self._api = api
        self._version = version
        self._known = known
        self._rng = rng
        self._has_large = False
        self._sound_values = self._pick((0, 1, 2, 3, 4, 5, 7, 9)) if self._rng.random() < 0.5 else -1
        self._extremes = self._pick((0.1, 0.4))
        self._at_an_end = at_an_end
        self._count = count
        if at_an_end is not None or count is not None:
            self._sound_values = SOUND_FOR_EVER
        self._member = self._some_member()
        self._is_outsider = self._member is None and self._rng.random() < 0.5
        self._config = ""
        self._is_repeated = False

    def message(self, kind: MessageType) -> Any:
        values = {
            each.name: self._field(kind, each)
            for each in fields_of(kind)
            if self._version in each.versions and not (each.tag is not None and self._is_left_out(0.5))
        }
        return kind(**values)

    def _is_left_out(self, chance: float) -> bool:
        """Decide at random whether to omit a field, but never one that contains the large array."""
        return self._rng.random() < chance and (self._count is None or self._is_repeated)

    def _repeated(self, kind: MessageType, each: Field, elements: int) -> list[Any]:
        """Repeat one element, at most as often as can be decoded with everything in it."""
        self._is_repeated = True
        made = self._single(kind, each)
        self._is_repeated = False
        return [made] * min(elements, (APIS[self._api].max_items - REST_OF_REQUEST) // (1 + _items_in(made)))

    def _field(self, kind: MessageType, each: Field) -> Any:
        if self._count is not None and (kind, each) == (self._count.kind, self._count.array):
            return self._repeated(kind, each, self._count.elements)
        if self._version in each.nullable and (
            self._is_left_out(0.5 if self._is_repeated else 0.15)
            or (each.name == "group_instance_id" and self._is_outsider)
        ):
            return None
        if not each.is_array:
            return self._single(kind, each)
        if self._count is not None:
            return [self._single(kind, each)]
        size = self._pick((0, 1, 1, 1, 2, 3))
        if isinstance(each.kind, Wire) and WIDTHS.get(each.kind) and self._rng.random() < 0.1:
            size = MANY
        made = [self._single(kind, each) for _ in range(size)]
        return made * 2 if self._rng.random() < 0.1 else made

    def _single(self, kind: MessageType, each: Field) -> Any:
        wire = each.kind
        if not isinstance(wire, Wire):
            return self.message(wire)
        if wire is Wire.BOOL:
            return self._rng.random() < 0.5
        if wire is Wire.UUID:
            return self._pick([*self._topic_ids(), UUID(int=0), UUID(int=2**128 - 1)])
        if wire is Wire.STRING:
            return self._text(kind, each.name)
        if wire is Wire.BYTES and self._count is not None:
            return bytes(SHORT)
        if wire is Wire.BYTES:
            return self._pick((b"", b"\x00\x00\xff", bytes(32), bytes(1_000), b"\xff" * 70_000))
        if wire is Wire.RECORDS:
            return memoryview(self._records())
        if wire is Wire.FLOAT64:
            return self._pick((0.0, -1.0, 1.5, 1_000.0, 1e300, 2.0**63, float("inf"), float("nan")))
        if self._at_an_end == (kind, each):
            return self._pick((2**63 - 1, 2**63 - 2, -(2**63)))
        return self._number(each.name, WIDTHS[wire])

    def _text(self, kind: MessageType, name: str) -> str:
        if name == "member_id" and self._is_outsider:
            return ""
        if self._is_extreme():
            text = self._pick(LONG_NAMES if self._rng.random() < 0.5 else TEXTS)
            if len(text) > 2_000 and self._has_large:
                text = "x"
            self._has_large = self._has_large or len(text) > 2_000
            return text
        if self._member is not None and name in ("group_id", "member_id"):
            return self._member.group_id if name == "group_id" else self._member.member_id
        if name == "value" and self._config in WIDE_CONFIGS and self._rng.random() < 0.5:
            return self._pick(WIDE_VALUES)
        names = self._names(kind, name)
        if self._count is not None:
            names = [each for each in names if len(each) <= SHORT]
        text = self._pick(names)
        if text in CONFIGS:
            self._config = text
        return text

    def _names(self, kind: MessageType, name: str) -> Sequence[str]:
        known, may_read = self._known, self._api in READING
        topics = [*known.topics, *([QUIET_TOPIC, WIDE_TOPIC] if may_read else [])]
        groups = [*known.groups, *([QUIET_GROUP, WIDE_GROUP] if may_read else [])]
        if may_read and self._count is not None:
            topics, groups = [WIDE_TOPIC], [WIDE_GROUP]
        if (name == "name" and "Config" in kind.__name__) or name == "configuration_keys":
            return CONFIGS
        if (name == "name" and "Protocol" in kind.__name__) or name in ("protocol_name", "protocol_type"):
            return ("range", "consumer", "roundrobin")
        if name == "value":
            return CONFIG_VALUES
        if name == "entity_type":
            return ("user", "client-id", "ip")
        if name == "key" and self._api is ApiKey.ALTER_CLIENT_QUOTAS:
            return QUOTAS
        if name in ("principal", "principal_filter"):
            return ("User:hostile", "User:*", "User:quiet")
        if name in ("host", "host_filter"):
            return ("*", "127.0.0.1")
        if name == "server_assignor":
            return ("uniform", "range")
        if name == "subscribed_topic_regex":
            return ("hostile-.*", "")
        if name in ("name", "topic", "topics", "topic_name", "topic_names", "subscribed_topic_names"):
            return topics
        if name in ("resource_name", "resource_name_filter"):
            return [*topics, *map(str, known.broker_ids), ""]
        if name in ("group_id", "group_ids", "groups", "groups_names"):
            return groups
        if name in ("key", "coordinator_keys"):
            return [*groups, *known.transactional_ids]
        if name == "member_id":
            return [*known.members, ""]
        if "transactional_id" in name:
            return known.transactional_ids
        if name in ("state_filters", "states_filter", "types_filter"):
            return STATES
        return ("hostile", "1.0")

    def _number(self, name: str, bits: int) -> int:
        half = 1 << (bits - 1)
        if name in ("generation_id", "generation_id_or_member_epoch") and self._is_outsider:
            return -1
        if self._is_extreme():
            return self._pick((half - 1, -half, -1, -2, 0, 1, half // 2))
        known = self._known
        if "producer_id" in name:
            return self._pick([each[0] for each in known.producers] or [0])
        if "producer_epoch" in name:
            return self._pick([each[1] for each in known.producers] or [0])
        if name in ("member_epoch", "generation_id_or_member_epoch") and self._member is not None:
            return self._member.epoch
        if name in ("generation_id", "generation_id_or_member_epoch"):
            return self._pick(known.generations or [0])
        if name == "share_session_epoch":
            return known.share_session_epoch
        if self._api in OF_ACLS and name in ACL_NUMBERS:
            return self._pick(ACL_NUMBERS[name])
        if name == "session_id":
            return self._pick([each[0] for each in known.sessions] or [0])
        if name in SMALL_NUMBERS:
            return self._pick((0, 0, 1, -1, 2))
        if name == "resource_type":
            return self._pick((2, 2, 4, 8))
        if name == "iterations":
            return self._pick((4_096, 16_384))
        if name in ("count", "num_partitions", "replication_factor"):
            return self._pick((1, 2, 3, -1, 100))
        if name == "max_wait_ms":
            return self._pick((0, 10, 100))
        if name.endswith("_ms"):
            return (
                self._pick((10, 6_000, 10_000, 60_000) if bits < 64 else (10, 6_000, 60_000, half - 1)) % half
            )
        if name in ("partition", "partitions", "partition_index", "partition_indexes", "index"):
            return self._pick((0, 0, 1, 2))
        return self._pick((0, 1, 5, 100))

    def _is_extreme(self) -> bool:
        """Return whether the next value is at a bound: at random, or as the only one after some valid values."""
        if self._sound_values < 0:
            return self._rng.random() < self._extremes
        self._sound_values -= 1
        is_its_turn = self._sound_values < 0
        if is_its_turn:
            self._sound_values = SOUND_FOR_EVER
        return is_its_turn

    def _topic_ids(self) -> list[UUID]:
        known = self._known
        kept = known.kept_topic_ids if self._api in READING else []
        return [*known.topic_ids, *known.foreign_topic_ids, *kept]

    def _some_member(self) -> Member | None:
        """Return the member that sends this request, if a member of a newer protocol may send it."""
        known, api = self._known, self._api
        members = known.sharers if api in OF_SHARERS else known.consumers
        if api in OF_SHARERS | OF_CONSUMERS or (api in OF_CLASSIC_TOO and self._rng.random() < 0.5):
            return self._pick(members) if members and self._rng.random() < 0.9 else None
        return None

    def _records(self) -> bytes:
        producer_id, epoch = self._pick(self._known.producers or [(0, 0)])
        sequence = self._pick((0, 1, 5, 2**31 - 1))
        if self._count is not None:
            return encode_batch([NewRecord(b"k", b"v")], timestamps=[TIME])
        chosen = self._pick(
            ("good", "producer", "transaction", "many", "old", "garbage", "empty", "unreadable")
        )
        if chosen == "good":
            return encode_batch([NewRecord(b"k", b"v")], timestamps=[TIME])
        if chosen in ("producer", "transaction"):
            return encode_batch(
                [NewRecord(None, b"v")] * 3, timestamps=[TIME] * 3, producer_id=producer_id,
                producer_epoch=epoch, base_sequence=sequence,
                is_transactional=chosen == "transaction",
            )  # fmt: skip
        if chosen == "many":
            count = self._pick((1, 7, 4_000_000, 2**31 - 1))
            return assemble(
                bytes(20), attributes=self._pick((0, 1, 2, 3, 4)), record_count=count, last_offset_delta=count - 1,
                base_timestamp=self._pick((0, -1, 2**63 - 1, -(2**63))), max_timestamp=self._pick((0, -1, 2**63 - 1)),
                producer_id=self._pick((-1, -2, 2**63 - 1)), producer_epoch=self._pick((-1, 0, 2**15 - 1)),
                base_sequence=sequence,
            )  # fmt: skip
        if chosen == "unreadable":
            # The broker stores it as it arrives: header and CRC are valid.
            return assemble(
                bytes(20), attributes=self._pick((0, 1, 2, 3, 4)), record_count=1, last_offset_delta=0,
                base_timestamp=TIME, max_timestamp=self._pick((TIME, TIME + 1)),
            )  # fmt: skip
        if chosen == "old":
            return bytes(16) + b"\x01" + bytes(60)
        return b"" if chosen == "empty" else self._rng.randbytes(200)

    def _pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self._rng.random() * len(choices))]
