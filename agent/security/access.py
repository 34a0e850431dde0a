"""The client of a connection, and what it may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.security.audit_log import AuditLog
from agent.security.authorize import AclIndex
from tailrace.security.acls import OPERATIONS, Operation, ResourceType
from tailrace.tenants import Tenant

ANONYMOUS_USER = "ANONYMOUS"
ANONYMOUS = f"User:{ANONYMOUS_USER}"
"""Kafka's principal of a client that has not logged in."""


@dataclass(frozen=True, slots=True)
class Access:
    """A client: its listener ('' for the only one), address and principal.

    `acls` returns the newest ACLs; None if this agent checks no ACLs. `password_user`: the user whose password or SCRAM
    credentials the client logged in with; None after any other login. `tenant`: the client's tenant; then the principal
    has its stored name, and the ACLs are the tenant's. `by_token`: it logged in with a delegation token.
    """

    listener: str = ""
    host: str = "?"
    principal: str = ANONYMOUS
    acls: Callable[[], AclIndex] | None = None
    audit: AuditLog | None = None
    password_user: str | None = None
    tenant: Tenant | None = None
    by_token: bool = False

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client may do this with the resource of this name."""
        return self.acls is None or self.acls().allows(
            principal=self.principal,
            host=self.host,
            operation=operation,
            resource_type=resource_type,
            name=name,
        )

    def may_with_some(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether there may be a resource of this type on which the client has this operation."""
        return self.acls is None or self.acls().allows_some(
            self.principal, self.host, operation, resource_type
        )

    def may_read(self, api: str, topic: str) -> bool:
        """Whether the client may read this topic. A refusal goes to the audit log."""
        if self.may(Operation.READ, ResourceType.TOPIC, topic):
            return True
        self.note_refused(api, Operation.READ, ResourceType.TOPIC, topic)
        return False

    def note_refused(self, api: str, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Write the refusal of a request to the audit log."""
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
        """Return the client's operations on a resource, as the bits of `authorized_operations` (KIP-430); 0 if it may
        not describe the resource."""
        if self.acls is None:
            return _ALL[resource_type]
        if not self.may(Operation.DESCRIBE, resource_type, name):
            return 0
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
"""A client of an agent that authenticates no clients."""
