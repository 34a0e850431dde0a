"""Apache Kafka and Tailrace beside each other, both fresh."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.support.kafka_peer import kafka
from tailrace_cli.demo.ports import free_port
from tests.compat.broker import running_broker


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server listens on 127.0.0.1; `login_port` is 0 without logins."""

    port: int
    login_port: int = 0


@contextmanager
def kafka_server(with_logins: bool, properties: Mapping[str, str]) -> Iterator[Server]:
    """One Kafka broker, which is its own controller."""
    login_port = free_port() if with_logins else 0
    logins = _logins(login_port) if with_logins else {}
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-differential-") as folder,
        kafka(Path(folder), {**logins, **properties}, login_port) as peer,
    ):
        yield Server(int(peer.bootstrap.rpartition(":")[2]), login_port)


@contextmanager
def tailrace_server(with_logins: bool, settings: Mapping[str, str]) -> Iterator[Server]:
    """One `tailrace serve`."""
    with running_broker(settings=settings, with_logins=with_logins) as broker:
        yield Server(broker.port, broker.login_port)


def _logins(login_port: int) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
    }
