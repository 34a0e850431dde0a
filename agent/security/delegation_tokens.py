"""Delegation tokens (KIP-48): what a token's password is, and logins by it.

    HMAC-SHA-512 of the token's id, by the cluster's secret    what the holder has; Base64 of it is the password
    SHA-256 of that                                            under what the sequencer keeps the token

So every agent with the secret can check every token, and what is in the database lets nobody in. An agent keeps no
tokens: a login asks the sequencer, so nobody has to be told of new, renewed and ended ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from base64 import b64encode, urlsafe_b64encode
from concurrent.futures import Executor
from dataclasses import dataclass, field
from uuid import UUID

from agent.security.access import ANONYMOUS_USER, Access
from agent.security.users import new_credentials
from sequencer.api.interface import Sequencer
from sequencer.api.security import ScramCredentials, ScramName, TokensRequest
from tailrace.clock import Clock
from tailrace.tenants import local_name

USER_TYPE = "User"
"""The only type of principal that there is."""
ITERATIONS = 4_096
"""As Kafka has it: nobody needs to be kept from guessing 512 bits."""
SALT_BYTES = 16
_TOKEN_ID = re.compile(r"[A-Za-z0-9_-]{22}")


def token_id_of(random: UUID) -> str:
    """The id of a new token."""
    return urlsafe_b64encode(random.bytes).rstrip(b"=").decode()


def is_token_id(text: str) -> bool:
    """Whether a token may have this id."""
    return _TOKEN_ID.fullmatch(text) is not None


def hmac_of(secret: str, token_id: str) -> bytes:
    """What the holder of a token has, as Kafka makes it."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


def fingerprint_of(token_hmac: bytes) -> str:
    """Under what a token is kept."""
    return hashlib.sha256(token_hmac).hexdigest()


def user_of(principal: str) -> str:
    """The stored name of the user who is this principal."""
    return principal.removeprefix(f"{USER_TYPE}:")


def may_use_tokens(access: Access) -> bool:
    """Whether the client may ask for tokens and change them: it has shown who it is, and not by a token."""
    return not access.by_token and local_name(user_of(access.principal)) != ANONYMOUS_USER


@dataclass(frozen=True, slots=True)
class GoodToken:
    """A token that has not expired: its owner's principal, and until when it is good (monotonic)."""

    owner: str
    until: float


@dataclass(frozen=True, slots=True)
class TokenLogins:
    """Finds tokens and makes their SCRAM credentials."""

    sequencer: Sequencer
    secret: str = field(repr=False)
    clock: Clock
    executor: Executor

    async def find(self, token_id: str) -> GoodToken | None:
        """The token, unless there is none or it has expired. Raises SequencerError."""
        fingerprint = fingerprint_of(hmac_of(self.secret, token_id))
        asked_at = self.clock.monotonic()
        found = (await self.sequencer.tokens(TokensRequest(fingerprint))).tokens
        return GoodToken(found[0].owner, asked_at + found[0].left_ms / 1000) if found else None

    async def credentials(self, name: ScramName) -> ScramCredentials:
        """By which the holder of the token of this name proves it; the same at every agent, each time."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, _credentials, name, hmac_of(self.secret, name.user))


def _credentials(name: ScramName, token_hmac: bytes) -> ScramCredentials:
    salt = hmac.digest(token_hmac, b"salt", "sha256")[:SALT_BYTES]
    return new_credentials(name, b64encode(token_hmac).decode(), iterations=ITERATIONS, salt=salt)
