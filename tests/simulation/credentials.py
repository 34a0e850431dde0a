"""A client that changes a user's SCRAM credentials and delegation tokens, through the sequencer's own interface.

A later question to any server is answered with the last change: replaced and deleted credentials are never reported
again. A token is reported until it expires, and not after that.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from sequencer.api.errors import (
    RequestFailed,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
    TokenExpired,
    UnknownToken,
)
from sequencer.api.security import (
    AlterScram,
    AlterToken,
    CreateToken,
    ScramCredentials,
    ScramMechanism,
    ScramName,
    SecurityRequest,
    TokensRequest,
)
from sequencer.client import SequencerClient
from tests.simulation.clients import Client

USER = ScramName("reader", ScramMechanism.SCRAM_SHA_256)
OWNER = "User:reader"
EXPIRY_S, LIFETIME_S = 1.5, 2.5
"""Short enough for tokens to expire while one sequencer takes over from another."""
TICK_S = 0.001
"""The database's clock has whole milliseconds, so a token may expire this much earlier than the client computes."""


class Between(NamedTuple):
    """A time that only the database knows: the client knows when it asked, and when it was answered."""

    earliest: float
    latest: float

    def later(self, seconds: float) -> Between:
        return Between(self.earliest + seconds, self.latest + seconds)


@dataclass(slots=True)
class HeldToken:
    """A token, when it expires, and when its lifetime is over. `is_ended`: the client made it expire, or was told that
    it has expired."""

    fingerprint: str
    expires: Between
    lives_until: Between
    is_ended: bool = False

    def renew(self, renewed: Between) -> None:
        """Note a renewal."""
        expires = renewed.later(EXPIRY_S)
        self.expires = Between(*map(min, expires, self.lives_until))


class CredentialsAdmin(Client):
    """The only client that changes credentials. A change without an answer may be carried out at any time, so the
    client ends there."""

    async def run(self, changes: int) -> None:
        remote = self.stage.cluster.sequencer_of(self.process)
        token: HeldToken | None = None
        try:
            for number in range(changes):
                if self.luck.below(2):
                    await self._change_user(remote, number)
                elif token is None or token.is_ended:
                    token = await self._create(remote, number)
                else:
                    await self._alter(remote, token)
                await self.pause(0.0, 0.6)
                if token is not None:
                    await self._look_for(remote, token)
        except (SequencerUnavailable, SequencerOverloaded, RequestFailed) as error:
            self.stage.note(f"{self.name}: {type(error).__name__}")
        finally:
            with suppress(SequencerError):
                await remote.close()

    async def _change_user(self, remote: SequencerClient, number: int) -> None:
        """Give the user other credentials, or delete the user."""
        wanted: list[ScramCredentials] = []
        if self.luck.below(3):
            wanted = [
                ScramCredentials(USER, b"salt of the user", number.to_bytes(32), number.to_bytes(32), 4_096)
            ]
        await remote.alter_scram(AlterScram(wanted, [] if wanted else [USER]))
        for _ in range(2):
            users = (await remote.security(SecurityRequest())).users or []
            if users != wanted:
                self.stage.violated(f"the user has {wanted}, and {users} is reported")
            await self.pause(0.0, 0.4)

    async def _create(self, remote: SequencerClient, number: int) -> HeldToken:
        asked = self.stage.now()
        created = await remote.create_token(
            CreateToken(
                fingerprint=f"{number:064x}",
                token_id=f"token-{number}",
                owner=OWNER,
                requester=OWNER,
                renewers=[],
                lifetime_ms=round(LIFETIME_S * 1_000),
                expiry_ms=round(EXPIRY_S * 1_000),
            )
        )
        made = Between(asked, self.stage.now())
        return HeldToken(created.fingerprint, made.later(EXPIRY_S), made.later(LIFETIME_S))

    async def _alter(self, remote: SequencerClient, token: HeldToken) -> None:
        """Renew the token, or make it expire now."""
        asked, renews = self.stage.now(), bool(self.luck.below(3))
        period_ms = round(EXPIRY_S * 1_000) if renews else -1
        try:
            await remote.alter_token(AlterToken(token.fingerprint, OWNER, period_ms))
        except (UnknownToken, TokenExpired):
            self._check(token, is_known=False, asked=asked)
            token.is_ended = True
            return
        self._check(token, is_known=True, asked=asked)
        token.renew(Between(asked, self.stage.now()))
        token.is_ended = not renews

    async def _look_for(self, remote: SequencerClient, token: HeldToken) -> None:
        asked = self.stage.now()
        found = (await remote.tokens(TokensRequest(fingerprint=token.fingerprint))).tokens
        self._check(token, is_known=bool(found), asked=asked)

    def _check(self, token: HeldToken, *, is_known: bool, asked: float) -> None:
        """Check whether the token may be known, or unknown, to a server that was asked between `asked` and now."""
        if is_known and token.is_ended:
            self.stage.violated(f"token {token.fingerprint} was made to expire, and is still known")
        if not self.stage.is_time_kept:
            return
        if is_known and asked > token.expires.latest:
            late_s = asked - token.expires.latest
            self.stage.violated(f"token {token.fingerprint} is known {late_s:.1f} s after it expired")
        if not is_known and not token.is_ended and self.stage.now() < token.expires.earliest - TICK_S:
            self.stage.violated(f"token {token.fingerprint} is unknown before it expires")
