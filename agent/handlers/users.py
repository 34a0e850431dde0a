"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter

from agent.errors import EXPECTED, RequestRefused, code_of
from agent.security.users import NAMES
from agent.services import RequestContext, Services
from sequencer.api.security import AlterScram, ScramCredentials, ScramMechanism, ScramName
from sequencer.rules.access import (
    KEY_BYTES,
    MAX_CHANGES,
    MAX_ITERATIONS,
    MAX_SALT_BYTES,
    MIN_ITERATIONS,
    MIN_SALT_BYTES,
)
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tailrace.kafka.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from tailrace.limits import MAX_NAME_BYTES, is_name

USER_BYTES = 600
"""Estimated bytes of a user in an answer, as objects and encoded."""

Changes = tuple[list[ScramCredentialDeletion], list[ScramCredentialUpsertion]]


async def describe(
    services: Services, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Describe the mechanisms and iterations of the named users, or of all; never their keys."""
    try:
        await services.catalog.refresh()
    except EXPECTED as error:
        return DescribeUserScramCredentialsResponse(error_code=code_of(error), error_message=str(error))
    await context.reservation.needs(
        USER_BYTES * (len(services.catalog.security.users) + len(request.users or ()))
    )
    infos: dict[str, list[CredentialInfo]] = {}
    for name, credentials in sorted(services.catalog.security.users.items(), key=lambda item: item[0].user):
        infos.setdefault(name.user, []).append(CredentialInfo(name.mechanism, credentials.iterations))
    counts = Counter(user.name for user in request.users or [])
    response = DescribeUserScramCredentialsResponse()
    for user, mentions in (counts or dict.fromkeys(infos, 1)).items():
        result = DescribeUserScramCredentialsResult(user=user)
        response.results.append(result)
        if mentions > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = f"Cannot describe SCRAM credentials for the same user twice: {user}"
        elif user not in infos:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"Attempt to describe a user credential that does not exist: {user}"
        else:
            result.credential_infos = infos[user]
    return response


async def alter(
    services: Services, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Delete and set credentials. If one change of a user is refused, none of that user's changes is made."""
    changes = _by_user(request)
    if len(request.deletions) + len(request.upsertions) > MAX_CHANGES:
        refusal = f"more than {MAX_CHANGES} changes in one request"
        return _all(list(changes), ErrorCode.INVALID_REQUEST, refusal)
    results: dict[str, AlterUserScramCredentialsResult] = {}
    upserts: list[ScramCredentials] = []
    deletes: list[ScramName] = []
    for user, (deletions, upsertions) in changes.items():
        result = results[user] = AlterUserScramCredentialsResult(user=user)
        try:
            mechanisms = [row.mechanism for row in deletions] + [row.mechanism for row in upsertions]
            _check_user(user, mechanisms)
            removed = [ScramName(user, _mechanism(row.mechanism)) for row in deletions]
            stored = [_credentials(row) for row in upsertions]
        except RequestRefused as error:
            result.error_code, result.error_message = error.code, str(error)
            continue
        deletes += removed
        upserts += stored
    if not upserts and not deletes:
        return AlterUserScramCredentialsResponse(results=list(results.values()))
    try:
        altered = await services.sequencer.alter_scram(AlterScram(upserts, deletes))
    except EXPECTED as error:
        for result in results.values():
            if result.error_code == ErrorCode.NONE:
                result.error_code, result.error_message = code_of(error), str(error)
        return AlterUserScramCredentialsResponse(results=list(results.values()))
    for name in altered.missing:
        results[name.user].error_code = ErrorCode.RESOURCE_NOT_FOUND
        results[name.user].error_message = "Attempt to delete a user credential that does not exist"
    await services.catalog.refresh_if_possible()
    return AlterUserScramCredentialsResponse(results=list(results.values()))


def _by_user(request: AlterUserScramCredentialsRequest) -> dict[str, Changes]:
    """Return the changes of each user, in the order in which the request names the users."""
    changes: dict[str, Changes] = {}
    for deletion in request.deletions:
        changes.setdefault(deletion.name, ([], []))[0].append(deletion)
    for upsertion in request.upsertions:
        changes.setdefault(upsertion.name, ([], []))[1].append(upsertion)
    return changes


def _check_user(user: str, mechanisms: list[int]) -> None:
    """Check a user's name, and the mechanisms of its changes. Raises RequestRefused."""
    if len(set(mechanisms)) < len(mechanisms):
        raise RequestRefused(
            ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
        )
    if not is_name(user):
        raise RequestRefused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Username must have 1 to {MAX_NAME_BYTES} bytes"
        )


def _mechanism(number: int) -> ScramMechanism:
    try:
        return ScramMechanism(number)
    except ValueError:
        raise RequestRefused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism") from None


def _credentials(wanted: ScramCredentialUpsertion) -> ScramCredentials:
    """Return what is stored of a salted password: RFC 5802's StoredKey and ServerKey, which don't reveal it."""
    mechanism = _mechanism(wanted.mechanism)
    if not MIN_ITERATIONS <= wanted.iterations <= MAX_ITERATIONS:
        raise RequestRefused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"{wanted.iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed",
        )
    if not MIN_SALT_BYTES <= len(wanted.salt) <= MAX_SALT_BYTES:
        raise RequestRefused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"a salt has {MIN_SALT_BYTES} to {MAX_SALT_BYTES} bytes"
        )
    salted = bytes(wanted.salted_password)
    if len(salted) != KEY_BYTES[mechanism]:
        raise RequestRefused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"a salted password of {NAMES[mechanism]} has {KEY_BYTES[mechanism]} bytes",
        )
    digest = "sha256" if mechanism is ScramMechanism.SCRAM_SHA_256 else "sha512"
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", digest)
    return ScramCredentials(
        name=ScramName(wanted.name, mechanism),
        salt=bytes(wanted.salt),
        stored_key=stored_key,
        server_key=server_key,
        iterations=wanted.iterations,
    )


def _all(users: list[str], code: ErrorCode, message: str) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[AlterUserScramCredentialsResult(user, code, message) for user in users]
    )
