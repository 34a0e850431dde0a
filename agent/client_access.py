"""How clients get in: their logins, their permissions, and the dispatchers behind them. Made once, at the start."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

from agent.answer_memory import AnswerMemory
from agent.dispatch import Dispatcher
from agent.gateway.context import GatewayContext
from agent.handlers import AT_ONCE, HANDLERS
from agent.memory_budget import MemoryBudget
from agent.security.access import Access
from agent.security.admission import Admission
from agent.security.audit_log import AuditLog
from agent.security.connection_limits import ConnectionLimits
from agent.security.delegation_tokens import TokenLogins
from agent.security.guarded_handlers import GUARDED, GUARDED_AT_ONCE
from agent.security.http_login import HttpLogin, HttpLogins
from agent.security.listener_contexts import ClientSecurity, CurrentAcls, Logins, listener_contexts
from agent.security.oauthbearer import TokenCheck
from agent.security.users import Users, decoy_key
from agent.services import Services
from agent.tenants.tenant_handlers import tenant_handlers, tenant_handlers_at_once
from tailrace.security.acls import Operation, ResourceType


class ClientAccess:
    """The dispatchers, a context for each listener that has a name, and the logins of HTTP clients."""

    def __init__(
        self,
        services: Services,
        clients: ClientSecurity,
        *,
        rpc_secrets: Sequence[bytes],
        login_threads: Executor,
    ) -> None:
        self._services = services
        settings, clock = clients.settings, services.clock
        self._token_check = TokenCheck(settings, clock, login_threads) if settings.oauth_jwks else None
        decoy = decoy_key((clients.token_secret.encode(), *rpc_secrets), services.entropy)
        secret = clients.token_secret
        logins = Logins(
            users=Users(services.catalog, clock, login_threads, decoy),
            tokens=self._token_check,
            delegation_tokens=TokenLogins(services.sequencer, secret, clock, login_threads)
            if secret
            else None,
            limits=ConnectionLimits(settings, clock.monotonic),
            audit=AuditLog(services.telemetry, clock),
        )
        acls = CurrentAcls(services.catalog, settings.super_users) if clients.is_authenticating else None
        admission = Admission(acls, logins.audit, clients.tenants)
        handlers, at_once = (HANDLERS, AT_ONCE) if acls is None else (GUARDED, GUARDED_AT_ONCE)
        self.dispatcher = Dispatcher(services, handlers, at_once)
        self._of_tenants = Dispatcher(services, tenant_handlers(handlers), tenant_handlers_at_once(at_once))
        self.contexts = listener_contexts(
            clients,
            logins=logins,
            dispatch=self.dispatcher,
            of_tenants=self._of_tenants,
            admission=admission,
            max_request_bytes=services.settings.max_request_bytes,
            clock=clock,
        )
        self._http_logins = HttpLogins(
            users=logins.users,
            tokens=logins.tokens,
            admission=admission,
            limits=logins.limits,
            clock=clock,
            entropy=services.entropy,
            delay_seconds=settings.failed_authentication_delay_ms / 1000,
        )
        self.http_login = None if acls is None else HttpLogin(self._http_logins)

    def gateway_context(self, listener: str, budget: MemoryBudget) -> GatewayContext:
        """Return what the gateway needs; its clients log in as clients of this listener."""
        services = self._services
        return GatewayContext(
            listener=listener,
            logins=self._http_logins,
            dispatch_for=lambda access: self.dispatcher if access.tenant is None else self._of_tenants,
            partitions_of=self._partitions_to_describe,
            budget=budget,
            memory=AnswerMemory(services.settings.memory_budget_bytes, services.clock),
            quotas=services.quotas,
        )

    def _partitions_to_describe(self, access: Access, topic: str) -> int | None:
        stored = topic if access.tenant is None else access.tenant.stored(topic)
        known = self._services.catalog.snapshot.by_name.get(stored)
        if known is None or not access.may(Operation.DESCRIBE, ResourceType.TOPIC, stored):
            return None
        return known.topic.partitions

    async def close(self) -> None:
        if self._token_check is not None:
            await self._token_check.close()
