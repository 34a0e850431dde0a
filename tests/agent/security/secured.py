"""An agent with TLS and SASL listeners, users in its sequencer, and clients that log in."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agent.security import connection_limits
from agent.security.listener_contexts import ClientSecurity
from agent.security.listeners import parse_listeners
from agent.security.settings import SecuritySettings
from agent.security.users import new_credentials
from sequencer.api.security import AlterScram, ScramMechanism, ScramName
from tailrace.security.tls import Tls
from tests.support.certificates import Authority
from tests.support.wire import WiredAgent, wired_agent

LISTENERS = {
    "PLAINTEXT": "PLAINTEXT://127.0.0.1:0",
    "SSL": "SSL://127.0.0.1:0",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT://127.0.0.1:0",
    "SASL_SSL": "SASL_SSL://127.0.0.1:0",
}
PASSWORD = "flights-2013"


class Secured:
    """The running agent, and what its clients need."""

    def __init__(self, wired: WiredAgent, folder: Path, authority: Authority) -> None:
        self.wired = wired
        self.folder = folder
        self.authority = authority
        """Whose certificates the agent trusts."""
        self.opened: list[asyncio.StreamWriter] = []
        """Connections that are closed at the end."""

    def bootstrap(self, listener: str) -> str:
        return f"127.0.0.1:{self.wired.agent.kafka_ports[listener]}"

    async def add_user(
        self, user: str, password: str = PASSWORD, *, mechanism: str = "SCRAM_SHA_256"
    ) -> None:
        name = ScramName(user, ScramMechanism[mechanism])
        stored = new_credentials(name, password, iterations=4096)
        await self.wired.sequencer.alter_scram(AlterScram([stored], []))

    def librdkafka(
        self, listener: str, user: str = "alice", password: str = PASSWORD, **more: Any
    ) -> dict[str, Any]:
        """Settings of confluent-kafka."""
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap(listener),
            "security.protocol": listener,
            "log_level": 0,
        }
        if "SSL" in listener:
            settings["ssl.ca.location"] = str(self.folder / "ca.pem")
        if "SASL" in listener:
            settings |= {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": user, "sasl.password": password}
        return settings | more

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.pem"))


@asynccontextmanager
async def secured_agent(
    folder: Path,
    *listeners: str,
    agent: dict[str, Any] | None = None,
    token_secret: str = "",
    **security: Any,
) -> AsyncIterator[Secured]:
    """Run an agent with these listeners. Failed logins count to its end, not by the minute."""
    authority = Authority.make()
    files = authority.files(folder, "127.0.0.1", "localhost")
    (folder / "ca.pem").write_bytes(authority.certificate)
    settings = SecuritySettings.model_validate(
        {"sasl_mechanisms": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), "failed_authentication_delay_ms": 10}
        | security
    )
    peers = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    tls = Tls("kafka", files, minimum=ssl.TLSVersion.TLSv1_2, client_certificates=peers[settings.client_auth])
    clients = ClientSecurity(
        parse_listeners([LISTENERS.get(each, each) for each in listeners], []), settings, tls, token_secret
    )
    with patch.object(connection_limits, "MINUTE_SECONDS", 1e9):
        async with wired_agent(folder, clients=clients, **agent or {}) as wired:
            there = Secured(wired, folder, authority)
            try:
                yield there
            finally:
                for writer in there.opened:
                    writer.close()


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)
