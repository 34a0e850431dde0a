"""Decides whether a principal may do something from a host, by Kafka's rules over a set of ACLs.

As in Kafka's StandardAuthorizer:
- a super user may do everything;
- a matching DENY wins over every ALLOW;
- allowed READ, WRITE, DELETE and ALTER imply DESCRIBE; allowed ALTER_CONFIGS implies DESCRIBE_CONFIGS. A DENY implies
  nothing;
- if nothing matches, the answer is no.

Pure. Decisions are cached, because clients repeat the same requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from sys import getsizeof

from msgspec.structs import replace

from tailrace.addresses import plain_address
from tailrace.limits import MAX_NAME_BYTES
from tailrace.security.acls import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

MAX_REMEMBERED_BYTES = 16 << 20
"""The most memory of cached decisions: some 60,000 on short names. Above it all are dropped."""
REMEMBERED_BYTES = 200
"""The memory of a cached decision in addition to its resource's name."""

_IMPLIED_BY: dict[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS,)),
}
_Question = tuple[str, str, Operation, ResourceType, str]


class AclIndex:
    """ACLs, indexed by their principals and resources. Immutable; changed ACLs need a new index.

    A decision examines the ACLs of its principal and of the wildcard principal that cover the resource, no others.
    Each change of an ACL makes a new index at every agent. So a principal's ACLs for a resource type are indexed when
    it first asks for one.
    """

    def __init__(self, acls: Iterable[Acl], super_users: Collection[str] = ()) -> None:
        self._super_users = frozenset(super_users)
        self._given: dict[tuple[str, ResourceType], list[Acl]] = {}
        for acl in acls:
            self._given.setdefault((acl.principal, acl.resource_type), []).append(acl)
        self._indexed: dict[tuple[str, ResourceType], _IndexedAcls] = {}
        self._remembered: dict[_Question, bool] = {}
        self._remembered_bytes = 0

    def allows(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether the principal may do this with the resource of this name. `host`: in the form of `plain_address`."""
        question = (principal, host, operation, resource_type, name)
        answer = self._remembered.get(question)
        if answer is None:
            answer = self._decide(*question)
            if len(name) > MAX_NAME_BYTES:
                return answer  # no resource has this name, and clients can invent many
            self._remembered_bytes += getsizeof(name) + REMEMBERED_BYTES
            if self._remembered_bytes > MAX_REMEMBERED_BYTES:
                self._remembered.clear()
                self._remembered_bytes = getsizeof(name) + REMEMBERED_BYTES
            self._remembered[question] = answer
        return answer

    def allows_some(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there may be a resource of this type with which the principal may do this
        (Authorizer.authorizeByResourceType, KIP-679)."""
        if principal in self._super_users:
            return True
        mine = [
            acl
            for whose in _principals(principal)
            for acl in self._of(whose, resource_type).all
            if acl.host in (host, WILDCARD) and acl.operation in (operation, Operation.ALL)
        ]
        denied = [acl for acl in mine if acl.permission is Permission.DENY]
        if any(_is_wildcard(acl) for acl in denied):
            return False
        literals = {acl.resource_name for acl in denied if acl.pattern_type is PatternType.LITERAL}
        prefixes = tuple(acl.resource_name for acl in denied if acl.pattern_type is PatternType.PREFIXED)
        for acl in mine:
            if acl.permission is not Permission.ALLOW:
                continue
            if _is_wildcard(acl):
                return True
            is_literal = acl.pattern_type is PatternType.LITERAL
            if not acl.resource_name.startswith(prefixes) and not (
                is_literal and acl.resource_name in literals
            ):
                return True
        return False

    def _decide(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        if principal in self._super_users:
            return True
        is_allowed = False
        for acl in self.concerning(principal, resource_type, name):
            if acl.host not in (host, WILDCARD):
                continue
            if acl.permission is Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return False
            elif acl.operation in (operation, Operation.ALL) or acl.operation in _IMPLIED_BY.get(
                operation, ()
            ):
                is_allowed = True
        return is_allowed

    def concerning(self, principal: str, resource_type: ResourceType, name: str) -> Iterator[Acl]:
        """Yield the ACLs of the principal and the wildcard principal, for any host, that cover the resource."""
        for whose in _principals(principal):
            known = self._of(whose, resource_type)
            yield from known.literal.get(name, ())
            if name != WILDCARD:
                yield from known.literal.get(WILDCARD, ())
            for length in known.prefix_lengths:
                if length <= len(name):
                    yield from known.prefixed.get(name[:length], ())

    def _of(self, principal: str, resource_type: ResourceType) -> _IndexedAcls:
        known = self._indexed.get((principal, resource_type))
        if known is None:
            given = self._given.get((principal, resource_type))
            if given is None:
                return _NO_ACLS  # not kept: certificates may name any number of principals
            known = self._indexed[principal, resource_type] = _IndexedAcls(given)
        return known


class _IndexedAcls:
    """The ACLs of one principal for one type of resource, by name, with hosts in the form of `plain_address`."""

    def __init__(self, given: Sequence[Acl]) -> None:
        plain = {host: plain_address(host) for host in {acl.host for acl in given}}
        self.all = [
            acl if plain[acl.host] == acl.host else replace(acl, host=plain[acl.host]) for acl in given
        ]
        self.literal: dict[str, list[Acl]] = {}
        self.prefixed: dict[str, list[Acl]] = {}
        for acl in self.all:
            named = self.prefixed if acl.pattern_type is PatternType.PREFIXED else self.literal
            named.setdefault(acl.resource_name, []).append(acl)
        self.prefix_lengths = set(map(len, self.prefixed))


_NO_ACLS = _IndexedAcls(())


def _principals(principal: str) -> tuple[str, ...]:
    """Return the principals whose ACLs apply to this principal."""
    return (principal,) if principal == WILDCARD_PRINCIPAL else (principal, WILDCARD_PRINCIPAL)


def _is_wildcard(acl: Acl) -> bool:
    return acl.pattern_type is PatternType.LITERAL and acl.resource_name == WILDCARD
