"""Logins over HTTP: the same users, tokens and ACLs for an agent's pages and metrics, and for its gateway."""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass

from aiohttp import web

from agent.security.access import ANONYMOUS_USER, Access
from agent.security.admission import Admission
from agent.security.connection_limits import ConnectionLimits
from agent.security.oauthbearer import TokenCheck
from agent.security.sasl import Login, LoginFailed
from agent.security.tenant_placement import NoTenant
from agent.security.users import Users
from tailrace.addresses import plain_address
from tailrace.clock import Clock, Entropy
from tailrace.limits import is_name
from tailrace.security.acls import CLUSTER_NAME, Operation, ResourceType

LISTENER = "http"
MAX_HEADER_CHARACTERS = 16 * 1024
OPEN_PATHS = frozenset(("/healthz", "/readyz"))
"""Pages for load balancers and supervisors, without a login. They name no topics and no groups."""
REMEMBERED_SECONDS = 30.0
"""How long a checked login is not checked again: a password check takes milliseconds, and every request has one. A
change of any user or ACL invalidates all. A login that was checked before may be checked again whatever logins of its
address have failed, as a Kafka client's connection stays: a proxy is one address for all its clients."""
MAX_CACHED = 10_000
BASIC, BEARER = "Basic", "Bearer"
SCHEMES = {"basic": BASIC, "bearer": BEARER}
OTHER_SCHEME = "(other)"
"""In metrics and the audit log, for any other scheme that a client sends."""


@dataclass(frozen=True, slots=True)
class _CachedLogin:
    login: Login
    security_version: int
    until: float


class HttpLogins:
    """Identifies a request's client by its Authorization header: Basic with a user's password, or Bearer with a token.

    Without ACLs no client has to log in.
    """

    def __init__(
        self,
        users: Users,
        tokens: TokenCheck | None,
        admission: Admission,
        limits: ConnectionLimits,
        clock: Clock,
        entropy: Entropy,
        delay_seconds: float,
    ) -> None:
        self.limits = limits
        self._users = users
        self._tokens = tokens
        self._admission = admission
        self._clock = clock
        self._delay_seconds = delay_seconds
        self._entropy = entropy
        self._key = b""
        self._cached: dict[bytes, _CachedLogin] = {}

    async def access(self, authorization: str, host: str, listener: str) -> Access:
        """Return the client and what it may do. Raises LoginFailed: at once if there is no header, because clients ask
        to learn that they need one; otherwise after a pause, with a line in the audit log."""
        admission = self._admission
        if admission.acls is not None and not authorization:
            raise LoginFailed("a login is needed")
        scheme, _, value = authorization[:MAX_HEADER_CHARACTERS].partition(" ")
        scheme = SCHEMES.get(scheme.lower(), OTHER_SCHEME)
        user, is_basic = ANONYMOUS_USER, scheme == BASIC
        try:
            if admission.acls is not None:
                user = (await self._login(host, listener, scheme=scheme, value=value.strip())).user
            return admission.access(user, listener=listener, host=host, by_password=is_basic)
        except (LoginFailed, NoTenant) as error:
            self.limits.login_failed(host)
            claimed = error.user if isinstance(error, LoginFailed) else user
            admission.audit.login_failed(host, listener, scheme, str(error), user=claimed)
            await self._clock.sleep(self._delay_seconds)
            raise LoginFailed(str(error)) from error

    async def _login(self, host: str, listener: str, *, scheme: str, value: str) -> Login:
        """Return the login that the header proves. Raises LoginFailed."""
        prefix = self._admission.tenants.prefix_of(listener)  # of the stored names of its users
        self._key = self._key or self._entropy.uuid().bytes + self._entropy.uuid().bytes
        given = f"{prefix} {scheme} {value}".encode(errors="surrogatepass")  # a header may be no text
        digest = hmac.digest(self._key, given, "sha256")
        known, version = self._cached.get(digest), self._users.version
        if known is None and self.limits.is_closed_to(host):
            raise LoginFailed("too many failed logins (max_failed_logins_per_minute)")
        if known is not None and known.security_version == version and known.until > self._clock.monotonic():
            return known.login
        try:
            login = await self._checked(scheme, value, prefix)
        except LoginFailed:
            self._cached.pop(digest, None)
            raise
        self._admission.audit.logged_in(host, listener, scheme, f"User:{login.user}")
        seconds = REMEMBERED_SECONDS
        if login.expires_ms is not None:
            seconds = min(seconds, (login.expires_ms - self._clock.wall_ms()) / 1000)
        if len(self._cached) >= MAX_CACHED:
            self._cached.clear()
        self._cached[digest] = _CachedLogin(login, version, self._clock.monotonic() + seconds)
        return login

    async def _checked(self, scheme: str, value: str, prefix: str) -> Login:
        if scheme == BEARER and self._tokens is not None:
            return await self._tokens.login(value)
        if scheme != BASIC:
            raise LoginFailed("the scheme is not served")
        try:
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except ValueError:
            raise LoginFailed("the header is not Base64 of USER:PASSWORD") from None
        if not is_name(user) or not password or not await self._users.check_password(prefix + user, password):
            raise LoginFailed("Invalid username or password", user)
        return Login(user)


class HttpLogin:
    """Passes requests for pages whose user may DESCRIBE the cluster: pages name topics, groups and agents."""

    def __init__(self, logins: HttpLogins) -> None:
        self._logins = logins

    async def __call__(self, request: web.Request) -> web.Response | None:
        if request.path in OPEN_PATHS:
            return None
        given = request.headers.get("Authorization", "")
        if not given:
            return _unauthorized("a login is needed")
        try:
            access = await self._logins.access(given, plain_address(request.remote or "?"), LISTENER)
        except LoginFailed:
            return _unauthorized("the login failed")
        is_operator = access.tenant is None  # the pages do not show a tenant's cluster
        if is_operator and access.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
            return None
        access.note_refused("HTTP", Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        return web.Response(status=403, text=f"{access.principal} may not DESCRIBE the cluster\n")


CHALLENGE = {"WWW-Authenticate": 'Basic realm="Tailrace", charset="UTF-8"'}


def _unauthorized(reason: str) -> web.Response:
    return web.Response(status=401, text=f"{reason}\n", headers=CHALLENGE)
