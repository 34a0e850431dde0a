"""Handlers for a tenant's clients: the same handlers, with names translated on the way in and on the way out.

    client --> decoded request --> rule of the API, if any --> stored names --> guards, handler
                                                                                     |
    client <-- encoded answer  <-- rule ------------------- <-- local names <--------+

No handler knows of tenants. A request names only what is stored under the tenant's prefix, so other tenants' resources
don't exist for it. From lists in an answer, other tenants' entries are left out. A foreign name anywhere else in an
answer is a bug, and closes the connection.
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
    LongAnswer,
    RequestContext,
    Services,
)
from agent.tenants.names import TopicIds, to_local, to_stored
from agent.tenants.rules import make_rules
from agent.tenants.tenant_request import Rule, TenantRequest
from agent.tenants.translation import FOREIGN, Replace, translated, translating
from tailrace.kafka.schema import Entity
from tailrace.tenants import Tenant
from tailrace.turns import Turns, in_turns

NAMES_IN_A_TURN = 1_000
"""Names, and structures with names, translated in one turn of the loop."""


class NameTranslator:
    """Translates the names in one request of a tenant's client, and in its answer."""

    def __init__(self, tenant: Tenant, services: Services) -> None:
        self._tenant = tenant
        self._services = services
        self._ids = TopicIds(tenant, self._name_of, services.entropy.uuid)

    def _name_of(self, topic_id: UUID) -> str | None:
        known = self._services.catalog.snapshot.by_id.get(topic_id)
        return None if known is None else known.topic.name

    def to_stored_at_once(self, request: Any) -> Any:
        """Return the request with stored names; MUST_WAIT if it has a topic id that may be new."""
        changed = translated(request, {**to_stored(self._tenant), Entity.TOPIC_ID: self._ids.to_stored})
        return MUST_WAIT if self._ids.unknown else changed

    async def to_stored(self, request: Any) -> Any:
        changed = await self._to_stored_in_turns(request)
        if not self._ids.unknown:
            return changed
        await self._services.catalog.refresh_if_possible()
        self._ids.hides_unknown = True
        return await self._to_stored_in_turns(request)

    async def _to_stored_in_turns(self, request: Any) -> Any:
        replacements = {**to_stored(self._tenant), Entity.TOPIC_ID: self._ids.to_stored}
        return await in_turns(translating(request, replacements), Turns(NAMES_IN_A_TURN))

    async def to_local(self, response: Any) -> Any:
        """Return the answer with local names, also if it is deferred."""
        if isinstance(response, Deferred):
            return self.to_local_at_once(response)
        if not isinstance(response, HeldResponse):
            return await self._to_local_in_turns(response)
        try:
            return msgspec.structs.replace(
                response, response=await self._to_local_in_turns(response.response)
            )
        except BaseException:
            response.release()
            raise

    async def _to_local_in_turns(self, response: Any) -> Any:
        return _seen(await in_turns(translating(response, self._to_local), Turns(NAMES_IN_A_TURN)))

    def to_local_at_once(self, response: Any) -> Any:
        """As `to_local`, without waiting. Must not be called with an answer that holds memory."""
        if isinstance(response, Deferred):
            return response.changed(self.to_local_at_once)
        if isinstance(response, LongAnswer):
            return LongAnswer(self._to_local_later(response))
        return _seen(translated(response, self._to_local))

    async def _to_local_later(self, answer: LongAnswer) -> Any:
        return await self.to_local(await answer.making)

    @property
    def _to_local(self) -> Mapping[Entity, Replace]:
        return {**to_local(self._tenant), Entity.TOPIC_ID: self._ids.to_local}


def _seen(answer: Any) -> Any:
    assert answer is not FOREIGN, "an answer has a foreign name outside of a list"
    return answer


def tenant_handlers(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Wrap the handlers with the translation of names."""
    rules = make_rules()
    return {key: _tenant_handler(handler, rules.get(key)) for key, handler in handlers.items()}


def _tenant_handler(handler: Handler, rule: Rule | None) -> Handler:

    async def handle(services: Services, context: RequestContext, request: Any) -> Any:
        tenant = context.access.tenant
        assert tenant is not None, "only connections of tenants are served here"
        services.telemetry.tenant_requests.inc(tenant.name)

        async def answer(request: Any) -> Any:
            translator = NameTranslator(tenant, services)
            inner = await translator.to_stored(request)
            return await translator.to_local(await handler(services, context, inner))

        return await (
            answer(request)
            if rule is None
            else rule(TenantRequest(tenant, services, context, answer), request)
        )

    return handle


def tenant_handlers_at_once(handlers: Mapping[int, HandlerAtOnce]) -> dict[int, HandlerAtOnce]:
    """As `tenant_handlers`, for handlers that don't wait. Transactional records wait for their rule."""
    return {key: _tenant_handler_at_once(handler) for key, handler in handlers.items()}


def _tenant_handler_at_once(handler: HandlerAtOnce) -> HandlerAtOnce:
    def handle(services: Services, context: RequestContext, request: Any) -> Any:
        tenant = context.access.tenant
        assert tenant is not None, "only connections of tenants are served here"
        if request.transactional_id is not None:
            return MUST_WAIT
        translator = NameTranslator(tenant, services)
        inner = translator.to_stored_at_once(request)
        response = MUST_WAIT if inner is MUST_WAIT else handler(services, context, inner)
        if response is MUST_WAIT:
            return MUST_WAIT
        services.telemetry.tenant_requests.inc(tenant.name)
        return translator.to_local_at_once(response)

    return handle
