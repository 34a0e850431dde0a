"""Delegation tokens of a tenant: by the names that its clients use, and by its ACLs alone."""

from __future__ import annotations

from typing import Any

from agent.dispatch import Dispatcher
from agent.security.access import Access
from agent.security.authorize import AclIndex
from agent.security.guarded_handlers import GUARDED
from agent.tenants.acl_names import deciding_acls, stored_acl
from agent.tenants.tenant_handlers import tenant_handlers
from tailrace.kafka import decode_response, encode_request
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from tailrace.kafka.messages.describe_delegation_token import DescribeDelegationTokenRequest
from tailrace.kafka.messages.renew_delegation_token import RenewDelegationTokenRequest
from tailrace.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from tests.agent.tenants.neighbours import ACME, OTHER
from tests.support.agents import AgentBench, agent_bench, connection, token_of


async def ask(bench: AgentBench, request: Any, user: str, *acls: Acl) -> Any:
    index = AclIndex(deciding_acls(ACME, [stored_acl(ACME, acl) for acl in acls]))
    client, principal = connection(), f"User:{ACME.stored(user)}"
    client.access = Access("INSIDE", "10.0.0.1", principal, lambda: index, tenant=ACME)
    api, version = request.api.key, APIS[request.api.key].served.last
    sent = b"".join(encode_request(7, api, version, request, "client"))
    reply = await Dispatcher(bench.services, tenant_handlers(GUARDED))(memoryview(sent)[4:], client)
    assert reply.parts is not None
    return decode_response(api, version, memoryview(b"".join(reply.parts))[4:])[1]


def right(operation: Operation, kind: ResourceType, name: str) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, "User:alice", "*", operation, Permission.ALLOW)


async def test_tokens_are_created_for_users_of_the_tenant_by_the_names_that_it_uses() -> None:
    async with agent_bench() as bench:
        request = CreateDelegationTokenRequest("User", "bob", [CreatableRenewers("User", "carol")], -1)
        refused = await ask(bench, request, "alice")
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        may = right(Operation.CREATE_TOKENS, ResourceType.USER, "User:bob")
        token = await ask(bench, request, "alice", may)
        assert (token.error_code, token.principal_name, token.token_requester_principal_name) == (
            0,
            "bob",
            "alice",
        )
        renewed = await ask(bench, RenewDelegationTokenRequest(token.hmac, -1), "carol")
        assert renewed.error_code == ErrorCode.NONE
        [seen] = (await ask(bench, DescribeDelegationTokenRequest(None), "bob")).tokens
        assert [each.principal_name for each in seen.renewers] == ["carol"]


async def test_a_client_that_may_see_all_tokens_sees_those_of_its_tenant() -> None:
    async with agent_bench() as bench:
        for owner in ("anybody", ACME.stored("bob"), OTHER.stored("bob")):
            await bench.services.sequencer.create_token(token_of(f"User:{owner}", f"token-of-{owner}"))
        for everything in (
            right(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "*"),
            right(Operation.DESCRIBE_TOKENS, ResourceType.USER, "*"),
        ):
            [seen] = (await ask(bench, DescribeDelegationTokenRequest(None), "alice", everything)).tokens
            assert (seen.principal_name, seen.token_id) == ("bob", "token-of-acme~bob")
        one = right(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "token-of-acme~bob")
        assert len((await ask(bench, DescribeDelegationTokenRequest(None), "alice", one)).tokens) == 1
        assert (await ask(bench, DescribeDelegationTokenRequest(None), "alice")).tokens == []


async def test_a_tenants_client_without_a_login_gets_no_tokens() -> None:
    async with agent_bench() as bench:
        refused = await ask(bench, CreateDelegationTokenRequest(), "ANONYMOUS")
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
