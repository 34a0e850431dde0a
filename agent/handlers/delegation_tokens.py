"""Create-, Renew-, Expire- and DescribeDelegationToken (KIP-48).

Without `security.delegation_token_secret_file` the answers are those of a Kafka without `delegation.token.secret.key`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from agent.answer_memory import PAGE_BYTES, restartable
from agent.errors import EXPECTED, RequestRefused, code_of
from agent.security.access import Access
from agent.security.delegation_tokens import (
    USER_TYPE,
    fingerprint_of,
    hmac_of,
    may_use_tokens,
    token_id_of,
    user_of,
)
from agent.services import Handler, RequestContext, Services
from sequencer.api.errors import NotTokenOwner
from sequencer.api.security import AlterToken, CreateToken, DelegationToken, TokensRequest
from sequencer.pages import pages
from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tailrace.kafka.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tailrace.kafka.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tailrace.kafka.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from tailrace.security.acls import Operation, ResourceType
from tailrace.turns import Turns

TOKEN_BYTES, RENEWER_BYTES = 1_500, 400
"""Estimated bytes of a token and of a renewer in an answer, as objects and encoded."""
TOKENS_IN_A_TURN = 200
NO_TIMES: Mapping[ApiKey, Mapping[str, int]] = {
    ApiKey.CREATE_DELEGATION_TOKEN: {
        "issue_timestamp_ms": -1,
        "expiry_timestamp_ms": -1,
        "max_timestamp_ms": -1,
    },
    ApiKey.RENEW_DELEGATION_TOKEN: {"expiry_timestamp_ms": -1},
    ApiKey.EXPIRE_DELEGATION_TOKEN: {"expiry_timestamp_ms": -1},
}
"""The times in a refusal."""


def _allowed(handle: Callable[[Services, RequestContext, Any], Awaitable[Any]]) -> Handler:
    """Wrap the handler to check that the client may use tokens, and to answer refusals with error codes."""

    async def checked(services: Services, context: RequestContext, request: Any) -> Any:
        api = APIS[request.api.key]
        try:
            if not may_use_tokens(context.access):
                _note(context.access, api.name, Operation.ALTER, context.access.principal)
                raise RequestRefused(
                    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "no login, or one by a delegation token"
                )
            if not services.clients.token_secret:
                raise RequestRefused(
                    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
                    "delegation tokens are disabled: security.delegation_token_secret_file is not set",
                )
            return await handle(services, context, request)
        except (RequestRefused, *EXPECTED) as error:
            return api.response(error_code=code_of(error), **NO_TIMES.get(api.key, {}))

    return checked


def _note(access: Access, api: str, operation: Operation, principal: str) -> None:
    access.note_refused(api, operation, ResourceType.USER, principal)


@_allowed
async def create(
    services: Services, context: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """Create a token. Its HMAC is sent to the owner and to clients that may describe the token."""
    access, settings = context.access, services.clients.settings
    owner = _owner(access, request)
    renewers = [f"{renewer.principal_type}:{renewer.principal_name}" for renewer in request.renewers]
    if any(renewer.principal_type != USER_TYPE for renewer in request.renewers):
        raise RequestRefused(ErrorCode.INVALID_PRINCIPAL_TYPE, "renewers must be users")
    longest_ms = settings.delegation_token_max_lifetime_ms
    token_id = token_id_of(services.entropy.uuid())
    token_hmac = hmac_of(services.clients.token_secret, token_id)
    token = await services.sequencer.create_token(
        CreateToken(
            fingerprint=fingerprint_of(token_hmac),
            token_id=token_id,
            owner=owner,
            requester=access.principal,
            renewers=renewers,
            lifetime_ms=min(request.max_lifetime_ms, longest_ms)
            if request.max_lifetime_ms > 0
            else longest_ms,
            expiry_ms=settings.delegation_token_expiry_ms,
            request_id=services.entropy.uuid(),
        )
    )
    return CreateDelegationTokenResponse(
        principal_type=USER_TYPE,
        principal_name=user_of(owner),
        token_requester_principal_type=USER_TYPE,
        token_requester_principal_name=user_of(access.principal),
        issue_timestamp_ms=token.issued_ms,
        expiry_timestamp_ms=token.expires_ms,
        max_timestamp_ms=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac,
    )


def _owner(access: Access, request: CreateDelegationTokenRequest) -> str:
    """Return the token's owner: the client, or a user for whom it may create tokens. Raises RequestRefused."""
    if not request.owner_principal_name:
        return access.principal
    if request.owner_principal_type != USER_TYPE:
        raise RequestRefused(ErrorCode.INVALID_PRINCIPAL_TYPE, "the owner must be a user")
    owner = f"{USER_TYPE}:{request.owner_principal_name}"
    if owner != access.principal and not access.may(
        Operation.CREATE_TOKENS, ResourceType.USER, _resource(access, owner)
    ):
        _note(access, "CreateDelegationToken", Operation.CREATE_TOKENS, owner)
        raise RequestRefused(
            ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, f"no tokens may be created for {owner}"
        )
    return owner


def _resource(access: Access, principal: str) -> str:
    """Return the resource name of a user in the ACLs of the client's tenant."""
    tenant = access.tenant
    return principal if tenant is None else tenant.stored(f"{USER_TYPE}:{tenant.local(user_of(principal))}")


@_allowed
async def renew(
    services: Services, context: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    """Extend the token's expiry."""
    period_ms = longest_ms = services.clients.settings.delegation_token_expiry_ms
    if request.renew_period_ms > 0:
        period_ms = min(request.renew_period_ms, longest_ms)
    token = await _alter(services, context, request, period_ms)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=token.expires_ms)


@_allowed
async def expire(
    services: Services, context: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    """Set the token's expiry; a negative period ends it now."""
    token = await _alter(services, context, request, request.expiry_time_period_ms)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=token.expires_ms)


async def _alter(
    services: Services,
    context: RequestContext,
    request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest,
    period_ms: int,
) -> DelegationToken:
    principal = context.access.principal
    fingerprint = fingerprint_of(bytes(request.hmac))
    change = AlterToken(fingerprint, principal, period_ms, request_id=services.entropy.uuid())
    try:
        return await services.sequencer.alter_token(change)
    except NotTokenOwner:
        _note(context.access, APIS[request.api.key].name, Operation.ALTER, principal)
        raise


@_allowed
@restartable
async def describe(
    services: Services, context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """Describe the tokens that the client may see, of all owners or of the named ones. As in Kafka, an empty list of
    owners returns none. A token made with another secret is left out: nobody can use it."""
    secret = services.clients.token_secret
    owners = None
    if request.owners is not None:
        owners = {f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners}
    response = DescribeDelegationTokenResponse()
    async for token in _seen(services, context, owners):
        token_hmac = hmac_of(secret, token.token_id)
        if fingerprint_of(token_hmac) == token.fingerprint:
            response.tokens.append(_described(token, token_hmac))
    return response


async def _seen(
    services: Services, context: RequestContext, owners: set[str] | None
) -> AsyncIterator[DelegationToken]:
    """Yield the tokens that the client may see, each once the answer has room for it. `owners`: one of them must own
    the token, have requested it, or be a renewer."""
    access = context.access
    sees_others = access.may_with_some(
        Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN
    ) or access.may_with_some(Operation.DESCRIBE_TOKENS, ResourceType.USER)
    principal = None if sees_others else access.principal
    if sees_others and owners is not None and len(owners) == 1:
        (principal,) = owners
    asked = TokensRequest(principal=principal)
    await context.reservation.needs(PAGE_BYTES)
    turns = Turns(TOKENS_IN_A_TURN)
    async for page in pages(services.sequencer.tokens, asked):
        async for token in turns.over(page.tokens):
            concerned = {token.owner, token.requester, *token.renewers}
            if owners is not None and owners.isdisjoint(concerned):
                continue
            if access.principal in concerned or _may_describe(access, token):
                context.reservation.grow(TOKEN_BYTES + RENEWER_BYTES * len(token.renewers))
                yield token


def _may_describe(access: Access, token: DelegationToken) -> bool:
    tenant = access.tenant
    if tenant is not None and not tenant.owns(user_of(token.owner)):
        return False
    token_id = token.token_id if tenant is None else tenant.stored(token.token_id)
    return access.may(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token_id) or access.may(
        Operation.DESCRIBE_TOKENS, ResourceType.USER, _resource(access, token.owner)
    )


def _described(token: DelegationToken, token_hmac: bytes) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        principal_type=USER_TYPE,
        principal_name=user_of(token.owner),
        token_requester_principal_type=USER_TYPE,
        token_requester_principal_name=user_of(token.requester),
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac,
        renewers=[DescribedDelegationTokenRenewer(USER_TYPE, user_of(renewer)) for renewer in token.renewers],
    )
