"""A login takes several steps; what it began with may be deleted or changed before it ends."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
from scramp import ScramClient

from agent.catalog import Catalog
from agent.security import users as users_module
from agent.security.delegation_tokens import TokenLogins, hmac_of
from agent.security.sasl import LoginFailed, PlainExchange, ScramExchange
from agent.security.users import Users, new_credentials
from sequencer.api.security import AlterScram, AlterToken, ScramCredentials, ScramMechanism, ScramName
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tests.support.agents import TOKEN_SECRET, token_of
from tests.support.clocks import ManualClock, SeededEntropy

ALICE = ScramName("alice", ScramMechanism.SCRAM_SHA_256)
PASSWORD = "flights-2013"
TOKEN = "the-token-of-the-tests"


class There:
    """An agent's users and tokens, and the sequencer that has them."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        clock = ManualClock(1_700_000_000_000)
        self.sequencer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1))
        self.catalog = Catalog(self.sequencer)
        self.users = Users(self.catalog, clock, executor, b"decoys")
        self.tokens = TokenLogins(self.sequencer, TOKEN_SECRET, clock, executor)

    async def alter(self, *, password: str | None) -> None:
        """Store this password of alice, or delete hers; the agent learns of it."""
        stored = [] if password is None else [new_credentials(ALICE, password, iterations=4096)]
        await self.sequencer.alter_scram(AlterScram(stored, [ALICE] if password is None else []))
        await self.catalog.refresh()

    async def end_token(self) -> None:
        token = token_of("User:alice", TOKEN)
        await self.sequencer.alter_token(AlterToken(token.fingerprint, token.owner, -1))


@asynccontextmanager
async def opened() -> AsyncIterator[There]:
    with ThreadPoolExecutor(1) as executor:
        there = There(executor)
        await there.sequencer.start()
        try:
            await there.alter(password=PASSWORD)
            await there.sequencer.create_token(token_of("User:alice", TOKEN))
            yield there
        finally:
            await there.sequencer.close()


async def scram(there: There, between: Callable[[], Awaitable[None]], *, by_token: bool = False) -> str:
    """The user of a login, between whose two steps something happens. Raises LoginFailed."""
    name, password = (
        (TOKEN, b64encode(hmac_of(TOKEN_SECRET, TOKEN)).decode()) if by_token else ("alice", PASSWORD)
    )
    extension = ",tokenauth=true" if by_token else ""
    client = ScramClient(["SCRAM-SHA-256"], name, password)
    exchange = ScramExchange(there.users, ScramMechanism.SCRAM_SHA_256, tokens=there.tokens)
    first = client.get_client_first() + extension
    client.client_first_bare += extension
    client.set_server_first((await exchange.answer(first.encode())).token.decode())
    await between()
    step = await exchange.answer(client.get_client_final().encode())
    assert step.login is not None
    return step.login.user


async def nothing() -> None:
    return None


@pytest.mark.parametrize("password", [None, "flights-2014", PASSWORD])
async def test_scram_with_credentials_that_were_deleted_or_changed_meanwhile_fails(
    password: str | None,
) -> None:
    async with opened() as there:
        assert await scram(there, nothing) == "alice"
        with pytest.raises(LoginFailed, match="invalid credentials"):
            await scram(there, lambda: there.alter(password=password))


async def test_scram_continues_whatever_else_changes_meanwhile() -> None:
    async with opened() as there:

        async def bob_comes() -> None:
            bob = new_credentials(ScramName("bob", ALICE.mechanism), PASSWORD, iterations=4096)
            await there.sequencer.alter_scram(AlterScram([bob], []))
            await there.catalog.refresh()

        assert await scram(there, bob_comes) == "alice"


async def test_a_token_that_was_ended_meanwhile_lets_nobody_in() -> None:
    async with opened() as there:
        assert await scram(there, nothing, by_token=True) == "alice"
        with pytest.raises(LoginFailed, match="invalid credentials"):
            await scram(there, there.end_token, by_token=True)


@pytest.mark.parametrize("password", [None, "flights-2014"])
async def test_a_password_that_was_deleted_or_changed_while_it_was_checked_fails(
    password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as there:
        loop, fits = asyncio.get_running_loop(), users_module._fits
        assert (await PlainExchange(there.users).answer(f"\0alice\0{PASSWORD}".encode())).login is not None

        def overtaken(stored: ScramCredentials, given: str) -> bool:
            asyncio.run_coroutine_threadsafe(there.alter(password=password), loop).result()
            return fits(stored, given)

        monkeypatch.setattr(users_module, "_fits", overtaken)
        with pytest.raises(LoginFailed, match="Invalid username or password"):
            await PlainExchange(there.users).answer(f"\0alice\0{PASSWORD}".encode())
