"""Logins over HTTP: the same users, tokens and ACLs for an agent's pages and metrics."""

from __future__ import annotations

import base64
import binascii

from aiohttp import web

from agent.security.access import Access
from agent.security.connection_limits import ConnectionLimits
from agent.security.oauthbearer import TokenCheck
from agent.security.sasl import LoginFailed
from agent.security.users import Users
from tailrace.acls import CLUSTER_NAME, Operation, ResourceType
from tailrace.clock import Clock
from tailrace.limits import is_name

LISTENER = "http"
MAX_HEADER_CHARACTERS = 16 * 1024
OPEN_PATHS = frozenset(("/healthz", "/readyz"))
"""Pages for load balancers and supervisors, without a login; they name no topics and no groups."""


class HttpLogin:
    """Lets a request through whose user may DESCRIBE the cluster, as the pages name topics, groups and agents.

    `anybody`: what an anonymous client may do; its ACLs and audit log are those of every user.
    """

    def __init__(
        self,
        users: Users,
        tokens: TokenCheck | None,
        anybody: Access,
        limits: ConnectionLimits,
        clock: Clock,
        delay_seconds: float,
    ) -> None:
        self._users = users
        self._tokens = tokens
        self._anybody = anybody
        self._limits = limits
        self._clock = clock
        self._delay_seconds = delay_seconds

    async def __call__(self, request: web.Request) -> web.Response | None:
        """The refusal, or None."""
        if request.path in OPEN_PATHS:
            return None
        host = request.remote or "?"
        given = request.headers.get("Authorization", "")
        if not given:
            return _unauthorized("a login is needed")
        audit = self._anybody.audit
        scheme, _, value = given[:MAX_HEADER_CHARACTERS].partition(" ")
        try:
            user = await self._user(host, scheme.lower(), value.strip())
        except LoginFailed as error:
            self._limits.login_failed(host)
            if audit is not None:
                audit.login_failed(host, LISTENER, scheme, str(error))
            await self._clock.sleep(self._delay_seconds)
            return _unauthorized("the login failed")
        access = Access(
            listener=LISTENER, host=host, principal=f"User:{user}", acls=self._anybody.acls, audit=audit
        )
        if access.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
            return None
        access.note_refused("HTTP", Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        return web.Response(status=403, text=f"User:{user} may not DESCRIBE the cluster\n")

    async def _user(self, host: str, scheme: str, value: str) -> str:
        """The user whom the header names and proves. Raises LoginFailed."""
        if self._limits.is_closed_to(host):
            raise LoginFailed("too many failed logins (max_failed_logins_per_minute)")
        if scheme == "bearer" and self._tokens is not None:
            return (await self._tokens.login(value)).user
        if scheme != "basic":
            raise LoginFailed(f"the scheme {scheme[:20]!r} is not served")
        try:
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise LoginFailed("the header is not Base64 of USER:PASSWORD") from None
        if not is_name(user) or not password or not await self._users.check_password(user, password):
            raise LoginFailed("Invalid username or password")
        return user


def _unauthorized(reason: str) -> web.Response:
    return web.Response(
        status=401,
        text=f"{reason}\n",
        headers={"WWW-Authenticate": 'Basic realm="Tailrace", charset="UTF-8"'},
    )
