"""The users that can log in, and the check of a password against stored SCRAM keys. scramp does all SCRAM
computations."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from concurrent.futures import Executor

from scramp import ScramException
from scramp import ScramMechanism as Scramp

from agent.catalog import Catalog
from sequencer.api.security import ScramCredentials, ScramMechanism, ScramName
from tailrace.clock import Clock, Entropy

NAMES = {
    ScramMechanism.SCRAM_SHA_256: "SCRAM-SHA-256",
    ScramMechanism.SCRAM_SHA_512: "SCRAM-SHA-512",
}
MECHANISMS = {name: mechanism for mechanism, name in NAMES.items()}
REFRESH_SECONDS = 1.0
"""An unknown user may be new, so the sequencer is asked, at most this often."""
DECOY_ITERATIONS = 4_096


def decoy_key(shared_secrets: Sequence[bytes], entropy: Entropy) -> bytes:
    """Return the key that decoys are made from. It is derived from the first secret, so it is the same at all agents
    with that secret; without a secret it is random per process (decision 93)."""
    secret = next((secret for secret in shared_secrets if secret), None)
    secret = entropy.uuid().bytes + entropy.uuid().bytes if secret is None else secret
    return hmac.digest(secret, b"tailrace decoys of unknown users", "sha512")


class Users:
    """Credentials by user and mechanism. An unknown user gets decoy credentials that no password fits. They are the
    same each time and at each agent with the same `decoy_key`, so a client can't learn which users exist."""

    def __init__(self, catalog: Catalog, clock: Clock, executor: Executor, decoy_key: bytes) -> None:
        self._catalog = catalog
        self._clock = clock
        self._executor = executor
        self._asked_at = float("-inf")
        self._decoy_key = decoy_key

    @property
    def version(self) -> int:
        """Rises with every change of users and ACLs."""
        return self._catalog.security.version

    async def credentials(self, user: str, mechanism: ScramMechanism) -> ScramCredentials:
        """Return the user's credentials, or a decoy."""
        name = ScramName(user, mechanism)
        found = self._catalog.security.users.get(name)
        if found is None and await self._refreshed():
            found = self._catalog.security.users.get(name)
        return self.decoy(name) if found is None else found

    def are_current(self, credentials: ScramCredentials) -> bool:
        """Whether a login that began with these may succeed: as far as this agent knows, the user still has them."""
        return self._catalog.security.users.get(credentials.name) == credentials

    async def check_password(self, user: str, password: str) -> bool:
        """Whether this is the user's password at the end of the check, by any stored mechanism."""
        known = self._catalog.security.users
        mechanisms = [mechanism for mechanism in ScramMechanism if ScramName(user, mechanism) in known]
        stored = await self.credentials(user, mechanisms[0] if mechanisms else ScramMechanism.SCRAM_SHA_256)
        fits = await asyncio.get_running_loop().run_in_executor(self._executor, _fits, stored, password)
        return fits and self.are_current(stored)

    async def _refreshed(self) -> bool:
        now = self._clock.monotonic()
        if now - self._asked_at < REFRESH_SECONDS:
            return False
        self._asked_at = now
        await self._catalog.refresh_if_possible()
        return True

    def decoy(self, name: ScramName) -> ScramCredentials:
        """Return credentials that no password fits, the same each time."""
        digest = hmac.digest(self._decoy_key, f"{name.mechanism}:{name.user}".encode(), "sha512")
        size = 32 if name.mechanism is ScramMechanism.SCRAM_SHA_256 else 64
        return ScramCredentials(
            name=name,
            salt=digest[:16],
            stored_key=digest[:size],
            server_key=digest[:size],
            iterations=DECOY_ITERATIONS,
        )


def _fits(stored: ScramCredentials, password: str) -> bool:
    try:
        made = new_credentials(stored.name, password, iterations=stored.iterations, salt=stored.salt)
    except ScramException:
        return False  # characters that no password may have (SASLprep)
    return hmac.compare_digest(made.stored_key, stored.stored_key)


def new_credentials(
    name: ScramName, password: str, *, iterations: int, salt: bytes | None = None
) -> ScramCredentials:
    """Return what is stored for a password, with a new salt unless one is given. Takes milliseconds. Raises
    ScramException."""
    salt, stored_key, server_key, iterations = Scramp(NAMES[name.mechanism]).make_auth_info(
        password, iteration_count=iterations, salt=salt
    )
    return ScramCredentials(
        name=name, salt=salt, stored_key=stored_key, server_key=server_key, iterations=iterations
    )
