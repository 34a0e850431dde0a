"""The listeners of an agent: the dispatcher, TLS identity and SASL mechanisms of each."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from agent.catalog import Catalog
from agent.connection import Dispatch
from agent.security.admission import Admission
from agent.security.audit_log import AuditLog
from agent.security.authorize import AclIndex
from agent.security.connection_limits import ConnectionLimits
from agent.security.delegation_tokens import TokenLogins
from agent.security.listeners import Listener, SecurityProtocol, parse_rules
from agent.security.login_sessions import ListenerContext
from agent.security.oauthbearer import OAuthBearerExchange, TokenCheck
from agent.security.sasl import Exchange, PlainExchange, ScramExchange
from agent.security.settings import SecuritySettings
from agent.security.tenant_placement import TenantRules, parse_tenants
from agent.security.users import MECHANISMS, Users
from agent.tenants.acl_names import deciding_acls, owner_of
from tailrace.clock import Clock
from tailrace.security.acls import Acl
from tailrace.security.tls import Tls
from tailrace.tenants import Tenant


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How clients connect; by default to one plain listener, without a login. `token_secret`: makes delegation tokens;
    empty: there are none."""

    listeners: tuple[Listener, ...] = ()
    settings: SecuritySettings = field(default_factory=SecuritySettings)
    tls: Tls | None = None
    token_secret: str = field(default="", repr=False)

    @property
    def tenants(self) -> TenantRules:
        """Which clients belong to a tenant. Raises BadListener."""
        names = [listener.name for listener in self.listeners]
        return parse_tenants(self.settings.tenant_listeners, self.settings.tenant_rules, names)

    @property
    def is_authenticating(self) -> bool:
        """Whether a listener authenticates its clients. If so, the clients of all listeners need ACLs."""
        return any(
            listener.protocol.has_sasl
            or (listener.protocol is SecurityProtocol.SSL and self.settings.client_auth != "none")
            for listener in self.listeners
        )

    def tls_of(self, listener: Listener) -> ssl.SSLContext | None:
        """Return the TLS context of a listening socket; None for a listener without TLS."""
        if not listener.protocol.has_tls:
            return None
        assert self.tls is not None, "settings with a TLS listener have its files"
        return self.tls.server_context


class CurrentAcls:
    """The index of the catalog's ACLs, rebuilt when they change, and one index for each tenant, built when needed."""

    def __init__(self, catalog: Catalog, super_users: Sequence[str]) -> None:
        self._catalog = catalog
        self._super_users = super_users
        self._version = -1
        self._index = AclIndex((), super_users)
        self._by_tenant: dict[Tenant | None, list[Acl]] | None = None
        self._of_tenants: dict[Tenant, AclIndex] = {}

    def __call__(self) -> AclIndex:
        known = self._catalog.security
        if known.version != self._version:
            self._version, self._index = known.version, AclIndex(known.acls, self._super_users)
            self._by_tenant = None
            self._of_tenants.clear()
        return self._index

    def of(self, tenant: Tenant) -> AclIndex:
        """Return the index for the requests of a tenant's clients: it has only the tenant's ACLs."""
        self()
        index = self._of_tenants.get(tenant)
        if index is None:
            if self._by_tenant is None:
                self._by_tenant = {}
                for acl in self._catalog.security.acls:
                    self._by_tenant.setdefault(owner_of(acl), []).append(acl)
            acls = deciding_acls(tenant, self._by_tenant.get(tenant, ()))
            index = self._of_tenants[tenant] = AclIndex(acls, self._super_users)
        return index


@dataclass(frozen=True, slots=True)
class Logins:
    """What authenticates clients, shared by all listeners of an agent."""

    users: Users
    tokens: TokenCheck | None
    delegation_tokens: TokenLogins | None
    limits: ConnectionLimits
    audit: AuditLog

    def mechanisms(self, settings: SecuritySettings, prefix: str) -> dict[str, Callable[[], Exchange]]:
        """Return the exchange factory of each enabled mechanism. `prefix`: of the stored names of a tenant's users."""
        made: dict[str, Callable[[], Exchange]] = {}
        for name in settings.sasl_mechanisms:
            if name == "PLAIN":
                made[name] = partial(PlainExchange, self.users, prefix)
            elif name in MECHANISMS:
                made[name] = partial(
                    ScramExchange, self.users, MECHANISMS[name], prefix, self.delegation_tokens
                )
            elif self.tokens is not None:
                made[name] = partial(OAuthBearerExchange, self.tokens)
        return made


def listener_contexts(
    security: ClientSecurity,
    *,
    logins: Logins,
    dispatch: Dispatch,
    of_tenants: Dispatch,
    admission: Admission,
    max_request_bytes: int,
    clock: Clock,
) -> dict[str, ListenerContext]:
    """Return each listener's context by its name. `of_tenants` serves the clients of tenants, `dispatch` all others."""
    name_of = None
    if security.tls is not None and security.settings.client_auth != "none":
        from agent.security.certificates import distinguished_name

        name_of = distinguished_name
    rules = parse_rules(security.settings.principal_mapping_rules)
    return {
        listener.name: ListenerContext(
            listener=listener,
            dispatch=dispatch,
            dispatch_of_tenants=of_tenants,
            admission=admission,
            mechanisms=logins.mechanisms(security.settings, admission.tenants.prefix_of(listener.name)),
            settings=security.settings,
            max_request_bytes=max_request_bytes,
            clock=clock,
            audit=logins.audit,
            limits=logins.limits,
            rules=rules,
            distinguished_name=name_of if listener.protocol is SecurityProtocol.SSL else None,
        )
        for listener in security.listeners
    }
