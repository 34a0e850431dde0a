"""The handlers with their guards, for agents that authenticate clients."""

from __future__ import annotations

from typing import Any

from agent.handlers import HANDLERS, produce
from agent.security.guard import WRITE_TOPIC, guarded
from agent.security.needs import NEEDS
from agent.services import MUST_WAIT, Handler, HandlerAtOnce, RequestContext, Services
from tailrace.ids import NIL_TOPIC_ID
from tailrace.kafka import ApiKey
from tailrace.kafka.apis import APIS

GUARDED: dict[int, Handler] = {
    key: guarded(APIS[key].name, NEEDS[key], handler) for key, handler in HANDLERS.items()
}


def _produce_at_once(services: Services, context: RequestContext, request: Any) -> Any:
    """Handle a request if the client may write to all its topics; otherwise its guard must decide."""
    by_id = services.catalog.snapshot.by_id
    for topic in request.topic_data:
        name = topic.name
        if topic.topic_id != NIL_TOPIC_ID:
            known = by_id.get(topic.topic_id)
            if known is None:
                return MUST_WAIT
            name = known.topic.name
        if not context.access.may(WRITE_TOPIC.operation, WRITE_TOPIC.resource_type, name):
            return MUST_WAIT
    return produce.handle_at_once(services, context, request)


GUARDED_AT_ONCE: dict[int, HandlerAtOnce] = {ApiKey.PRODUCE: _produce_at_once}
