"""Real clients log in, by every protocol and mechanism; what does not log in gets nothing."""

from __future__ import annotations

import asyncio
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from scramp import ScramClient
from scramp.core import Gs2Header

from sequencer.api.security import AlterScram, ScramMechanism, ScramName
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.metadata import MetadataRequest
from tailrace.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from tailrace.kafka.messages.sasl_handshake import SaslHandshakeRequest
from tests.agent.security.secured import PASSWORD, Secured, in_thread, secured_agent
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_SECONDS

ROOT = {"super_users": ("User:alice", "User:ANONYMOUS", "User:Duke")}


def _round_trip(settings: dict[str, Any]) -> list[bytes]:
    """Produce a record to `t` and consume it, which uses Metadata and FindCoordinator."""
    producer = Producer(settings)
    producer.produce("t", b"hello")
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    try:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None and message.error() is None
        return [message.value()]
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("PLAINTEXT", ""),
        ("SSL", ""),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("SASL_SSL", "PLAIN"),
    ],
)
async def test_librdkafka_logs_in_and_moves_records(tmp_path: Path, listener: str, mechanism: str) -> None:
    # A second listener, so that addresses of the wrong one would be found out.
    others = [name for name in ("PLAINTEXT", "SASL_SSL") if name != listener]

    async with secured_agent(
        tmp_path, *others, listener, agent={"group_initial_rebalance_delay_ms": 0}, **ROOT
    ) as secured:
        await secured.wired.topic()
        await secured.add_user(
            "alice", mechanism=mechanism.replace("-", "_") if "SCRAM" in mechanism else "SCRAM_SHA_256"
        )
        more = {"sasl.mechanism": mechanism} if mechanism else {}
        assert await in_thread(lambda: _round_trip(secured.librdkafka(listener, **more))) == [b"hello"]


async def test_kafka_python_and_aiokafka_log_in(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "PLAINTEXT", "SASL_SSL", **ROOT) as secured:
        await secured.wired.topic()
        await secured.add_user("alice", mechanism="SCRAM_SHA_512")
        producer = AIOKafkaProducer(
            bootstrap_servers=secured.bootstrap("SASL_SSL"),
            security_protocol="SASL_SSL",
            ssl_context=secured.tls(),
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="alice",
            sasl_plain_password=PASSWORD,
        )
        await producer.start()
        await producer.send_and_wait("t", b"by aiokafka")
        await producer.stop()

        def consume() -> bytes:
            consumer = KafkaConsumer(
                "t",
                bootstrap_servers=secured.bootstrap("SASL_SSL"),
                security_protocol="SASL_SSL",
                ssl_context=secured.tls(),
                sasl_mechanism="SCRAM-SHA-512",
                sasl_plain_username="alice",
                sasl_plain_password=PASSWORD,
                auto_offset_reset="earliest",
            )
            try:
                return next(iter(consumer)).value
            finally:
                consumer.close()

        assert await in_thread(consume) == b"by aiokafka"


def _refusal(settings: dict[str, Any]) -> str:
    errors: list[str] = []
    client = AdminClient({**settings, "error_cb": lambda error: errors.append(str(error))})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not errors and time.monotonic() < give_up:
        client.poll(0.1)
    return " ".join(errors)


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", PASSWORD)])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_wrong_password_and_an_unknown_user_are_refused_alike(
    tmp_path: Path, user: str, password: str, mechanism: str
) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT") as secured:
        await secured.add_user("alice")
        settings = secured.librdkafka("SASL_PLAINTEXT", user, password, **{"sasl.mechanism": mechanism})
        told = await in_thread(lambda: _refusal(settings))
        assert ("Invalid username or password" if mechanism == "PLAIN" else "invalid credentials") in told
        failed = secured.wired.metric(
            "logins_total", listener="SASL_PLAINTEXT", mechanism=mechanism, result="failure"
        )
        assert failed >= 1
        line = secured.wired.told("a login failed")[0]
        assert (line["user"], line["peer"]) == (user, "127.0.0.1"), "who has to be told of the mistake"
        assert password not in str(line)


DUKE = "CN=Duke,OU=Services,O=Example"
BY_CERTIFICATE: dict[str, Any] = {
    "client_auth": "required",
    "principal_mapping_rules": ("RULE:^CN=(.*?),.*$/$1/",),
}


def _certified(secured: Secured, authority: Authority) -> dict[str, Any]:
    """A client with a certificate that this authority has signed, for DUKE."""
    files = authority.files(secured.folder / "client", "client", subject=DUKE)
    return secured.librdkafka(
        "SSL", **{"ssl.certificate.location": str(files.certificate), "ssl.key.location": str(files.key)}
    )


async def test_a_client_certificate_names_the_principal(tmp_path: Path) -> None:
    async with secured_agent(
        tmp_path,
        "SSL",
        agent={"group_initial_rebalance_delay_ms": 0},
        super_users=("User:Duke",),
        **BY_CERTIFICATE,
    ) as secured:
        await secured.wired.topic()
        settings = _certified(secured, secured.authority)
        assert await in_thread(lambda: _round_trip(settings)) == [b"hello"]
        assert secured.wired.metric("logins_total", listener="SSL", mechanism="SSL", result="success") > 0


async def test_the_owner_of_a_certificate_may_do_only_what_he_may(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SSL", **BY_CERTIFICATE) as secured:
        await secured.wired.topic()
        settings = _certified(secured, secured.authority)
        listed = await in_thread(lambda: AdminClient(settings).list_topics(timeout=PATIENCE_SECONDS).topics)
        assert listed == {}, "he has come in, and sees no topic"


async def test_a_certificate_of_another_authority_and_none_are_refused(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SSL", super_users=("User:Duke",), **BY_CERTIFICATE) as secured:
        await secured.wired.topic()
        await in_thread(lambda: _refusal(_certified(secured, Authority.make("another"))))
        await in_thread(lambda: _refusal(secured.librdkafka("SSL")))


async def _exchange(port: int, *frames: bytes) -> bytes:
    """What comes back for these frames until the agent closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for frame in frames:
        writer.write(struct.pack(">i", len(frame)) + frame)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await reader.read()
    except ConnectionResetError:
        return b""  # it was closed with bytes unread
    finally:
        writer.close()


async def _logged_in(port: int, user: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of a user who has logged in by PLAIN."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    requests = (
        (ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN")),
        (ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(f"\0{user}\0{PASSWORD}".encode())),
    )
    for api, version, request in requests:
        writer.write(b"".join(encode_request(1, api, version, request, "test")))
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer = decode_response(api, version, memoryview(await reader.readexactly(size)))[1]
        assert answer.error_code == 0, answer
    return reader, writer


async def test_before_the_login_only_logins_are_served(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT") as secured:
        port = secured.wired.agent.kafka_ports["SASL_PLAINTEXT"]
        metadata = struct.pack(">hhi", 3, 1, 7) + struct.pack(">h", -1) + struct.pack(">i", -1)
        assert await _exchange(port, metadata) == b""
        large = struct.pack(">hhi", 36, 0, 7) + struct.pack(">h", -1) + b"x" * 100_000
        assert await _exchange(port, large) == b""
        handshake = struct.pack(">hhi", 17, 1, 7) + struct.pack(">h", -1) + struct.pack(">h", 5) + b"PLAIN"
        answer = await _exchange(port, handshake, metadata)
        assert answer[4:10] == struct.pack(">ih", 7, 0)
        assert len(answer) == 4 + struct.unpack(">i", answer[:4])[0], "only the handshake was answered"


class _OldClient:
    """As kafka-python 2.0: SaslHandshake version 0, then each token behind its size alone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, secured: Secured) -> _OldClient:
        port = secured.wired.agent.kafka_ports["SASL_PLAINTEXT"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        secured.opened.append(writer)
        return cls(reader, writer)

    async def answer(self) -> bytes:
        return await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))

    async def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        self._writer.write(b"".join(encode_request(1, api, version, request, "test")))
        return decode_response(api, version, memoryview(await self.answer()))[1]

    async def say(self, token: bytes) -> bytes:
        self._writer.write(struct.pack(">i", len(token)) + token)
        return await self.answer()


async def test_a_client_of_before_kafka_1_logs_in_by_bare_tokens_once(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT", **ROOT) as secured:
        await secured.add_user("alice")
        client = await _OldClient.connect(secured)
        handshake = SaslHandshakeRequest("PLAIN")
        assert (await client.ask(ApiKey.SASL_HANDSHAKE, 0, handshake)).error_code == 0
        assert await client.say(f"\0alice\0{PASSWORD}".encode()) == b""
        assert (await client.ask(ApiKey.METADATA, 1, MetadataRequest(topics=[]))).brokers
        again = await client.ask(ApiKey.SASL_HANDSHAKE, 0, handshake)
        assert again.error_code == ErrorCode.UNSUPPORTED_VERSION
        wrong = await _OldClient.connect(secured)
        await wrong.ask(ApiKey.SASL_HANDSHAKE, 0, handshake)
        with pytest.raises(asyncio.IncompleteReadError):
            await wrong.say(b"\0alice\0wrong")


async def test_a_client_of_before_kafka_1_logs_in_by_scram(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT", **ROOT) as secured:
        await secured.add_user("alice")
        client, scram = await _OldClient.connect(secured), ScramClient(["SCRAM-SHA-256"], "alice", PASSWORD)
        await client.ask(ApiKey.SASL_HANDSHAKE, 0, SaslHandshakeRequest("SCRAM-SHA-256"))
        scram.set_server_first((await client.say(scram.get_client_first().encode())).decode())
        scram.set_server_final((await client.say(scram.get_client_final().encode())).decode())
        assert (await client.ask(ApiKey.METADATA, 1, MetadataRequest(topics=[]))).brokers


class _HeaderFor(Gs2Header):
    """A header with an authorization id (RFC 5801), as some SCRAM libraries send it."""

    def __init__(self, acts_as: str) -> None:
        super().__init__("n", None)
        self._acts_as = acts_as

    def __str__(self) -> str:
        return f"n,a={self._acts_as},"


@pytest.mark.parametrize("user", ["alice", "a,b=c"])
async def test_scram_lets_a_client_name_itself_as_the_authorization_id_and_nobody_else(
    tmp_path: Path, user: str
) -> None:
    async def first_answer(secured: Secured, acts_as: str) -> tuple[_OldClient, ScramClient, bytes]:
        client, scram = await _OldClient.connect(secured), ScramClient(["SCRAM-SHA-256"], user, PASSWORD)
        scram.gs2_header = _HeaderFor(acts_as.replace("=", "=3D").replace(",", "=2C"))
        await client.ask(ApiKey.SASL_HANDSHAKE, 0, SaslHandshakeRequest("SCRAM-SHA-256"))
        return client, scram, await client.say(scram.get_client_first().encode())

    async with secured_agent(tmp_path, "SASL_PLAINTEXT", **ROOT) as secured:
        await secured.add_user(user)
        client, scram, answer = await first_answer(secured, user)
        scram.set_server_first(answer.decode())
        scram.set_server_final((await client.say(scram.get_client_final().encode())).decode())
        assert (await client.ask(ApiKey.METADATA, 1, MetadataRequest(topics=[]))).brokers
        with pytest.raises(asyncio.IncompleteReadError):
            await first_answer(secured, "bob")
        (line,) = secured.wired.told("a login failed")
        assert (line["user"], "authorization id" in line["reason"]) == (user, True)


async def test_the_connections_of_a_removed_user_are_closed_and_nobody_elses(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT") as secured:
        port = secured.wired.agent.kafka_ports["SASL_PLAINTEXT"]
        await secured.add_user("alice")
        await secured.add_user("bob")
        (alice, held), (bob, writer) = await _logged_in(port, "alice"), await _logged_in(port, "bob")
        name = ScramName("alice", ScramMechanism.SCRAM_SHA_256)
        await secured.wired.sequencer.alter_scram(AlterScram([], [name]))
        await secured.wired.agent.catalog.refresh()
        assert await alice.read() == b""
        assert secured.wired.metric("closed_connections_total", reason="removed user") == 1
        assert not bob.at_eof()
        held.close()
        writer.close()


async def test_a_client_that_does_not_log_in_in_time_is_disconnected(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT", authentication_timeout_ms=100) as secured:
        assert await _exchange(secured.wired.agent.kafka_ports["SASL_PLAINTEXT"]) == b""
        assert secured.wired.metric("closed_connections_total", reason="no login") == 1


async def test_a_client_logs_in_again_before_its_session_ends(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, "SASL_PLAINTEXT", max_session_ms=1500, **ROOT) as secured:
        await secured.wired.topic()
        await secured.add_user("alice")

        def produce_for_a_while() -> None:
            producer = Producer(secured.librdkafka("SASL_PLAINTEXT"))
            for number in range(40):
                producer.produce("t", str(number).encode())
                assert producer.flush(PATIENCE_SECONDS) == 0
                producer.poll(0.1)

        await in_thread(produce_for_a_while)
        logins = secured.wired.metric(
            "logins_total", listener="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", result="success"
        )
        assert logins > 2
