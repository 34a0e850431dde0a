"""Delegation tokens (KIP-48): a token's password, and logins with it.

    HMAC-SHA-512 of the token's id, with the cluster's secret  its holder has this; the password is its Base64
    SHA-256 of that                                            the fingerprint: the sequencer keeps the token by it

So every agent with the secret can check every token, and the contents of the database can't be used to log in. An agent
keeps no tokens: each login asks the sequencer, so agents need no notice of new, renewed and expired tokens.
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
"""The only type of principal."""
ITERATIONS = 4_096
"""As in Kafka: 512 random bits need no protection against guessing."""
SALT_BYTES = 16
_TOKEN_ID = re.compile(r"[A-Za-z0-9_-]{22}")


def token_id_of(random: UUID) -> str:
    return urlsafe_b64encode(random.bytes).rstrip(b"=").decode()


def is_token_id(text: str) -> bool:
    return _TOKEN_ID.fullmatch(text) is not None


def hmac_of(secret: str, token_id: str) -> bytes:
    """Return a token's HMAC, computed as Kafka does."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


def fingerprint_of(token_hmac: bytes) -> str:
    """Return the key under which the sequencer keeps a token."""
    return hashlib.sha256(token_hmac).hexdigest()


def user_of(principal: str) -> str:
    """Return the principal's user, by its stored name."""
    return principal.removeprefix(f"{USER_TYPE}:")


def may_use_tokens(access: Access) -> bool:
    """Whether the client may request and change tokens: it has logged in, and not with a token."""
    return not access.by_token and local_name(user_of(access.principal)) != ANONYMOUS_USER


@dataclass(frozen=True, slots=True)
class ValidToken:
    """A token that has not expired. `owner`: its owner's principal; `until`: when it expires (monotonic)."""

    owner: str
    until: float


@dataclass(frozen=True, slots=True)
class TokenLogins:
    """Finds tokens and makes their SCRAM credentials."""

    sequencer: Sequencer
    secret: str = field(repr=False)
    clock: Clock
    executor: Executor

    async def find(self, token_id: str) -> ValidToken | None:
        """Return the token, or None if it does not exist or has expired. Raises SequencerError."""
        fingerprint = fingerprint_of(hmac_of(self.secret, token_id))
        asked_at = self.clock.monotonic()
        found = (await self.sequencer.tokens(TokensRequest(fingerprint))).tokens
        return ValidToken(found[0].owner, asked_at + found[0].left_ms / 1000) if found else None

    async def credentials(self, name: ScramName) -> ScramCredentials:
        """Return the SCRAM credentials of the token of this name. They are the same at every agent, each time."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, _credentials, name, hmac_of(self.secret, name.user))


def _credentials(name: ScramName, token_hmac: bytes) -> ScramCredentials:
    salt = hmac.digest(token_hmac, b"salt", "sha256")[:SALT_BYTES]
    return new_credentials(name, b64encode(token_hmac).decode(), iterations=ITERATIONS, salt=salt)
