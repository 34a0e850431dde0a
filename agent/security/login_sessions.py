"""Logs clients in: what a listener does with a connection's first requests.

    PLAINTEXT, SSL  first request: set the principal (anonymous, or the certificate's name), then serve it
    SASL_*          ApiVersions? -> SaslHandshake -> SaslAuthenticate ... -> everything; later, a new login

After SaslHandshake version 0 each token comes bare, after its size, and a failed login closes the connection.

Before the login nothing else is served. Any other request closes the connection, and so does a request above
`max_login_bytes` or more than MAX_LOGIN_REQUESTS. A session is its connection's dispatcher, so connections that need no
session don't pay for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from agent.connection import Dispatch, KafkaConnection
from agent.replies import FastPath, Reply
from agent.security.access import ANONYMOUS_USER, ANYBODY, Access
from agent.security.admission import Admission
from agent.security.audit_log import AuditLog
from agent.security.connection_limits import ConnectionLimits, PendingLogins
from agent.security.listeners import Listener, PrincipalRule, map_principal
from agent.security.sasl import Exchange, Login, LoginFailed
from agent.security.settings import SecuritySettings
from agent.security.tenant_placement import NoTenant
from sequencer.api.errors import SequencerError
from tailrace.clock import Clock
from tailrace.kafka import (
    ApiKey,
    MalformedRequest,
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    encode_response,
    parse_request_header,
)
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.sasl_authenticate import SaslAuthenticateResponse
from tailrace.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

log = structlog.get_logger("agent.security")

MAX_LOGIN_REQUESTS = 12
"""The most requests before the login is complete: more than any client needs."""
FIRST_WITH_REQUESTS = 1
"""From this SaslHandshake version on, tokens come in SaslAuthenticate requests (KIP-152)."""
FIRST_WITH_LIFETIME = 1
"""From this SaslAuthenticate version on, the response says when the client must log in again (KIP-368)."""


class DistinguishedName(Protocol):
    """Returns the subject of a certificate (DER) in RFC 2253's form."""

    def __call__(self, certificate: bytes) -> str: ...


@dataclass(slots=True)
class ListenerContext:
    """What all connections of one listener share.

    `waiting`: connections that have not logged in.
    """

    listener: Listener
    dispatch: Dispatch
    dispatch_of_tenants: Dispatch
    admission: Admission
    mechanisms: Mapping[str, Callable[[], Exchange]]
    settings: SecuritySettings
    max_request_bytes: int
    clock: Clock
    audit: AuditLog
    limits: ConnectionLimits
    rules: tuple[PrincipalRule, ...] = ()
    distinguished_name: DistinguishedName | None = None
    waiting: PendingLogins[KafkaConnection] = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = PendingLogins(
            most=self.settings.max_connections_without_login,
            most_of_address=self.settings.max_connections_without_login_per_address,
        )

    def session(self) -> Dispatch:
        """Return the dispatcher of a new connection."""
        if self.listener.protocol.has_sasl:
            return SaslSession(self)
        return FirstRequest(self)

    def opened(self, connection: KafkaConnection) -> str | None:
        """Count a new connection, which must log in in time. Return the reason to close it, or None."""
        reason = self.limits.opened(connection.peer_host)
        if reason is None and self.listener.protocol.has_sasl:
            connection.allow_frames(self.settings.max_login_bytes)
            until = self.clock.monotonic() + self.settings.authentication_timeout_ms / 1000
            reason = self.waiting.enter(connection, connection.peer_host, until=until)
        return reason

    def closed(self, connection: KafkaConnection) -> None:
        """Uncount a connection that has ended."""
        self.waiting.leave(connection)
        has_login = self.listener.protocol.has_sasl and connection.access is not ANYBODY
        self.limits.closed(connection.peer_host, connection.access.principal if has_login else None)

    def close_late(self) -> list[KafkaConnection]:
        """Close the connections that have not logged in in time, and return them."""
        late = self.waiting.leave_late(self.clock.monotonic())
        for connection in late:
            connection.abort()
        return late

    def access(self, connection: KafkaConnection, user: str, **proof: bool) -> Access:
        """See `Admission.access`."""
        return self.admission.access(user, listener=self.listener.name, host=connection.peer_host, **proof)

    def dispatch_for(self, access: Access) -> Dispatch:
        """Return the dispatcher that serves this client."""
        return self.dispatch if access.tenant is None else self.dispatch_of_tenants


class FirstRequest:
    """The dispatcher of a connection without SASL for its first request. Then the listener's dispatcher serves it."""

    def __init__(self, context: ListenerContext) -> None:
        self._context = context

    async def __call__(self, frame: memoryview, connection: KafkaConnection) -> Reply:
        context = self._context
        user = ANONYMOUS_USER
        certificate = connection.peer_certificate()
        if certificate is not None and context.distinguished_name is not None:
            try:
                distinguished_name = context.distinguished_name(certificate)
            except ValueError as error:  # such as a name with the wrong encoding
                context.audit.login_failed(connection.peer_host, context.listener.name, "SSL", str(error))
                return Reply(close=True)
            mapped = map_principal(distinguished_name, context.rules)
            if not mapped:
                reason = f"no principal mapping rule fits {distinguished_name!r}"
                context.audit.login_failed(connection.peer_host, context.listener.name, "SSL", reason)
                return Reply(close=True)
            user = mapped
        try:
            access = connection.access = context.access(connection, user)
        except NoTenant as error:
            context.audit.login_failed(connection.peer_host, context.listener.name, "SSL", str(error))
            return Reply(close=True)
        if user is not ANONYMOUS_USER:
            context.audit.logged_in(connection.peer_host, context.listener.name, "SSL", access.principal)
        dispatch = context.dispatch_for(access)
        connection.serve_by(dispatch)
        return await dispatch(frame, connection)

    def at_once(self, frame: memoryview, connection: KafkaConnection) -> Reply | None:
        """Return None: the principal must be set first."""
        return None

    def fast_path(self, connection: KafkaConnection) -> FastPath | None:
        """Return None, for the same reason."""
        return None


class SaslSession:
    """The dispatcher of a SASL connection."""

    def __init__(self, context: ListenerContext) -> None:
        self._context = context
        self._dispatch = context.dispatch
        self._requests = 0
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._logged_in_by = ""
        self._has_failed = False
        self._takes_bare_tokens = False
        self._expires: float | None = None

    async def __call__(self, frame: memoryview, connection: KafkaConnection) -> Reply:
        if self._takes_bare_tokens and self._exchange is not None:
            return await self._bare_token(bytes(frame), connection)
        key = int.from_bytes(frame[:2], "big")
        if key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            return await self._login_request(frame, connection)
        if self._logged_in_by:
            if self._is_valid():
                return await self._dispatch(frame, connection)
            return self._refused(connection, "the session has expired, and the client did not log in again")
        self._requests += 1
        if key != ApiKey.API_VERSIONS or self._mechanism or self._requests > MAX_LOGIN_REQUESTS:
            return self._refused(connection, f"API {key} was requested before the login")
        return await self._dispatch(frame, connection)

    def at_once(self, frame: memoryview, connection: KafkaConnection) -> Reply | None:
        """As the listener's dispatcher, once the client has logged in."""
        if self._logged_in_by and self._is_valid():
            return self._dispatch.at_once(frame, connection)
        return None

    def fast_path(self, connection: KafkaConnection) -> FastPath | None:
        """As the listener's dispatcher, once the client has logged in."""
        if self._logged_in_by and self._is_valid():
            return self._dispatch.fast_path(connection)
        return None

    def _is_valid(self) -> bool:
        return self._expires is None or self._context.clock.monotonic() < self._expires

    def _refused(self, connection: KafkaConnection, reason: str) -> Reply:
        context = self._context
        context.audit.login_failed(
            connection.peer_host, context.listener.name, self._mechanism or "SASL", reason
        )
        return Reply(close=True)

    async def _login_request(self, frame: memoryview, connection: KafkaConnection) -> Reply:
        self._requests += 1
        if self._requests > MAX_LOGIN_REQUESTS:
            return self._refused(connection, "too many requests for a login")
        try:
            header = parse_request_header(frame)
            request = decode_request(header.api_key, header.api_version, frame, header.body_offset)
        except (MalformedRequest, UnsupportedVersion) as error:
            return self._refused(connection, str(error))
        if isinstance(request, SaslHandshakeRequest):
            return self._handshake(header, request)
        response = await self._authenticate(bytes(request.auth_bytes), connection)
        if response is None:
            return Reply(close=True)
        if header.api_version < FIRST_WITH_LIFETIME:
            response.session_lifetime_ms = 0
        return _reply(header, response, close=response.error_code != ErrorCode.NONE)

    async def _bare_token(self, token: bytes, connection: KafkaConnection) -> Reply:
        self._requests += 1
        if self._requests > MAX_LOGIN_REQUESTS:
            return self._refused(connection, "too many requests for a login")
        response = await self._authenticate(token, connection)
        if response is None or response.error_code != ErrorCode.NONE:
            return Reply(close=True)
        answer = bytes(response.auth_bytes)
        return Reply([len(answer).to_bytes(4, "big") + answer])

    def _handshake(self, header: RequestHeader, request: SaslHandshakeRequest) -> Reply:
        known = self._context.mechanisms
        response = SaslHandshakeResponse(mechanisms=list(known))
        make = known.get(request.mechanism)
        has_requests = header.api_version >= FIRST_WITH_REQUESTS
        if self._logged_in_by and not has_requests:
            response.error_code = ErrorCode.UNSUPPORTED_VERSION
        elif self._exchange is not None or (self._mechanism and not self._logged_in_by):
            response.error_code = ErrorCode.ILLEGAL_SASL_STATE
        elif make is None or (self._logged_in_by and request.mechanism != self._mechanism):
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        else:
            self._mechanism, self._exchange = request.mechanism, make()
            self._takes_bare_tokens = not has_requests
        return _reply(header, response, close=response.error_code != ErrorCode.NONE)

    async def _authenticate(
        self, token: bytes, connection: KafkaConnection
    ) -> SaslAuthenticateResponse | None:
        """Handle the client's next token. Return None if it can't be checked now; the client may reconnect."""
        if self._exchange is None:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication"
                if self._logged_in_by
                else "SaslHandshake must come before SaslAuthenticate",
            )
        context = self._context
        try:
            step = await self._exchange.answer(token)
            if step.has_failed:
                self._failed(connection, "there is no such delegation token here")
            if step.login is None:
                return SaslAuthenticateResponse(auth_bytes=step.token)
            lifetime_ms = self._accept(step.login, connection)
        except SequencerError as error:
            self._refused(connection, f"the delegation token can't be looked up: {error}")
            return None
        except LoginFailed as error:
            reason = f"{error}: {error.__cause__}" if error.__cause__ else str(error)
            self._failed(connection, reason, error.user)
            await context.clock.sleep(context.settings.failed_authentication_delay_ms / 1000)
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error)
            )
        return SaslAuthenticateResponse(auth_bytes=step.token, session_lifetime_ms=lifetime_ms)

    def _failed(self, connection: KafkaConnection, reason: str, user: str = "") -> None:
        """Count the failed login, once; also if the client hangs up before it gets the answer."""
        if not self._has_failed:
            self._has_failed = True
            self._context.audit.login_failed(
                connection.peer_host, self._context.listener.name, self._mechanism, reason, user=user
            )
            self._context.limits.login_failed(connection.peer_host)

    def _accept(self, login: Login, connection: KafkaConnection) -> int:
        """Accept the login. Return for how many ms it is valid; 0 means no limit. Raises LoginFailed."""
        context = self._context
        try:
            access = context.access(
                connection,
                login.user,
                by_password=self._mechanism != "OAUTHBEARER",
                by_token=login.by_token,
            )
        except NoTenant as error:
            raise LoginFailed("the user belongs to no tenant", login.user) from error
        principal = access.principal
        if self._logged_in_by not in ("", principal):
            raise LoginFailed("Cannot change principals during re-authentication")
        if self._logged_in_by and access.by_token != connection.access.by_token:
            raise LoginFailed(
                "Cannot change between a password and a delegation token during re-authentication"
            )
        lifetimes = [context.settings.max_session_ms] if context.settings.max_session_ms else []
        if login.expires_ms is not None:
            lifetimes.append(login.expires_ms - context.clock.wall_ms())
            if lifetimes[-1] <= 0:  # it expired during the check, and 0 would mean no limit
                raise LoginFailed("the token has expired")
        if login.until is not None:
            lifetimes.append(int((login.until - context.clock.monotonic()) * 1000))
            if lifetimes[-1] <= 0:
                raise LoginFailed("the delegation token has expired")
        lifetime_ms = min(lifetimes, default=0)
        self._expires = context.clock.monotonic() + lifetime_ms / 1000 if lifetimes else None
        if not self._logged_in_by:
            if not context.limits.logged_in(principal):
                raise LoginFailed(f"{principal} has too many connections (max_connections_per_principal)")
            context.waiting.leave(connection)
            connection.access, self._dispatch = access, context.dispatch_for(access)
            connection.allow_frames(context.max_request_bytes)
        context.audit.logged_in(connection.peer_host, context.listener.name, self._mechanism, principal)
        self._logged_in_by, self._exchange, self._requests = principal, None, 0
        return lifetime_ms


def _reply(
    header: RequestHeader, response: SaslHandshakeResponse | SaslAuthenticateResponse, *, close: bool = False
) -> Reply:
    parts = encode_response(header.correlation_id, header.api_key, header.api_version, response)
    return Reply(parts, close=close)
