"""Users and access control lists: which are valid, and what changes them.

Agents keep all of them in memory and reload them when their version has changed, so both are few and short. Pure.
"""

from __future__ import annotations

from sequencer.api import (
    AlteredScram,
    AlterScram,
    CreateAcls,
    DeleteAcls,
    DeletedAcls,
    Empty,
    InvalidRequest,
    LimitReached,
    ScramCredentials,
    ScramMechanism,
    ScramName,
    Security,
    SecurityRequest,
)
from sequencer.settings import SequencerSettings
from sequencer.store.rows import AclRow, ScramRow, key_of
from sequencer.store.state import SECURITY_VERSION, Draft, HotState
from tailrace.acls import OPERATIONS, Acl, Operation, PatternType, Permission, ResourceType
from tailrace.limits import MAX_NAME_BYTES, is_name

MIN_ITERATIONS, MAX_ITERATIONS = 4_096, 16_384
"""Kafka's bounds. The maximum is what an unauthenticated client can make a server compute for one attempt."""
MIN_SALT_BYTES, MAX_SALT_BYTES = 12, 64
KEY_BYTES = {ScramMechanism.SCRAM_SHA_256: 32, ScramMechanism.SCRAM_SHA_512: 64}
MAX_CHANGES = 1_000
"""Limit of users or ACLs that one request changes."""


def security(state: HotState, request: SecurityRequest) -> Security:
    """All users and ACLs, unless the caller has them."""
    version = state.counter(SECURITY_VERSION)
    if request.known_version == version:
        return Security(version, None, None)
    users = [
        ScramCredentials(
            name=ScramName(row.user_name, ScramMechanism(row.mechanism)),
            salt=row.salt,
            stored_key=row.stored_key,
            server_key=row.server_key,
            iterations=row.iterations,
        )
        for row in state.all(ScramRow)
    ]
    return Security(version, users, [_acl(row) for row in state.all(AclRow)])


def alter_scram(draft: Draft, request: AlterScram, settings: SequencerSettings) -> AlteredScram:
    """Delete credentials, then store new ones. All are checked before any is stored."""
    _check_count(len(request.upserts) + len(request.deletes), "credentials")
    for credentials in request.upserts:
        _check_credentials(credentials)
    missing = []
    for name in dict.fromkeys(request.deletes):
        if draft.get(ScramRow, name.user, int(name.mechanism)) is None:
            missing.append(name)
        else:
            draft.delete(ScramRow, name.user, int(name.mechanism))
    for credentials in request.upserts:
        name = credentials.name
        draft.put(
            ScramRow(
                user_name=name.user,
                mechanism=int(name.mechanism),
                salt=credentials.salt,
                stored_key=credentials.stored_key,
                server_key=credentials.server_key,
                iterations=credentials.iterations,
            )
        )
    users = {row.user_name for row in draft.all(ScramRow)}
    if request.upserts and len(users) > settings.max_users:
        raise LimitReached(f"{len(users)} users; sequencer.max_users allows {settings.max_users}")
    draft.bump_once(SECURITY_VERSION)
    return AlteredScram(missing)


def _check_credentials(credentials: ScramCredentials) -> None:
    name = credentials.name
    if not is_name(name.user):
        raise InvalidRequest(f"user {name.user[:100]!r}: 1 to {MAX_NAME_BYTES} bytes are allowed")
    if not MIN_ITERATIONS <= credentials.iterations <= MAX_ITERATIONS:
        raise InvalidRequest(
            f"{credentials.iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed"
        )
    if not MIN_SALT_BYTES <= len(credentials.salt) <= MAX_SALT_BYTES:
        raise InvalidRequest(
            f"a salt of {len(credentials.salt)} bytes; {MIN_SALT_BYTES} to {MAX_SALT_BYTES} are allowed"
        )
    size = KEY_BYTES[name.mechanism]
    if len(credentials.stored_key) != size or len(credentials.server_key) != size:
        raise InvalidRequest(f"keys of {name.mechanism.name} have {size} bytes each")


def create_acls(draft: Draft, request: CreateAcls, settings: SequencerSettings) -> Empty:
    """Add bindings; all are checked before any is stored."""
    _check_count(len(request.acls), "ACLs")
    for acl in request.acls:
        check_acl(acl)
    has_changed = False
    for acl in request.acls:
        row = _row(acl, draft.now_ms)
        if draft.get(AclRow, *key_of(row)) is None:
            draft.put(row)
            has_changed = True
    if not has_changed:
        return Empty()
    count = sum(1 for _ in draft.all(AclRow))
    if count > settings.max_acls:
        raise LimitReached(f"{count} ACLs; sequencer.max_acls allows {settings.max_acls}")
    draft.bump_once(SECURITY_VERSION)
    return Empty()


def delete_acls(draft: Draft, request: DeleteAcls) -> DeletedAcls:
    """Delete what the filters match."""
    _check_count(len(request.filters), "filters")
    rows = list(draft.all(AclRow))
    matches: list[list[Acl]] = []
    deleted: dict[AclRow, None] = {}
    for each in request.filters:
        matched = [row for row in rows if each.matches(_acl(row))]
        matches.append([_acl(row) for row in matched])
        deleted.update(dict.fromkeys(matched))
    for row in deleted:
        draft.delete(AclRow, *key_of(row))
    if deleted:
        draft.bump_once(SECURITY_VERSION)
    return DeletedAcls(matches)


def check_acl(acl: Acl) -> None:
    """Raise InvalidRequest unless the binding is valid."""
    operations = OPERATIONS.get(acl.resource_type)
    if operations is None:
        raise InvalidRequest(f"resource type {acl.resource_type.name} is for filters only")
    if acl.operation is not Operation.ALL and acl.operation not in operations:
        raise InvalidRequest(f"{acl.resource_type.name} has no operation {acl.operation.name}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequest(f"pattern type {acl.pattern_type.name} is for filters only")
    if acl.permission not in (Permission.ALLOW, Permission.DENY):
        raise InvalidRequest(f"permission {acl.permission.name} is for filters only")
    names = (acl.resource_name, acl.principal, acl.host)
    if not all(names) or not is_name("".join(names)):
        raise InvalidRequest(
            f"resource, principal and host have {sum(len(name) for name in names)} characters; none may be empty, and"
            f" {MAX_NAME_BYTES} bytes are allowed together"
        )
    if ":" not in acl.principal:
        raise InvalidRequest(f"principal {acl.principal[:100]!r}: expected TYPE:NAME, such as User:alice")


def _check_count(count: int, what: str) -> None:
    if count > MAX_CHANGES:
        raise InvalidRequest(f"{count} {what} in one request; at most {MAX_CHANGES} are allowed")


def _acl(row: AclRow) -> Acl:
    return Acl(
        resource_type=ResourceType(row.resource_type),
        resource_name=row.resource_name,
        pattern_type=PatternType(row.pattern_type),
        principal=row.principal,
        host=row.host,
        operation=Operation(row.operation),
        permission=Permission(row.permission),
    )


def _row(acl: Acl, now_ms: int) -> AclRow:
    return AclRow(
        resource_type=int(acl.resource_type),
        resource_name=acl.resource_name,
        pattern_type=int(acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission=int(acl.permission),
        created_ms=now_ms,
    )
