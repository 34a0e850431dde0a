"""Group configs: settings of one consumer or share group (KIP-848, KIP-932). Names and bounds are Kafka's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tailrace.configs.topic_config import ConfigDefinition, ConfigType, InvalidConfigValue

CONSUMER_SESSION_TIMEOUT_MS = "consumer.session.timeout.ms"
CONSUMER_HEARTBEAT_INTERVAL_MS = "consumer.heartbeat.interval.ms"
SHARE_SESSION_TIMEOUT_MS = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL_MS = "share.heartbeat.interval.ms"
SHARE_RECORD_LOCK_DURATION_MS = "share.record.lock.duration.ms"
SHARE_DELIVERY_COUNT_LIMIT = "share.delivery.count.limit"
SHARE_PARTITION_MAX_RECORD_LOCKS = "share.partition.max.record.locks"
SHARE_AUTO_OFFSET_RESET = "share.auto.offset.reset"
SHARE_ISOLATION_LEVEL = "share.isolation.level"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
DEAD_LETTER_COPY = "errors.deadletterqueue.copy.record.enable"
EARLIEST, LATEST = "earliest", "latest"
BY_DURATION = "by_duration:"
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"

_DURATION = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,9}(?:\.\d{0,9})?)S)?)?",
    re.IGNORECASE,
)


def reset_seconds(reset: str) -> float | None:
    """Return how many seconds back a group starts by `by_duration:P1DT2H3M4.5S` (ISO 8601).

    None: it starts at the earliest or latest offset.

    Raises ValueError.
    """
    if reset in (EARLIEST, LATEST):
        return None
    match = _DURATION.fullmatch(reset.removeprefix(BY_DURATION)) if reset.startswith(BY_DURATION) else None
    parts = [] if match is None else [float(part or 0) for part in match.groups()]
    if match is None or not any(match.groups()):
        raise ValueError(
            f"{reset!r} was given, allowed are {LATEST}, {EARLIEST}, and a duration such as {BY_DURATION}P7D"
        )
    return sum(part * seconds for part, seconds in zip(parts, (86_400, 3_600, 60, 1), strict=True))


_I, _S, _B = ConfigType.INT, ConfigType.STRING, ConfigType.BOOLEAN
_NO_EFFECT = "Accepted for compatibility, without effect: an assignment is computed when it is needed."

GROUP_CONFIGS: dict[str, ConfigDefinition] = {
    definition.name: definition
    for definition in (
        ConfigDefinition(CONSUMER_SESSION_TIMEOUT_MS, _I, "45000", "A member of a consumer group that sends no heartbeat for this time is removed.", 45_000, 60_000),
        ConfigDefinition(CONSUMER_HEARTBEAT_INTERVAL_MS, _I, "5000", "How often members of a consumer group must send heartbeats.", 5_000, 15_000),
        ConfigDefinition("consumer.assignment.interval.ms", _I, "1000", _NO_EFFECT, 0, 15_000, has_effect=False),
        ConfigDefinition(SHARE_SESSION_TIMEOUT_MS, _I, "45000", "A member of a share group that sends no heartbeat for this time is removed.", 45_000, 60_000),
        ConfigDefinition(SHARE_HEARTBEAT_INTERVAL_MS, _I, "5000", "How often members of a share group must send heartbeats.", 5_000, 15_000),
        ConfigDefinition(SHARE_RECORD_LOCK_DURATION_MS, _I, "30000", "How long a member holds the lock on an acquired record before other members may acquire it.", 15_000, 60_000),
        ConfigDefinition(SHARE_DELIVERY_COUNT_LIMIT, _I, "5", "How many times a record is delivered before the group gives it up. A delivery counts even when the session ends before the record is acknowledged.", 2, 10),
        ConfigDefinition(SHARE_PARTITION_MAX_RECORD_LOCKS, _I, "2000", "The most offsets in a partition from the first unacknowledged record to the last acquired one.", 100, 4_000),
        ConfigDefinition(SHARE_AUTO_OFFSET_RESET, _S, LATEST, "Where the group starts in a partition that it has never read: latest, earliest, or by_duration:PnDTnHnMnS (that long ago).", parse=reset_seconds),
        ConfigDefinition(SHARE_ISOLATION_LEVEL, _S, READ_UNCOMMITTED, "Whether the group gets records of open and aborted transactions.", choices=(READ_COMMITTED, READ_UNCOMMITTED)),
        ConfigDefinition(DEAD_LETTER_TOPIC, _S, "", "The topic for records that the share group gives up (KIP-1191). It must have errors.deadletterqueue.group.enable, and its name must begin with the cluster's errors.deadletterqueue.topic.name.prefix. Empty: none."),
        ConfigDefinition(DEAD_LETTER_COPY, _B, "false", "Whether keys and values are copied to that topic. If not, only headers identify the records."),
        ConfigDefinition("share.renew.acknowledge.enable", _B, "true", "Accepted for compatibility, without effect: members may always renew.", has_effect=False),
        ConfigDefinition("share.assignment.interval.ms", _I, "1000", _NO_EFFECT, 0, 15_000, has_effect=False),
    )
}  # fmt: skip
"""Every accepted group config, by name. Configs of streams groups (KIP-1071) are refused: there are no such groups."""


def check_group_configs(configs: Mapping[str, str]) -> None:
    """Raise InvalidConfigValue unless a group may have these configs."""
    for name, value in configs.items():
        definition = GROUP_CONFIGS.get(name)
        if definition is None:
            raise InvalidConfigValue(f"Unknown group config name: {name[:100]}")
        definition.check(value)
