"""Topics, metadata and configs."""

from __future__ import annotations

import enum
from uuid import UUID

from sequencer.api.agents import Ring, RingChange
from sequencer.api.values import Value
from tailrace.limits import Int64

MAX_REPLICATION_FACTOR = 32
"""A higher number is certainly a mistake; each replica takes a number in every metadata answer, for every partition."""


class Topic(Value, frozen=True):
    """A topic. `configs` holds only the configs that were set; defaults are in tailrace.configs.topic_config.
    `replication_factor` is the one that the topic was created with. It is only reported: the object store
    replicates."""

    topic_id: UUID
    name: str
    partitions: int
    configs: dict[str, str]
    created_ms: int
    replication_factor: int = 1


class CreateTopic(Value, frozen=True):
    name: str
    partitions: Int64
    configs: dict[str, str]
    validate_only: bool = False
    replication_factor: Int64 = 1
    request_id: UUID | None = None


class DeleteTopic(Value, frozen=True):
    topic_id: UUID
    request_id: UUID | None = None


class CreatePartitions(Value, frozen=True):
    topic_id: UUID
    partitions: Int64
    validate_only: bool = False
    request_id: UUID | None = None


class MetadataRequest(Value, frozen=True):
    """`known_version`, `known_generation`: the versions that the caller has; -1 for none. `takes_changes`: the caller
    keeps the topics of its version and accepts the changes since then. `takes_ring_changes`: the same for the ring."""

    known_version: Int64 = -1
    known_generation: Int64 = -1
    takes_changes: bool = False
    takes_ring_changes: bool = False


class Metadata(Value, frozen=True, kw_only=True):
    """`topics` and `ring` are None if the caller's are current. If the caller takes changes, `topics` is None too:
    `changed` has the new and changed topics, `deleted` the ids of deleted ones. `security_version`: version of the
    users and ACLs; a caller with another version calls `security`. `client_configs_version`: the same for
    `client_configs`. `ring_change` replaces `ring` if the caller takes ring changes."""

    cluster_id: str
    incarnation: int
    version: int
    topics: list[Topic] | None
    ring: Ring | None
    changed: list[Topic] = []
    deleted: list[UUID] = []
    security_version: int = 0
    client_configs_version: int = 0
    ring_change: RingChange | None = None


class ConfigScope(enum.IntEnum):
    TOPIC = 0
    BROKER = 1
    QUOTA = 2
    GROUP = 3
    CLIENT_METRICS = 4


class ConfigOperation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(Value, frozen=True):
    name: str
    operation: ConfigOperation
    value: str | None = None


class AlterConfig(Value, frozen=True):
    """`name`: a topic name, a broker id as text ('' for the cluster-wide default), a quota's entity (tailrace.quotas)
    as text, or a group id. `replace`: remove all configs that are not named."""

    scope: ConfigScope
    name: str
    changes: list[ConfigChange]
    replace: bool = False
    validate_only: bool = False
    request_id: UUID | None = None


class BrokerConfigsRequest(Value, frozen=True):
    name: str


class Configs(Value, frozen=True):
    configs: dict[str, str]


class ClientConfigsRequest(Value, frozen=True):
    """`known_version`: the version that the caller has; -1 for none. `takes_pages`: the caller requests the following
    pages with the `next` of the previous page as `after`: its version, and the scope and name of its last entry. If the
    version has changed, the listing starts again from the beginning."""

    known_version: Int64 = -1
    takes_pages: bool = False
    after: tuple[Int64, ConfigScope, str] | None = None


class ClientConfig(Value, frozen=True):
    """The configs under one name of a scope that is neither a topic nor a broker."""

    scope: ConfigScope
    name: str
    configs: dict[str, str]


class ClientConfigs(Value, frozen=True):
    """A page of all client configs; `configs` is None if the caller's are current."""

    version: int
    configs: list[ClientConfig] | None
    next: tuple[Int64, ConfigScope, str] | None = None
