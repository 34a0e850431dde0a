"""Who a connection's client is, and what it may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.security.authorize import AclIndex
from tailrace.acls import OPERATIONS, Operation, ResourceType

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's name for a client that did not log in."""


@dataclass(frozen=True, slots=True)
class Access:
    """A client as it came in: by which listener ('' for the only one), from where, and as whom.

    `acls`: the newest ones; None where nobody has to be allowed anything.
    """

    listener: str = ""
    host: str = "?"
    principal: str = ANONYMOUS
    acls: Callable[[], AclIndex] | None = None

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

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """All that the client may do with a resource, as the bits of `authorized_operations` (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.may(operation, resource_type, name)
        )


ANYBODY = Access()
"""A client of an agent that asks nobody who they are."""
