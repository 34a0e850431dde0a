"""Topic configs: one table with their names, defaults, bounds and documentation, and the typed settings.

Names, defaults and bounds are Kafka's. A config without effect here is accepted and reported, and its documentation
says so.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import structlog

from tailrace.configs.columns import parse_columns

log = structlog.get_logger(__name__)

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
DAY_MS = 86_400_000
MAX_VALUE_CHARACTERS = 4_096
MAX_SHORT_VALUE_CHARACTERS = 100
"""Limit of numbers, truth values and choices: spaces around them are kept with them."""
MAX_WARNED_VALUES = 64
"""The most unknown values for which it is remembered that a warning was logged."""
MAX_WARNED_CHARACTERS = 100
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_THROTTLED_REPLICAS = re.compile(r"\*|[0-9]+:[0-9]+(\s*,\s*[0-9]+:[0-9]+)*")


class ConfigType(enum.IntEnum):
    """Kafka's config types, with their numbers in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Latency(enum.IntEnum):
    """`tailrace.latency`: how soon a topic's batches are stored, the fastest last (agent.produce.sealing)."""

    COST = 0
    BALANCED = 1
    FAST = 2


class Flush(enum.IntEnum):
    """`tailrace.flush`: when a batch is acknowledged. SYNC: after its commit. ASYNC: on receipt (agent.produce.receipts)."""

    SYNC = 0
    ASYNC = 1


_SHORT_TYPES = (ConfigType.BOOLEAN, ConfigType.SHORT, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)


class InvalidConfigValue(ValueError):
    """A config's name or value is not allowed; the message says what is."""


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """One config. `choices` applies to strings and lists, the inclusive bounds to numbers, and `parse` to texts that are
    not empty; it raises ValueError.

    `broker_name` is the broker config that sets the topic's default (Kafka's synonym).
    """

    name: str
    type: ConfigType
    default: str
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] | None = None
    broker_name: str | None = None
    has_effect: bool = True
    parse: Callable[[str], object] | None = None

    def check(self, value: str) -> None:
        """Raise InvalidConfigValue unless the value is allowed."""
        is_short = self.choices is not None or self.type in _SHORT_TYPES
        most = MAX_SHORT_VALUE_CHARACTERS if is_short else MAX_VALUE_CHARACTERS
        if len(value) > most:
            raise InvalidConfigValue(
                f"{self.name}: a value of {len(value)} characters was given, at most {most} are allowed"
            )
        given = f"{self.name}: {value!r} was given"
        if self.type in (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT):
            if _WHOLE_NUMBER.fullmatch(value.strip()) is None:
                raise InvalidConfigValue(f"{given}, a whole number is needed")
            number: float = int(value.strip())
            self._check_bounds(given, number)
        elif self.type is ConfigType.DOUBLE:
            try:
                number = float(value.strip())
            except ValueError:
                raise InvalidConfigValue(f"{given}, a number is needed") from None
            self._check_bounds(given, number)
        elif self.type is ConfigType.BOOLEAN:
            if value.strip().lower() not in ("true", "false"):
                raise InvalidConfigValue(f"{given}, 'true' or 'false' is needed")
        elif self.choices is not None:
            parts = (
                [part.strip() for part in value.split(",") if value.strip()]
                if self.type is ConfigType.LIST
                else [value.strip()]
            )
            for part in parts:
                if part not in self.choices:
                    raise InvalidConfigValue(f"{given}, allowed are {', '.join(self.choices)}")
        elif self.parse is not None and value:
            try:
                self.parse(value)
            except ValueError as error:
                raise InvalidConfigValue(f"{self.name}: {error}") from error

    def _check_bounds(self, given: str, number: float) -> None:
        if self.minimum is not None and not number >= self.minimum:  # refuses NaN too
            raise InvalidConfigValue(f"{given}, at least {self.minimum:.0f} is needed")
        if self.maximum is not None and number > self.maximum:
            raise InvalidConfigValue(f"{given}, at most {self.maximum:.0f} is allowed")


def _check_throttled_replicas(value: str) -> None:
    """Raise ValueError unless the value is '*', or partitions with their brokers."""
    if _THROTTLED_REPLICAS.fullmatch(value.strip()) is None:
        raise ValueError(f"{value!r} was given; '*' or a list of partition:broker is needed")


_NO_DISKS = "Accepted for compatibility, without effect: agents have no log segments on disks. "
_T = ConfigType

DEAD_LETTERS_ENABLE = "errors.deadletterqueue.group.enable"

TOPIC_CONFIGS: dict[str, ConfigDefinition] = {
    definition.name: definition
    for definition in (
        ConfigDefinition("cleanup.policy", _T.LIST, "delete", "What happens to old records. 'delete' removes them by retention.ms and retention.bytes. 'compact' makes the compactor keep only the last record of each key, so all records need keys. An empty list keeps everything.", choices=("delete", "compact"), broker_name="log.cleanup.policy"),
        ConfigDefinition("compression.type", _T.STRING, "producer", "'producer' keeps the producer's codec. Other values are accepted and reported, but batches are always stored as they were sent, and the compactor's Parquet files always use zstd.", choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), broker_name="compression.type"),
        ConfigDefinition("compression.gzip.level", _T.INT, "-1", _NO_DISKS + "Batches are never recompressed by an agent.", -1, 9, broker_name="compression.gzip.level", has_effect=False),
        ConfigDefinition("compression.lz4.level", _T.INT, "9", _NO_DISKS + "Batches are never recompressed by an agent.", 1, 17, broker_name="compression.lz4.level", has_effect=False),
        ConfigDefinition("compression.zstd.level", _T.INT, "3", _NO_DISKS + "Batches are never recompressed by an agent.", -131072, 22, broker_name="compression.zstd.level", has_effect=False),
        ConfigDefinition("delete.retention.ms", _T.LONG, str(DAY_MS), "How long a compacted topic keeps a tombstone (a record without a value) after the older records of its key were removed.", 0, LONG_MAX, broker_name="log.cleaner.delete.retention.ms"),
        ConfigDefinition(DEAD_LETTERS_ENABLE, _T.BOOLEAN, "false", "Whether share groups may write records that they can't deliver to this topic (KIP-1191)."),
        ConfigDefinition("file.delete.delay.ms", _T.LONG, "60000", _NO_DISKS + "The sequencer has a setting for the deletion grace of objects.", 0, LONG_MAX, broker_name="log.segment.delete.delay.ms", has_effect=False),
        ConfigDefinition("flush.messages", _T.LONG, str(LONG_MAX), _NO_DISKS + "Every acknowledged batch is durable.", 1, LONG_MAX, broker_name="log.flush.interval.messages", has_effect=False),
        ConfigDefinition("flush.ms", _T.LONG, str(LONG_MAX), _NO_DISKS + "Every acknowledged batch is durable.", 0, LONG_MAX, broker_name="log.flush.interval.ms", has_effect=False),
        ConfigDefinition("follower.replication.throttled.replicas", _T.LIST, "", _NO_DISKS + "There are no followers.", has_effect=False, parse=_check_throttled_replicas),
        ConfigDefinition("index.interval.bytes", _T.INT, "4096", _NO_DISKS, 0, INT_MAX, broker_name="log.index.interval.bytes", has_effect=False),
        ConfigDefinition("leader.replication.throttled.replicas", _T.LIST, "", _NO_DISKS + "There are no followers.", has_effect=False, parse=_check_throttled_replicas),
        ConfigDefinition("local.retention.bytes", _T.LONG, "-2", _NO_DISKS, -2, LONG_MAX, broker_name="log.local.retention.bytes", has_effect=False),
        ConfigDefinition("local.retention.ms", _T.LONG, "-2", _NO_DISKS, -2, LONG_MAX, broker_name="log.local.retention.ms", has_effect=False),
        ConfigDefinition("max.compaction.lag.ms", _T.LONG, str(LONG_MAX), "The age of records in Parquet at which a partition of a compacted topic is compacted by key, even if they are few.", 1, LONG_MAX, broker_name="log.cleaner.max.compaction.lag.ms"),
        ConfigDefinition("max.message.bytes", _T.INT, "1048588", "The largest record batch, as sent (compressed), that the topic accepts.", 0, INT_MAX, broker_name="message.max.bytes"),
        ConfigDefinition("message.timestamp.after.max.ms", _T.LONG, "3600000", "How far ahead of the agent's clock a record's timestamp may be.", 0, LONG_MAX, broker_name="log.message.timestamp.after.max.ms"),
        ConfigDefinition("message.timestamp.before.max.ms", _T.LONG, str(LONG_MAX), "How far behind the agent's clock a record's timestamp may be.", 0, LONG_MAX, broker_name="log.message.timestamp.before.max.ms"),
        ConfigDefinition("message.timestamp.type", _T.STRING, "CreateTime", "The timestamp of records: the producer's (CreateTime), or the agent's time on receipt (LogAppendTime).", choices=("CreateTime", "LogAppendTime"), broker_name="log.message.timestamp.type"),
        ConfigDefinition("min.cleanable.dirty.ratio", _T.DOUBLE, "0.5", "A partition of a compacted topic is compacted by key when this share of its Parquet bytes has not been compacted by key yet.", 0, 1, broker_name="log.cleaner.min.cleanable.ratio"),
        ConfigDefinition("min.compaction.lag.ms", _T.LONG, "0", "How long a compacted topic keeps all records, including older records of a key.", 0, LONG_MAX, broker_name="log.cleaner.min.compaction.lag.ms"),
        ConfigDefinition("min.insync.replicas", _T.INT, "1", "Accepted for compatibility, without effect: the object store replicates.", 1, INT_MAX, broker_name="min.insync.replicas", has_effect=False),
        ConfigDefinition("preallocate", _T.BOOLEAN, "false", _NO_DISKS, broker_name="log.preallocate", has_effect=False),
        ConfigDefinition("remote.log.copy.disable", _T.BOOLEAN, "false", _NO_DISKS, has_effect=False),
        ConfigDefinition("remote.log.delete.on.disable", _T.BOOLEAN, "false", _NO_DISKS, has_effect=False),
        ConfigDefinition("remote.storage.enable", _T.BOOLEAN, "false", _NO_DISKS + "Everything is in the object store.", has_effect=False),
        ConfigDefinition("retention.bytes", _T.LONG, "-1", "How many bytes a partition keeps; -1 for no limit. The oldest runs above the limit are removed.", -1, LONG_MAX, broker_name="log.retention.bytes"),
        ConfigDefinition("retention.ms", _T.LONG, str(7 * DAY_MS), "How long records are kept, by their timestamps; -1 for no limit.", -1, LONG_MAX, broker_name="log.retention.ms"),
        ConfigDefinition("segment.bytes", _T.INT, "1073741824", _NO_DISKS, 1048576, INT_MAX, broker_name="log.segment.bytes", has_effect=False),
        ConfigDefinition("segment.index.bytes", _T.INT, "10485760", _NO_DISKS, 4, INT_MAX, broker_name="log.index.size.max.bytes", has_effect=False),
        ConfigDefinition("segment.jitter.ms", _T.LONG, "0", _NO_DISKS, 0, LONG_MAX, broker_name="log.roll.jitter.ms", has_effect=False),
        ConfigDefinition("segment.ms", _T.LONG, str(7 * DAY_MS), _NO_DISKS, 1, LONG_MAX, broker_name="log.roll.ms", has_effect=False),
        ConfigDefinition("tailrace.flush", _T.STRING, "sync", "When a batch is acknowledged. 'sync': after it is stored and committed. 'async': on receipt, with offset -1. If an agent is lost, the batches that it acknowledged but did not commit are lost. Batches of transactions are always acknowledged as with 'sync'.", choices=("sync", "async"), broker_name="tailrace.flush"),
        ConfigDefinition("tailrace.latency", _T.STRING, "balanced", "How soon batches are stored, and so acknowledged. 'cost': after agent.linger_ms, never earlier. 'balanced': earlier, within agent.max_puts_per_second. 'fast': at once, within agent.fast_dollars_per_day. Topics share objects, so the fastest setting among the waiting batches decides.", choices=("cost", "balanced", "fast"), broker_name="tailrace.latency"),
        ConfigDefinition("tailrace.schema", _T.STRING, "raw", "How values become typed columns of the topic's table. 'raw': they stay bytes. 'json': each is an object whose fields become columns. 'avro' and 'protobuf': each begins with the id of a schema in the registry (setting tables.registry). Values that do not fit go to the table's quarantine.", choices=("raw", "json", "avro", "protobuf"), broker_name="tailrace.schema"),
        ConfigDefinition("tailrace.schema.columns", _T.STRING, "", "The columns of the topic's table, such as 'id long, name string, tags list<string>'; other fields are omitted. Empty: all fields of the first values.", parse=parse_columns),
        ConfigDefinition("tailrace.table", _T.STRING, "none", "'iceberg': the compactor maintains an Iceberg table of the topic's compacted records, with the topic's name.", choices=("none", "iceberg"), broker_name="tailrace.table"),
        ConfigDefinition("tailrace.table.snapshot.ms", _T.LONG, "21600000", "How long a snapshot of the table and its files can be read after the next snapshot has replaced it.", 0, LONG_MAX, broker_name="tailrace.table.snapshot.ms"),
        ConfigDefinition("unclean.leader.election.enable", _T.BOOLEAN, "false", _NO_DISKS + "There are no elections.", broker_name="unclean.leader.election.enable", has_effect=False),
    )
}  # fmt: skip
"""Every accepted topic config, by name."""


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Raise InvalidConfigValue for the first unknown name or value that is not allowed."""
    for name, value in configs.items():
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            raise InvalidConfigValue(f"Unknown topic config name: {name}")
        definition.check(value)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's effective configs as typed values. Times in ms, sizes in bytes; -1 (or None) for no limit."""

    cleanup_policy: frozenset[str]
    compression_type: str
    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    retention_ms: int
    retention_bytes: int
    delete_retention_ms: int
    latency: Latency
    flush: Flush
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float


def effective(name: str, configs: Mapping[str, str], broker: Mapping[str, str] | None = None) -> str:
    """Return a config's value: the topic's own, else the cluster's default, else Kafka's default."""
    definition = TOPIC_CONFIGS[name]
    own = configs.get(name)
    if own is not None:
        return own
    if broker and definition.broker_name is not None:
        return broker.get(definition.broker_name, definition.default)
    return definition.default


@lru_cache(maxsize=MAX_WARNED_VALUES)
def _warned_instead(name: str, value: str, instead: str) -> str:
    """Return the value that replaces one this version does not know, and log a warning. The cache limits it to one
    warning per value."""
    log.warning(
        "this version does not know the value of a stored config and uses another; set the config again, or upgrade",
        config=name,
        value=value[:MAX_WARNED_CHARACTERS],
        used=instead,
        known=TOPIC_CONFIGS[name].choices,
    )
    return instead


def known_value(name: str, value: str, instead: str | None = None) -> str:
    """Return a stored value if this version knows it, else `instead` (None: the default) with one warning.

    Another version may have stored the value, and one topic's config must not stop the work on all topics.
    """
    definition = TOPIC_CONFIGS[name]
    try:
        definition.check(value)
    except InvalidConfigValue:
        return _warned_instead(name, value, definition.default if instead is None else instead)
    return value


def check_compaction_lags(configs: Mapping[str, str], broker: Mapping[str, str] | None = None) -> None:
    """Raise InvalidConfigValue if a topic's min.compaction.lag.ms is above its max.compaction.lag.ms, where either may
    come from the cluster's defaults."""
    lowest, highest = (
        int(known_value(name, effective(name, configs, broker)))
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if lowest > highest:
        raise InvalidConfigValue(
            f"min.compaction.lag.ms is {lowest}, which is above max.compaction.lag.ms, {highest}"
        )


def topic_settings(configs: Mapping[str, str], broker: Mapping[str, str] | None = None) -> TopicSettings:
    """Return the typed settings for stored configs (see `known_value`)."""

    def known(name: str) -> str:
        return known_value(name, effective(name, configs, broker))

    def number(name: str) -> int:
        return int(known(name))

    def choice(name: str) -> str:
        return known_value(name, effective(name, configs, broker).strip().lower()).upper()

    return TopicSettings(
        cleanup_policy=frozenset(
            part.strip() for part in effective("cleanup.policy", configs, broker).split(",") if part.strip()
        ),
        compression_type=effective("compression.type", configs, broker),
        max_message_bytes=number("max.message.bytes"),
        log_append_time=effective("message.timestamp.type", configs, broker) == "LogAppendTime",
        timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        delete_retention_ms=number("delete.retention.ms"),
        latency=Latency[choice("tailrace.latency")],
        flush=Flush[choice("tailrace.flush")],
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=number("max.compaction.lag.ms"),
        min_cleanable_dirty_ratio=float(known("min.cleanable.dirty.ratio")),
    )
