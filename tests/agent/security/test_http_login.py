from __future__ import annotations

import asyncio
import threading
from base64 import b64encode
from pathlib import Path

import aiohttp
import pytest

from agent.http import AgentPages
from agent.server import DECODING_THREADS
from sequencer.api.security import CreateAcls
from tailrace.http.http_server import HttpServer
from tailrace.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from tests.agent.security.secured import PASSWORD, secured_agent
from tests.agent.security.test_oauthbearer import KEY, OTHER, jwks, settings, token
from tests.support.patience import PATIENCE_SECONDS


async def test_pages_and_metrics_need_a_user_who_may_describe_the_cluster(tmp_path: Path) -> None:
    jwks(tmp_path / "jwks.json", KEY)

    options = dict(
        settings(tmp_path / "jwks.json", super_users=("User:alice",), failed_authentication_delay_ms=0)
    )

    async with secured_agent(tmp_path, "SASL_PLAINTEXT", **options) as secured:
        for user in ("alice", "bob", "carol"):
            await secured.add_user(user)
        describe = Acl(
            ResourceType.CLUSTER,
            CLUSTER_NAME,
            PatternType.LITERAL,
            "User:bob",
            "*",
            Operation.DESCRIBE,
            Permission.ALLOW,
        )
        await secured.wired.sequencer.create_acls(CreateAcls([describe]))
        agent = secured.wired.agent
        await agent.catalog.refresh()
        pages = AgentPages(agent.telemetry, secured.wired.sequencer)
        http = HttpServer(pages, secured.wired.clock, pages.login)
        await http.start("127.0.0.1", 0)

        async def status(path: str = "/metrics", **request: object) -> int:
            async with session.get(f"http://127.0.0.1:{http.port}{path}", **request) as answer:  # type: ignore[arg-type]
                return answer.status

        def basic(user: str, password: str = PASSWORD) -> aiohttp.BasicAuth:
            return aiohttp.BasicAuth(user, password)

        async with aiohttp.ClientSession() as session:
            assert await status() == 503, "before it is known who may log in"
            assert await status("/healthz") == 200
            pages.agent = agent
            assert [await status(path) for path in ("/metrics", "/", "/nowhere")] == [401] * 3
            assert [await status(path) for path in ("/healthz", "/readyz")] == [200] * 2
            users = [basic("alice"), basic("bob"), basic("carol"), basic("bob", "wrong"), basic("nobody")]
            assert [await status(auth=auth) for auth in users] == [200, 200, 403, 401, 401]
            bearers = [token(), token(OTHER), "", "x" * 100_000]
            for bearer, expected in zip(bearers[:3], (200, 401, 401), strict=True):
                assert await status(headers={"Authorization": f"Bearer {bearer}"}) == expected
            assert await status(headers={"Authorization": "Basic !"}) == 401
        await http.close()


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SSL"])
async def test_without_logins_pages_are_open(tmp_path: Path, listener: str) -> None:
    async with secured_agent(tmp_path, listener) as secured:
        assert secured.wired.agent.http_login is None


async def test_a_login_does_not_wait_for_clients_whose_records_are_decoded(tmp_path: Path) -> None:
    given = f"Basic {b64encode(f'alice:{PASSWORD}'.encode()).decode()}"
    is_over = threading.Event()
    async with asyncio.timeout(PATIENCE_SECONDS), secured_agent(tmp_path, "SASL_PLAINTEXT") as there:
        await there.add_user("alice")
        agent = there.wired.agent
        for _ in range(DECODING_THREADS):
            agent.services.decoding.submit(is_over.wait)
        try:
            access = await agent.gateway_context("").logins.access(given, "127.0.0.1", "SASL_PLAINTEXT")
        finally:
            is_over.set()
    assert access.principal == "User:alice"
