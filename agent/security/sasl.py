"""SASL mechanisms, from the server's side: each is an exchange of tokens that ends in a login or fails.

PLAIN (RFC 4616) and SCRAM (RFC 5802, 7677) check passwords against the same stored SCRAM keys. With SCRAM and Kafka's
extension `tokenauth=true` a client proves a delegation token (KIP-48).

Credentials may be deleted or changed during a login: it succeeds only if they are still valid at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

from msgspec.structs import replace
from scramp import ScramException
from scramp import ScramMechanism as Scramp
from scramp.core import Gs2Header, ScramServer

from agent.security.delegation_tokens import TokenLogins, is_token_id, user_of
from agent.security.users import NAMES, Users
from sequencer.api.security import ScramCredentials, ScramMechanism, ScramName
from tailrace.limits import is_name

MAX_TOKEN_BYTES = 16 * 1024
"""The most bytes of one token, except OAUTHBEARER's. Names and passwords are far shorter."""


TOKEN_EXTENSION = ",tokenauth="
"""Follows the nonce in the first message of a client that has a delegation token."""
OTHER_AUTHORIZATION_ID = "Client requested an authorization id that is different from username"


class LoginFailed(Exception):
    """The login failed. The message is for the client, and does not help an attacker. `user`: the name that the client
    gave, as far as known, for the audit log."""

    def __init__(self, message: str, user: str = "") -> None:
        super().__init__(message)
        self.user = user


class CredentialsChanged(Exception):
    """The credentials of a login are no longer valid at its end. The message is for the audit log."""


@dataclass(frozen=True, slots=True)
class Login:
    """A proven principal. `expires_ms`: wall-clock end of the login; None: no end. `by_token`: whether it used a
    delegation token; `until`: when that token expires (monotonic)."""

    user: str
    expires_ms: int | None = None
    by_token: bool = False
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The token for the client, and its login once the exchange is complete. `has_failed`: the login failed, but a
    later answer tells the client."""

    token: bytes
    login: Login | None = None
    has_failed: bool = False


class Exchange(Protocol):
    """One login in progress."""

    async def answer(self, token: bytes) -> Step:
        """Handle the client's next token. Raises LoginFailed."""


class PlainExchange:
    """`[authzid] NUL user NUL password`, in one token. `prefix`: of the users' stored names."""

    def __init__(self, users: Users, prefix: str = "") -> None:
        self._users = users
        self._prefix = prefix

    async def answer(self, token: bytes) -> Step:
        parts = _text(token).split("\0")
        if len(parts) != 3 or not is_name(parts[1]) or not parts[2]:
            raise LoginFailed("Invalid SASL/PLAIN response")
        acts_as, user, password = parts
        if acts_as not in ("", user):
            raise LoginFailed(OTHER_AUTHORIZATION_ID, user)
        if not await self._users.check_password(self._prefix + user, password):
            raise LoginFailed("Invalid username or password", user)
        return Step(b"", Login(user))


class ScramExchange:
    """Two tokens: the name of the user or of a delegation token, then the proof that the client knows the password.

    `prefix`: as for PLAIN. `tokens`: None if there are no delegation tokens.
    """

    def __init__(
        self, users: Users, mechanism: ScramMechanism, prefix: str = "", tokens: TokenLogins | None = None
    ) -> None:
        self._users = users
        self._prefix = prefix
        self._tokens = tokens
        self._mechanism = mechanism
        name = NAMES[mechanism]
        self._failed = f"Authentication failed due to invalid credentials with SASL mechanism {name}"
        self._server: ScramServer | None = None
        self._user = ""
        self._login: Login | None = None
        self._stored: ScramCredentials | None = None

    async def answer(self, token: bytes) -> Step:
        """As `Exchange.answer`; also raises SequencerError if a delegation token can't be looked up now."""
        text = _text(token)
        try:
            if self._server is None:
                return await self._first(text)
            self._server.set_client_final(text)
        except ScramException as error:
            raise LoginFailed(self._failed, self._user) from error
        return Step(self._server.get_server_final().encode(), await self._proven())

    async def _proven(self) -> Login:
        """Return the login once the client has proven its credentials. Raises LoginFailed, SequencerError."""
        login, stored = self._login, self._stored
        assert login is not None and stored is not None, "no proof fits a decoy"
        if login.by_token:
            return await self._login_by_token() or self._credentials_changed()
        return login if self._users.are_current(stored) else self._credentials_changed()

    def _credentials_changed(self) -> NoReturn:
        raise LoginFailed(self._failed, self._user) from CredentialsChanged(
            "the credentials were deleted or changed meanwhile"
        )

    async def _first(self, message: str) -> Step:
        message, extension = _without_extension(message)
        message, header, acts_as = _without_authorization_id(message)
        self._begin(message, None)
        if not is_name(self._user):
            raise LoginFailed(self._failed, self._user)
        if acts_as not in ("", self._user):
            raise LoginFailed(OTHER_AUTHORIZATION_ID, self._user)
        if extension.lower() == f"{TOKEN_EXTENSION}true":
            stored = await self._token_credentials()
        else:
            self._login = Login(self._user)
            stored = await self._users.credentials(self._prefix + self._user, self._mechanism)
        self._stored = stored
        server = self._begin(message, stored)
        server.client_first_bare += (
            extension  # scramp knows no extension, but the proof covers the whole message
        )
        if acts_as:
            server.gs2_header = _SentHeader(header)
        self._server = server
        return Step(server.get_server_first().encode(), has_failed=self._login is None)

    async def _token_credentials(self) -> ScramCredentials:
        """Return the token's credentials; a decoy if there is no such token, or its owner is not a user of this
        listener.

        A decoy has the token's salt and takes as long, so a client can't learn which tokens exist.
        """
        name = ScramName(self._user, self._mechanism)
        decoy = self._users.decoy(name)
        if self._tokens is None or not is_token_id(self._user):
            return decoy
        self._login = await self._login_by_token()
        credentials = await self._tokens.credentials(name)
        return replace(decoy, salt=credentials.salt) if self._login is None else credentials

    async def _login_by_token(self) -> Login | None:
        """Return the login of the token's owner; None if the token is not valid now, or not here. Raises
        SequencerError."""
        assert self._tokens is not None, "a decoy was given where there are no tokens"
        token = await self._tokens.find(self._user)
        if token is None or not user_of(token.owner).startswith(self._prefix):
            return None
        return Login(user_of(token.owner).removeprefix(self._prefix), by_token=True, until=token.until)

    def _begin(self, message: str, known: ScramCredentials | None) -> ScramServer:
        """Read the first message. Without credentials this only finds the user's name, to look them up."""

        def look_up(user: str) -> tuple[bytes, bytes, bytes, int]:
            self._user = user
            if known is None:
                return bytes(16), b"", b"", 4_096
            return known.salt, known.stored_key, known.server_key, known.iterations

        server = Scramp(NAMES[self._mechanism]).make_server(look_up)
        server.set_client_first(message)
        return server


class _SentHeader(Gs2Header):  # type: ignore[misc]
    """The header of a first message with an authorization id, which scramp does not know. The client's last message
    repeats it."""

    def __init__(self, sent: str) -> None:
        super().__init__("n", None)
        self._sent = sent

    def __bytes__(self) -> bytes:
        return self._sent.encode()


def _without_authorization_id(message: str) -> tuple[str, str, str]:
    """Return a first message without its authorization id, then its header as sent, and the id ('' without one)."""
    flag, _, rest = message.partition(",")
    name, mark, bare = rest.partition(",")
    if not name.startswith("a=") or not mark:
        return message, "", ""
    return f"{flag},,{bare}", f"{flag},{name},", name[len("a=") :].replace("=2C", ",").replace("=3D", "=")


def _without_extension(message: str) -> tuple[str, str]:
    """Split Kafka's extension off a first message; '' if it has none."""
    first, mark, value = message.rpartition(TOKEN_EXTENSION)
    return (first, mark + value) if mark and "," not in value else (message, "")


def _text(token: bytes) -> str:
    if len(token) > MAX_TOKEN_BYTES:
        raise LoginFailed("the token is too long")
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise LoginFailed("the token is not UTF-8") from None
