"""ACLs of a tenant: how they look to its clients, how they are stored, and how they decide.

    to its clients                  stored
    topic `orders`                  topic `acme~orders`
    topics with prefix `or`         topics with prefix `acme~or`
    every topic: `*`, literal       topics with prefix `acme~`
    the cluster: `kafka-cluster`    `acme~kafka-cluster`, which is the name of no cluster
    `User:alice`, `User:*`          `User:acme~alice`, `User:acme~*`

So an ACL that a tenant has made gives nobody anything outside of it, whoever reads it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from tailrace.acls import CLUSTER_NAME, WILDCARD, Acl, PatternType, ResourceType
from tailrace.tenants import Tenant, tenant_of


def stored_pattern(tenant: Tenant, name: str, pattern_type: int) -> tuple[str, int]:
    """The name and the pattern type of a resource as they are stored."""
    if name == WILDCARD and pattern_type == PatternType.LITERAL:
        return tenant.prefix, PatternType.PREFIXED
    return (tenant.stored(name) if name else name), pattern_type


def stored_principal(tenant: Tenant, principal: str) -> str:
    """`User:alice` as it is stored. What is no principal stays so."""
    kind, colon, name = principal.partition(":")
    return f"{kind}{colon}{tenant.stored(name)}" if name else principal


def owner_of(acl: Acl) -> Tenant | None:
    """The tenant whose ACL this is."""
    return tenant_of(acl.principal.partition(":")[2])


def stored_acl(tenant: Tenant, acl: Acl) -> Acl:
    """A tenant's ACL as it is stored."""
    name, pattern_type = stored_pattern(tenant, acl.resource_name, acl.pattern_type)
    return replace(
        acl,
        resource_name=name,
        pattern_type=PatternType(pattern_type),
        principal=stored_principal(tenant, acl.principal),
    )


def local_acl(tenant: Tenant, acl: Acl) -> Acl | None:
    """A stored ACL as the tenant's clients see it; None if it is not the tenant's."""
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
    """The tenant's ACLs as its clients' requests are decided by them: with stored names of topics, groups and
    transactional ids, for the cluster as it is named, and for all of the tenant's principals where they say so."""
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
