"""Who a connection's client is, and what it may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.security.audit import Audit
from agent.security.authorize import AclIndex
from tailrace.acls import OPERATIONS, Operation, ResourceType

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's name for a client that did not log in."""


@dataclass(frozen=True, slots=True)
class Access:
    """A client as it came in: by which listener ('' for the only one), from where, and as whom.

    `acls`: the newest ones; None where nobody has to be allowed anything. `password_user`: whose password or SCRAM
    credentials let the client in; None where it came in by something else.
    """

    listener: str = ""
    host: str = "?"
    principal: str = ANONYMOUS
    acls: Callable[[], AclIndex] | None = None
    audit: Audit | None = None
    password_user: str | None = None

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client may do this with the resource of this name."""
        return self.acls is None or self.acls().allows(
            self.principal, self.host, operation, resource_type, name
        )

    def may_with_some(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether there may be a resource of this type with which the client may do this."""
        return self.acls is None or self.acls().allows_some(
            self.principal, self.host, operation, resource_type
        )

    def may_read(self, api: str, topic: str) -> bool:
        """Whether the client may read this topic; if not, the audit log says so."""
        if self.may(Operation.READ, ResourceType.TOPIC, topic):
            return True
        self.note_refused(api, Operation.READ, ResourceType.TOPIC, topic)
        return False

    def note_refused(self, api: str, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Write to the audit log that the client asked for what it may not do."""
        if self.audit is not None:
            self.audit.refused(
                host=self.host,
                principal=self.principal,
                api=api,
                resource_type=resource_type.name,
                resource=name,
                operation=operation.name,
            )

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """All that the client may do with a resource, as the bits of `authorized_operations` (KIP-430)."""
        if self.acls is None:
            return _ALL[resource_type]
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.may(operation, resource_type, name)
        )


_ALL = {
    resource_type: sum(1 << operation for operation in operations)
    for resource_type, operations in OPERATIONS.items()
}


ANYBODY = Access()
"""A client of an agent that asks nobody who they are."""
