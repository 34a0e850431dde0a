"""Users and access control lists: which are valid, and how they change.

Agents keep all of them in memory, so there are few and they are short.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sequencer.api.errors import InvalidRequest, LimitReached
from sequencer.api.security import (
    AlteredScram,
    AlterScram,
    CreateAcls,
    DeleteAcls,
    DeletedAcls,
    ScramCredentials,
    ScramMechanism,
    ScramName,
    Security,
    SecurityCursor,
    SecurityRequest,
)
from sequencer.api.values import Empty
from sequencer.bounds import MAX_PAGE, PageBudget, text_bytes
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import AclRow, ScramRow, key_of
from sequencer.store.state import SECURITY_VERSION, HotState
from tailrace.limits import MAX_NAME_BYTES, is_name
from tailrace.security.acls import OPERATIONS, Acl, AclFilter, Operation, PatternType, Permission
from tailrace.turns import Steps

MIN_ITERATIONS, MAX_ITERATIONS = 4_096, 16_384
"""Kafka's bounds. The maximum limits what an unauthenticated client can make a server compute per attempt."""
MIN_SALT_BYTES, MAX_SALT_BYTES = 12, 64
KEY_BYTES = {ScramMechanism.SCRAM_SHA_256: 32, ScramMechanism.SCRAM_SHA_512: 64}
MAX_CHANGES = 1_000
"""Limit of users or ACLs that one request changes."""
SCRAM_BYTES = 64 + MAX_SALT_BYTES + 2 * 64
"""An upper bound of encoded credentials, without the name."""
MAX_COMPARED = 100_000
"""Limit of comparisons of ACLs with filters in one decision. After it, no further filter is taken; the first filter is
always completed."""
READ_AS_A_STEP, COMPARED_AS_A_STEP = 10, 40
"""The number of ACLs that are read from their rows, and that are compared with a filter, in the time of one run of a
commit."""


def security(state: HotState, request: SecurityRequest) -> Security:
    """Return all users and ACLs, or a page of them; nothing if the caller has this version."""
    version, after = state.counter(SECURITY_VERSION), request.after
    if after is None and request.known_version == version:
        return Security(version, None, None)
    if not request.takes_pages:
        return Security(
            version,
            [credentials_of(row) for row in state.all(ScramRow)],
            [_acl(row) for row in state.all(AclRow)],
        )
    if after is not None and after.version != version:
        after = None
    budget, users, acls = PageBudget(), list[ScramCredentials](), list[Acl]()
    cursor = after or SecurityCursor(version)
    if cursor.acl is None:
        name = cursor.user
        for user in state.rows_after(
            ScramRow, None if name is None else (name.user, int(name.mechanism)), MAX_PAGE + 1
        ):
            if not budget.takes(SCRAM_BYTES + text_bytes(user.user_name)):
                return Security(version, users, acls, cursor)
            users.append(credentials_of(user))
            cursor = SecurityCursor(version, user=users[-1].name)
    for row in state.rows_after(
        AclRow, None if cursor.acl is None else key_of(_row(cursor.acl, 0)), MAX_PAGE + 1
    ):
        acl = _acl(row)
        if not budget.takes(_bytes_of(acl)):
            return Security(version, users, acls, cursor)
        acls.append(acl)
        cursor = SecurityCursor(version, acl=acl)
    return Security(version, users, acls)


def credentials_of(row: ScramRow) -> ScramCredentials:
    """Return the row in the form that agents get."""
    return ScramCredentials(
        name=ScramName(row.user_name, ScramMechanism(row.mechanism)),
        salt=row.salt,
        stored_key=row.stored_key,
        server_key=row.server_key,
        iterations=row.iterations,
    )


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
    _check_users(draft, request, settings)
    draft.bump_once(SECURITY_VERSION)
    return AlteredScram(missing)


def _check_users(draft: Draft, request: AlterScram, settings: SequencerSettings) -> None:
    """Raise LimitReached for too many users. Users are counted only if there are more credentials than that."""
    if not request.upserts or draft.count(ScramRow) <= settings.max_users:
        return
    users = {row.user_name for row in draft.all(ScramRow)}
    if len(users) > settings.max_users:
        raise LimitReached(f"{len(users)} users; sequencer.max_users allows {settings.max_users}")


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
    """Add bindings. All are checked before any is stored."""
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
    count = draft.count(AclRow)
    if count > settings.max_acls:
        raise LimitReached(f"{count} ACLs; sequencer.max_acls allows {settings.max_acls}")
    draft.bump_once(SECURITY_VERSION)
    return Empty()


def delete_acls(draft: Draft, request: DeleteAcls) -> Steps[DeletedAcls]:
    """Delete the bindings that the filters match, filter by filter, until the answer is full or the limit of
    comparisons is reached.

    A filter that can match only one binding is looked up; any other filter is compared with all. Raises LimitReached,
    without deleting anything, if filters remain and the caller does not repeat the request for them.
    """
    _check_count(len(request.filters), "filters")
    wide = any(wanted.only is None for wanted in request.filters)
    known = (yield from _known_acls(draft)) if wide else []
    matches: list[list[Acl]] = []
    budget, compared, done = PageBudget(), 0, 0
    for wanted in request.filters:
        compared += len(known) if wanted.only is None else 1
        if done > 0 and compared > MAX_COMPARED:
            break
        found = yield from _matching(draft, wanted, known)
        fitting = [acl for acl in found if budget.takes(_bytes_of(acl))]
        matches.append(fitting)
        if len(fitting) < len(found):
            break
        done += 1
    if done < len(request.filters) and not request.takes_parts:
        raise LimitReached("the filters match too many ACLs for one answer; ask with fewer or narrower ones")
    deleted = dict.fromkeys(acl for acls in matches for acl in acls)
    for acl in deleted:
        draft.delete(AclRow, *key_of(_row(acl, draft.now_ms)))
    if deleted:
        draft.bump_once(SECURITY_VERSION)
    return DeletedAcls(matches, done)


def _known_acls(draft: Draft) -> Steps[list[Acl]]:
    known: list[Acl] = []
    for row in draft.all(AclRow):
        known.append(_acl(row))
        if len(known) % READ_AS_A_STEP == 0:
            yield 1
    return known


def _matching(draft: Draft, wanted: AclFilter, known: Sequence[Acl]) -> Steps[list[Acl]]:
    """Return the bindings that a filter matches; `known` has all bindings, unless every filter can match only one."""
    only = wanted.only
    if only is not None:
        yield 1
        return [] if draft.get(AclRow, *key_of(_row(only, draft.now_ms))) is None else [only]
    matching: list[Acl] = []
    for first in range(0, len(known), COMPARED_AS_A_STEP):
        matching += filter(wanted.matches, known[first : first + COMPARED_AS_A_STEP])
        yield 1
    return matching


def _bytes_of(acl: Acl) -> int:
    """Return an upper bound of the encoded size."""
    return 16 + text_bytes(acl.resource_name, acl.principal, acl.host)


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
    return msgspec.convert(row, Acl, from_attributes=True)


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
