"""SCRAM credentials, access control lists and delegation tokens."""

from __future__ import annotations

import enum
from uuid import UUID

from sequencer.api.values import Value
from tailrace.limits import Int64
from tailrace.security.acls import Acl, AclFilter


class ScramMechanism(enum.IntEnum):
    """Kafka's numbers (KIP-554)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


class ScramName(Value, frozen=True):
    """Identifies credentials: a user has one set per mechanism."""

    user: str
    mechanism: ScramMechanism


class ScramCredentials(Value, frozen=True):
    """What a server needs to check a user's password (RFC 5802). The password can be found from it only by guessing."""

    name: ScramName
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: Int64


class AlterScram(Value, frozen=True):
    upserts: list[ScramCredentials]
    deletes: list[ScramName]
    request_id: UUID | None = None


class AlteredScram(Value, frozen=True):
    """`missing`: credentials that were to be deleted but do not exist."""

    missing: list[ScramName]


class CreateAcls(Value, frozen=True):
    """Existing bindings are left as they are."""

    acls: list[Acl]
    request_id: UUID | None = None


class DeleteAcls(Value, frozen=True):
    """`takes_parts`: the caller repeats the request for filters that one answer did not finish."""

    filters: list[AclFilter]
    request_id: UUID | None = None
    takes_parts: bool = False


class DeletedAcls(Value, frozen=True):
    """The bindings that each filter deleted. A binding that several filters match is listed for each of them.

    `done`: this many filters are finished; the caller requests the others again. The first of those may have deleted a
    part of its matches. -1: all are finished.
    """

    matches: list[list[Acl]]
    done: int = -1


class SecurityCursor(Value, frozen=True):
    """The last entry of a page: a user, or after all users an ACL. If the version has changed, the listing starts again
    from the beginning."""

    version: Int64
    user: ScramName | None = None
    acl: Acl | None = None


class SecurityRequest(Value, frozen=True):
    """`known_version`: the version that the caller has; -1 for none. `takes_pages`: the caller requests the following
    pages with the `next` of the previous page as `after`. `takes_changes`: only changes since `known_version` are
    enough."""

    known_version: Int64 = -1
    takes_pages: bool = False
    after: SecurityCursor | None = None
    takes_changes: bool = False


class SecurityDeletions(Value, frozen=True):
    """What was deleted."""

    users: list[ScramName]
    acls: list[Acl]


class Security(Value, frozen=True):
    """A page of all users and ACLs, users first. Both are None if the caller's are current.

    `deleted`: these are the changes since the caller's version: new and changed users and ACLs, and what was deleted.
    """

    version: int
    users: list[ScramCredentials] | None
    acls: list[Acl] | None
    next: SecurityCursor | None = None
    deleted: SecurityDeletions | None = None


class DelegationToken(Value, frozen=True):
    """A delegation token, which lets its holder log in as its owner (KIP-48). Principals are written as in ACLs.

    `fingerprint`: the SHA-256 of the token's HMAC, in hex. The HMAC leads to the fingerprint, but the fingerprint is
    not enough to log in. Times are of the database's clock; `left_ms`: how much longer the token was valid when this
    was answered.
    """

    fingerprint: str
    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    issued_ms: Int64
    expires_ms: Int64
    max_ms: Int64
    left_ms: Int64


class CreateToken(Value, frozen=True):
    """`lifetime_ms`: how long from now the token can be renewed; `expiry_ms`: how long from now it is valid, unless
    it is renewed."""

    fingerprint: str
    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    lifetime_ms: Int64
    expiry_ms: Int64
    request_id: UUID | None = None


class AlterToken(Value, frozen=True):
    """Make the token expire `period_ms` from now, at the latest at the end of its lifetime; 0 or less ends it now.
    `principal`: the caller."""

    fingerprint: str
    principal: str
    period_ms: Int64
    request_id: UUID | None = None


class TokensRequest(Value, frozen=True):
    """`fingerprint`: request only this token. `principal`: only tokens of which it is the owner, the requester or a
    renewer. `after`: the `next` of the previous page."""

    fingerprint: str | None = None
    principal: str | None = None
    after: str | None = None


class Tokens(Value, frozen=True):
    """A page of the tokens that have not expired, ordered by fingerprint; `next` is None after the last page."""

    tokens: list[DelegationToken]
    next: str | None = None
