"""Handlers for a tenant's clients: the same handlers, with names translated on the way in and on the way out.

    client --> decoded request --> rule of the API, if any --> stored names --> guards, handler
                                                                                     |
    client <-- encoded answer  <-- rule ------------------- <-- local names <--------+

No handler knows of tenants. A request names only what is stored under the tenant's prefix, so what is another's does
not exist for it; of what an answer lists, the rest is left out. An answer that can't be told is a bug, and closes the
connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from agent.services import (
    MUST_WAIT,
    Deferred,
    Handler,
    HandlerAtOnce,
    HeldResponse,
    RequestContext,
    Services,
)
from agent.tenants.names import TopicIds, inward, outward
from agent.tenants.rules import make_rules
from agent.tenants.translation import FOREIGN, translated
from agent.tenants.visit import Rule, Visit
from tailrace.kafka.schema import Entity
from tailrace.tenants import Tenant


class Crossing:
    """One request of a tenant's client, and its answer."""

    def __init__(self, tenant: Tenant, services: Services) -> None:
        self._tenant = tenant
        self._services = services
        self._ids = TopicIds(tenant, self._name_of, services.entropy.uuid)

    def _name_of(self, topic_id: UUID) -> str | None:
        known = self._services.catalog.snapshot.by_id.get(topic_id)
        return None if known is None else known.topic.name

    def inward_at_once(self, request: Any) -> Any:
        """The request in stored names; MUST_WAIT if it names a topic id that may be a new one."""
        changed = translated(request, {**inward(self._tenant), Entity.TOPIC_ID: self._ids.inward})
        return MUST_WAIT if self._ids.unknown else changed

    async def inward(self, request: Any) -> Any:
        """The request in stored names."""
        changed = self.inward_at_once(request)
        if changed is not MUST_WAIT:
            return changed
        await self._services.catalog.refresh_if_possible()
        return translated(request, {**inward(self._tenant), Entity.TOPIC_ID: self._ids.inward})

    def outward(self, response: Any) -> Any:
        """The answer in local names, also if it comes later."""
        if isinstance(response, Deferred):
            return response.changed(self.outward)
        if isinstance(response, HeldResponse):
            return msgspec.structs.replace(response, response=self.outward(response.response))
        if response is None:
            return None
        changed = translated(response, {**outward(self._tenant), Entity.TOPIC_ID: self._ids.outward})
        assert changed is not FOREIGN, "an answer names what is another's outside of a list"
        return changed


def bordered(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """The handlers behind the border."""
    rules = make_rules()
    return {key: _bordered(handler, rules.get(key)) for key, handler in handlers.items()}


def _bordered(handler: Handler, rule: Rule | None) -> Handler:

    async def handle(services: Services, context: RequestContext, request: Any) -> Any:
        tenant = context.access.tenant
        assert tenant is not None, "only connections of tenants are served here"
        services.telemetry.tenant_requests.inc(tenant.name)

        async def answer(request: Any) -> Any:
            crossing = Crossing(tenant, services)
            return crossing.outward(await handler(services, context, await crossing.inward(request)))

        return await (
            answer(request) if rule is None else rule(Visit(tenant, services, context, answer), request)
        )

    return handle


def bordered_at_once(handlers: Mapping[int, HandlerAtOnce]) -> dict[int, HandlerAtOnce]:
    """The same for handlers that don't wait. A transaction's records wait for its rule."""
    return {key: _bordered_at_once(handler) for key, handler in handlers.items()}


def _bordered_at_once(handler: HandlerAtOnce) -> HandlerAtOnce:
    def handle(services: Services, context: RequestContext, request: Any) -> Any:
        tenant = context.access.tenant
        assert tenant is not None, "only connections of tenants are served here"
        if request.transactional_id is not None:
            return MUST_WAIT
        crossing = Crossing(tenant, services)
        inner = crossing.inward_at_once(request)
        response = MUST_WAIT if inner is MUST_WAIT else handler(services, context, inner)
        if response is MUST_WAIT:
            return MUST_WAIT
        services.telemetry.tenant_requests.inc(tenant.name)
        return crossing.outward(response)

    return handle
