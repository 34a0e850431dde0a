"""Requests with very many elements in any of their arrays do not block the loop for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from agent.dispatch import Dispatcher
from agent.framing import DECODED_FACTOR, REQUEST_BYTES
from agent.handlers import HANDLERS
from agent.security.access import Access
from agent.security.authorize import AclIndex
from agent.security.guarded_handlers import GUARDED, GUARDED_AT_ONCE
from agent.tenants.tenant_handlers import tenant_handlers
from sequencer.api.topics import Metadata, MetadataRequest
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.apis import APIS
from tailrace.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.metadata import MetadataRequest as TopicsRequest
from tailrace.kafka.messages.metadata import MetadataRequestTopic
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tailrace.kafka.schema import Entity, Field, MessageType, Wire, fields_of
from tailrace.tenants import Tenant
from tests.support.agents import AgentBench, agent_bench, connection, made
from tests.support.short_turns import HELD_SECONDS
from tests.support.turns import least_of_three, measured_turns

PARTITIONS = 1_000
ELEMENTS = 20_000
"""As many as each API may have. Those by partition may have ten times as many, which takes too long for a test."""
NAMES = {
    Entity.TOPIC_NAME: "t",
    Entity.GROUP_ID: "g",
    Entity.COORDINATOR_KEY: "g",
    Entity.TRANSACTIONAL_ID: "x",
    Entity.CONFIG_RESOURCE: "t",
    Entity.USER_NAME: "user",
}
OF_A_TOPIC = 2

Path = tuple[str, ...]


@dataclass(frozen=True)
class Filled:
    """A request of which one array has `count` elements; arrays in these have one."""

    version: int
    path: Path
    count: int
    topic_id: UUID

    def request(self, message: MessageType, path: Path) -> Any:
        values = {}
        for field in fields_of(message):
            if self.version in field.versions:
                values[field.name] = self._value(field, path)
        return message(**values)

    def _value(self, field: Field, path: Path) -> Any:
        on_path = path[:1] == (field.name,)
        if field.is_array:
            if path and not on_path:
                return []
            count = self.count if len(path) == 1 else 1
            return [self._single(field, path[1:])] * count
        return self._single(field, path[1:] if on_path else ())

    def _single(self, field: Field, path: Path) -> Any:
        kind = field.kind
        if not isinstance(kind, Wire):
            return self.request(kind, path)
        if field.entity is Entity.TOPIC_ID:
            return self.topic_id
        if kind is Wire.STRING:
            return NAMES.get(field.entity, "x") if field.entity is not None else "x"
        if field.name == "resource_type":
            return OF_A_TOPIC
        return {Wire.UUID: UUID(int=1), Wire.BYTES: b"", Wire.RECORDS: b"", Wire.BOOL: False}.get(kind, 0)


def elements(value: Any) -> int:
    """Elements of all arrays of a message."""
    if isinstance(value, list):
        return sum(1 + elements(each) for each in value)
    if not hasattr(value, "__struct_fields__"):
        return 0
    return sum(elements(getattr(value, field.name)) for field in fields_of(type(value)))


def arrays(message: MessageType, version: int) -> Iterator[Path]:
    """The ways to all arrays of a message."""
    for field in fields_of(message):
        if version not in field.versions:
            continue
        if field.is_array:
            yield (field.name,)
        if not isinstance(field.kind, Wire):
            for rest in arrays(field.kind, version):
                yield field.name, *rest


@pytest.mark.parametrize(
    "key", [key for key, spec in APIS.items() if any(arrays(spec.request, spec.served.last))]
)
@least_of_three
async def test_a_request_of_20_000_elements_of_one_name_leaves_the_loop_to_others(key: ApiKey) -> None:
    spec = APIS[key]
    version = spec.served.last

    async with agent_bench() as bench:
        topic = await bench.topic(partitions=PARTITIONS)
        partitions = [OffsetCommitRequestPartition(each, 1) for each in range(PARTITIONS)]
        commit = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=partitions)])
        await bench.ask(ApiKey.OFFSET_COMMIT, 8, commit)
        for path in arrays(spec.request, version):
            one = elements(Filled(version, path, 1, topic.topic_id).request(spec.request, path))
            count = (ELEMENTS - len(path) + 1) // (one - len(path) + 1)
            filled = Filled(version, path, count, topic.topic_id).request(spec.request, path)
            sent = b"".join(encode_request(7, key, version, filled))
            with measured_turns() as turns:
                answering = asyncio.create_task(answer_bytes(bench, sent), name=f"{spec.name} {path}")
                answered = await bench.until(answering, 600)
            assert answered <= len(sent) * DECODED_FACTOR + REQUEST_BYTES, (
                "no more than its request was charged"
            )
            turns.check(HELD_SECONDS)


@pytest.mark.parametrize(
    "key", [ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.PRODUCE, ApiKey.DELETE_RECORDS]
)
async def test_however_many_topics_of_a_request_are_unknown_the_sequencer_is_asked_for_them_once(
    key: ApiKey,
) -> None:
    spec = APIS[key]
    version = spec.served.last
    path = next(path for path in arrays(spec.request, version) if path[-1] in ("topics", "topic_data"))

    async with agent_bench() as bench:
        filled = Filled(version, path, 500, UUID(int=9)).request(spec.request, path)
        asked = 0
        metadata = bench.sequencer.inner.metadata

        async def counted(request: MetadataRequest) -> Metadata:
            nonlocal asked
            asked += 1
            return await metadata(request)

        bench.sequencer.inner.metadata = counted  # type: ignore[method-assign]
        await bench.until(asyncio.create_task(bench.ask(key, version, filled)))
        assert 1 <= asked <= 2, "for the request, and for what has changed since"


LONG = pytest.mark.parametrize(
    ("key", "version", "request_of"),
    [
        (ApiKey.FIND_COORDINATOR, 4, lambda names: FindCoordinatorRequest(coordinator_keys=names)),
        (
            ApiKey.OFFSET_FETCH,
            8,
            lambda names: OffsetFetchRequest(groups=[OffsetFetchRequestGroup(each) for each in names]),
        ),
        (
            ApiKey.METADATA,
            12,
            lambda names: TopicsRequest(topics=[MetadataRequestTopic(name=each) for each in names]),
        ),
        (ApiKey.DELETE_TOPICS, 5, lambda names: DeleteTopicsRequest(topic_names=names)),
    ],
)


@LONG
@least_of_three
async def test_a_client_that_is_refused_20_000_names_leaves_the_loop_to_others(
    key: ApiKey, version: int, request_of: Callable[[list[str]], Any]
) -> None:
    sent = b"".join(encode_request(7, key, version, request_of([f"n{each}" for each in range(ELEMENTS)])))
    nobody_may = AclIndex([], ())

    async with agent_bench() as bench:
        client = connection()
        client.access = Access("SASL", "10.0.0.1", "User:mallory", lambda: nobody_may)
        dispatch = Dispatcher(bench.services, GUARDED, GUARDED_AT_ONCE)
        with measured_turns() as turns:
            reply = await asyncio.create_task(dispatch(memoryview(sent)[4:], client), name=key.name)
        assert sum(map(len, reply.parts or ())) > len(sent)
        turns.check(HELD_SECONDS)


@least_of_three
async def test_a_client_that_is_refused_60_000_transactions_leaves_the_loop_to_others() -> None:
    transactions = [
        AddPartitionsToTxnTransaction(f"x{each}", topics=[AddPartitionsToTxnTopic("t", [0])])
        for each in range(60_000)
    ]
    asked = AddPartitionsToTxnRequest(transactions)
    sent = b"".join(encode_request(7, ApiKey.ADD_PARTITIONS_TO_TXN, 4, asked))
    nobody_may = AclIndex([], ())

    async with agent_bench() as bench:
        client = connection()
        client.access = Access("SASL", "10.0.0.1", "User:mallory", lambda: nobody_may)
        dispatch = Dispatcher(bench.services, GUARDED, GUARDED_AT_ONCE)
        with measured_turns() as turns:
            reply = await asyncio.create_task(dispatch(memoryview(sent)[4:], client))
        assert sum(map(len, reply.parts or ())) > 15 * len(transactions)
        turns.check(HELD_SECONDS)


@LONG
@least_of_three
async def test_a_tenants_client_that_names_20_000_leaves_the_loop_to_others(
    key: ApiKey, version: int, request_of: Callable[[list[str]], Any]
) -> None:
    sent = b"".join(encode_request(7, key, version, request_of([f"n{each}" for each in range(ELEMENTS)])))

    async with agent_bench(auto_create_topics=False) as bench:
        client = connection()
        client.access = Access(tenant=Tenant.named("acme"))
        dispatch = Dispatcher(bench.services, tenant_handlers(HANDLERS), {})
        with measured_turns() as turns:
            answering = asyncio.create_task(dispatch(memoryview(sent)[4:], client), name=key.name)
            reply = await bench.until(answering, 3_600)
        assert not reply.close
        turns.check(HELD_SECONDS)


async def answer_bytes(bench: AgentBench, sent: bytes) -> int:
    """The length of the answer to a request that is encoded already."""
    parts = await made(await Dispatcher(bench.services)(memoryview(sent)[4:], connection()))
    return sum(map(len, parts or ()))
