"""Tenants: virtual clusters in one.

What belongs to a tenant is stored under the tenant's name, a mark, and the name that its clients use:

    acme~orders      the topic `orders` of the tenant `acme`, or its group, transactional id, user ... `orders`

Kafka allows no mark in the names of topics, and the name of a tenant has none, so two stored names never mean the same.
A name without a tenant before it belongs to no tenant. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import NAMESPACE_OID, uuid5

MARK = "~"
"""No letter of a topic's name in Kafka; none that a shell, a URL, SQL or a regular expression treats as special within
a word."""
_TENANT = "[a-z0-9][a-z0-9-]{0,31}"
_LEGAL_TENANT = re.compile(_TENANT)
_OF_TENANT = re.compile(f"({_TENANT}{MARK})(.*)", re.DOTALL)
_LEGAL_TOPIC = re.compile(f"(?:{_TENANT}{MARK})?([a-zA-Z0-9._-]{{1,249}})")


class BadTenant(ValueError):
    """A tenant can't have this name; the message says which it may have."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. `prefix`: what its stored names begin with."""

    prefix: str

    @classmethod
    def named(cls, name: str) -> Tenant:
        """The tenant of this name. Raises BadTenant."""
        if _LEGAL_TENANT.fullmatch(name) is None:
            raise BadTenant(
                f"{name[:100]!r} names no tenant: 1 to 32 of a-z 0-9 - are allowed, without - at the start"
            )
        return cls(f"{name}{MARK}")

    @property
    def name(self) -> str:
        return self.prefix[: -len(MARK)]

    @property
    def everyone(self) -> str:
        """The name under which an operator sets what holds for all of the tenant together. No user of a tenant has it,
        nor can one set what is stored under it."""
        return f"{MARK}{self.name}"

    def cluster_id(self, of_all: str) -> str:
        """The id of the tenant's cluster, in the cluster of all."""
        return str(uuid5(NAMESPACE_OID, self.stored(of_all)))

    def stored(self, name: str) -> str:
        """The name under which something of the tenant's is stored."""
        return f"{self.prefix}{name}"

    def owns(self, stored: str) -> bool:
        """Whether what is stored under this name is the tenant's."""
        return stored.startswith(self.prefix)

    def local(self, stored: str) -> str:
        """The name that the tenant's clients use for what is stored under this one."""
        assert self.owns(stored), "only what is a tenant's is shown to it"
        return stored[len(self.prefix) :]


def tenant_of(stored: str) -> Tenant | None:
    """Whose this stored name is; None: no tenant's."""
    match = _OF_TENANT.fullmatch(stored)
    return None if match is None else Tenant(match[1])


def local_name(stored: str) -> str:
    """The name as clients use it, whoever's it is."""
    match = _OF_TENANT.fullmatch(stored)
    return stored if match is None else match[2]


def stored_beside(stored: str, name: str) -> str:
    """The stored name of what has this name for the clients that own `stored`: the same tenant's, or no tenant's."""
    tenant = tenant_of(stored)
    return name if tenant is None else tenant.stored(name)


def is_topic_name(stored: str) -> bool:
    """Whether a topic can be stored under this name. Kafka's rule holds for what clients see of it: 1 to 249 of
    letters, digits, `.`, `_`, `-`, and neither `.` nor `..`."""
    match = _LEGAL_TOPIC.fullmatch(stored)
    return match is not None and match[1] not in (".", "..")
