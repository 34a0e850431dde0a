"""Delegation tokens as clients ask for them (KIP-48): who may create, see, renew and end which."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.answer_memory import LARGEST_PART
from agent.dispatch import Dispatcher
from agent.handlers.delegation_tokens import RENEWER_BYTES, TOKEN_BYTES, TOKENS_IN_A_TURN
from agent.security.access import Access
from agent.security.audit_log import AuditLog
from agent.security.authorize import AclIndex
from agent.security.delegation_tokens import hmac_of
from agent.security.guarded_handlers import GUARDED
from agent.security.settings import SecuritySettings
from sequencer.settings import SequencerSettings
from tailrace.kafka import decode_response, encode_request
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from tailrace.kafka.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from tailrace.kafka.messages.expire_delegation_token import ExpireDelegationTokenRequest
from tailrace.kafka.messages.renew_delegation_token import RenewDelegationTokenRequest
from tailrace.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from tests.agent.test_answer_memory import LEAST_BUDGET
from tests.support.agents import TOKEN_SECRET, AgentBench, agent_bench, connection, token_of

HOUR, DAY = 3_600_000, 24 * 3_600_000


async def ask(
    bench: AgentBench, request: Any, user: str = "alice", acls: tuple[Acl, ...] = (), **access: Any
) -> Any:
    client, index = connection(), AclIndex(acls)
    audit = AuditLog(bench.services.telemetry, bench.services.clock)
    client.access = Access("SASL", "10.0.0.1", f"User:{user}", lambda: index, audit, **access)
    api = request.api.key
    version = APIS[api].served.last
    sent = b"".join(encode_request(7, api, version, request, "client"))
    reply = await Dispatcher(bench.services, GUARDED)(memoryview(sent)[4:], client)
    assert reply.parts is not None
    return decode_response(api, version, memoryview(b"".join(reply.parts))[4:])[1]


def create(**more: Any) -> CreateDelegationTokenRequest:
    return CreateDelegationTokenRequest(**{"max_lifetime_ms": -1} | more)


def allowed(operation: Operation, kind: ResourceType, name: str, user: str) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, f"User:{user}", "*", operation, Permission.ALLOW)


async def seen(bench: AgentBench, user: str, *acls: Acl, owners: tuple[str, ...] | None = None) -> list[str]:
    named = None if owners is None else [DescribeDelegationTokenOwner("User", owner) for owner in owners]
    described = await ask(bench, DescribeDelegationTokenRequest(named), user, acls)
    assert described.error_code == ErrorCode.NONE
    return [token.token_id for token in described.tokens]


async def test_a_token_is_created_renewed_described_and_ended() -> None:
    async with agent_bench() as bench:
        now = bench.clock.wall_ms()
        token = await ask(bench, create(renewers=[CreatableRenewers("User", "bob")]))
        assert (token.error_code, token.principal_type, token.principal_name) == (0, "User", "alice")
        assert token.token_requester_principal_name == "alice"
        assert (token.expiry_timestamp_ms, token.max_timestamp_ms) == (now + DAY, now + 7 * DAY)
        assert token.hmac == hmac_of(TOKEN_SECRET, token.token_id) and len(token.hmac) == 64

        renewed = await ask(bench, RenewDelegationTokenRequest(token.hmac, HOUR), "bob")
        assert (renewed.error_code, renewed.expiry_timestamp_ms) == (0, now + HOUR)
        renewed = await ask(bench, RenewDelegationTokenRequest(token.hmac, 9 * DAY))
        assert renewed.expiry_timestamp_ms == now + DAY, "a renewal is for delegation_token_expiry_ms at most"
        expired = await ask(bench, ExpireDelegationTokenRequest(token.hmac, 9 * DAY))
        assert expired.expiry_timestamp_ms == now + 7 * DAY, "and a token lives to its end at most"

        [described] = (await ask(bench, DescribeDelegationTokenRequest(None), "bob")).tokens
        assert (described.principal_name, described.hmac) == ("alice", token.hmac)
        assert described.expiry_timestamp == now + 7 * DAY
        assert [renewer.principal_name for renewer in described.renewers] == ["bob"]

        ended = await ask(bench, ExpireDelegationTokenRequest(token.hmac, -1))
        assert (ended.error_code, ended.expiry_timestamp_ms) == (0, now)
        gone = await ask(bench, RenewDelegationTokenRequest(token.hmac, -1))
        assert gone.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert await seen(bench, "alice") == []


async def test_a_shorter_life_is_as_long_as_the_client_asks() -> None:
    async with agent_bench() as bench:
        now = bench.clock.wall_ms()
        token = await ask(bench, create(max_lifetime_ms=HOUR))
        assert (token.expiry_timestamp_ms, token.max_timestamp_ms) == (now + HOUR, now + HOUR)
        token = await ask(bench, create(max_lifetime_ms=2**63 - 1))
        assert token.max_timestamp_ms == now + 7 * DAY


async def test_an_expired_token_is_neither_renewed_nor_described() -> None:
    async with agent_bench() as bench:
        settings = SecuritySettings(delegation_token_expiry_ms=1_000)
        bench.services.clients = type(bench.services.clients)(settings=settings, token_secret=TOKEN_SECRET)
        token = await ask(bench, create())
        bench.clock.advance(1)
        for request in (
            RenewDelegationTokenRequest(token.hmac, HOUR),
            ExpireDelegationTokenRequest(token.hmac, -1),
        ):
            assert (await ask(bench, request)).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
        assert await seen(bench, "alice") == []


async def test_nobody_but_the_owner_and_the_renewers_changes_a_token_and_the_attempt_is_noted() -> None:
    async with agent_bench() as bench:
        token = await ask(bench, create())
        with capture_logs() as logs:
            for request in (
                RenewDelegationTokenRequest(token.hmac, HOUR),
                ExpireDelegationTokenRequest(token.hmac, -1),
            ):
                refused = await ask(bench, request, "mallory")
                assert refused.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        refusals = [line["api"] for line in logs if line["event"] == "refused"]
        assert refusals == ["RenewDelegationToken", "ExpireDelegationToken"]


@pytest.mark.parametrize(("user", "access"), [("ANONYMOUS", {}), ("alice", {"by_token": True})])
async def test_a_client_logged_in_by_token_gets_no_tokens(user: str, access: dict[str, Any]) -> None:
    async with agent_bench() as bench:
        token = await ask(bench, create())
        for request in (
            create(),
            RenewDelegationTokenRequest(token.hmac, HOUR),
            ExpireDelegationTokenRequest(token.hmac, -1),
            DescribeDelegationTokenRequest(None),
        ):
            with capture_logs() as logs:
                refused = await ask(bench, request, user, **access)
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            times = {
                name: getattr(refused, name) for name in refused.__struct_fields__ if "timestamp" in name
            }
            assert set(times.values()) <= {-1}, times
            assert [line["event"] for line in logs if line["event"] != "not changed"] == ["refused"]
        assert await seen(bench, "alice") == [token.token_id]


async def test_a_token_for_another_needs_create_tokens_on_him() -> None:
    async with agent_bench() as bench:
        request = create(owner_principal_type="User", owner_principal_name="bob")
        right = allowed(Operation.CREATE_TOKENS, ResourceType.USER, "User:bob", "alice")
        refused = await ask(bench, request)
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        token = await ask(bench, request, acls=(right,))
        assert (token.error_code, token.principal_name) == (0, "bob")
        assert token.token_requester_principal_name == "alice"
        assert await seen(bench, "bob") == await seen(bench, "alice") == [token.token_id]
        renewed = await ask(bench, RenewDelegationTokenRequest(token.hmac, HOUR), "alice")
        assert renewed.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, (
            "she asked for it, that is all"
        )


@pytest.mark.parametrize(
    "request_",
    [
        create(renewers=[CreatableRenewers("Group", "bob")]),
        create(owner_principal_type="Group", owner_principal_name="bob"),
    ],
)
async def test_only_users_own_and_renew(request_: CreateDelegationTokenRequest) -> None:
    async with agent_bench() as bench:
        assert (await ask(bench, request_)).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


async def test_others_tokens_are_seen_by_who_may_describe_them() -> None:
    async with agent_bench() as bench:
        mine = (await ask(bench, create(), "alice")).token_id
        bobs, carols = [(await ask(bench, create(), user)).token_id for user in ("bob", "carol")]
        token = allowed(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, bobs, "alice")
        owner = allowed(Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:carol", "alice")
        assert await seen(bench, "alice") == [mine]
        assert set(await seen(bench, "alice", token)) == {mine, bobs}
        assert set(await seen(bench, "alice", token, owner)) == {mine, bobs, carols}
        assert await seen(bench, "alice", token, owner, owners=("carol", "nobody")) == [carols]
        assert await seen(bench, "alice", token, owner, owners=()) == []
        assert await seen(bench, "alice", owners=("bob",)) == []


async def test_many_tokens_are_described_in_turns_with_one_hmac_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made, most = 0, 0

    def counted(secret: str, token_id: str) -> bytes:
        nonlocal made
        made += 1
        return hmac_of(secret, token_id)

    async def watch() -> None:
        nonlocal most
        while True:
            before = made
            await asyncio.sleep(0)
            most = max(most, made - before)

    monkeypatch.setattr("agent.handlers.delegation_tokens.hmac_of", counted)

    async with agent_bench() as bench:
        for each in range(3 * TOKENS_IN_A_TURN):
            await bench.sequencer.create_token(token_of("User:alice", f"token-{each}"))
        watcher = asyncio.ensure_future(watch())
        assert len(await seen(bench, "alice")) == made == 3 * TOKENS_IN_A_TURN
        watcher.cancel()
        assert most == TOKENS_IN_A_TURN


async def test_no_more_tokens_are_described_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def noted(secret: str, token_id: str) -> bytes:
        made.append(token_id)
        return hmac_of(secret, token_id)

    monkeypatch.setattr("agent.handlers.delegation_tokens.hmac_of", noted)
    renewers = [f"User:{each}" for each in range(100)]
    most = LEAST_BUDGET // LARGEST_PART // (TOKEN_BYTES + RENEWER_BYTES * len(renewers))

    async with agent_bench(memory_budget_bytes=LEAST_BUDGET) as bench:
        for each in range(most + 10):
            await bench.sequencer.create_token(token_of("User:alice", f"token-{each}", *renewers))
        described = await ask(bench, DescribeDelegationTokenRequest(None))
        assert described.error_code == ErrorCode.POLICY_VIOLATION
        assert len(made) == most
        assert len(await seen(bench, "alice", owners=("bob",))) == 0


async def test_tokens_of_another_secret_are_left_out() -> None:
    async with agent_bench() as bench:
        token = await ask(bench, create())
        bench.services.clients = type(bench.services.clients)(token_secret=TOKEN_SECRET + "!")
        assert await seen(bench, "alice") == []
        renewed = await ask(bench, RenewDelegationTokenRequest(token.hmac, HOUR))
        assert renewed.error_code == ErrorCode.NONE, "who has it may end it nevertheless"


async def test_a_limit_is_reported_as_one() -> None:
    async with agent_bench(sequencer_settings=SequencerSettings(max_delegation_tokens_per_owner=1)) as bench:
        assert (await ask(bench, create())).error_code == ErrorCode.NONE
        assert (await ask(bench, create())).error_code == ErrorCode.POLICY_VIOLATION
        assert (await ask(bench, create(), "bob")).error_code == ErrorCode.NONE


async def test_too_many_renewers_are_refused() -> None:
    async with agent_bench() as bench:
        renewers = [CreatableRenewers("User", f"u{each}") for each in range(101)]
        refused = await ask(bench, create(renewers=renewers))
        assert refused.error_code == ErrorCode.INVALID_REQUEST


async def test_a_lost_sequencer_is_reported_as_one() -> None:
    async with agent_bench() as bench:
        bench.sequencer.failures["create_token"] = 1
        refused = await ask(bench, create())
        assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
