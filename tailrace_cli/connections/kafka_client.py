"""A small Kafka client for administration: it sends one request at a time, in a version that the broker serves.

The commands use librdkafka only for records: its admin interface (2.16) lacks transactions and share groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from tailrace.buffers import Buffer
from tailrace.kafka import MalformedRequest, decode_response, encode_request
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.errors import UnencodableMessage
from tailrace.kafka.messages.api_versions import ApiVersionsRequest
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from tailrace.kafka.messages.sasl_handshake import SaslHandshakeRequest
from tailrace.rpc.link import HTTP_AS_SIZE, join_address
from tailrace_cli.connections.broker import (
    CLIENT_ID,
    PATIENCE_SECONDS,
    no_broker,
    speaks_http,
    split_bootstrap,
)
from tailrace_cli.connections.login import log_in, sasl_mechanism, tls_context
from tailrace_cli.errors import CommandFailed, WrongUsage

MAX_RESPONSE_BYTES = 256 << 20
GROUP, TRANSACTION = 0, 1
"""FindCoordinator's key types."""
_NEEDS_ACL = "no ACL allows this to the user in TAILRACE_CLIENT; `tailrace acl add` adds one"
ADVICE = {
    ErrorCode.SASL_AUTHENTICATION_FAILED: "check the user and password in TAILRACE_CLIENT",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _NEEDS_ACL,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _NEEDS_ACL,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _NEEDS_ACL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _NEEDS_ACL,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is none; `tailrace topic list` shows the topics",
    ErrorCode.GROUP_ID_NOT_FOUND: "`tailrace group list` shows the groups",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is none; `tailrace transaction list` shows the ids",
    ErrorCode.RESOURCE_NOT_FOUND: "`tailrace user list` shows the users",
    ErrorCode.CORRUPT_MESSAGE: "stored bytes are damaged; the agent's log names the object",
}
"""What the user can do about an error; brokers' messages do not say it."""


class KafkaRefused(CommandFailed):
    """The broker returned an error; `code` is Kafka's error code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class KafkaClient:
    """A connection to the first broker of `bootstrap` that accepts one. `bootstrap` is HOST:PORT, or several separated
    by commas. `broker_id`: the broker's id if it is known. Use `async with`, or `connect` and `close`."""

    def __init__(
        self, bootstrap: str, properties: Mapping[str, str] | None = None, broker_id: int | None = None
    ) -> None:
        self.broker_id = broker_id
        self._bootstrap = bootstrap
        """Once connected, only the address of the connected broker."""
        self._properties = properties or {}
        self._addresses = split_bootstrap(bootstrap)
        self._versions: dict[int, int] = {}
        self._correlation_id = 0
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> KafkaClient:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def connect(self) -> None:
        """Connect, agree on versions, and log in if the properties say so. Raises CommandFailed."""
        await self._connect_to_one()
        answer = await self._exchange(ApiVersionsRequest(), 0)
        for served in answer.api_keys:
            api = APIS.get(served.api_key)
            if api is not None:
                self._versions[served.api_key] = min(served.max_version, api.listed.last)
        mechanism = sasl_mechanism(self._properties)
        if mechanism is not None:
            answer = await self.ask(SaslHandshakeRequest(mechanism))
            check(
                answer.error_code,
                f"the broker offers {', '.join(answer.mechanisms)}",
                f"the login by {mechanism}",
            )
            await log_in(self._properties, mechanism, self._send_token)

    async def _connect_to_one(self) -> None:
        tls = tls_context(self._properties)
        patience = PATIENCE_SECONDS / len(self._addresses)
        seen = []
        for host, port in self._addresses:
            address = join_address(host, port)
            try:
                async with asyncio.timeout(patience):
                    self._reader, self._writer = await asyncio.open_connection(host, port, ssl=tls)
            except UnicodeError as error:
                # The host is too long for DNS or has characters that DNS does not allow.
                raise WrongUsage(
                    f"--bootstrap {self._bootstrap!r}: no host has this name; expected HOST:PORT"
                ) from error
            except (OSError, TimeoutError) as error:
                seen.append(str(error) or f"{address}: no answer in {patience:g} s")
            else:
                self._bootstrap = address
                return
        raise no_broker(self._bootstrap, "; ".join(seen))

    async def _send_token(self, token: bytes) -> bytes:
        answer = await self.ask(SaslAuthenticateRequest(token))
        check(answer.error_code, answer.error_message, "the login")
        return bytes(answer.auth_bytes)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def ask(self, request: Any) -> Any:
        """Send a request in the newest version that both sides speak, and return the response. Raises CommandFailed."""
        api = request.api.key
        version = self._versions.get(api)
        if version is None:
            raise CommandFailed(f"the broker at {self._bootstrap} does not serve {api.name}; is it Tailrace?")
        return await self._exchange(request, version)

    async def brokers(self) -> AsyncIterator[KafkaClient]:
        """Yield a client of each broker in turn, because a broker lists only its own groups. Each is closed before the
        next is opened."""
        for broker in (await self.ask(MetadataRequest(topics=[]))).brokers:
            address = join_address(broker.host, broker.port)
            async with KafkaClient(address, self._properties, broker.node_id) as client:
                yield client

    async def topics(self, names: Sequence[str] | None) -> list[Any]:
        """Return the metadata of these topics, or of all for None. Does not create topics. Raises KafkaRefused."""
        requested = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        answer = await self.ask(MetadataRequest(topics=requested, allow_auto_topic_creation=False))
        for topic in answer.topics:
            check(topic.error_code, None, f"topic {topic.name!r}")
        return list(answer.topics)

    async def coordinator_of(self, key: str, key_type: int = GROUP) -> KafkaClient:
        """Return a client of the coordinator of a group or transactional id. It connects in `async with`.

        Raises CommandFailed.
        """
        answer = await self.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]))
        coordinator = answer.coordinators[0]
        kind = "group" if key_type == GROUP else "transactional id"
        check(coordinator.error_code, coordinator.error_message, f"{kind} {key!r} has no coordinator")
        return KafkaClient(join_address(coordinator.host, coordinator.port), self._properties)

    async def _exchange(self, request: Any, version: int) -> Any:
        api = request.api.key
        self._correlation_id += 1
        try:
            sent = encode_request(self._correlation_id, api, version, request, client_id=CLIENT_ID)
            async with asyncio.timeout(PATIENCE_SECONDS):
                frame = await self._answer_to(sent)
            correlation_id, answer = decode_response(api, version, frame)
        except UnencodableMessage as error:
            raise WrongUsage(
                f"a name or number that was given does not fit into {api.name} ({error}); names are UTF-8 of at "
                "most 32,767 bytes, counts and partitions at most 2,147,483,647"
            ) from error
        except TimeoutError:
            raise CommandFailed(
                f"{self._bootstrap} did not answer {api.name} within {PATIENCE_SECONDS:g} s; look at its log"
            ) from None
        except (OSError, asyncio.IncompleteReadError) as error:
            closed = f"{self._bootstrap} closed the connection instead of answering {api.name}"
            if self._versions:  # it has answered before, as a broker does
                raise CommandFailed(f"{closed}; look at its log") from error
            raise CommandFailed(
                f"{closed}; is it an address for Kafka clients (`listen`), and with TLS if security.protocol in "
                "TAILRACE_CLIENT says so? Look at its log"
            ) from error
        except MalformedRequest as error:
            raise CommandFailed(f"{self._bootstrap} did not answer as a Kafka broker: {error}") from error
        if correlation_id != self._correlation_id:
            raise CommandFailed(
                f"{self._bootstrap} sent a response that does not match the {api.name} request"
            )
        return answer

    async def _answer_to(self, sent: Sequence[Buffer]) -> bytes:
        """Send a request and return the frame of its answer. Raises CommandFailed if no Kafka broker sends it."""
        assert self._reader is not None and self._writer is not None, "connect first"
        self._writer.writelines(sent)
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size == HTTP_AS_SIZE:
            raise speaks_http(self._bootstrap)
        if size > MAX_RESPONSE_BYTES:
            raise CommandFailed(f"{self._bootstrap} answers with {size} bytes; is it a Kafka broker?")
        return await self._reader.readexactly(size)


def check(error_code: int, message: str | None, what: str) -> None:
    """Raise KafkaRefused unless the code is NONE, with `what`, Kafka's error name and the broker's message."""
    if error_code == 0:
        return
    try:
        code = ErrorCode(error_code)
    except ValueError:
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    advice = ADVICE.get(code)
    if advice is not None and message:
        advice = advice.removeprefix("there is none; ")  # the broker's message says so
    shown = (message or "").rstrip("." if advice else "")
    raise KafkaRefused(
        code, f"{what}: {code.name}{f': {shown}' if shown else ''}{f'; {advice}' if advice else ''}"
    )
