"""Each route, asked by a client that lacks each right: the refusals are those of Kafka's APIs, and tell nothing."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent.gateway.routes import ROUTES
from agent.security import http_login
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.security import AlterScram, CreateAcls, ScramMechanism, ScramName
from sequencer.api.topics import CreateTopic
from tailrace.security.acls import OPERATIONS, Acl, Operation, PatternType, Permission, ResourceType
from tailrace.security.tls import Tls
from tests.agent.gateway.serving import Served, opened_gateway, served
from tests.agent.gateway.test_gateway_hostile import sent
from tests.agent.security.secured import PASSWORD, Secured, secured_agent
from tests.agent.security.test_oauthbearer import KEY, OTHER, jwks, settings, token
from tests.support.certificates import Authority
from tests.support.wire import wired_agent

CREATED = {"topic_name": "made-by-{user}"}
VALUE = {"value": {"type": "STRING", "data": "x"}}
NEEDS: dict[tuple[str, str], tuple[str, object, set[Operation]]] = {
    ("GET", "/clusters"): ("", None, set()),
    ("GET", "/clusters/{cluster_id}"): ("", None, set()),
    ("GET", "/brokers"): ("/brokers", None, set()),
    ("GET", "/brokers/{broker_id}"): ("/brokers/1", None, set()),
    ("GET", "/topics"): ("/topics", None, {Operation.DESCRIBE}),
    ("POST", "/topics"): ("/topics", CREATED, {Operation.CREATE}),
    ("GET", "/topics/{t}"): ("/topics/{topic}", None, {Operation.DESCRIBE}),
    ("PATCH", "/topics/{t}"): ("/topics/{topic}", {"partitions_count": 2}, {Operation.ALTER, Operation.DESCRIBE}),
    ("GET", "/topics/{t}/configs"): ("/topics/{topic}/configs", None, {Operation.DESCRIBE_CONFIGS}),
    ("POST", "/topics/{t}/configs:alter"): ("/topics/{topic}/configs:alter", {"data": []}, {Operation.ALTER_CONFIGS}),
    ("GET", "/topics/{t}/configs/{name}"): ("/topics/{topic}/configs/segment.ms", None, {Operation.DESCRIBE_CONFIGS}),
    ("PUT", "/topics/{t}/configs/{name}"): (
        "/topics/{topic}/configs/segment.ms", {"value": "7000"}, {Operation.ALTER_CONFIGS},
    ),
    ("DELETE", "/topics/{t}/configs/{name}"): (
        "/topics/{topic}/configs/segment.ms", None, {Operation.ALTER_CONFIGS},
    ),
    ("GET", "/topics/{t}/partitions"): ("/topics/{topic}/partitions", None, {Operation.DESCRIBE}),
    ("GET", "/topics/{t}/partitions/{p}"): ("/topics/{topic}/partitions/0", None, {Operation.DESCRIBE}),
    ("GET", "/topics/{t}/partitions/{p}/replicas"): (
        "/topics/{topic}/partitions/0/replicas", None, {Operation.DESCRIBE},
    ),
    ("POST", "/topics/{t}/records"): ("/topics/{topic}/records", VALUE, {Operation.DESCRIBE, Operation.WRITE}),
    ("GET", "/topics/{t}/partitions/{p}/records"): (
        "/topics/{topic}/partitions/0/records", None, {Operation.DESCRIBE, Operation.READ},
    ),
    ("GET", "/topics/{t}/events"): ("/topics/{topic}/events", None, {Operation.DESCRIBE, Operation.READ}),
    ("GET", "/consumer-groups"): ("/consumer-groups", None, {Operation.DESCRIBE}),
    ("GET", "/consumer-groups/{g}"): ("/consumer-groups/{group}", None, {Operation.DESCRIBE}),
    ("GET", "/consumer-groups/{g}/consumers"): ("/consumer-groups/{group}/consumers", None, {Operation.DESCRIBE}),
    ("GET", "/consumer-groups/{g}/consumers/{c}"): (
        "/consumer-groups/{group}/consumers/x", None, {Operation.DESCRIBE},
    ),
    ("GET", "/consumer-groups/{g}/consumers/{c}/assignments"): (
        "/consumer-groups/{group}/consumers/x/assignments", None, {Operation.DESCRIBE},
    ),
    ("GET", "/consumer-groups/{g}/lags"): ("/consumer-groups/{group}/lags", None, {Operation.DESCRIBE}),
    ("GET", "/consumer-groups/{g}/lags/{t}/partitions/{p}"): (
        "/consumer-groups/{group}/lags/t/partitions/0", None, {Operation.DESCRIBE},
    ),
    ("GET", "/consumer-groups/{g}/lag-summary"): ("/consumer-groups/{group}/lag-summary", None, {Operation.DESCRIBE}),
    ("DELETE", "/topics/{t}"): ("/topics/{topic}", None, {Operation.DELETE}),
}  # fmt: skip
"""Of each route: an address, a body, and the operations without each of which it is refused. Implied operations count:
DESCRIBE is denied to who lacks it."""
LACKED = (
    *(
        Operation.DESCRIBE,
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
    ),
    *(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
)
TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)


def acl(user: str, kind: ResourceType, operation: Operation, permission: Permission) -> Acl:
    name = "kafka-cluster" if kind is ResourceType.CLUSTER else "*"
    return Acl(kind, name, PatternType.LITERAL, f"User:{user}", "*", operation, permission)


@asynccontextmanager
async def behind_logins(folder: Path, **security: Any) -> AsyncIterator[tuple[Secured, Served]]:
    async with (
        secured_agent(folder, "SASL_PLAINTEXT", **security) as secured,
        served(secured.wired, heartbeat_ms=100) as gateway,
    ):
        yield secured, gateway


async def told(there: Served, method: str, path: str, body: object, **more: Any) -> tuple[int, Any]:
    """As `ask`; of an event stream, its first event but comments, if any."""
    url = there.base + path
    async with there.session.request(
        method, url, data=None if body is None else json.dumps(body), **more
    ) as answer:
        if answer.content_type != "text/event-stream":
            text = await answer.text()
            return answer.status, json.loads(text) if text else None
        while line := (await answer.content.readline()).decode():
            if line.startswith("data: "):
                return answer.status, json.loads(line.removeprefix("data: "))
            if line.startswith(": "):
                return answer.status, None
        return answer.status, None


def is_refused(status: int, body: Any) -> bool:
    """By its status, the report of a record, the end of a stream, or by being left out of a listing."""
    if status == 403 or (isinstance(body, dict) and body.get("error_code") == 40301):
        return True
    is_listing = isinstance(body, dict) and body.get("kind") in ("KafkaTopicList", "KafkaConsumerGroupList")
    return status == 200 and is_listing and not body["data"]


async def test_every_route_is_refused_to_who_lacks_what_it_needs_and_to_nobody_else(tmp_path: Path) -> None:
    async with behind_logins(tmp_path) as (there, gateway):
        users = {operation.name.lower(): operation for operation in LACKED}
        acls = []
        for user, operation in users.items():
            await there.add_user(user)
            for kind in TYPES:
                acls.append(acl(user, kind, Operation.ALL, Permission.ALLOW))
                if operation in OPERATIONS[kind]:
                    acls.append(acl(user, kind, operation, Permission.DENY))
        await there.wired.sequencer.create_acls(CreateAcls(acls))
        for user in users:
            made = await there.wired.sequencer.create_topic(CreateTopic(f"t-{user}", 1, {}))
            position = OffsetPosition(made.topic_id, 0, 0, -1, "")
            await there.wired.sequencer.commit_offsets(CommitOffsets(f"g-{user}", -1, -1, -1, "", [position]))
        await there.wired.agent.catalog.refresh()
        wrong = []
        for (method, route), (path, body, needs) in NEEDS.items():
            for user, lacked in users.items():
                names = {"topic": f"t-{user}", "group": f"g-{user}"}
                given = json.loads(json.dumps(body).replace("{user}", user)) if body else None
                auth = aiohttp.BasicAuth(user, PASSWORD)
                status, said = await told(gateway, method, path.format(**names), given, auth=auth)
                if is_refused(status, said) is not (lacked in needs):
                    wrong.append((method, route, user, status, said))
        assert wrong == []


def test_the_table_has_every_route() -> None:
    assert len(NEEDS) == len(ROUTES)
    assert sorted(method for method, _ in NEEDS) == sorted(route.method for route in ROUTES)


async def test_a_client_without_permissions_cannot_tell_existing_from_missing_resources(
    tmp_path: Path,
) -> None:
    async with behind_logins(tmp_path, max_failed_logins_per_minute=0) as (there, gateway):
        await there.add_user("nobody")
        made = await there.wired.topic("there")
        position = OffsetPosition(made.topic_id, 0, 0, -1, "")
        await there.wired.sequencer.commit_offsets(CommitOffsets("there", -1, -1, -1, "", [position]))
        await there.wired.agent.catalog.refresh()
        auth = aiohttp.BasicAuth("nobody", PASSWORD)
        for (method, _), (path, body, needs) in NEEDS.items():
            if not needs:
                continue
            said = [
                await told(gateway, method, path.format(topic=name, group=name), body, auth=auth)
                for name in ("there", "not-there")
            ]
            assert said[0][0] == said[1][0], path
            texts = [json.dumps(each[1]).replace("not-there", "there") for each in said]
            assert texts[0] == texts[1] and is_refused(*said[0]), (method, path, said)
        assert there.wired.told("refused"), "the audit log has them"


def mechanisms(there: Secured) -> set[str]:
    """Those with failed logins."""
    family = next(
        each for each in there.wired.agent.telemetry.registry.collect() if each.name == "tailrace_logins"
    )
    return {each.labels["mechanism"] for each in family.samples if each.labels["result"] == "failure"}


async def test_nobody_is_served_without_a_login(tmp_path: Path) -> None:
    jwks(tmp_path / "jwks.json", KEY)

    options = dict(
        settings(tmp_path / "jwks.json", super_users=("User:alice",), failed_authentication_delay_ms=0)
    )

    async with behind_logins(tmp_path, **options) as (there, gateway):
        await there.add_user("alice")
        for (method, _), (path, body, _needs) in NEEDS.items():
            refusal = await told(gateway, method, path.format(topic="t", group="g"), body)
            assert refusal == (401, {"error_code": 40101, "message": "A login is needed."}), path

        async def status(**more: Any) -> int:
            return (await told(gateway, "GET", "/topics", None, **more))[0]

        def bearer(text: str) -> dict[str, str]:
            return {"Authorization": f"Bearer {text}"}

        assert await status(auth=aiohttp.BasicAuth("alice", PASSWORD)) == 200
        assert await status(auth=aiohttp.BasicAuth("alice", "wrong")) == 401
        assert [await status(headers=bearer(each)) for each in (token(), token(OTHER), "x")] == [
            200,
            401,
            401,
        ]
        assert (
            there.wired.metric("logins_total", listener="SASL_PLAINTEXT", mechanism="Basic", result="failure")
            == 1
        )
        strange = [await status(headers={"Authorization": f"Scheme{number} x"}) for number in range(5)]
        assert strange == [401] * 5
        failed = [each for each in mechanisms(there) if each not in ("Basic", "Bearer")]
        assert failed == ["(other)"], "what clients write is no label of a metric"
        assert (
            there.wired.metric("logins_total", listener="SASL_PLAINTEXT", mechanism="Basic", result="success")
            == 1
        )
        url = f"http://127.0.0.1:{gateway.gateway.port}/v3/clusters"
        async with gateway.session.get(url) as answer:
            assert answer.headers["WWW-Authenticate"].startswith("Basic ")


@pytest.mark.parametrize(
    "given", ["Basic é".encode(), b"Basic \xff", b"Bearer \xff", b"\xff \xff"], ids=lambda given: repr(given)
)
async def test_a_login_that_is_no_text_is_refused_like_any_other(
    tmp_path: Path, given: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    jwks(tmp_path / "jwks.json", KEY)
    options = dict(settings(tmp_path / "jwks.json", failed_authentication_delay_ms=0))

    async with behind_logins(tmp_path, **options) as (there, gateway):
        head = b"GET /v3/clusters HTTP/1.1\r\nHost: localhost\r\nAuthorization: " + given + b"\r\n\r\n"
        reader, _ = await sent(gateway, head)
        assert b" 401 " in await reader.readline()
        assert mechanisms(there), "it counts as a failed login"
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_failed_logins_of_an_address_end_no_login_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_login, "REMEMBERED_SECONDS", 0.0)

    async with behind_logins(tmp_path, max_failed_logins_per_minute=3, failed_authentication_delay_ms=0) as (
        there,
        gateway,
    ):
        for user in ("alice", "bob"):
            await there.add_user(user)

        async def status(user: str, password: str = PASSWORD) -> int:
            return (await told(gateway, "GET", "/topics", None, auth=aiohttp.BasicAuth(user, password)))[0]

        assert await status("alice") == 200
        assert [await status("alice", "wrong") for _ in range(3)] == [401] * 3
        assert await status("alice") == 200, "as a connection that is logged in stays"
        assert await status("bob") == 401


async def test_a_stream_ends_when_its_user_may_not_read_any_more_or_is_removed(tmp_path: Path) -> None:

    async with (
        secured_agent(tmp_path, "SASL_PLAINTEXT") as there,
        served(there.wired, heartbeat_ms=200) as gateway,
    ):
        await there.add_user("alice")
        await there.wired.topic("t")
        mine = [acl("alice", ResourceType.TOPIC, Operation.READ, Permission.ALLOW)]
        await there.wired.sequencer.create_acls(CreateAcls(mine))
        await there.wired.agent.catalog.refresh()
        auth = aiohttp.BasicAuth("alice", PASSWORD)
        async with gateway.session.get(f"{gateway.base}/topics/t/events", auth=auth) as answer:
            while not (await answer.content.readline()).startswith(b": nothing"):
                pass
            name = ScramName("alice", ScramMechanism.SCRAM_SHA_256)
            await there.wired.sequencer.alter_scram(AlterScram([], [name]))
            await there.wired.agent.catalog.refresh()
            rest = (await answer.content.read()).decode()
        assert 'event: end\ndata: {"error_code":40101,"message":"The login failed."}' in rest


@pytest.mark.uvloop
async def test_requests_that_any_web_page_could_make_a_browser_send_are_refused(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t")
        page = {"Origin": "http://elsewhere.example"}
        for path in ("/topics", "/topics/t/records", "/topics/t/configs:alter"):
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
                headers = page | {"Content-Type": kind}
                status, _ = await there.ask("POST", path, data="{}", headers=headers)
                assert status == 415, (path, kind)
        headers = page | {"Content-Type": "application/json; charset=utf-8"}
        assert (await there.ask("POST", "/topics/t/records", data="{}", headers=headers))[0] == 200
        assert (await there.ask("OPTIONS", "/topics/t/records", headers=page))[0] == 405


async def test_with_authorities_of_clients_only_a_certificate_of_theirs_lets_in(tmp_path: Path) -> None:
    authority = Authority.make()
    files = authority.files(tmp_path / "server", "127.0.0.1")
    tls = Tls("gateway", files, minimum=ssl.TLSVersion.TLSv1_2)

    def presenting(signed_by: Authority | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(files.authorities))
        if signed_by is not None:
            mine = signed_by.files(tmp_path / "client", "client")
            context.load_cert_chain(mine.certificate, mine.key)
        return context

    async with wired_agent(tmp_path) as wired, served(wired, tls=tls.server_context) as there:
        assert (await there.get("/topics", ssl=presenting(authority)))["data"] == []
        for stranger in (None, Authority.make("another")):
            with pytest.raises(aiohttp.ClientError):
                await there.get("/topics", ssl=presenting(stranger))
        assert (await there.get("/topics", ssl=presenting(authority)))["data"] == []
