"""A request of a tenant's client as the rules see it: with the names that the client uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agent.services import RequestContext, Services
from tailrace.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Visit:
    """`answer` takes a request across the border and returns the answer, both with the client's names."""

    tenant: Tenant
    services: Services
    context: RequestContext
    answer: Callable[[Any], Awaitable[Any]]


Rule = Callable[[Visit, Any], Awaitable[Any]]
"""Returns the response to a request."""
