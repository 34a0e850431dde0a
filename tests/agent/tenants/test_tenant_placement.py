"""Tenant placement: the rules, and real logins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from agent.http import AgentPages
from agent.security.listeners import BadListener
from agent.security.tenant_placement import NoTenant, TenantRules, parse_tenants
from sequencer.api.topics import CreateTopic
from tailrace.http.http_server import HttpServer
from tailrace.tenants import BadTenant, Tenant, is_topic_name, local_name, tenant_of
from tests.agent.gateway.serving import served
from tests.agent.security.secured import PASSWORD, Secured, in_thread, secured_agent
from tests.support.patience import PATIENCE_SECONDS

RULES = ("RULE:operator//", "RULE:([A-Za-z]+)-.*/$1/")


def rules(*listeners: str, names: tuple[str, ...] = ("ACME", "SHARED")) -> TenantRules:
    return parse_tenants(listeners, RULES, names)


@pytest.mark.parametrize(
    ("listener", "user", "tenant", "stored"),
    [
        ("ACME", "alice", "acme", "acme~alice"),
        ("ACME", "zwilling~x", "acme", "acme~zwilling~x"),
        ("SHARED", "acme~alice", "acme", "acme~alice"),
        ("SHARED", "zwilling-svc", "zwilling", "zwilling~zwilling-svc"),
        ("SHARED", "operator", None, "operator"),
    ],
)
def test_a_client_is_placed_by_listener_or_by_name(
    listener: str, user: str, tenant: str | None, stored: str
) -> None:
    placed = rules("ACME=acme").place(listener, user, by_password=True)
    assert (placed.tenant.name if placed.tenant else None, placed.user) == (tenant, stored)


@pytest.mark.parametrize(
    ("user", "by_password", "reason"),
    [
        ("stranger", True, "no tenant rule fits"),
        ("acme~alice", False, "no password proves it"),
        ("Acme-x", True, "names no tenant"),
    ],
)
def test_a_client_that_has_no_place_is_refused(user: str, by_password: bool, reason: str) -> None:
    with pytest.raises(NoTenant, match=reason):
        rules("ACME=acme").place("SHARED", user, by_password=by_password)


def test_without_settings_a_mark_means_nothing() -> None:
    placed = parse_tenants((), (), ("SHARED",)).place("SHARED", "acme~alice", by_password=False)
    assert (placed.tenant, placed.user) == (None, "acme~alice")


@pytest.mark.parametrize("wrong", ["NONE=acme", "ACME", "ACME=", "ACME=a~b", "ACME=-a", "ACME=" + "a" * 33])
def test_a_wrong_listener_of_a_tenant_is_said_at_the_start(wrong: str) -> None:
    with pytest.raises(BadListener, match="tenant listener"):
        rules(wrong)


def test_stored_names_are_unambiguous() -> None:
    tenant = Tenant.named("acme")
    assert tenant.local(tenant.stored("a~b")) == "a~b" == local_name("acme~a~b")
    assert tenant_of("acme~orders") == tenant != tenant_of("acme2~orders")
    assert tenant_of("Acme~orders") is tenant_of("orders") is None
    assert not Tenant.named("acm").owns("acme~orders")
    legal = {name for name in ("t", "a~t", "a~b~t", "~t", "a~", "a~.", "A~t") if is_topic_name(name)}
    assert legal == {"t", "a~t"}
    with pytest.raises(BadTenant):
        Tenant.named("")


SETTINGS: dict[str, Any] = {
    "tenant_listeners": ("ACME=acme",),
    "tenant_rules": RULES,
    "super_users": ("User:operator", "User:acme~alice", "User:zwilling~zwilling-svc"),
}
LISTENERS = ("ACME:SASL_PLAINTEXT://127.0.0.1:0", "SHARED:SASL_PLAINTEXT://127.0.0.1:0")


async def users_and_topics(secured: Secured) -> None:
    for user in ("acme~alice", "zwilling-svc", "operator", "stranger"):
        await secured.add_user(user)
    await secured.add_user("alice", "another password")
    for topic in ("acme~orders", "zwilling~orders", "zwilling~more", "nobodys"):
        await secured.wired.sequencer.create_topic(CreateTopic(topic, 1, {}))


async def test_a_client_sees_the_topics_of_its_tenant(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, *LISTENERS, **SETTINGS) as secured:
        await users_and_topics(secured)

        def topics(
            listener: str, user: str, password: str = PASSWORD, seconds: float = PATIENCE_SECONDS
        ) -> set[str]:
            settings = secured.librdkafka(listener, user, password, **{"security.protocol": "SASL_PLAINTEXT"})
            settings |= {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": user, "sasl.password": password}
            admin = AdminClient(settings)
            return set(admin.list_topics(timeout=seconds).topics)

        def all_of_them() -> None:
            assert topics("ACME", "alice") == {"orders"}
            assert topics("SHARED", "acme~alice") == {"orders"}
            assert topics("SHARED", "zwilling-svc") == {"orders", "more"}
            assert topics("SHARED", "operator") >= {"acme~orders", "zwilling~orders", "nobodys"}

        await in_thread(all_of_them)
        for listener, user, password in (
            ("ACME", "alice", "another password"),
            ("ACME", "operator", PASSWORD),
            ("SHARED", "stranger", PASSWORD),
        ):
            with pytest.raises(KafkaException):
                await in_thread(lambda: topics(listener, user, password, 8))  # noqa: B023 - awaited at once


async def test_a_tenants_administrator_makes_users_topics_and_acls_of_its_own(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, *LISTENERS, **SETTINGS) as secured:
        await users_and_topics(secured)

        def work() -> None:
            from confluent_kafka.admin import (
                AclBinding,
                AclOperation,
                AclPermissionType,
                ResourcePatternType,
                ResourceType,
                ScramCredentialInfo,
                ScramMechanism,
                UserScramCredentialUpsertion,
            )

            def login(user: str) -> dict[str, Any]:
                settings = secured.librdkafka("ACME", user, **{"security.protocol": "SASL_PLAINTEXT"})
                return settings | {
                    "sasl.mechanism": "SCRAM-SHA-256",
                    "sasl.username": user,
                    "sasl.password": PASSWORD,
                }

            alice = AdminClient(login("alice"))
            info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
            bob = UserScramCredentialUpsertion("bob", info, PASSWORD.encode())
            alice.alter_user_scram_credentials([bob])["bob"].result(PATIENCE_SECONDS)
            described = alice.describe_user_scram_credentials().result(PATIENCE_SECONDS)
            assert set(described) == {"alice", "bob"}
            alice.create_topics([NewTopic("hidden", 1, 1)])["hidden"].result(PATIENCE_SECONDS)
            binding = AclBinding(
                ResourceType.TOPIC,
                "or",
                ResourcePatternType.PREFIXED,
                "User:bob",
                "*",
                AclOperation.READ,
                AclPermissionType.ALLOW,
            )
            alice.create_acls([binding])[binding].result(PATIENCE_SECONDS)
            assert set(AdminClient(login("bob")).list_topics(timeout=PATIENCE_SECONDS).topics) == {"orders"}

        await in_thread(work)


async def test_a_tenants_client_sees_its_own_listener_and_the_operator_all(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, *LISTENERS, **SETTINGS) as secured:
        await users_and_topics(secured)
        agent = secured.wired.agent
        ports = agent.kafka_ports

        def told(listener: str, user: str) -> tuple[str, ...]:
            settings = secured.librdkafka(listener, user, **{"security.protocol": "SASL_PLAINTEXT"})
            settings |= {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": user, "sasl.password": PASSWORD}
            broker = ConfigResource(ConfigResource.Type.BROKER, str(agent.broker_id))
            admin = AdminClient(settings)
            rows = admin.describe_configs([broker])[broker].result(PATIENCE_SECONDS)
            return tuple(
                rows[name].value
                for name in ("listeners", "advertised.listeners", "listener.security.protocol.map")
            )

        acme, shared = (f"{name}://127.0.0.1:{ports[name]}" for name in ("ACME", "SHARED"))
        assert await in_thread(lambda: told("ACME", "alice")) == (acme, acme, "ACME:SASL_PLAINTEXT")
        both = f"{acme},{shared}"
        assert await in_thread(lambda: told("SHARED", "operator")) == (
            both,
            both,
            "ACME:SASL_PLAINTEXT,SHARED:SASL_PLAINTEXT",
        )


async def test_pages_are_the_operators_and_the_gateway_has_the_tenants_cluster(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, *LISTENERS, **SETTINGS) as secured:
        await users_and_topics(secured)
        agent = secured.wired.agent
        await agent.catalog.refresh()
        pages = AgentPages(agent.telemetry, secured.wired.sequencer)
        pages.agent = agent
        http = HttpServer(pages, secured.wired.clock, pages.login)
        await http.start("127.0.0.1", 0)
        async with aiohttp.ClientSession() as session:
            for user, status in (
                ("operator", 200),
                ("acme~alice", 403),
                ("zwilling-svc", 403),
                ("stranger", 401),
            ):
                url = f"http://127.0.0.1:{http.port}/metrics"
                async with session.get(url, auth=aiohttp.BasicAuth(user, PASSWORD)) as answer:
                    assert answer.status == status, user
        await http.close()
        async with served(secured.wired, listener="ACME") as gateway:
            own = Tenant.named("acme").cluster_id(agent.catalog.snapshot.cluster_id)
            alice = {"auth": aiohttp.BasicAuth("alice", PASSWORD)}
            base = f"http://127.0.0.1:{gateway.gateway.port}/v3/clusters"
            listed = await gateway.get(f"{base}/{own}/topics", **alice)
            assert [topic["topic_name"] for topic in listed["data"]] == ["orders"]
            assert (await gateway.ask("GET", f"{gateway.base}/topics", **alice))[0] == 404
            status, _ = await gateway.ask("GET", f"{base}/{own}/topics/more", **alice)
            assert status == 404
