"""librdkafka for the commands that produce and consume: its properties, and its errors as one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from tailrace.rpc.link import HTTP_AS_SIZE
from tailrace_cli.connections.broker import (
    CLIENT_ID,
    PATIENCE_SECONDS,
    check_utf8,
    no_broker,
    speaks_http,
    split_bootstrap,
)
from tailrace_cli.connections.connecting import listed_pairs
from tailrace_cli.connections.login import bootstrap_of, client_properties
from tailrace_cli.errors import CommandFailed
from tailrace_cli.flags import flag

ClientFlag = Annotated[
    list[str] | None,
    flag(
        "--client -X",
        "NAME=VALUE",
        "A librdkafka property, such as linger.ms=0 or security.protocol=SSL. Can be repeated.",
    ),
]


class BrokerWatch:
    """Remembers librdkafka's errors, so that a command can say why it got no answer."""

    def __init__(self, bootstrap: str | None) -> None:
        self.properties = client_properties()
        self.bootstrap = bootstrap_of(bootstrap, self.properties)
        check_utf8("--bootstrap", self.bootstrap)
        split_bootstrap(self.bootstrap)
        self._last = "no answer; if it wants TLS or a login, let TAILRACE_CLIENT name a file with them"
        self._has_refused_login = False
        self.is_down = False

    def on_error(self, error: Any) -> None:
        """Handle an error from librdkafka's error callback."""
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.is_down = True
        else:
            self._has_refused_login = error.code() == KafkaError._AUTHENTICATION
            self._last = error.str()

    def failure(self) -> CommandFailed:
        """Return the error for a broker that doesn't answer, with librdkafka's last error."""
        if f"Invalid response size {HTTP_AS_SIZE} " in self._last:
            return speaks_http(self.bootstrap)
        if self._has_refused_login:
            return CommandFailed(
                f"the login failed: {self._last}; check the user and password in TAILRACE_CLIENT"
            )
        if not self.is_down:
            return CommandFailed(
                f"{self.bootstrap} did not answer within {PATIENCE_SECONDS:g} s; look at its log"
            )
        return no_broker(self.bootstrap, self._last)


def client_config(watch: BrokerWatch, given: Sequence[str], **config: Any) -> dict[str, Any]:
    """Return a client's properties. Those of TAILRACE_CLIENT are overridden by ours, and ours by --client.

    Raises WrongUsage.
    """
    for pair in given:
        check_utf8("--client", pair)
    return {
        **watch.properties,
        "bootstrap.servers": watch.bootstrap,
        "client.id": CLIENT_ID,
        "error_cb": watch.on_error,
        "log_level": 0,  # errors arrive through the callback; stderr is for the command's one line
        **config,
        **dict(listed_pairs(given, "--client", "linger.ms=0")),
    }


def hand_over(producer: Any, topic: str, value: bytes | None, **named: Any) -> None:
    """Queue a record in librdkafka. While the queue is full, wait for acknowledgements."""
    while True:
        try:
            producer.produce(topic, value, **named)
            return
        except BufferError:
            producer.poll(0.1)


def refused(what: str, error: Any) -> CommandFailed:
    """Return the error for a failed step: what was tried, librdkafka's error name and its message."""
    return CommandFailed(f"{what}: {error.name().lstrip('_')}: {error.str()}")
