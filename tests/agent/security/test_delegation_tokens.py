"""Logins by delegation tokens: SCRAM with Kafka's extension, as Java's clients send it."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scramp import ScramClient, ScramException

from agent.catalog import Catalog
from agent.security.delegation_tokens import TokenLogins, hmac_of
from agent.security.sasl import ScramExchange
from agent.security.users import Users
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.security import (
    AlterScram,
    AlterToken,
    CreateToken,
    DelegationToken,
    ScramMechanism,
    ScramName,
)
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.create_delegation_token import CreateDelegationTokenRequest
from tailrace.kafka.messages.metadata import MetadataRequest
from tailrace.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from tailrace.kafka.messages.sasl_handshake import SaslHandshakeRequest
from tests.agent.security.secured import Secured, secured_agent
from tests.support.agents import TOKEN_SECRET, token_of
from tests.support.clocks import ManualClock, SeededEntropy

THE_TOKEN, OTHER_TOKEN = "the-token-of-the-tests", "another-token-of-tests"
ALICES = {"token_secret": TOKEN_SECRET, "super_users": ("User:alice",)}


class Client:
    """One connection, which is to log in by a token."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, secured: Secured, listener: str = "SASL_PLAINTEXT") -> Client:
        port = secured.wired.agent.kafka_ports[listener]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        secured.opened.append(writer)
        return cls(reader, writer)

    async def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        self._writer.write(b"".join(encode_request(1, api, version, request, "test")))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return decode_response(api, version, memoryview(await self._reader.readexactly(size)))[1]

    async def log_in(
        self,
        token_id: str,
        password: str,
        mechanism: str = "SCRAM-SHA-256",
        extension: str = "tokenauth=true",
    ) -> Any:
        """The last answer: it says whether the login is accepted, and for how long."""
        await self.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism))
        scram = ScramClient([mechanism], token_id, password)
        first = f"{scram.get_client_first()},{extension}"
        scram.client_first_bare += f",{extension}"
        answer = await self.ask(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(first.encode()))
        if answer.error_code == ErrorCode.NONE:
            scram.set_server_first(bytes(answer.auth_bytes).decode())
            last = SaslAuthenticateRequest(scram.get_client_final().encode())
            answer = await self.ask(ApiKey.SASL_AUTHENTICATE, 2, last)
        if answer.error_code == ErrorCode.NONE:
            scram.set_server_final(bytes(answer.auth_bytes).decode())  # the server knows the token, too
        return answer

    async def topics(self) -> list[str]:
        request = MetadataRequest(topics=None)
        return [topic.name for topic in (await self.ask(ApiKey.METADATA, 9, request)).topics]


def password_of(request: CreateToken) -> str:
    return b64encode(hmac_of(TOKEN_SECRET, request.token_id)).decode()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_client_with_a_token_is_its_owner_until_it_expires(tmp_path: Path, mechanism: str) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT", **ALICES) as secured:
        await secured.wired.topic()
        token = token_of("User:alice", THE_TOKEN)
        await secured.wired.sequencer.create_token(token)
        client = await Client.open(secured)
        answer = await client.log_in(THE_TOKEN, password_of(token), mechanism)
        assert answer.error_code == ErrorCode.NONE
        assert 3_500_000 < answer.session_lifetime_ms <= 3_600_000, "clients log in again before it expires"
        assert await client.topics() == ["t"]
        another = await client.ask(ApiKey.CREATE_DELEGATION_TOKEN, 3, CreateDelegationTokenRequest())
        assert another.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


async def no_change(secured: Secured, token: DelegationToken) -> None:
    return


async def end(secured: Secured, token: DelegationToken) -> None:
    await secured.wired.sequencer.alter_token(AlterToken(token.fingerprint, token.owner, -1))


@pytest.mark.parametrize(
    ("token_id", "password", "extension", "change"),
    [
        (THE_TOKEN, "wrong", "tokenauth=true", no_change),
        (OTHER_TOKEN, "", "tokenauth=true", no_change),
        ("another", "", "tokenauth=true", no_change),
        (THE_TOKEN, "", "tokenauth=true", end),
        (THE_TOKEN, "", "tokenauth=false", no_change),
        (THE_TOKEN, "", "tokenauth=", no_change),
    ],
    ids=[
        "a wrong password",
        "an unknown token",
        "no id of a token",
        "a token that was ended",
        "no extension",
        "half an extension",
    ],
)
async def test_all_clients_without_a_valid_token_are_refused_alike(
    tmp_path: Path, token_id: str, password: str, extension: str, change: Any
) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT", **ALICES) as secured:
        request = token_of("User:alice", THE_TOKEN)
        await change(secured, await secured.wired.sequencer.create_token(request))
        client = await Client.open(secured)
        answer = await client.log_in(token_id, password or password_of(request), extension=extension)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == (
            "Authentication failed due to invalid credentials with SASL mechanism SCRAM-SHA-256"
        )


async def test_a_token_is_no_password_of_its_owner(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT", **ALICES) as secured:
        token = token_of("User:alice", THE_TOKEN)
        await secured.wired.sequencer.create_token(token)
        await secured.add_user("alice")
        answer = await (await Client.open(secured)).log_in("alice", password_of(token), extension="x=y")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_without_a_secret_no_token_lets_in(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT", super_users=("User:alice",)) as secured:
        token = token_of("User:alice", THE_TOKEN)
        await secured.wired.sequencer.create_token(token)
        answer = await (await Client.open(secured)).log_in(THE_TOKEN, password_of(token))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_client_that_cannot_be_judged_now_may_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(logins: TokenLogins, token_id: str) -> None:
        raise SequencerUnavailable("away (by the test)")

    monkeypatch.setattr(TokenLogins, "find", away)

    async with secured_agent(tmp_path, "SASL_PLAINTEXT", **ALICES) as secured:
        token = token_of("User:alice", THE_TOKEN)
        client = await Client.open(secured)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await client.log_in(THE_TOKEN, password_of(token))
        assert secured.wired.told("a login failed")


async def test_a_tenants_token_is_good_at_its_own_listener_alone(tmp_path: Path) -> None:
    listeners = [f"{name}:SASL_PLAINTEXT://127.0.0.1:0" for name in ("ACME", "OTHER", "ALL")]

    async with secured_agent(
        tmp_path, *listeners, **ALICES, tenant_listeners=("ACME=acme", "OTHER=other")
    ) as secured:
        tokens = {"User:acme~alice": THE_TOKEN, "User:alice": OTHER_TOKEN}
        for owner, token_id in tokens.items():
            await secured.wired.sequencer.create_token(token_of(owner, token_id))
        good = []
        for owner, token_id in tokens.items():
            for listener in ("ACME", "OTHER", "ALL"):
                client = await Client.open(secured, listener)
                answer = await client.log_in(token_id, password_of(token_of(owner, token_id)))
                if answer.error_code == ErrorCode.NONE:
                    good.append((owner, listener))
        assert good == [("User:acme~alice", "ACME"), ("User:acme~alice", "ALL"), ("User:alice", "ALL")]


async def test_a_session_is_by_password_or_by_token_from_its_first_login_on(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT", **ALICES) as secured:
        token = token_of("User:alice", THE_TOKEN)
        await secured.wired.sequencer.create_token(token)
        await secured.add_user("alice")
        client = await Client.open(secured)
        assert (await client.log_in("alice", "flights-2013", extension="tokenauth=false")).error_code == 0
        answer = await client.log_in(THE_TOKEN, password_of(token))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_token_outlives_its_owners_password_and_so_do_its_connections(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT", **ALICES) as secured:
        token = token_of("User:alice", THE_TOKEN)
        await secured.wired.sequencer.create_token(token)
        await secured.add_user("alice")
        client = await Client.open(secured)
        assert (await client.log_in(THE_TOKEN, password_of(token))).error_code == ErrorCode.NONE
        await secured.wired.agent.catalog.refresh()
        name = ScramName("alice", ScramMechanism.SCRAM_SHA_256)
        await secured.wired.sequencer.alter_scram(AlterScram([], [name]))
        await secured.wired.agent.catalog.refresh()
        assert await client.topics() == []


@dataclass
class Logins:
    """Logins by tokens at one agent. Its clock is `ahead_ms` before the database's."""

    ahead_ms: int = 0
    clock: ManualClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = ManualClock(1_700_000_000_000 + self.ahead_ms)

    async def open(self, executor: Executor) -> None:
        self.database = ManualClock(1_700_000_000_000)
        self.sequencer = Committer(MemoryRowStore(self.database), self.database, SeededEntropy(1))
        await self.sequencer.start()
        self.tokens = TokenLogins(self.sequencer, TOKEN_SECRET, self.clock, executor)
        self.executor = executor

    async def first_answer(self, token_id: str, agent: int = 0) -> tuple[bytes, bool]:
        """The salt of the challenge, and whether the login has failed."""
        users = Users(Catalog(self.sequencer), self.clock, self.executor, bytes([agent]))
        exchange = ScramExchange(users, ScramMechanism.SCRAM_SHA_256, tokens=self.tokens)
        step = await exchange.answer(f"n,,n={token_id},r=abc,tokenauth=true".encode())
        return step.token.split(b",")[1], step.has_failed


@asynccontextmanager
async def opened_logins(logins: Logins | None = None) -> AsyncIterator[Logins]:
    opened = logins or Logins()
    with ThreadPoolExecutor(1) as executor:
        await opened.open(executor)
        yield opened
        await opened.sequencer.close()


@pytest.mark.parametrize("ahead_ms", [-2 * 3_600_000, 0, 2 * 3_600_000])
async def test_a_token_is_good_until_the_databases_clock_says_that_it_has_expired(ahead_ms: int) -> None:
    async with opened_logins(Logins(ahead_ms)) as logins:
        await logins.sequencer.create_token(token_of("User:alice", THE_TOKEN))
        logins.database.advance(1_800)
        good = await logins.tokens.find(THE_TOKEN)
        assert good is not None and good.until == logins.clock.monotonic() + 1_800
        logins.database.advance(1_800)
        assert await logins.tokens.find(THE_TOKEN) is None


async def test_a_challenge_does_not_say_whether_there_is_such_a_token() -> None:
    async with opened_logins() as logins:
        token = await logins.sequencer.create_token(token_of("User:alice", THE_TOKEN))
        known = [await logins.first_answer(THE_TOKEN, agent) for agent in (1, 1, 2)]
        await logins.sequencer.alter_token(AlterToken(token.fingerprint, token.owner, -1))
        unknown = [await logins.first_answer(THE_TOKEN, agent) for agent in (1, 1, 2)]
        [(salt, _)] = set(known)
        assert set(known) == {(salt, False)} and set(unknown) == {(salt, True)}
        assert (await logins.first_answer(OTHER_TOKEN))[0] != salt


@pytest.mark.parametrize("token_id", ["x", THE_TOKEN + "x", THE_TOKEN[:-1] + "+", THE_TOKEN[:-1] + "é"])
async def test_an_id_that_no_token_has_is_not_looked_up(
    token_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find(logins: TokenLogins, token_id: str) -> None:
        raise AssertionError(f"{token_id} was looked up")

    monkeypatch.setattr(TokenLogins, "find", find)
    async with opened_logins() as logins:
        assert (await logins.first_answer(token_id))[1]


async def test_an_unknown_token_is_a_failed_login_once_also_of_who_hangs_up_before_he_is_reported(
    tmp_path: Path,
) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT", **ALICES, max_failed_logins_per_minute=2) as secured:
        token = token_of("User:alice", THE_TOKEN)
        answer = await (await Client.open(secured)).log_in(THE_TOKEN, password_of(token))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        client = await Client.open(secured)
        await client.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("SCRAM-SHA-256"))
        first = f"n,,n={THE_TOKEN},r=abc,tokenauth=true".encode()
        challenge = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(first))
        assert challenge.error_code == ErrorCode.NONE
        refused = await Client.open(secured)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await refused.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("SCRAM-SHA-256"))
        assert secured.wired.metric("closed_connections_total", reason="max_failed_logins_per_minute") == 1


def test_scramp_takes_no_extension_itself() -> None:
    """If it does one day, the way around it in agent.security.sasl can go."""
    from scramp import ScramMechanism

    server = ScramMechanism("SCRAM-SHA-256").make_server(
        lambda user: (b"s" * 16, b"k" * 32, b"k" * 32, 4_096)
    )
    with pytest.raises(ScramException, match="Malformed"):
        server.set_client_first("n,,n=t,r=abc,tokenauth=true")
