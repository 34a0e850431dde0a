"""Tenants: virtual clusters within one cluster.

The stored name of a tenant's topic, group and so on is the tenant's name, a mark, and the name that its clients use:

    acme~orders      the topic `orders` of the tenant `acme`, or its group, transactional id, user ... `orders`

Neither the name of a topic in Kafka nor that of a tenant contains the mark, so stored names are unambiguous. A name
without a tenant's prefix belongs to no tenant. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import NAMESPACE_OID, uuid5

MARK = "~"
"""Not allowed in a topic's name in Kafka, and not special within a word in a shell, a URL, SQL or a regular
expression."""
_TENANT = "[a-z0-9][a-z0-9-]{0,31}"
_LEGAL_TENANT = re.compile(_TENANT)
_OF_TENANT = re.compile(f"({_TENANT}{MARK})(.*)", re.DOTALL)
_LEGAL_TOPIC = re.compile(f"(?:{_TENANT}{MARK})?([a-zA-Z0-9._-]{{1,249}})")


class BadTenant(ValueError):
    """A tenant can't have this name; the message says which names are allowed."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. `prefix`: the start of all its stored names."""

    prefix: str

    @classmethod
    def named(cls, name: str) -> Tenant:
        """Return the tenant of this name. Raises BadTenant."""
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
        """The name under which an operator sets limits for the whole tenant. No user of a tenant can have this name or
        change what is stored under it."""
        return f"{MARK}{self.name}"

    def cluster_id(self, of_all: str) -> str:
        """Return the id of the tenant's cluster; `of_all` is the id of the real cluster."""
        return str(uuid5(NAMESPACE_OID, self.stored(of_all)))

    def stored(self, name: str) -> str:
        """Return the stored name for a name that the tenant's clients use."""
        return f"{self.prefix}{name}"

    def owns(self, stored: str) -> bool:
        """Whether the stored name belongs to the tenant."""
        return stored.startswith(self.prefix)

    def local(self, stored: str) -> str:
        """Return the name that the tenant's clients use for a stored name of the tenant."""
        assert self.owns(stored), "only what is a tenant's is shown to it"
        return stored[len(self.prefix) :]


def tenant_of(stored: str) -> Tenant | None:
    """Return the tenant that a stored name belongs to; None if it belongs to no tenant."""
    match = _OF_TENANT.fullmatch(stored)
    return None if match is None else Tenant(match[1])


def local_name(stored: str) -> str:
    """Return the name that clients use for a stored name, of any tenant or none."""
    match = _OF_TENANT.fullmatch(stored)
    return stored if match is None else match[2]


def stored_in_same_tenant(stored: str, name: str) -> str:
    """Return the stored name of `name` in the tenant that `stored` belongs to, if any."""
    tenant = tenant_of(stored)
    return name if tenant is None else tenant.stored(name)


def is_topic_name(stored: str) -> bool:
    """Whether a topic can be stored under this name.

    Kafka's rule applies to the part that clients see: 1 to 249 letters, digits, `.`, `_` and `-`, but not `.` or `..`.
    """
    match = _LEGAL_TOPIC.fullmatch(stored)
    return match is not None and match[1] not in (".", "..")
