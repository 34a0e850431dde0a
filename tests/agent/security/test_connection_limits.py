from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from agent.security.connection_limits import ConnectionLimits, PendingLogins
from agent.security.settings import SecuritySettings
from tests.agent.security.secured import in_thread, secured_agent
from tests.agent.security.test_logins import ROOT, _round_trip
from tests.support.patience import PATIENCE_SECONDS


def limits(now: list[float] | None = None, **settings: int) -> ConnectionLimits:
    clock = now or [0.0]
    return ConnectionLimits(SecuritySettings.model_validate(settings), lambda: clock[0])


def test_an_address_has_so_many_connections() -> None:
    counted = limits(max_connections_per_address=2)
    assert [counted.opened("a") for _ in range(3)] == [None, None, "max_connections_per_address"]
    assert counted.opened("b") is None
    for _ in range(2):
        counted.closed("a", None)
    assert counted.opened("a") is None


def test_a_principal_has_so_many_connections() -> None:
    counted = limits(max_connections_per_principal=1)
    assert [counted.logged_in("User:a"), counted.logged_in("User:a"), counted.logged_in("User:b")] == [
        True,
        False,
        True,
    ]
    counted.closed("address", "User:a")
    assert counted.logged_in("User:a")


def test_failed_logins_close_an_address_until_the_minute_is_over() -> None:
    now = [0.0]
    counted = limits(now, max_failed_logins_per_minute=2)
    counted.login_failed("a")
    assert counted.opened("a") is None
    counted.login_failed("a")
    assert counted.opened("a") == "max_failed_logins_per_minute"
    assert counted.opened("b") is None
    now[0] = 61.0
    assert counted.opened("a") is None


def test_one_ipv6_64_is_one_address() -> None:
    counted = limits(max_connections_per_address=1, max_failed_logins_per_minute=1)
    assert counted.opened("2001:db8:1:2::1") is None
    assert counted.opened("2001:db8:1:2::2") == "max_connections_per_address"
    counted.closed("2001:db8:1:2::1", None)
    counted.closed("2001:db8:1:2::2", None)
    assert counted.opened("2001:db8:1:2::3") is None
    assert counted.opened("2001:db8:1:3::1") is None
    counted.login_failed("2001:db8:9::1")
    assert counted.is_closed_to("2001:db8:9::2") and not counted.is_closed_to("2001:db8:9:1::1")
    room = PendingLogins[str](most=4, most_of_address=1)
    assert room.enter("x", "2001:db8::1", until=1.0) is None
    assert room.enter("y", "2001:db8::2", until=1.0) == "max_connections_without_login_per_address"
    room.leave("x")
    assert room.enter("y", "2001:db8::2", until=1.0) is None


def test_one_address_does_not_keep_the_logins_of_others_out() -> None:
    room = PendingLogins[str](most=4, most_of_address=2)
    assert [room.enter(name, "a", until=1.0) for name in "wxy"] == [
        None,
        None,
        "max_connections_without_login_per_address",
    ]
    assert room.enter("b1", "b", until=1.0) is None
    room.leave("w")  # logged in
    room.leave("y")  # was never in
    assert room.enter("z", "a", until=9.0) is None
    assert room.enter("c1", "c", until=9.0) is None
    assert room.enter("c2", "c", until=9.0) == "max_connections_without_login"
    assert room.leave_late(1.0) == ["x", "b1"] and len(room) == 2
    assert room.enter("a2", "a", until=9.0) is None, "late ones count no more"


async def test_wrong_passwords_in_a_loop_do_not_keep_a_client_out_that_is_in(tmp_path: Path) -> None:
    async with secured_agent(
        tmp_path,
        "SASL_PLAINTEXT",
        agent={"group_initial_rebalance_delay_ms": 0},
        max_failed_logins_per_minute=1,
        **ROOT,
    ) as secured:
        await secured.wired.topic()
        await secured.add_user("alice")
        assert await in_thread(lambda: _round_trip(secured.librdkafka("SASL_PLAINTEXT"))) == [b"hello"]

        def refused() -> float:
            return secured.wired.metric("closed_connections_total", reason="max_failed_logins_per_minute")

        def knock() -> None:
            client = AdminClient(secured.librdkafka("SASL_PLAINTEXT", "alice", "wrong"))
            give_up = time.monotonic() + PATIENCE_SECONDS
            while not refused() and time.monotonic() < give_up:
                with pytest.raises(KafkaException):
                    client.list_topics(timeout=1)

        await in_thread(knock)
        assert refused() >= 1


async def test_a_handshake_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SSL") as secured:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", secured.wired.agent.kafka_port)
            writer.write(b"\0\0\0\x0a not TLS")
            with suppress(ConnectionResetError):
                await reader.read()
            writer.close()
        assert secured.wired.metric("connections") == 0


async def test_silent_connections_of_one_address_do_not_fill_the_room_for_handshakes(tmp_path: Path) -> None:
    async with secured_agent(
        tmp_path, "SASL_SSL", max_connections_without_login_per_address=2, handshake_timeout_ms=86_400_000
    ) as secured:
        port = secured.wired.agent.kafka_ports["SASL_SSL"]
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        secured.opened += [writer for _, writer in silent]
        async with asyncio.timeout(PATIENCE_SECONDS):
            with suppress(ConnectionResetError):
                assert await silent[2][0].read() == b"", "the third is closed"
        reason = "max_connections_without_login_per_address"
        assert secured.wired.metric("closed_connections_total", reason=reason) == 1
        assert not any(reader.at_eof() for reader, _ in silent[:2])
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=secured.tls(), local_addr=("127.0.0.2", 0)
        )
        secured.opened.append(writer)


async def test_the_log_says_why_a_handshake_failed_and_a_late_one_is_ended(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SSL", handshake_timeout_ms=100) as secured:
        with capture_logs() as lines:
            for sent in (b"\0\0\0\x0a not TLS", b""):
                reader, writer = await asyncio.open_connection("127.0.0.1", secured.wired.agent.kafka_port)
                writer.write(sent)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    with suppress(ConnectionResetError):
                        await reader.read()
                writer.close()
        assert secured.wired.metric("closed_connections_total", reason="no TLS handshake") == 2
        garbage, silent = (line for line in lines if line["event"] == "a TLS handshake failed")
        assert (garbage["listener"], garbage["peer"]) == ("SSL", "127.0.0.1")
        assert "WRONG_VERSION_NUMBER" in garbage["error"] or "HTTP" in garbage["error"]
        assert "longer than 0.1 seconds" in silent["error"]
