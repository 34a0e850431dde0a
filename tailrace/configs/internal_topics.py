"""Kafka's internal topics, in which its brokers keep groups and transactional ids. Here the sequencer keeps them. Pure.

If the cluster's config KEPT names one of these topics, agents write copies to it (`agent.internal_topics`). Clients
can't write to a topic of such a name, no matter who created it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from tailrace.configs.topic_config import DAY_MS, ConfigDefinition, ConfigType
from tailrace.tenants import local_name

GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUPS, TRANSACTIONS, "__share_group_state"})
"""The names of Kafka's internal topics."""
KEPT = ConfigDefinition(
    "tailrace.internal.topics",
    ConfigType.LIST,
    "",
    "Internal topics that agents write for tools that read them: copies of groups and their offsets "
    f"({GROUPS}), and of transactional ids ({TRANSACTIONS}).",
    choices=(GROUPS, TRANSACTIONS),
)
PARTITIONS = 50
"""Partitions of each (Kafka's offsets.topic.num.partitions and transaction.state.log.num.partitions)."""
RETENTION_DAYS = 14
"""Twice the default retention of groups without members and of unused transactional ids. Entries that expire by age get
no tombstone."""
CONFIGS = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(RETENTION_DAYS * DAY_MS),
    "compression.type": "producer",
    "segment.bytes": "104857600",
}
"""The configs with which internal topics are created: Kafka's, except for the retention."""


def is_internal(stored: str) -> bool:
    """Whether the topic stored under this name is internal, for all clients or for those of a tenant."""
    return "__" in stored and local_name(stored) in INTERNAL_TOPICS


def is_kept(stored: str, broker_configs: Mapping[str, str]) -> bool:
    """Whether agents write copies to the internal topic of this name."""
    kept = broker_configs.get(KEPT.name)
    return bool(kept) and local_name(stored) in [name.strip() for name in str(kept).split(",")]


def partition_of(name: str, partitions: int) -> int:
    """Return the partition in which Kafka keeps the group or transactional id of this name.

    Kafka uses Java's String.hashCode over UTF-16 units, and its own absolute value, which is 0 for the lowest number.
    """
    units = name.encode("utf-16-be")
    code = 0
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        code = (31 * code + unit) & 0xFFFF_FFFF
    signed = code - (1 << 32) if code >> 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
