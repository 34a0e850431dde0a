"""DescribeAcls, CreateAcls and DeleteAcls for a tenant's clients: they see and change only the tenant's ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from agent.handlers.acls import DescribedResources, acl_of, describe, filter_of
from agent.tenants.acl_names import local_acl, stored_acl, stored_pattern, stored_principal
from agent.tenants.tenant_request import TenantRequest
from sequencer.api.errors import InvalidRequest
from tailrace.kafka.messages.create_acls import AclCreation
from tailrace.kafka.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
)
from tailrace.kafka.messages.describe_acls import DescribeAclsRequest, DescribeAclsResource
from tailrace.security.acls import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tailrace.turns import Turns

MATCHED_IN_A_TURN = 10_000
"""ACLs compared with filters in one turn of the loop."""

DESCRIBED_IN_A_TURN = 1_000
"""ACLs translated to the names that a tenant's clients use in one turn of the loop."""

_EVERYTHING = DescribeAclsRequest(
    resource_type_filter=ResourceType.ANY,
    pattern_type_filter=PatternType.ANY,
    operation=Operation.ANY,
    permission_type=Permission.ANY,
)


async def describe_acls(tenant_request: TenantRequest, request: Any) -> Any:
    """Return the ACLs that the filter matches in the form that the client sees."""
    try:
        wanted = filter_of(request)
    except InvalidRequest:
        return await tenant_request.answer(request)  # its answer has the error
    response = await tenant_request.answer(_EVERYTHING)
    resources: DescribedResources = {}
    turns = Turns(DESCRIBED_IN_A_TURN)
    for stored in _described(response.resources):
        await turns.did()
        acl = local_acl(tenant_request.tenant, stored)
        if acl is not None and wanted.matches(acl):
            describe(acl, resources)
    response.resources = list(resources.values())
    return response


def _described(resources: list[DescribeAclsResource]) -> Iterator[Acl]:
    for resource in resources:
        for row in resource.acls:
            yield acl_of((resource.resource_type, resource.resource_name, resource.pattern_type), row)


async def create_acls(tenant_request: TenantRequest, request: Any) -> Any:
    """Create the ACLs in their stored form."""
    return await tenant_request.answer(
        replace(request, creations=[_stored(tenant_request, creation) for creation in request.creations])
    )


def _stored(tenant_request: TenantRequest, creation: AclCreation) -> AclCreation:
    name, pattern_type = stored_pattern(
        tenant_request.tenant, creation.resource_name, creation.resource_pattern_type
    )
    return replace(
        creation,
        resource_name=name,
        resource_pattern_type=pattern_type,
        principal=stored_principal(tenant_request.tenant, creation.principal),
    )


async def delete_acls(tenant_request: TenantRequest, request: Any) -> Any:
    """Delete each matching ACL of the tenant by its own filter, which matches only that ACL. Each filter of the request
    is also passed on in a form that matches nothing, to get its answer."""
    await tenant_request.services.catalog.refresh_if_possible()
    known = tenant_request.services.catalog.security.acls
    mine = [acl for acl in (local_acl(tenant_request.tenant, stored) for stored in known) if acl is not None]
    turns = Turns(MATCHED_IN_A_TURN)
    matched: list[list[Acl]] = []
    for given in request.filters:
        matched.append(_matches(given, mine))
        await turns.did(1 + len(mine))
    named = list(dict.fromkeys(acl for acls in matched for acl in acls))
    asked = [
        *(_checked(tenant_request, given) for given in request.filters),
        *(_only(stored_acl(tenant_request.tenant, acl)) for acl in named),
    ]
    response = await tenant_request.answer(replace(request, filters=asked))
    results: list[DeleteAclsFilterResult] = response.filter_results
    deleted = dict(zip(named, results[len(matched) :], strict=True))
    response.filter_results = [
        _joined(tenant_request, [first, *(deleted[acl] for acl in acls)])
        for first, acls in zip(results, matched, strict=False)
    ]
    return response


def _matches(given: DeleteAclsFilter, acls: list[Acl]) -> list[Acl]:
    try:
        wanted = filter_of(given)
    except InvalidRequest:
        return []
    return [acl for acl in acls if wanted.matches(acl)]


def _checked(tenant_request: TenantRequest, given: DeleteAclsFilter) -> DeleteAclsFilter:
    """Replace a valid filter by one that matches nothing; keep an invalid one, for the handler's error."""
    try:
        filter_of(given)
    except InvalidRequest:
        return given
    return _matching_none(tenant_request)


def _matching_none(tenant_request: TenantRequest) -> DeleteAclsFilter:
    """Return a filter that matches nothing, as no resource has an empty name. It names one binding: a look-up."""
    return _only(
        Acl(
            resource_type=ResourceType.TOPIC,
            resource_name=tenant_request.tenant.prefix,
            pattern_type=PatternType.LITERAL,
            principal=WILDCARD_PRINCIPAL,
            host=WILDCARD,
            operation=Operation.ALL,
            permission=Permission.ALLOW,
        )
    )


def _only(acl: Acl) -> DeleteAclsFilter:
    """Return a filter that matches only this ACL."""
    return DeleteAclsFilter(
        resource_type_filter=acl.resource_type,
        resource_name_filter=acl.resource_name,
        pattern_type_filter=acl.pattern_type,
        principal_filter=acl.principal,
        host_filter=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _joined(tenant_request: TenantRequest, results: list[DeleteAclsFilterResult]) -> DeleteAclsFilterResult:
    """Join the results of a filter's parts: the first error, or all deleted ACLs."""
    failed = next((result for result in results if result.error_code), None)
    if failed is not None:
        return failed
    return DeleteAclsFilterResult(
        matching_acls=[_shown(tenant_request, acl) for result in results for acl in result.matching_acls]
    )


def _shown(tenant_request: TenantRequest, stored: DeleteAclsMatchingAcl) -> DeleteAclsMatchingAcl:
    acl = acl_of((stored.resource_type, stored.resource_name, stored.pattern_type), stored)
    local = local_acl(tenant_request.tenant, acl)
    assert local is not None, "only the tenant's own ACLs were named"
    return replace(
        stored,
        resource_name=local.resource_name,
        pattern_type=local.pattern_type,
        principal=local.principal,
    )
