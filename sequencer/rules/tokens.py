"""Delegation tokens: which are accepted, and when they expire. Pure.

Agents keep no tokens: each login with a token requests it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from sequencer.api.errors import InvalidRequest, LimitReached, NotTokenOwner, TokenExpired, UnknownToken
from sequencer.api.security import AlterToken, CreateToken, DelegationToken, Tokens, TokensRequest
from sequencer.bounds import MAX_PAGE, PageBudget, text_bytes
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import DelegationTokenRow
from sequencer.store.state import HotState, replace_row
from tailrace.limits import MAX_NAME_BYTES, is_name, later

FINGERPRINT_DIGITS = 64
MAX_RENEWERS = 100
MAX_RENEWERS_BYTES = 4_096
FORGOTTEN_AT_ONCE = 100
"""Number of expired tokens that are deleted to make room for a new one."""


def tokens(state: HotState, request: TokensRequest, now_ms: int) -> Tokens:
    """Return the token of a fingerprint, or a page of the tokens that concern a principal, or of all. Expired tokens
    are left out."""
    if request.fingerprint is not None:
        row = state.get(DelegationTokenRow, request.fingerprint)
        return Tokens([] if row is None or row.expires_ms <= now_ms else [_token(row, now_ms)])
    budget, page = PageBudget(), list[DelegationToken]()
    rows = state.tokens_after(request.principal, request.after)
    for count, row in enumerate(rows, 1):
        if row.expires_ms > now_ms:
            if not budget.takes(_bytes_of(row)):
                return Tokens(page, page[-1].fingerprint)
            page.append(_token(row, now_ms))
        if count == MAX_PAGE:
            return Tokens(page, row.fingerprint)
    return Tokens(page)


def create_token(draft: Draft, request: CreateToken, settings: SequencerSettings) -> DelegationToken:
    """Store a token. Raises InvalidRequest, LimitReached."""
    _check(request)
    if draft.get(DelegationTokenRow, request.fingerprint) is not None:
        raise InvalidRequest("there is a token of this fingerprint already")
    _check_limits(draft, request.owner, settings)
    max_ms = later(draft.now_ms, request.lifetime_ms)
    row = DelegationTokenRow(
        fingerprint=request.fingerprint,
        token_id=request.token_id,
        owner=request.owner,
        requester=request.requester,
        renewers=list(dict.fromkeys(request.renewers)),
        issued_ms=draft.now_ms,
        expires_ms=min(max_ms, later(draft.now_ms, request.expiry_ms)),
        max_ms=max_ms,
    )
    draft.put(row)
    return _token(row, draft.now_ms)


def _check(request: CreateToken) -> None:
    if len(request.fingerprint) != FINGERPRINT_DIGITS:
        raise InvalidRequest(f"a fingerprint has {FINGERPRINT_DIGITS} digits")
    if not all(map(is_name, (request.token_id, request.owner, request.requester, *request.renewers))):
        raise InvalidRequest(f"the token's id and its principals have 1 to {MAX_NAME_BYTES} bytes each")
    size = sum(len(renewer.encode()) for renewer in request.renewers)
    if len(request.renewers) > MAX_RENEWERS or size > MAX_RENEWERS_BYTES:
        raise InvalidRequest(
            f"{len(request.renewers)} renewers of {size} bytes; at most {MAX_RENEWERS}, of {MAX_RENEWERS_BYTES} bytes"
            " together, are allowed"
        )
    if request.lifetime_ms <= 0 or request.expiry_ms <= 0:
        raise InvalidRequest("the token's lifetime and expiry must be above 0")


def _check_limits(draft: Draft, owner: str, settings: SequencerSettings) -> None:
    count = draft.count(DelegationTokenRow)
    if count >= settings.max_delegation_tokens and not _forget_expired(draft, draft.all(DelegationTokenRow)):
        raise LimitReached(f"{count} delegation tokens; that is sequencer.max_delegation_tokens")
    owned = draft.tokens_of(owner)
    if len(owned) >= settings.max_delegation_tokens_per_owner and not _forget_expired(draft, owned):
        raise LimitReached(
            f"{owner} has {len(owned)} delegation tokens; that is sequencer.max_delegation_tokens_per_owner"
        )


def _forget_expired(draft: Draft, rows: Iterable[DelegationTokenRow]) -> bool:
    """Delete some of these tokens that have expired. Return whether there were any."""
    expired = [*islice((row for row in rows if row.expires_ms <= draft.now_ms), FORGOTTEN_AT_ONCE)]
    for row in expired:
        draft.delete(DelegationTokenRow, row.fingerprint)
    return bool(expired)


def alter_token(draft: Draft, request: AlterToken) -> DelegationToken:
    """Renew a token, or make it expire. Raises UnknownToken, TokenExpired, NotTokenOwner."""
    row = draft.get(DelegationTokenRow, request.fingerprint)
    if row is None:
        raise UnknownToken("there is no delegation token of this HMAC")
    if row.expires_ms <= draft.now_ms:
        raise TokenExpired("the delegation token has expired")
    if request.principal not in (row.owner, *row.renewers):
        raise NotTokenOwner(f"{request.principal} is neither the owner nor a renewer of the delegation token")
    if request.period_ms <= 0:
        draft.delete(DelegationTokenRow, row.fingerprint)
        return _token(replace_row(row, expires_ms=draft.now_ms), draft.now_ms)
    row = replace_row(row, expires_ms=min(row.max_ms, later(draft.now_ms, request.period_ms)))
    draft.put(row)
    return _token(row, draft.now_ms)


def _token(row: DelegationTokenRow, now_ms: int) -> DelegationToken:
    return DelegationToken(
        fingerprint=row.fingerprint,
        token_id=row.token_id,
        owner=row.owner,
        requester=row.requester,
        renewers=row.renewers,
        issued_ms=row.issued_ms,
        expires_ms=row.expires_ms,
        max_ms=row.max_ms,
        left_ms=row.expires_ms - now_ms,
    )


def _bytes_of(row: DelegationTokenRow) -> int:
    """Return an upper bound of the encoded size."""
    texts = (row.fingerprint, row.token_id, row.owner, row.requester)
    return 64 + text_bytes(*texts, *row.renewers)
