"""Guards: they check a request's permissions before its handler runs. `agent.security.needs` lists the guards of each
API.

A guard removes from a request what the client may not ask for, lets the handler do the rest, and adds an error code to
the answer for each removed part. So a handler never sees what its client may not access, and the answer does not depend
on whether that exists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import msgspec

from agent.catalog import RequestTopics
from agent.services import Deferred, Handler, HeldResponse, LongAnswer, RequestContext, Services
from tailrace.ids import NIL_TOPIC_ID
from tailrace.kafka.error_codes import ErrorCode
from tailrace.security.acls import CLUSTER_NAME, Operation, ResourceType
from tailrace.turns import Turns

REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
NAMES_IN_A_TURN = 500
"""Resources of one request whose permissions are looked up in one turn of the loop."""
UNNAMED = ""
"""The name of a topic that is requested by an unknown id."""


@dataclass(frozen=True, slots=True)
class Need:
    """An operation on a type of resource. `instead`: another need that is also sufficient."""

    operation: Operation
    resource_type: ResourceType
    instead: Need | None = None

    def __str__(self) -> str:
        text = f"{self.operation.name} on {self.resource_type.name}"
        return text if self.instead is None else f"{text}, or {self.instead}"

    @property
    def code(self) -> ErrorCode:
        return REFUSALS[self.resource_type]

    def on(self, name: str) -> tuple[Operation, ResourceType, str]:
        """Return the operation and its resource. Whatever the name, there is only one cluster."""
        is_cluster = self.resource_type is ResourceType.CLUSTER
        return self.operation, self.resource_type, CLUSTER_NAME if is_cluster else name


TOPIC, GROUPS, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
READ_TOPIC = Need(Operation.READ, TOPIC)
WRITE_TOPIC = Need(Operation.WRITE, TOPIC)
DESCRIBE_TOPIC = Need(Operation.DESCRIBE, TOPIC)
READ_GROUP = Need(Operation.READ, GROUPS)
DESCRIBE_GROUP = Need(Operation.DESCRIBE, GROUPS)
WRITE_TRANSACTION = Need(Operation.WRITE, TRANSACTION)
DESCRIBE_TRANSACTION = Need(Operation.DESCRIBE, TRANSACTION)
DESCRIBE_CLUSTER = Need(Operation.DESCRIBE, CLUSTER)
ALTER_CLUSTER = Need(Operation.ALTER, CLUSTER)
CREATE_TOPIC = Need(Operation.CREATE, TOPIC, Need(Operation.CREATE, CLUSTER))


@dataclass(frozen=True, slots=True)
class Call:
    """One request, for its guards."""

    api: str
    services: Services
    context: RequestContext
    topics: RequestTopics

    def may(self, need: Need, name: str, *, is_noted: bool = True) -> bool:
        """Whether the client meets the need. A refusal goes to the audit log, unless it only shortens a listing."""
        access = self.context.access
        alternative: Need | None = need
        while alternative is not None:
            if access.may(*alternative.on(name)):
                return True
            alternative = alternative.instead
        if is_noted:
            self.note(need, name)
        return False

    def note(self, need: Need, name: str) -> None:
        """Write a refusal to the audit log."""
        self.context.access.note_refused(self.api, *need.on(name))

    async def topic_name(self, name: str | None, topic_id: UUID) -> str:
        """Return the name of a topic that is requested by name or id; UNNAMED if it is unknown."""
        if topic_id == NIL_TOPIC_ID:
            return name or UNNAMED
        known = await self.topics.by_id(topic_id)
        return UNNAMED if known is None else known.topic.name


Next = Callable[[Any], Awaitable[Any]]
"""The next guard, or the handler: takes the request, returns the response."""


class Guard(Protocol):
    """Passes on the parts of a request that the client may do."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """The guard's needs. A client that meets all of them is refused nothing."""

    @property
    def effect(self) -> str:
        """What happens to a request that does not meet them, for the docs."""

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        """Return the response."""


@dataclass(frozen=True, slots=True)
class RequestGuard:
    """The whole request needs one permission, on one resource or on each of several.

    `names` returns the resources ('' for the cluster). `refuse` returns the response to a refused request.
    """

    need: Need
    refuse: Callable[[Any, ErrorCode], Any]
    names: Callable[[Any], Iterable[str]] = lambda request: (CLUSTER_NAME,)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (self.need,)

    @property
    def effect(self) -> str:
        return f"{self.need.code.name} for the request"

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        if all(call.may(self.need, name) for name in self.names(request)):
            return await answer(request)
        return self.refuse(request, self.need.code)


@dataclass(frozen=True, slots=True)
class PartsGuard:
    """Each part of the request needs a permission on its own resource.

    `request_field` and `response_field` have the parts. `name` returns a part's
    resource. `refuse` returns the response's part for a refused one. `need_of` returns the index of a part's need, if
    parts have different ones. `code_of_others`: if one part is refused, nothing is done, and all other parts get this
    code; None: the other parts are done.
    """

    needs: tuple[Need, ...]
    request_field: str
    response_field: str
    name: Callable[[Any], str]
    refuse: Callable[[Any, ErrorCode], Any]
    need_of: Callable[[Any], int] = lambda part: 0
    code_of_others: ErrorCode | None = None

    @property
    def effect(self) -> str:
        codes = " or ".join(dict.fromkeys(need.code.name for need in self.needs))
        return f"{codes} for each"

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        parts: Sequence[Any] | None = getattr(request, self.request_field)
        if not parts:
            return await answer(request)
        kept: list[Any] = []
        refused: list[Any] = []
        async for part in Turns(NAMES_IN_A_TURN).over(parts):
            need = self.needs[self.need_of(part)]
            topic_id: UUID = getattr(part, "topic_id", NIL_TOPIC_ID)
            by_id = topic_id != NIL_TOPIC_ID
            name = await call.topic_name("", topic_id) if by_id else self.name(part)
            if by_id and name == UNNAMED:
                refused.append(self.refuse(part, ErrorCode.UNKNOWN_TOPIC_ID))
            elif call.may(need, name):
                kept.append(part)
            else:
                refused.append(self.refuse(part, need.code))
        if not refused:
            return await answer(request)
        if self.code_of_others is not None:
            refused += [self.refuse(part, self.code_of_others) for part in kept]
            kept = []
        setattr(request, self.request_field, kept)
        if kept:
            return _with_more(await answer(request), self.response_field, refused)
        return _only(call, self.response_field, refused, request)


def _name_of(part: Any) -> str:
    return str(part.name or "")


def topics_guard(
    need: Need,
    refuse: Callable[[Any, ErrorCode], Any],
    *,
    request_field: str = "topics",
    response_field: str = "topics",
    name: Callable[[Any], str] = _name_of,
) -> PartsGuard:
    """Make a guard for requests whose parts are topics."""
    return PartsGuard(
        needs=(need,), request_field=request_field, response_field=response_field, name=name, refuse=refuse
    )


def names_guard(
    need: Need, refuse: Callable[[str, ErrorCode], Any], request_field: str, response_field: str
) -> PartsGuard:
    """Make a guard for requests whose parts are the resources' names."""
    return PartsGuard((need,), request_field, response_field, name=str, refuse=refuse)


@dataclass(frozen=True, slots=True)
class ListingGuard:
    """The response lists resources. The client sees those for which it meets the need, or all if it meets `for_all`."""

    need: Need
    response_field: str
    name: Callable[[Any], str]
    for_all: Need | None = None

    @property
    def needs(self) -> tuple[Need, ...]:
        return (self.need,) if self.for_all is None else (self.need, self.for_all)

    @property
    def effect(self) -> str:
        return "left out of the listing"

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        response = await answer(request)
        if self.for_all is None or not call.may(self.for_all, CLUSTER_NAME, is_noted=False):
            rows = getattr(response, self.response_field)
            kept = [
                row
                async for row in Turns(NAMES_IN_A_TURN).over(rows)
                if call.may(self.need, self.name(row), is_noted=False)
            ]
            setattr(response, self.response_field, kept)
        return response


def guarded(api: str, guards: Sequence[Guard], handler: Handler) -> Handler:
    """Wrap the handler with its guards. The first guard is called first."""
    if not guards:
        return handler

    async def handle(services: Services, context: RequestContext, request: Any) -> Any:
        call = Call(api, services, context, services.catalog.of_one_request())

        async def after(number: int, request: Any) -> Any:
            if number == len(guards):
                return await handler(services, context, request)
            return await guards[number](call, request, lambda changed: after(number + 1, changed))

        return await after(0, request)

    return handle


def _with_more(response: Any, field: str, rows: list[Any]) -> Any:
    """Add these rows to the handler's answer, also to a deferred one."""
    if isinstance(response, Deferred):
        return response.changed(lambda part: _with_more(part, field, rows))
    if isinstance(response, LongAnswer):
        return LongAnswer(_with_more_later(response, field, rows))
    if isinstance(response, HeldResponse):
        return msgspec.structs.replace(response, response=_with_more(response.response, field, rows))
    setattr(response, field, [*getattr(response, field), *rows])
    return response


async def _with_more_later(answer: LongAnswer, field: str, rows: list[Any]) -> Any:
    return _with_more(await answer.making, field, rows)


def _only(call: Call, field: str, rows: list[Any], request: Any) -> Any:
    """Return a response with only these rows."""
    from tailrace.kafka.apis import APIS

    response = APIS[request.api.key].response()
    setattr(response, field, rows)
    return response
