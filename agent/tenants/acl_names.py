"""A tenant's ACLs: as its clients see them, as they are stored, and as they are applied.

    to its clients                  stored
    topic `orders`                  topic `acme~orders`
    topics with prefix `or`         topics with prefix `acme~or`
    every topic: `*`, literal       topics with prefix `acme~`
    the cluster: `kafka-cluster`    `acme~kafka-cluster`, which is the name of no cluster
    `User:alice`, `User:*`          `User:acme~alice`, `User:acme~*`

So a tenant's ACL grants nothing outside of the tenant, whatever code evaluates it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from tailrace.security.acls import CLUSTER_NAME, WILDCARD, Acl, PatternType, ResourceType
from tailrace.tenants import Tenant, tenant_of


def stored_pattern(tenant: Tenant, name: str, pattern_type: int) -> tuple[str, int]:
    """Return a resource's stored name and pattern type."""
    if name == WILDCARD and pattern_type == PatternType.LITERAL:
        return tenant.prefix, PatternType.PREFIXED
    return (tenant.stored(name) if name else name), pattern_type


def stored_principal(tenant: Tenant, principal: str) -> str:
    """Return the stored form of `User:alice`. A text that is not a principal stays unchanged."""
    kind, colon, name = principal.partition(":")
    return f"{kind}{colon}{tenant.stored(name)}" if name else principal


def owner_of(acl: Acl) -> Tenant | None:
    return tenant_of(acl.principal.partition(":")[2])


def stored_acl(tenant: Tenant, acl: Acl) -> Acl:
    """Return the stored form of a tenant's ACL."""
    name, pattern_type = stored_pattern(tenant, acl.resource_name, acl.pattern_type)
    return replace(
        acl,
        resource_name=name,
        pattern_type=PatternType(pattern_type),
        principal=stored_principal(tenant, acl.principal),
    )


def local_acl(tenant: Tenant, acl: Acl) -> Acl | None:
    """Return a stored ACL as the tenant's clients see it; None if it is not the tenant's."""
    kind, _, name = acl.principal.partition(":")
    if not tenant.owns(name) or not tenant.owns(acl.resource_name):
        return None
    is_wildcard = acl.resource_name == tenant.prefix and acl.pattern_type is PatternType.PREFIXED
    return replace(
        acl,
        resource_name=WILDCARD if is_wildcard else tenant.local(acl.resource_name),
        pattern_type=PatternType.LITERAL if is_wildcard else acl.pattern_type,
        principal=f"{kind}:{tenant.local(name)}",
    )


def deciding_acls(tenant: Tenant, acls: Iterable[Acl]) -> list[Acl]:
    """Return the tenant's ACLs in the form that is applied to its clients' requests: with stored names of topics,
    groups and transactional ids, but the cluster's real name, and `User:*` for all of the tenant's principals."""
    decided = []
    for acl in acls:
        kind, _, name = acl.principal.partition(":")
        if not tenant.owns(name) or not tenant.owns(acl.resource_name):
            continue
        is_cluster = acl.resource_type is ResourceType.CLUSTER
        decided.append(
            replace(
                acl,
                resource_name=CLUSTER_NAME if is_cluster else acl.resource_name,
                pattern_type=PatternType.LITERAL if is_cluster else acl.pattern_type,
                principal=f"{kind}:{WILDCARD}" if tenant.local(name) == WILDCARD else acl.principal,
            )
        )
    return decided
