"""What a client may do with a resource, as the bits of Kafka's `authorized_operations` (KIP-430).

There are no ACLs: every client may do everything that the kind of resource has.
"""

from __future__ import annotations

import enum


class Operation(enum.IntEnum):
    """Kafka's operations, by the bit that stands for each."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_CONFIGS = _bits(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
_READ_DELETE_DESCRIBE = _bits(Operation.READ, Operation.DELETE, Operation.DESCRIBE)

ON_TOPIC = _CONFIGS | _READ_DELETE_DESCRIBE | _bits(Operation.WRITE, Operation.CREATE, Operation.ALTER)
ON_GROUP = _CONFIGS | _READ_DELETE_DESCRIBE
ON_CLUSTER = _CONFIGS | _bits(
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.IDEMPOTENT_WRITE,
)
