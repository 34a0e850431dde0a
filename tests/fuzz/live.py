"""Targets that are alive: an agent behind a connection, and a sequencer behind its RPC service. In memory, on a clock
that is told the time."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from agent.connection import KafkaConnection
from agent.dispatch import Dispatcher, _Call
from agent.handlers import HANDLERS
from agent.memory_budget import MemoryBudget
from sequencer.engine.committer import Committer
from sequencer.methods import METHODS
from sequencer.rpc_handler import RpcHandler
from sequencer.store.memory import MemoryRowStore
from tailrace.background_tasks import cancel_and_wait
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.apis import APIS
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.kafka.schema import MessageType, Wire, fields_of
from tailrace.rpc import CallFailed, encode_body
from tailrace.rpc.frames import decode_frame
from tests.agent.test_connection import Transport
from tests.contracts.conversation import GOLDEN, frames_of, script
from tests.fuzz import kafka
from tests.fuzz.formats import batches
from tests.fuzz.rpc import value_of
from tests.fuzz.target import Target
from tests.support.agents import PROMPT, AgentBench, settle
from tests.support.clocks import ManualClock, SeededEntropy
from tests.tailrace.kafka.message_samples import declared, sample

TOPIC = UUID(int=0x70B1C)
"""In seeds: the id of topic `t`, whatever it is."""
RENEW_AFTER = 2000
"""Inputs after which an agent or a sequencer is replaced, so that the state from hostile inputs stays bounded."""
MAX_FRAME_BYTES = 1 << 20
MAX_WAIT_SECONDS = 120.0


class _Telling(Dispatcher):
    """A dispatcher that remembers unexpected exceptions."""

    failure: Exception | None = None

    def _failed_unexpectedly(self, call: _Call, error: Exception) -> None:
        self.failure = error


class LiveAgent:
    """An agent that gets each input through a connection of its own."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.bench: AgentBench | None = None
        self.fed = 0
        self.escaped: list[Any] = []
        self.topic_id = b""

    def check(self, data: bytes) -> bool:
        """Feed the bytes to one connection; True if the agent answered anything."""
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            self.loop.set_exception_handler(lambda _, context: self.escaped.append(context))
        if self.bench is None or self.fed >= RENEW_AFTER:
            self.loop.run_until_complete(self._renew())
        self.fed += 1
        return self.loop.run_until_complete(self._feed(data))

    async def _renew(self) -> None:
        if self.bench is not None:
            await self.bench.close()
        self.bench = AgentBench({**PROMPT, "max_request_bytes": MAX_FRAME_BYTES})
        await self.bench.open()
        self.topic_id = (await self.bench.topic("t", 2)).topic_id.bytes
        self.fed = 0

    async def _feed(self, data: bytes) -> bool:
        assert self.bench is not None
        bench = self.bench
        dispatcher = _Telling(bench.services)
        budget = MemoryBudget(8 << 20)
        transport = Transport()
        connection = KafkaConnection(
            dispatcher,
            budget,
            max_frame_bytes=MAX_FRAME_BYTES,
            max_inflight=8,
            on_close=lambda _: None,
            monotonic=bench.clock.monotonic,
        )
        transport.connection = connection
        connection.connection_made(transport)
        data = data.replace(TOPIC.bytes, self.topic_id)
        view = memoryview(len(data).to_bytes(4, "big") + data)
        while view and not transport.closed:
            buffer = connection.get_buffer(-1)
            taken = min(len(buffer), len(view))
            assert taken, "the connection gave an empty buffer"
            buffer[:taken] = view[:taken]
            connection.buffer_updated(taken)
            view = view[taken:]
        waited = 0.0
        while not transport.sent and not transport.closed and waited < MAX_WAIT_SECONDS:
            await settle(12)
            if (
                transport.sent
                or transport.closed
                or (connection.is_idle and waited > 1 and not _needs_answer(data))
            ):
                break
            step = 0.02 if waited < 0.2 else 1.0 if waited < 10 else 20.0
            bench.clock.advance(step)
            waited += step
        answered = bool(transport.sent)
        if not transport.closed:
            transport.close()
        await settle(6)
        if dispatcher.failure is not None:
            raise AssertionError("a request failed in a way that no handler foresaw") from dispatcher.failure
        assert not self.escaped, f"escaped into the loop: {self.escaped.pop()}"
        return answered

    def close(self) -> None:
        """End the agent and the loop."""
        if self.loop is not None:
            if self.bench is not None:
                self.loop.run_until_complete(self.bench.close())
            self.loop.close()
        self.loop = self.bench = None


def _needs_answer(data: bytes) -> bool:
    return data[:2] != b"\x00\x00"  # Produce with acks=0 has none


def aimed(message: Any, version: int, rng: random.Random) -> Any:
    """A copy of the message with names of existing items: topic `t`, its id, its partitions, a group.

    A copy, since parts that are frozen may be the defaults that all messages of their type share.
    """
    kind: MessageType = type(message)
    changes: dict[str, Any] = {}
    for field in fields_of(kind):
        if version not in field.versions:
            continue
        value = getattr(message, field.name)
        if not isinstance(field.kind, Wire):
            if isinstance(value, list):
                changes[field.name] = [aimed(part, version, rng) for part in value]
            elif value is not None:
                changes[field.name] = aimed(value, version, rng)
        elif rng.random() < 0.9:
            changes[field.name] = _aimed_value(field.name, value, rng)
    return replace(message, **changes)


def _aimed_value(name: str, value: Any, rng: random.Random) -> Any:
    if isinstance(value, UUID):
        return TOPIC
    if name in ("topic", "name", "topic_name", "resource_name", "topics", "topic_names"):
        return ["t", "other"][: len(value)] if isinstance(value, list) else "t"
    if name in ("group_id", "groups", "groups_names", "key", "coordinator_keys"):
        return ["g"] * len(value) if isinstance(value, list) else "g"
    if "partition" in name or name == "index":
        return [0, 1, 2][: len(value)] if isinstance(value, list) else rng.randrange(3)
    if isinstance(value, memoryview):
        return memoryview(rng.choice(batches()))
    if isinstance(value, int) and not isinstance(value, bool):
        if name == "acks":
            return rng.choice((-1, 1, 0))
        if name.endswith("error_code") or name in ("resource_type", "key_type", "coordinator_type"):
            return rng.choice((0, 1, 2, 4))
        most = 127 if -128 <= value < 128 else 30_000
        return rng.choice((-1, -2, 0, 1, 5, 100, most)) if rng.random() < 0.7 else value
    if isinstance(value, str):
        return rng.choice(("", "m-1", "consumer", "range", value))
    return value


def agent_seeds() -> list[bytes]:
    """Frames of every served API and version about what is there, of others about nothing, and of real clients."""
    rng = random.Random(9)
    found = [
        b"".join(
            encode_request(3, key, version, aimed(sample(APIS[key].request, version, rng), version, rng), "f")
        )[4:]
        for key, version in declared()
        if key in HANDLERS
        for _ in range(4)
    ]
    for version in (3, 7, 9, 11, 12, 13):
        for batch in batches():
            data = PartitionProduceData(index=1, records=memoryview(batch))
            topic = TopicProduceData(name="t" if version < 13 else "", topic_id=TOPIC, partition_data=[data])
            request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
            found.append(b"".join(encode_request(3, ApiKey.PRODUCE, version, request, "fuzz"))[4:])
    return [*found, *kafka.requests()[::8], *kafka.recorded_requests()]


class LiveSequencer:
    """A sequencer behind its RPC handler. The first byte of an input names the method."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.sequencer: Committer | None = None
        self.service: RpcHandler | None = None
        self.clock = ManualClock()
        self.asked = 0

    def check(self, data: bytes) -> bool:
        """Call; True if it was answered, False if it was refused with a code."""
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        return self.loop.run_until_complete(self._ask(data))

    async def _ask(self, data: bytes) -> bool:
        if self.service is None or self.asked >= RENEW_AFTER:
            await self._renew()
        assert self.service is not None
        self.asked += 1
        names = sorted(METHODS)
        if not data:
            return False
        asking = asyncio.ensure_future(self.service.handle(names[data[0] % len(names)], memoryview(data)[1:]))
        for _ in range(200):
            await asyncio.sleep(0)
            if asking.done():
                break
        waited = 0.0
        while not asking.done() and waited < MAX_WAIT_SECONDS:
            step = 0.05 if waited < 1 else 10.0
            self.clock.advance(step)
            waited += step
            await settle(10)
        if not asking.done():
            await cancel_and_wait(asking)
            return False  # a feed may be asked to wait for as long as the caller likes
        try:
            asking.result()
        except CallFailed as failed:
            assert failed.code != "internal"
            return False
        return True

    async def _renew(self) -> None:
        if self.sequencer is not None:
            await self._close()
        self.clock = ManualClock()
        self.sequencer = Committer(MemoryRowStore(self.clock), self.clock, SeededEntropy(1))
        await self.sequencer.start()
        await script(self.sequencer)
        self.service = RpcHandler(self.sequencer.call)
        self.asked = 0

    async def _close(self) -> None:
        assert self.sequencer is not None
        closing = asyncio.ensure_future(self.sequencer.close())
        while not closing.done():
            self.clock.advance(0.5)
            await settle(20)
        await closing

    def close(self) -> None:
        """End the sequencer and the loop."""
        if self.loop is not None:
            if self.sequencer is not None:
                self.loop.run_until_complete(self._close())
            self.loop.close()
        self.loop = self.sequencer = self.service = None


def sequencer_seeds() -> list[bytes]:
    """Requests of every method; and those of the script that every sequencer here starts with, with its ids."""
    rng = random.Random(8)
    names = sorted(METHODS)
    found = [
        bytes((number,)) + encode_body(value_of(METHODS[name].request, rng))
        for number, name in enumerate(names)
        for _ in range(4)
    ]
    for is_client, data in frames_of((GOLDEN / "0.1.0.rpc").read_bytes()):
        frame = decode_frame(memoryview(data))
        if is_client and frame.header.method in METHODS:
            found += [bytes((names.index(frame.header.method),)) + bytes(frame.body)] * 2
    return found


def targets() -> list[Target]:
    """All of this module."""
    agent, sequencer = LiveAgent(), LiveSequencer()
    return [
        Target("agent", 8, agent_seeds(), agent.check, agent.close),
        Target("sequencer", 6, sequencer_seeds(), sequencer.check, sequencer.close),
    ]
