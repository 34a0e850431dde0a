"""DescribeAcls, CreateAcls, DeleteAcls (KIP-140, KIP-290)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

from agent.errors import EXPECTED, code_of
from agent.services import RequestContext, Services
from sequencer.api.errors import InvalidRequest
from sequencer.api.security import CreateAcls, DeleteAcls, DeletedAcls
from sequencer.rules.access import MAX_CHANGES, check_acl
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from tailrace.kafka.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tailrace.kafka.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from tailrace.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tailrace.tenants import local_name
from tailrace.turns import Turns

A = TypeVar("A")
V = TypeVar("V")
R = TypeVar("R", AclCreationResult, DeleteAclsFilterResult)

DescribedResources = dict[tuple[ResourceType, str, PatternType], DescribeAclsResource]
"""The resources of an answer, by pattern."""
ACL_BYTES = 800
"""Estimated bytes of an ACL in an answer, as objects and encoded."""
MATCHED_IN_A_TURN = 2_000
"""ACLs compared with a filter, and described, in one turn of the loop."""
NO_AUTHORIZER = "No Authorizer is configured."
"""Kafka's message. No listener of this agent authenticates its clients, so ACLs would have no effect."""


async def describe_acls(
    services: Services, context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    """Return the ACLs that the filter matches, grouped by resource pattern."""
    if context.access.acls is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    try:
        wanted = filter_of(request)
        await services.catalog.refresh()
    except EXPECTED as error:
        return DescribeAclsResponse(error_code=code_of(error), error_message=str(error))
    await context.reservation.needs(ACL_BYTES * len(services.catalog.security.acls))
    resources: DescribedResources = {}
    async for acl in Turns(MATCHED_IN_A_TURN).over(list(services.catalog.security.acls)):
        if wanted.matches(acl):
            describe(acl, resources)
    return DescribeAclsResponse(resources=list(resources.values()))


def describe(acl: Acl, resources: DescribedResources) -> None:
    """Add an ACL to the resources of an answer."""
    pattern = (acl.resource_type, acl.resource_name, acl.pattern_type)
    resource = resources.setdefault(pattern, DescribeAclsResource(*pattern))
    resource.acls.append(AclDescription(acl.principal, acl.host, acl.operation, acl.permission))


async def create_acls(
    services: Services, context: RequestContext, request: CreateAclsRequest
) -> CreateAclsResponse:
    """Add each binding on its own; a refused binding does not affect the others."""
    results = [AclCreationResult() for _ in request.creations]
    acls = _readable(context, zip(request.creations, results, strict=True), _acl)
    for first in range(0, len(acls), MAX_CHANGES):
        some = acls[first : first + MAX_CHANGES]
        try:
            await services.sequencer.create_acls(CreateAcls([acl for acl, _ in some]))
        except EXPECTED as error:
            for _, result in some:
                result.error_code, result.error_message = code_of(error), str(error)
    await services.catalog.refresh_if_possible()
    return CreateAclsResponse(results=results)


async def delete_acls(
    services: Services, context: RequestContext, request: DeleteAclsRequest
) -> DeleteAclsResponse:
    """Remove the ACLs that each filter matches, and return them. If a call to the sequencer fails, its remaining
    filters get the error."""
    results = [DeleteAclsFilterResult() for _ in request.filters]
    left = deque(_readable(context, zip(request.filters, results, strict=True), filter_of))
    while left:
        some = list(islice(left, MAX_CHANGES))
        try:
            deleted = await services.sequencer.delete_acls(
                DeleteAcls([wanted for wanted, _ in some], takes_parts=True)
            )
        except EXPECTED as error:
            for _, result in some:
                result.error_code, result.error_message = code_of(error), str(error)
            deleted = DeletedAcls([])
        for (_, result), matches in zip(some, deleted.matches, strict=False):
            result.matching_acls += map(_matching, matches)
        for _ in range(len(some) if deleted.done < 0 else deleted.done):
            left.popleft()
    await services.catalog.refresh_if_possible()
    return DeleteAclsResponse(filter_results=results)


def _readable(
    context: RequestContext, asked: Iterable[tuple[A, R]], read: Callable[[A], V]
) -> list[tuple[V, R]]:
    """Return the valid parts of a request, each with its result. Set the error in the results of the others."""
    readable: list[tuple[V, R]] = []
    for given, result in asked:
        if context.access.acls is None:
            result.error_code, result.error_message = ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER
            continue
        try:
            readable.append((read(given), result))
        except InvalidRequest as error:
            result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, str(error)
    return readable


def _acl(creation: AclCreation) -> Acl:
    """Return the binding. Raises InvalidRequest."""
    try:
        pattern = (creation.resource_type, creation.resource_name, creation.resource_pattern_type)
        acl = acl_of(pattern, creation)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    if acl.resource_type is ResourceType.CLUSTER and local_name(acl.resource_name) != CLUSTER_NAME:
        raise InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    check_acl(acl)
    return acl


def acl_of(pattern: tuple[int, str, int], binding: Any) -> Acl:
    """Return the ACL of a resource pattern (type of resource, name, type of pattern) and a message that has a
    principal, a host, an operation and a permission. Raises ValueError for a number without a meaning."""
    resource_type, name, pattern_type = pattern
    return Acl(
        resource_type=ResourceType(resource_type),
        resource_name=name,
        pattern_type=PatternType(pattern_type),
        principal=binding.principal,
        host=binding.host,
        operation=Operation(binding.operation),
        permission=Permission(binding.permission_type),
    )


def filter_of(given: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Return the filter. Raises InvalidRequest."""
    try:
        return AclFilter(
            resource_type=ResourceType(given.resource_type_filter),
            resource_name=given.resource_name_filter,
            pattern_type=PatternType(given.pattern_type_filter),
            principal=given.principal_filter,
            host=given.host_filter,
            operation=Operation(given.operation),
            permission=Permission(given.permission_type),
        )
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
