"""Access control lists: Kafka's resources, operations and bindings, and the filters that select bindings.

The numbers are those of Kafka's protocol (KIP-140, KIP-290). Pure.
"""

from __future__ import annotations

import enum

import msgspec

WILDCARD = "*"
"""As a literal resource name, it means every resource of the type. As a host, it means every host."""
WILDCARD_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class ResourceType(enum.IntEnum):
    """The type of resource that an ACL protects. ANY occurs only in filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    """How an ACL's resource name is compared. ANY and MATCH occur only in filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    """What a principal does with a resource. The number is also the bit in `authorized_operations` (KIP-430)."""

    ANY = 1
    ALL = 2
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
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    """Whether an ACL allows or denies. ANY occurs only in filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS: dict[ResourceType, frozenset[Operation]] = {
    ResourceType.TOPIC: frozenset(
        (
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        )
    ),
    ResourceType.GROUP: frozenset(
        (
            Operation.READ,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        )
    ),
    ResourceType.CLUSTER: frozenset(
        (
            Operation.CREATE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
            Operation.ALTER,
            Operation.DESCRIBE,
        )
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset(
        (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT)
    ),
    ResourceType.DELEGATION_TOKEN: frozenset((Operation.DESCRIBE,)),
    ResourceType.USER: frozenset((Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS)),
}
"""The operations of each type of resource, in addition to ALL (Kafka's AclEntry.supportedOperations)."""


class Acl(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One binding. It allows or denies a principal, from a host, an operation on the resources of a pattern."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclFilter(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Selects bindings; None and ANY match all.

    Pattern type MATCH selects every binding that applies to `resource_name`: literal, wildcard or prefixed.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    @property
    def only(self) -> Acl | None:
        """Return the one binding that this filter can match; None if it may match several."""
        name, principal, host = self.resource_name, self.principal, self.host
        if name is None or principal is None or host is None:
            return None
        if self.pattern_type in (PatternType.ANY, PatternType.MATCH) or self.permission is Permission.ANY:
            return None
        if self.resource_type is ResourceType.ANY or self.operation is Operation.ANY:
            return None
        return Acl(
            resource_type=self.resource_type,
            resource_name=name,
            pattern_type=self.pattern_type,
            principal=principal,
            host=host,
            operation=self.operation,
            permission=self.permission,
        )

    def matches(self, acl: Acl) -> bool:
        """Whether the filter selects the binding (Kafka's AclBindingFilter.matches)."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type is PatternType.MATCH:
            return applies_to(acl, self.resource_name)
        return self.resource_name == acl.resource_name


def applies_to(acl: Acl, name: str) -> bool:
    """Whether the binding's pattern covers the resource of this name."""
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, WILDCARD)
