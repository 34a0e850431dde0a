"""Clients that ask for too much, or don't release what they hold: cases for `make hostile CASES=storms`, in addition to
those in cases.

A storm sends as fast as the stage lets it. It differs from the other cases in what each request costs the broker.
Storms that log in use their own listener (`Stage.login_port`), with names that are not its users'.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.messages.api_versions import ApiVersionsRequest
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from tailrace.kafka.messages.sasl_handshake import SaslHandshakeRequest
from tests.hostile.cases import Case, Connection, Stage

HELD = 50
"""Connections that one client holds open."""
HELD_SECONDS = 2.0
PIPELINED = 50
"""Requests that are sent without reading their answers."""
MADE_UP_TOPICS = 500
MEMBERS = 20


async def wrong_passwords(stage: Stage, rng: random.Random) -> None:
    """One failed login after the other, each on its own connection; some users exist, most do not."""
    while not stage.is_over.is_set():
        connection = Connection(stage, "hostile", stage.login_port)
        user = rng.choice(("admin", f"nobody-{rng.random()}"))
        token = f"\0{user}\0{rng.random()}".encode()
        await connection.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
        await connection.ask(ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(token))
        connection.close()


async def never_logged_in(stage: Stage, rng: random.Random) -> None:
    """Connections to the listener with logins that send nothing, or half of a request."""
    await _held_open(stage, rng, stage.login_port)


async def half_open(stage: Stage, rng: random.Random) -> None:
    """The same to the listener without logins."""
    await _held_open(stage, rng, stage.port)


async def _held_open(stage: Stage, rng: random.Random, port: int) -> None:
    while not stage.is_over.is_set():
        held: list[asyncio.StreamWriter] = []
        for _ in range(HELD):
            await stage.turn()
            stage.note("held open")
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(rng.choice((b"", b"\0\0", b"\0\0\1\0\0\3\0\x0c")))
                held.append(writer)
        with suppress(TimeoutError):
            await asyncio.wait_for(stage.is_over.wait(), HELD_SECONDS)
        for writer in held:
            writer.transport.abort()


async def slow_readers(stage: Stage, rng: random.Random) -> None:
    """Many requests with large answers, none of which is read."""
    while not stage.is_over.is_set():
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=f"no-{n}") for n in range(MADE_UP_TOPICS)]
        )
        request.allow_auto_topic_creation = False
        frame = b"".join(encode_request(1, ApiKey.METADATA, 12, request, "hostile"))
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
            for _ in range(PIPELINED):
                await stage.turn()
                stage.note("not read")
                writer.write(frame)
            await asyncio.sleep(rng.random())
            writer.transport.abort()


async def version_probes(stage: Stage, rng: random.Random) -> None:
    """ApiVersions on connection after connection, in versions that exist and that do not."""
    while not stage.is_over.is_set():
        await stage.turn()
        stage.note("version probe")
        request = ApiVersionsRequest(client_software_name="probe", client_software_version="1")
        frame = bytearray(b"".join(encode_request(1, ApiKey.API_VERSIONS, 3, request, None)))
        frame[6:8] = rng.randrange(0, 9).to_bytes(2, "big")
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
            writer.write(frame)
            await asyncio.wait_for(reader.readexactly(4), 1)
            writer.transport.abort()


async def metadata_storm(stage: Stage, rng: random.Random) -> None:
    """Metadata of everything, and of many topics that do not exist."""
    connection = Connection(stage, "hostile")
    while not stage.is_over.is_set():
        names = [MetadataRequestTopic(name=f"no-{rng.random()}") for _ in range(MADE_UP_TOPICS)]
        request = MetadataRequest(topics=rng.choice((None, names)), allow_auto_topic_creation=False)
        await connection.ask(ApiKey.METADATA, 12, request)
    connection.close()


async def group_storm(stage: Stage, rng: random.Random) -> None:
    """One group whose members come and go without end."""
    connections = [Connection(stage, f"hostile-{number}") for number in range(MEMBERS)]
    protocols = [JoinGroupRequestProtocol("range", rng.randbytes(500))]
    while not stage.is_over.is_set():
        joining = JoinGroupRequest("storm", 6_000, 6_000, protocol_type="consumer", protocols=protocols)
        answers = await asyncio.gather(
            *(connection.ask(ApiKey.JOIN_GROUP, 3, joining) for connection in connections)
        )
        members = [MemberIdentity(answer.member_id) for answer in answers if answer is not None]
        leaving = LeaveGroupRequest("storm", members=members[: rng.randrange(MEMBERS)])
        await connections[0].ask(ApiKey.LEAVE_GROUP, 4, leaving)
    for connection in connections:
        connection.close()


STORMS = (
    Case("wrong passwords", "one failed login after the other", 2, wrong_passwords),
    Case("never logged in", "connections to the listener with logins that say nothing", 1, never_logged_in),
    Case("half open", "connections that say nothing, or half of a request", 1, half_open),
    Case("slow readers", "requests whose answers are not read", 1, slow_readers),
    Case("version probes", "ApiVersions on connection after connection, in any version", 1, version_probes),
    Case("metadata storm", "metadata of everything, and of topics that there are not", 2, metadata_storm),
    Case("group storm", "a group whose members come and go", 1, group_storm),
)
