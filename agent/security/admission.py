"""Turns a logged-in user into a client: its tenant, its principal, and the ACLs that apply to its requests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from agent.security.access import Access
from agent.security.audit_log import AuditLog
from agent.security.authorize import AclIndex
from agent.security.tenant_placement import TenantRules
from tailrace.tenants import Tenant


class Acls(Protocol):
    """The newest ACLs: those for clients without a tenant, and those for a tenant's clients."""

    def __call__(self) -> AclIndex: ...

    def of(self, tenant: Tenant) -> AclIndex: ...


@dataclass(frozen=True, slots=True)
class Admission:
    """What all listeners of an agent share. `acls`: None if the agent checks none."""

    acls: Acls | None
    audit: AuditLog
    tenants: TenantRules

    def access(
        self, user: str, *, listener: str, host: str, by_password: bool = False, by_token: bool = False
    ) -> Access:
        """Return the client that has logged in as this user. Raises NoTenant.

        Args:
            by_password: with a stored user's password or SCRAM credentials, or with a delegation token of that user.
            by_token: with a delegation token.
        """
        client = self.tenants.place(listener, user, by_password=by_password)
        tenant, acls = client.tenant, self.acls
        return Access(
            listener=listener,
            host=host,
            principal=f"User:{client.user}",
            acls=acls if acls is None or tenant is None else partial(acls.of, tenant),
            audit=self.audit,
            password_user=self.tenants.prefix_of(listener) + user if by_password and not by_token else None,
            tenant=tenant,
            by_token=by_token,
        )
