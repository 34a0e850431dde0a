"""Places a client in a tenant: by its listener, or by its user name. Pure.

    listener of a tenant       that tenant; its users are the tenant's own
    name `acme~alice`          `acme`, if a password proved it: the user was stored for that tenant
    first matching rule        the tenant named by the rule's result; none if that is empty
    no matching rule           refused

Without tenant settings, no client belongs to a tenant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.security.listeners import BadListener, PrincipalRule, map_principal, parse_rules
from tailrace.tenants import BadTenant, Tenant, tenant_of


class NoTenant(Exception):
    """The client can't be placed. The message is for the audit log."""


@dataclass(frozen=True, slots=True)
class TenantUser:
    """A client's tenant, if it has one, and the stored name of its user."""

    tenant: Tenant | None
    user: str


@dataclass(frozen=True, slots=True)
class TenantRules:
    """Tenants by listener, and by user name (`rules`, in the notation of ssl.principal.mapping.rules)."""

    by_listener: Mapping[str, Tenant] = field(default_factory=dict)
    rules: tuple[PrincipalRule, ...] = ()

    @property
    def is_on(self) -> bool:
        """Whether any client can belong to a tenant."""
        return bool(self.by_listener or self.rules)

    def prefix_of(self, listener: str) -> str:
        """Return the prefix of the stored names of this listener's users."""
        tenant = self.by_listener.get(listener)
        return "" if tenant is None else tenant.prefix

    def place(self, listener: str, user: str, *, by_password: bool) -> TenantUser:
        """Return the tenant and user of a client that has logged in. Raises NoTenant.

        Args:
            by_password: whether the name belongs to a stored user, and was not issued by someone else.
        """
        tenant = self.by_listener.get(listener)
        if tenant is not None:
            return TenantUser(tenant, tenant.stored(user))
        tenant = tenant_of(user) if self.is_on else None
        if tenant is not None:
            if not by_password:
                raise NoTenant(
                    f"{user!r} looks like a user of the tenant {tenant.name!r}, and no password proves it"
                )
            return TenantUser(tenant, user)
        if not self.rules:
            return TenantUser(None, user)
        name = map_principal(user, self.rules)
        if name is None:
            raise NoTenant(f"no tenant rule fits {user!r}")
        if not name:
            return TenantUser(None, user)
        try:
            tenant = Tenant.named(name)
        except BadTenant as error:
            raise NoTenant(f"the tenant rules place {user!r} so: {error}") from None
        return TenantUser(tenant, tenant.stored(user))


def parse_tenants(
    tenant_listeners: Sequence[str], tenant_rules: Sequence[str], listeners: Sequence[str]
) -> TenantRules:
    """Parse the settings' rules. Raises BadListener.

    Args:
        tenant_listeners: each `LISTENER=tenant`.
        listeners: the names of all listeners.
    """
    by_listener: dict[str, Tenant] = {}
    for text in tenant_listeners:
        listener, _, name = text.partition("=")
        if listener not in listeners:
            raise BadListener(
                f"tenant listener {text!r}: there is no listener {listener!r}; expected LISTENER=tenant"
            )
        try:
            by_listener[listener] = Tenant.named(name)
        except BadTenant as error:
            raise BadListener(f"tenant listener {text!r}: {error}") from None
    return TenantRules(by_listener, parse_rules(tenant_rules))
