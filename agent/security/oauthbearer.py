"""OAUTHBEARER (RFC 7628, KIP-255): a client logs in with a token that an authorization server signed.

The token is a JWT. joserfc checks its signature with the keys of a JWKS, which comes from a file or a URL. The token's
issuer, audience, scope and times are checked against the settings.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet

from agent.security.sasl import Login, LoginFailed, Step
from agent.security.settings import SecuritySettings
from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.clock import Clock
from tailrace.limits import is_name

ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
    "EdDSA",
)
"""Signatures with public keys. Never `none`, and no HMAC: a JWKS is public."""
MAX_JWKS_BYTES = 1 << 20
FETCH_SECONDS = 10.0
UNKNOWN_KEY_SECONDS = 10.0
"""A token with an unknown key makes the agent read the keys again, but only this long after the last read: the server
may have a new key."""
MAX_END_S = 253_402_300_799
"""The end of the year 9999, in Unix seconds. A later time is a mistake, such as milliseconds."""
_SEPARATOR = "\x01"
_BEARER = "auth=Bearer "

log = structlog.get_logger("agent.security")


UNREADABLE = (OSError, aiohttp.ClientError, TimeoutError, ValueError, JoseError)
"""The errors of reading keys."""


class KeysMissing(Exception):
    """The keys can't be read. The message says why."""


class SigningKeys:
    """The public keys of the authorization server, read again every `refresh_seconds` after their first use. The last
    valid keys stay in use if a read fails.

    At most one read runs at a time, in the background: logins with a known key don't wait for it. `close` at the end.
    """

    def __init__(self, source: str, refresh_seconds: float, clock: Clock, executor: Executor) -> None:
        self._source = source
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._executor = executor
        self._keys: KeySet | None = None
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def known(self) -> KeySet:
        """Return the last valid keys, at once if there are any. Raises KeysMissing."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="keys for OAUTHBEARER")
        return await self.newer() if self._keys is None else self._keys

    async def newer(self) -> KeySet:
        """Return the keys after the read in progress, or after a new one if the last ended UNKNOWN_KEY_SECONDS ago.
        Raises KeysMissing."""
        if self._is_reading or self._clock.monotonic() - self._read_at >= UNKNOWN_KEY_SECONDS:
            await self._read_once()
        if self._keys is None:
            raise KeysMissing(f"no keys could be read from {self._source!r}")
        return self._keys

    async def close(self) -> None:
        """Stop reading."""
        await cancel_and_wait(self._keeping, self._reading)

    async def _keep(self) -> None:
        while True:
            with log_and_continue(log, "the keys for OAUTHBEARER could not be refreshed"):
                await self._read_once()
            has_keys = self._keys is not None
            await self._clock.sleep(self._refresh_seconds if has_keys else UNKNOWN_KEY_SECONDS)

    @property
    def _is_reading(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def _read_once(self) -> None:
        """Wait for the read in progress, or for a new one."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_again(), name="read keys for OAUTHBEARER")
        await asyncio.wait([self._reading])

    async def _read_again(self) -> None:
        loop = asyncio.get_running_loop()
        with log_and_continue(
            log, "the keys for OAUTHBEARER can't be read; the last ones stay in use", *UNREADABLE
        ):
            try:
                data = await self._read()
                self._keys = await loop.run_in_executor(self._executor, _key_set, data)
            finally:
                self._read_at = self._clock.monotonic()

    async def _read(self) -> bytes:
        if not self._source.startswith(("https://", "http://")):
            return await asyncio.get_running_loop().run_in_executor(self._executor, _file_bytes, self._source)
        timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
        plain = {"Accept-Encoding": "identity"}  # a few compressed bytes could become many
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=plain, auto_decompress=False) as session,
            session.get(self._source) as answer,
        ):
            answer.raise_for_status()
            data = bytearray()
            async for part in answer.content.iter_any():  # `read(n)` returns what has arrived so far
                data += part
                if len(data) > MAX_JWKS_BYTES:
                    break
            return bytes(data)


def _file_bytes(path: str) -> bytes:
    with Path(path).expanduser().open("rb") as file:
        return file.read(MAX_JWKS_BYTES + 1)


def _key_set(data: bytes) -> KeySet:
    """Return the JWKS's keys of known types, without the others (RFC 7517, section 5). Raises ValueError."""
    if len(data) > MAX_JWKS_BYTES:
        raise ValueError(f"more than {MAX_JWKS_BYTES} bytes")
    try:
        parsed = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(parsed, dict) or not isinstance(parsed.get("keys"), list):
        raise ValueError("not a JWKS: an object with `keys` is expected")
    keys: list[Key] = []
    for key in parsed["keys"]:
        try:
            keys += KeySet.import_key_set({"keys": [key]}).keys
        except (JoseError, ValueError, TypeError, KeyError) as error:
            log.warning("a key for OAUTHBEARER is left out", reason=repr(error))
    if not keys:
        raise ValueError("none of the keys is of a known kind")
    return KeySet(keys)


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must claim, besides its signature. '' and () accept anything."""

    issuer: str
    audience: str
    scopes: Sequence[str]
    clock_skew_seconds: int
    principal_claim: str

    def login(self, claims: dict[str, Any], now_s: int) -> Login:
        """Check the claims and return the login, with its expiry. Raises JoseError, ValueError."""
        options: dict[str, Any] = {"exp": {"essential": True}, self.principal_claim: {"essential": True}}
        if self.issuer:
            options["iss"] = {"essential": True, "value": self.issuer}
        if self.audience:
            options["aud"] = {"essential": True, "value": self.audience}
        jwt.JWTClaimsRegistry(now=now_s, leeway=self.clock_skew_seconds, **options).validate(claims)
        missing = [scope for scope in self.scopes if scope not in _scopes(claims)]
        if missing:
            raise ValueError(f"the token lacks the scope {missing[0]!r}")
        user = claims[self.principal_claim]
        if not isinstance(user, str) or not is_name(user):
            raise ValueError(f"the token's {self.principal_claim!r} is not a valid name")
        end_s = claims["exp"]
        if not end_s <= MAX_END_S:
            raise ValueError(f"the token's 'exp' is {end_s}; at most {MAX_END_S} is allowed")
        return Login(user, expires_ms=(int(end_s) + self.clock_skew_seconds) * 1000)


def _scopes(claims: dict[str, Any]) -> list[str]:
    given = claims.get("scope", claims.get("scp", ()))
    return given.split() if isinstance(given, str) else [str(scope) for scope in given]


class TokenCheck:
    """Checks tokens: one for all logins of an agent."""

    def __init__(self, settings: SecuritySettings, clock: Clock, executor: Executor) -> None:
        self._keys = SigningKeys(settings.oauth_jwks, settings.oauth_jwks_refresh_seconds, clock, executor)
        self._rules = TokenRules(
            issuer=settings.oauth_issuer,
            audience=settings.oauth_audience,
            scopes=settings.oauth_scopes,
            clock_skew_seconds=settings.oauth_clock_skew_seconds,
            principal_claim=settings.oauth_principal_claim,
        )
        self._clock = clock
        self._executor = executor

    async def close(self) -> None:
        """Stop reading keys."""
        await self._keys.close()

    async def login(self, token: str) -> Login:
        """Return the login that the token proves. Raises LoginFailed."""
        loop = asyncio.get_running_loop()
        try:
            keys = await self._keys.known()
            try:
                decoded = await loop.run_in_executor(self._executor, _decoded, token, keys)
            except (JoseError, ValueError):
                newer = await self._keys.newer()
                if newer is keys:
                    raise
                decoded = await loop.run_in_executor(self._executor, _decoded, token, newer)
            return self._rules.login(decoded, self._clock.wall_ms() // 1000)
        except (JoseError, ValueError, TypeError, KeysMissing) as error:
            raise LoginFailed("invalid token") from error


def _decoded(token: str, keys: KeySet) -> dict[str, Any]:
    """Return the claims of a token that one of the keys signed. Raises JoseError, ValueError."""
    try:
        return dict(jwt.decode(token, keys, algorithms=ALGORITHMS).claims)
    except RecursionError:  # of its JSON; the header is read before the signature is checked
        raise ValueError("nested too deep") from None


class OAuthBearerExchange:
    """One token. If it is refused, the client gets a JSON reason, then, after its answer, the failure (RFC 7628)."""

    def __init__(self, check: TokenCheck) -> None:
        self._check = check
        self._failure: LoginFailed | None = None

    async def answer(self, token: bytes) -> Step:
        if self._failure is not None:
            raise self._failure
        try:
            acts_as, bearer = _named_and_token(token)
            login = await self._check.login(bearer)
            if acts_as not in ("", login.user):
                raise LoginFailed(
                    "Client requested an authorization id that is different from the token's principal"
                )
            return Step(b"", login)
        except LoginFailed as error:
            self._failure = error
            return Step(b'{"status":"invalid_token"}')


def _named_and_token(message: bytes) -> tuple[str, str]:
    """Return AUTHZID ('' without one) and TOKEN of `n,[a=AUTHZID],^Aauth=Bearer TOKEN^A^A`. Raises LoginFailed."""
    try:
        parts = message.decode("ascii").split(_SEPARATOR)
    except UnicodeDecodeError:
        raise LoginFailed("the client's message is not ASCII") from None
    bearer = [part[len(_BEARER) :] for part in parts if part.startswith(_BEARER)]
    if not parts[0].startswith("n,") or len(bearer) != 1:
        raise LoginFailed("the client's message has no bearer token")
    return parts[0][len("n,") :].rstrip(",").removeprefix("a="), bearer[0]
