"""Writes changes of users, ACLs, quotas and delegation tokens to the audit log: who changed what, and the result.

The text of a line is a pure function of a request and its response. It never contains secrets (salts, keys, HMACs). A
token is named by the first characters of its fingerprint, a hash of its HMAC, which can't be used to log in.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agent.security.audit_log import changed
from agent.security.delegation_tokens import fingerprint_of
from agent.security.users import NAMES
from agent.services import Handler, RequestContext, Services
from sequencer.api.security import ScramMechanism
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from tailrace.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from tailrace.kafka.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from tailrace.kafka.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tailrace.kafka.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from tailrace.kafka.messages.expire_delegation_token import ExpireDelegationTokenRequest
from tailrace.kafka.messages.renew_delegation_token import RenewDelegationTokenRequest
from tailrace.security.acls import Operation, PatternType, Permission, ResourceType
from tailrace.turns import Turns

FINGERPRINT_CHARACTERS = 16
MAX_CHARACTERS = 1_000
"""The most characters of one change: clients may use long names."""

LINES_IN_A_TURN = 100

Change = tuple[str, int]
"""What was requested, in words, and the error code of its result."""


def audited(handle: Handler, changes: Callable[[Any, Any], Iterable[Change]]) -> Handler:
    """Wrap the handler to write a line to the audit log for each change, even if it raises: the client may be gone."""

    async def noted(services: Services, context: RequestContext, request: Any) -> Any:
        api = APIS[request.api.key].name
        try:
            response = await handle(services, context, request)
        except BaseException as error:
            _note(services, context, api, change="unknown: there was no answer", result=type(error).__name__)
            raise
        left, turns = iter(changes(request, response)), Turns(LINES_IN_A_TURN)
        try:
            for change, code in left:
                _note(services, context, api, change=change, result=_named(ErrorCode, code))
                await turns.did()
        except BaseException:  # the client is gone, but its changes were made
            for change, code in left:
                _note(services, context, api, change=change, result=_named(ErrorCode, code))
            raise
        return response

    return noted


def _note(services: Services, context: RequestContext, api: str, *, change: str, result: str) -> None:
    """Write a line. On an agent without logins, where everyone may change everything, failed changes have none."""
    fields = {
        "peer": context.client_host,
        "principal": context.access.principal,
        "broker_id": services.identity.broker_id,
        "api": api,
        "change": change[:MAX_CHARACTERS],
        "result": result,
    }
    if result == ErrorCode.NONE.name:
        changed(**fields)
    elif context.access.audit is not None:
        context.access.audit.not_changed(**fields)


def scram_changes(
    request: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse
) -> Iterator[Change]:
    """Return the users whose credentials were set or deleted."""
    codes = {result.user: result.error_code for result in response.results}
    for deleted in request.deletions:
        yield f"delete {_mechanism(deleted.mechanism)} of user {deleted.name}", codes.get(deleted.name, 0)
    for stored in request.upsertions:
        text = f"set {_mechanism(stored.mechanism)} of user {stored.name}, {stored.iterations} iterations"
        yield text, codes.get(stored.name, 0)


def created_acls(request: CreateAclsRequest, response: CreateAclsResponse) -> Iterator[Change]:
    """Return the ACLs that the request adds."""
    for acl, result in zip(request.creations, response.results, strict=True):
        pattern = (acl.resource_type, acl.resource_pattern_type, acl.resource_name)
        yield f"add {_acl(*pattern, acl)}", result.error_code


def deleted_acls(request: DeleteAclsRequest, response: DeleteAclsResponse) -> Iterator[Change]:
    """Return the ACLs that were removed, and the filters that were refused."""
    for asked, result in zip(request.filters, response.filter_results, strict=True):
        for acl in result.matching_acls:
            yield (
                f"remove {_acl(acl.resource_type, acl.pattern_type, acl.resource_name, acl)}",
                acl.error_code,
            )
        if result.error_code:
            pattern = (asked.resource_type_filter, asked.pattern_type_filter, asked.resource_name_filter)
            yield f"remove ACLs on {_pattern(*pattern)}", result.error_code


def quota_changes(request: AlterClientQuotasRequest, response: AlterClientQuotasResponse) -> Iterator[Change]:
    """Return the quotas that were set or removed; nothing for a request that only validates."""
    if request.validate_only:
        return
    for entry, result in zip(request.entries, response.entries, strict=True):
        parts = (f"{part.entity_type} {part.entity_name or '<default>'}" for part in entry.entity)
        entity = ", ".join(parts)
        for change in entry.ops:
            text = f"remove {change.key}" if change.remove else f"set {change.key}={change.value:g}"
            yield f"{text} of {entity}", result.error_code


def created_token(
    request: CreateDelegationTokenRequest, response: CreateDelegationTokenResponse
) -> Iterator[Change]:
    """Return the new token; if it was refused, its owner and renewers."""
    renewers = ", ".join(f"{each.principal_type}:{each.principal_name}" for each in request.renewers)
    if response.error_code:
        owner = f"User:{request.owner_principal_name}" if request.owner_principal_name else "the client"
        yield f"create a token of {owner}, renewers: {renewers or 'none'}", response.error_code
        return
    owner = f"{response.principal_type}:{response.principal_name}"
    token = f"token {response.token_id} ({_fingerprint(response.hmac)}) of {owner}"
    yield f"create {token}, renewers: {renewers or 'none'}", 0


def altered_token(
    request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest, response: Any
) -> Iterator[Change]:
    """Return the token whose expiry was changed."""
    verb = "renew" if isinstance(request, RenewDelegationTokenRequest) else "expire"
    until = "" if response.error_code else f", it expires at {response.expiry_timestamp_ms} ms"
    yield f"{verb} the token with fingerprint {_fingerprint(request.hmac)}{until}", response.error_code


def _acl(resource_type: int, pattern_type: int, name: str, acl: Any) -> str:
    """`acl`: a message with a principal, a host, an operation and a permission."""
    permission, operation = _named(Permission, acl.permission_type), _named(Operation, acl.operation)
    pattern = _pattern(resource_type, pattern_type, name)
    return f"{permission} {operation} on {pattern} for {acl.principal} from {acl.host}"


def _pattern(resource_type: int, pattern_type: int, name: str | None) -> str:
    return f"{_named(ResourceType, resource_type)} {_named(PatternType, pattern_type)} {name or '(any)'}"


def _mechanism(number: int) -> str:
    known = list(ScramMechanism)
    return NAMES[ScramMechanism(number)] if number in known else f"mechanism {number}"


def _named(kind: type[enum.IntEnum], number: int) -> str:
    try:
        return kind(number).name
    except ValueError:
        return str(number)


def _fingerprint(token_hmac: Any) -> str:
    return fingerprint_of(bytes(token_hmac))[:FINGERPRINT_CHARACTERS]
