"""A request of a tenant's client as the rules see it: with the names that the client uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agent.services import RequestContext, Services
from tailrace.tenants import Tenant


@dataclass(frozen=True, slots=True)
class TenantRequest:
    """`answer` translates a request, handles it and returns the translated answer."""

    tenant: Tenant
    services: Services
    context: RequestContext
    answer: Callable[[Any], Awaitable[Any]]


Rule = Callable[[TenantRequest, Any], Awaitable[Any]]
"""Returns the response to a request."""
