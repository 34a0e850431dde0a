"""DescribeClientQuotas and AlterClientQuotas for a tenant's clients: quotas of its own users and client ids. Quotas of
addresses belong to the cluster."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from agent.handlers.quotas import MATCH_DEFAULT, MATCH_EXACT
from agent.security.refusals import FAILED
from agent.tenants.tenant_request import TenantRequest
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_client_quotas import AlteredEntry
from tailrace.kafka.messages.describe_client_quotas import ComponentData
from tailrace.quotas import CLIENT_ID, IP, USER
from tailrace.tenants import Tenant

_OF_TENANTS = (USER, CLIENT_ID)


def _stored(tenant: Tenant, part: Any) -> Any:
    """Return the stored form of a user or a client id, or of the tenant's default."""
    if part.entity_type not in _OF_TENANTS or part.entity_name == "":
        return part
    return replace(part, entity_name=tenant.stored(part.entity_name or ""))


def _is_seen(tenant: Tenant, entity: list[Any]) -> bool:
    return all(part.entity_type in _OF_TENANTS and tenant.owns(part.entity_name or "") for part in entity)


def _local(tenant: Tenant, part: Any) -> Any:
    name = part.entity_name or ""
    return replace(part, entity_name=tenant.local(name) or None) if tenant.owns(name) else part


async def describe_quotas(tenant_request: TenantRequest, request: Any) -> Any:
    """Return the tenant's own quotas."""
    asked = replace(
        request, components=[_component(tenant_request.tenant, part) for part in request.components]
    )
    response = await tenant_request.answer(asked)
    if response.entries is not None:
        response.entries = [
            replace(entry, entity=[_local(tenant_request.tenant, part) for part in entry.entity])
            for entry in response.entries
            if _is_seen(tenant_request.tenant, entry.entity)
        ]
    return response


def _component(tenant: Tenant, given: ComponentData) -> ComponentData:
    if given.entity_type not in _OF_TENANTS:
        return given
    if given.match_type == MATCH_DEFAULT and given.match is None:
        return replace(given, match_type=MATCH_EXACT, match=tenant.prefix)
    if given.match_type == MATCH_EXACT and given.match:
        return replace(given, match=tenant.stored(given.match))
    return given


async def alter_quotas(tenant_request: TenantRequest, request: Any) -> Any:
    """Change the quotas of each entry on its own. Quotas of addresses are refused."""
    is_refused = [any(part.entity_type == IP for part in entry.entity) for entry in request.entries]
    asked = [
        replace(entry, entity=[_stored(tenant_request.tenant, part) for part in entry.entity])
        for entry, refused in zip(request.entries, is_refused, strict=True)
        if not refused
    ]
    response = await tenant_request.answer(replace(request, entries=asked))
    answered = iter(response.entries)
    response.entries = [
        AlteredEntry(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, FAILED, entry.entity)
        if refused
        else _shown(tenant_request.tenant, next(answered))
        for entry, refused in zip(request.entries, is_refused, strict=True)
    ]
    return response


def _shown(tenant: Tenant, row: AlteredEntry) -> AlteredEntry:
    return replace(row, entity=[_local(tenant, part) for part in row.entity])
