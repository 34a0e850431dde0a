"""DNS rebinding: a page whose name was made to point to the gateway reads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.gateway.errors import HttpRefusal
from agent.gateway.hosts import AllowedHosts
from agent.gateway.settings import GatewaySettings
from tests.agent.gateway.serving import opened_gateway, served
from tests.agent.security.secured import secured_agent

ALLOWED = (
    "127.0.0.1:8082", "127.0.0.1", "localhost:8082", "LOCALHOST", "localhost.", "web.localhost:1", "[::1]:8082",
    "[::1]", "10.1.2.3:8082",
)  # fmt: skip
REFUSED = (
    "evil.example:8082", "evil.example", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example",
    "0177.0.0.1", "", ":8082", "[::1", "localhost@evil.example", "127.0.0.1/@evil.example", "x" * 10_000,
)  # fmt: skip


def is_allowed(host: str, *, has_logins: bool = False, **settings: Any) -> bool:
    hosts = AllowedHosts(
        GatewaySettings.model_validate({"listen": "127.0.0.1:8082"} | settings), has_logins=has_logins
    )
    try:
        hosts.check([host])
    except HttpRefusal as refusal:
        assert refusal.status == 421 and len(str(refusal)) < 300
        return False
    return True


@pytest.mark.parametrize("host", ALLOWED)
def test_addresses_and_this_machines_own_name_are_allowed(host: str) -> None:
    assert is_allowed(host) and is_allowed(host, listen="0.0.0.0:8082") and is_allowed(host, has_logins=True)


@pytest.mark.parametrize("host", REFUSED)
def test_other_names_are_refused_on_loopback_and_without_logins(host: str) -> None:
    assert not is_allowed(host)
    assert not is_allowed(host, has_logins=True)
    assert not is_allowed(host, listen="0.0.0.0:8082")
    assert is_allowed(host, has_logins=True, listen="0.0.0.0:8082"), "logins tell pages from clients"


def test_names_of_the_settings_are_allowed() -> None:
    named: dict[str, Any] = {"listen": "kafka-1.example:8082", "hosts": ("Gateway.Example.",)}
    assert is_allowed("gateway.example:443", **named) and is_allowed("kafka-1.example:8082", **named)
    assert not is_allowed("evil.gateway.example", **named)
    assert GatewaySettings.model_validate({"hosts": "a.example, b.example"}).hosts == (
        "a.example",
        "b.example",
    )


def test_each_of_several_headers_counts() -> None:
    hosts = AllowedHosts(GatewaySettings(listen="127.0.0.1:8082"), has_logins=False)
    hosts.check([])  # an old client, and no browser
    with pytest.raises(HttpRefusal):
        hosts.check(["localhost", "evil.example"])


@pytest.mark.uvloop
async def test_a_web_page_with_a_dns_name_of_its_own_gets_and_changes_nothing(tmp_path: Path) -> None:
    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("secret")
        evil = {"headers": {"Host": f"evil.example:{there.gateway.port}", "Content-Type": "application/json"}}
        created = {"topic_name": "made-by-a-page"}
        for method, path, body in (
            ("GET", "/topics", None),
            ("GET", "/topics/secret/events", None),
            ("POST", "/topics", created),
            ("GET", there.base.rpartition("/")[0], None),
        ):
            status, told = await there.ask(method, path, body, **evil)
            assert (status, told["error_code"]) == (421, 421)
        assert [each["topic_name"] for each in (await there.get("/topics"))["data"]] == ["secret"]


async def test_a_gateway_with_logins_on_loopback_checks_the_name_first(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT") as there, served(there.wired) as gateway:
        status, _ = await gateway.ask("GET", "/topics", headers={"Host": "evil.example"})
        assert status == 421
        assert (await gateway.ask("GET", "/topics"))[0] == 401
