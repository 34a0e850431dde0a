"""Answers to clients that have stopped reading, over real sockets: what they hold counts until they have left."""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from agent.connection import KafkaConnection
from agent.memory_budget import MemoryBudget
from agent.replies import Reply
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_SECONDS

REQUEST = (4).to_bytes(4, "big") + b"more"
CHUNK_BYTES, PART_BYTES, LONG_BYTES = 4 << 20, 64 << 10, 8 << 20
LOOPS = [asyncio.run, uvloop.run]


class Chunk(bytearray):
    """One that says when it is gone."""


class Answers:
    """A dispatcher that answers with a view of a chunk of its own. `sent`: the chunks whose answers have left."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self.asked = 0
        self.sent: list[weakref.ref[Chunk]] = []
        self.connections: list[KafkaConnection] = []

    def made(self) -> KafkaConnection:
        connection = KafkaConnection(
            self,
            MemoryBudget(1 << 20),
            max_frame_bytes=100,
            max_inflight=64,
            on_close=self.connections.remove,
            monotonic=lambda: 0.0,
        )
        self.connections.append(connection)
        return connection

    async def __call__(self, frame: memoryview, connection: KafkaConnection) -> Reply:
        self.asked += 1
        chunk = Chunk(max(CHUNK_BYTES, self._part_bytes))
        on_sent = partial(self.sent.append, weakref.ref(chunk))
        return Reply([memoryview(chunk)[: self._part_bytes]], on_sent=on_sent, has_records=True)

    def at_once(self, frame: memoryview, connection: KafkaConnection) -> None:
        return None

    def fast_path(self, connection: KafkaConnection) -> None:
        return None

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0)

    def unsent(self) -> int:
        transport = self.connections[0]._transport
        assert transport is not None
        return int(transport.get_write_buffer_size())


@asynccontextmanager
async def served(
    answers: Answers, tls: tuple[ssl.SSLContext, ssl.SSLContext] | tuple[None, None] = (None, None)
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's ends of a connection; it reads nothing until its transport is told to."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(answers.made, "127.0.0.1", 0, ssl=tls[0])
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls[1])
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    yield reader, writer
    writer.transport.abort()
    server.close()
    await answers.until(lambda: not answers.connections)


def run(loop: Callable[[Any], Any], scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await scenario()

    loop(whole())


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_has_left_once_nothing_keeps_what_it_was_made_of(loop: Callable[[Any], Any]) -> None:
    async def scenario() -> None:
        answers = Answers(PART_BYTES)
        async with served(answers) as (reader, writer):
            writer.write(REQUEST * 60)
            await answers.until(lambda: bool(answers.unsent()))
            assert answers.sent, "the kernel takes some"
            assert [chunk for chunk in answers.sent if chunk() is not None] == []
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            await reader.readexactly(60 * PART_BYTES)
            await answers.until(lambda: len(answers.sent) == 60)

    run(loop, scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_through_tls_has_left_once_the_socket_has_taken_most_of_it(
    tmp_path: Path, loop: Callable[[Any], Any]
) -> None:
    async def scenario() -> None:
        answers = Answers(LONG_BYTES)
        async with served(answers, contexts(tmp_path)) as (reader, writer):
            writer.write(REQUEST)
            await answers.until(lambda: bool(answers.sent or (answers.asked and answers.unsent())))
            assert answers.sent == []
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert await reader.readexactly(LONG_BYTES) == bytes(LONG_BYTES)
            await answers.until(lambda: len(answers.sent) == 1)

    run(loop, scenario)


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The agent's and its client's."""
    files = Authority.make().files(folder, "localhost")
    assert files.certificate is not None and files.key is not None
    agents, clients = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    agents.load_cert_chain(files.certificate, files.key)
    clients.check_hostname, clients.verify_mode = False, ssl.CERT_NONE
    return agents, clients
