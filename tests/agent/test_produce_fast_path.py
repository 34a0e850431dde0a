"""Requests that are like their connection's last one are answered, stored and refused as all others are."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.connection import KafkaConnection
from agent.dispatch import Dispatcher
from agent.handlers.produce import FIRST_ZSTD_VERSION
from agent.memory_budget import MemoryBudget
from agent.produce.active_buffer import BatchResult
from agent.produce_fast_path import FastPathReply
from agent.replies import FastPath, Reply
from agent.security.access import Access
from agent.security.authorize import AclIndex
from agent.security.guarded_handlers import GUARDED, GUARDED_AT_ONCE
from sequencer.api.commits import BatchError
from sequencer.api.topics import AlterConfig, ConfigChange, ConfigOperation, ConfigScope, DeleteTopic
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.quotas import QuotaEntity
from tailrace.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from tests.agent.test_connection import Transport
from tests.support.agents import PROMPT, AgentBench, agent_bench, batch, settle
from tests.support.frames import frames_of

VERSION = 9


class Ordinary(Dispatcher):
    """A dispatcher that looks at each request."""

    def fast_path(self, connection: KafkaConnection) -> FastPath | None:
        return None


class Counting(Dispatcher):
    """A dispatcher that counts the requests that it looks at."""

    looked_at = 0

    def at_once(self, frame: memoryview, connection: KafkaConnection) -> Reply | None:
        self.looked_at += 1
        return super().at_once(frame, connection)


class Client:
    """One connection, with a transport that only remembers."""

    def __init__(
        self, bench: AgentBench, dispatch: Dispatcher | None = None, budget: int | MemoryBudget = 8 << 20
    ) -> None:
        self.bench = bench
        self.transport = Transport()
        self.budget = MemoryBudget(budget) if isinstance(budget, int) else budget
        self.connection = KafkaConnection(
            Dispatcher(bench.services) if dispatch is None else dispatch,
            self.budget,
            max_frame_bytes=1 << 20,
            max_inflight=64,
            on_close=lambda connection: None,
            monotonic=bench.clock.monotonic,
        )
        self.transport.connection = self.connection
        self.connection.connection_made(self.transport)

    def feed(self, data: bytes, piece: int = 1 << 20) -> None:
        while data:
            buffer = self.connection.get_buffer(-1)
            taken = min(len(buffer), len(data), piece)
            buffer[:taken] = data[:taken]
            self.connection.buffer_updated(taken)
            data = data[taken:]

    async def learn(self, *topics: str) -> None:
        """Send what is needed for the next request to one of the topics (by default `t`) to be like an earlier one."""
        frames = [produce(topic=topic) for topic in topics or ("t",)]
        self.feed(b"".join(frames) * 2)
        await self.bench.advance(0.2)
        assert self.connection.fast_path is not None
        assert {code for code, _ in self.answers()} == {0}
        self.transport.sent.clear()

    def answers(self) -> list[tuple[int, int]]:
        """Error code and base offset of each answer."""
        rows = []
        for frame in frames_of(b"".join(self.transport.sent)):
            _, response = decode_response(ApiKey.PRODUCE, VERSION, memoryview(frame)[4:])
            row = response.responses[0].partition_responses[0]
            rows.append((row.error_code, row.base_offset))
        return rows


def produce(
    records: bytes | None = None, *, topic: str = "t", index: int = 0, acks: int = -1, client: str = "c",
    partitions: Sequence[int] = (), correlation_id: int = 7, version: int = VERSION,
) -> bytes:  # fmt: skip
    records = batch(b"x" * 100) if records is None else records
    data = [PartitionProduceData(number, memoryview(records)) for number in (index, *partitions)]
    request = ProduceRequest(None, acks, 30_000, [TopicProduceData(topic, partition_data=data)])
    return b"".join(encode_request(correlation_id, ApiKey.PRODUCE, version, request, client))


def idempotent(sequence: int, epoch: int = 0) -> bytes:
    return batch(b"x" * 80, producer=5, epoch=epoch, sequence=sequence)


def corrupt(frame: bytes, at: int) -> bytes:
    at = 4 + at % (len(frame) - 4)
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


FRAMES = st.one_of(
    st.builds(produce, correlation_id=st.integers(0, 1 << 30)),
    st.builds(produce, correlation_id=st.integers(0, 1 << 30), index=st.integers(-1, 4)),
    st.builds(lambda sequence, epoch: produce(idempotent(sequence, epoch)), st.integers(0, 4), st.integers(0, 1)),
    st.builds(produce, acks=st.sampled_from([-1, 0, 1, 2])),
    st.builds(produce, topic=st.sampled_from(["t", "u", "unknown"])),
    st.builds(produce, client=st.sampled_from(["c", "d"])),
    st.builds(produce, partitions=st.just([1])),
    st.builds(produce, st.sampled_from([b"", b"x", batch(b"late", at=1 << 60), batch(b"y") * 2, batch(b"z" * 70_000)])),
    st.builds(lambda at: corrupt(produce(), at), st.integers(40, 300)),
)  # fmt: skip


@settings(max_examples=40)
@given(
    frames=st.lists(FRAMES, max_size=12),
    piece=st.sampled_from([1 << 20, 700, 150]),
    learned=st.sampled_from([("t",), ("t", "u")]),
)
def test_whatever_is_sent_is_answered_and_stored_as_if_each_request_was_looked_at(
    frames: list[bytes], piece: int, learned: tuple[str, ...]
) -> None:
    async def outcome(kind: type[Dispatcher]) -> tuple[list[bytes], bool, int, list[object]]:
        bench = AgentBench(PROMPT)
        await bench.open()
        try:
            await bench.topic("t", 3)
            await bench.topic("u", 3)
            client = Client(bench, kind(bench.services))
            client.feed(b"".join(produce(topic=topic) for topic in learned) * 2)
            await bench.advance(0.2)
            assert (client.connection.fast_path is not None) or kind is Ordinary
            client.feed(b"".join(frames), piece)
            await bench.advance(12, step=0.5)
            stored = [
                (run.partition, run.length, run.batches)
                for commit in bench.sequencer.commits
                for run in commit.runs
            ]
            sent = list(frames_of(b"".join(client.transport.sent)))
            return sent, client.transport.closed, client.budget.used, stored
        finally:
            await bench.close()

    assert asyncio.run(outcome(Dispatcher)) == asyncio.run(outcome(Ordinary))


async def test_requests_that_arrive_together_are_counted_stored_and_answered_in_order() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        client = Client(bench)
        await client.learn()
        counted = bench.services.telemetry.registry.get_sample_value
        before = counted("tailrace_produced_records_total")
        frames = [produce(correlation_id=number) for number in range(10)]
        frames[4] = produce(acks=2, correlation_id=4)  # refused at once, and decoded
        client.feed(b"".join(frames))
        await bench.advance(0.5)
        answered = list(frames_of(b"".join(client.transport.sent)))
        assert [int.from_bytes(frame[4:8], "big") for frame in answered] == list(range(10))
        assert [code for code, _ in client.answers()] == [0] * 4 + [ErrorCode.INVALID_REQUIRED_ACKS] + [0] * 5
        assert counted("tailrace_produced_records_total") == before + 9
        requests = counted("tailrace_request_duration_seconds_count", {"api": "PRODUCE"})
        assert requests == 12
        assert client.budget.used == 0


async def test_requests_to_topics_in_turn_are_not_looked_at_again() -> None:
    async with agent_bench() as bench:
        for topic in "tuv":
            await bench.topic(topic, 3)
        dispatch = Counting(bench.services)
        client = Client(bench, dispatch)
        await client.learn("t", "u", "v")
        before = dispatch.looked_at
        frames = [produce(topic=topic, index=index) for index in range(3) for topic in "tuv"]
        client.feed(b"".join(frames))
        await bench.advance(0.5)
        assert dispatch.looked_at == before
        assert client.answers() == [(0, 2)] * 3 + [(0, 0)] * 6
        client.feed(produce(topic="t", partitions=[1]))
        client.feed(produce(topic="v"))
        await bench.advance(0.5)
        assert dispatch.looked_at == before + 1, "a request with two batches"


async def test_partitions_that_are_kept_are_bounded_for_all_topics_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.produce_fast_path.MAX_KNOWN_PARTITIONS", 4)
    async with agent_bench() as bench:
        for topic in "tu":
            await bench.topic(topic, 3)
        client = Client(bench)
        await client.learn("t", "u")
        client.feed(b"".join(produce(topic=topic, index=index) for index in range(3) for topic in "tu"))
        await bench.advance(0.5)
        assert client.answers() == [(0, 2)] * 2 + [(0, 0)] * 4
        shapes = client.connection.produce_shapes
        assert shapes is not None
        assert sum(len(shape.kept.partitions) for shape in shapes) == 2


async def test_answers_that_are_made_together_leave_in_one_write() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        client = Client(bench)
        await client.learn()
        client.feed(produce() * 8)
        await bench.advance(0.5)
        assert len(client.answers()) == 8 and len(client.transport.sent) <= 2


async def test_stored_batches_do_not_change_when_the_shared_buffer_is_reused() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        client = Client(bench)
        await client.learn()
        bench.sequencer.may_commit.clear()
        client.feed(produce(batch(b"first" * 20)))
        client.feed(produce(batch(b"other" * 20)))
        bench.sequencer.may_commit.set()
        await bench.advance(0.5)
        assert client.answers() == [(0, 2), (0, 3)]
        objects = b"".join(
            [
                await bench.objects.get_range(listed.key, 0, listed.size)
                async for listed in bench.objects.list("")
            ]
        )
        assert objects.count(b"first" * 20) == 1 and objects.count(b"other" * 20) == 1


async def test_each_batch_of_a_version_that_has_no_zstd_is_looked_at() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        client = Client(bench)
        client.feed(produce(version=FIRST_ZSTD_VERSION - 1) * 2)
        await bench.advance(0.2)
        assert client.connection.fast_path is None and client.transport.sent


async def test_cached_decisions_are_made_again_when_the_topic_changes() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        client = Client(bench)
        await client.learn()
        await bench.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        client.feed(produce())  # this agent does not know yet
        await bench.advance(1)
        assert client.answers() == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
        await bench.topic(cleanup_policy="compact")
        client.feed(produce())
        await bench.advance(1)
        assert client.answers()[1:] == [(0, 0)], "batch has keys"
        assert client.connection.fast_path is None, "each record of a compacted topic is looked into"


async def test_a_quota_that_is_set_meanwhile_holds_for_the_next_request() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        client = Client(bench)
        await client.learn()
        change = ConfigChange("producer_byte_rate", ConfigOperation.SET, "10.0")
        await bench.sequencer.alter_config(
            AlterConfig(ConfigScope.QUOTA, QuotaEntity(client_id="").text, [change])
        )
        await bench.services.catalog.refresh()
        client.feed(produce())
        await bench.advance(1)
        assert client.connection.muted_until > 0


async def test_requests_that_no_quota_counts_are_not_looked_at_again() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        change = ConfigChange("producer_byte_rate", ConfigOperation.SET, "10.0")
        await bench.sequencer.alter_config(
            AlterConfig(ConfigScope.QUOTA, QuotaEntity(client_id="other").text, [change])
        )
        await bench.services.catalog.refresh()
        assert bench.services.quotas.is_on
        dispatch = Counting(bench.services)
        client = Client(bench, dispatch)
        await client.learn()
        before = dispatch.looked_at
        client.feed(produce() * 3)
        await bench.advance(0.5)
        assert dispatch.looked_at == before
        client.feed(produce(client="other") * 3)
        await bench.advance(0.5)
        assert client.connection.muted_until > 0


async def test_an_agent_that_is_leaving_sends_the_next_request_away() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        client = Client(bench)
        await client.learn()
        bench.identity.is_leaving = True
        client.feed(produce())
        await bench.advance(1)
        assert client.answers() == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


async def test_an_agent_that_joins_has_the_next_request_sent_away() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        client = Client(bench)
        await client.learn()
        await bench.join("az-a", 2)
        for _ in range(20):  # a generation gathers who joins
            await bench.advance(1, step=0.5)
            await bench.services.catalog.refresh()
        client.feed(produce())
        await bench.advance(1)
        assert client.answers() == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


async def test_a_right_that_is_taken_away_is_missed_by_the_next_request() -> None:
    may_write = Acl(
        ResourceType.TOPIC, "t", PatternType.LITERAL, "User:bob", "*", Operation.WRITE, Permission.ALLOW
    )

    async with agent_bench() as bench:
        await bench.topic()
        acls = [AclIndex([may_write])]
        client = Client(bench, Dispatcher(bench.services, GUARDED, GUARDED_AT_ONCE))
        client.connection.access = Access("SASL", "10.0.0.1", "User:bob", lambda: acls[0])
        await client.learn()
        acls[0] = AclIndex([])
        client.feed(produce())
        await bench.advance(1)
        assert client.answers() == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)]


@pytest.mark.parametrize("at_most", [64 << 10])
async def test_requests_beyond_the_memory_wait_and_all_is_given_back(at_most: int) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        client = Client(bench, budget=at_most)
        await client.learn()
        bench.sequencer.may_commit.clear()
        sent = produce() * 40
        while sent and not client.transport.is_paused:
            client.feed(sent[:2_000])
            sent = sent[2_000:]
        assert client.transport.is_paused and client.budget.used <= at_most
        bench.sequencer.may_commit.set()
        for _ in range(50):
            await bench.advance(0.2)
            while sent and not client.transport.is_paused:
                client.feed(sent[:2_000])
                sent = sent[2_000:]
        assert len(client.answers()) == 40 and client.budget.used == 0


async def test_a_connection_that_is_lost_gives_back_what_its_requests_hold() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        client = Client(bench)
        await client.learn()
        bench.sequencer.may_commit.clear()
        client.feed(produce() * 5)
        await settle()
        client.connection.connection_lost(None)
        assert client.budget.used > 0, "the buffer still holds them"
        bench.sequencer.may_commit.set()
        await bench.advance(1)
        assert client.budget.used == 0


async def test_a_connection_that_has_ended_is_freed_with_all_that_was_kept_for_its_next_request() -> None:
    def connections() -> int:
        gc.collect()
        return sum(isinstance(thing, KafkaConnection) for thing in gc.get_objects())

    async with agent_bench() as bench:
        await bench.topic()
        before = connections()
        for _ in range(3):
            client = Client(bench)
            await client.learn()
            client.connection.connection_lost(None)
            del client
        await bench.advance(1)
        assert connections() == before


class Answers:
    """Makes answers of their base offset alone."""

    def stored(self, reply: FastPathReply, base_offset: int, log_start_offset: int) -> None:
        reply.made([b"%d" % base_offset])


def test_a_batch_that_is_given_a_second_result_keeps_its_first() -> None:
    told: list[Reply] = []
    requests: Any = Answers()
    reply = FastPathReply(
        is_made=False, on_made=told.append, requests=requests, correlation_id=1, index=0, started=0.0
    )
    for offset in (5, 6):
        reply.settle(0, BatchResult(BatchError.NONE, offset, 0))
    assert reply.parts == [b"5"] and len(told) == 1
