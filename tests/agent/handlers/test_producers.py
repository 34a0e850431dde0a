"""InitProducerId and DescribeProducers."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.settings import SequencerSettings
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.describe_producers import DescribeProducersRequest, TopicRequest
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tests.agent.handlers.test_produce import produce
from tests.support.agents import AgentBench, agent_bench, batch
from tests.support.transactions import TransactionalProducer


async def init(bench: AgentBench, version: int = 5, **fields: Any) -> Any:
    fields.setdefault("transactional_id", None)
    return await bench.ask(ApiKey.INIT_PRODUCER_ID, version, InitProducerIdRequest(**fields))


async def described(bench: AgentBench, partition: int = 0, topic: str = "t") -> Any:
    request = DescribeProducersRequest([TopicRequest(topic, [partition])])
    return (await bench.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request)).topics[0].partitions[0]


async def test_every_idempotent_producer_gets_an_id_of_its_own() -> None:
    async with agent_bench() as bench:
        grants = [await init(bench, version) for version in (0, 2, 5)]
        assert len({each.producer_id for each in grants}) == 3
        assert all((each.error_code, each.producer_epoch) == (0, 0) for each in grants)


async def test_at_the_limit_of_transactional_ids_producers_get_a_retriable_error() -> None:
    async with agent_bench(SequencerSettings(max_transactional_ids=1)) as bench:
        known = {"transactional_id": "known", "transaction_timeout_ms": 60_000}
        assert (await init(bench, **known)).error_code == ErrorCode.NONE
        refused = await init(bench, transactional_id="too-many", transaction_timeout_ms=60_000)
        assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await init(bench, **known)).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 7}, ErrorCode.INVALID_REQUEST),
        (
            {"transactional_id": "tx", "transaction_timeout_ms": 1, "producer_epoch": 7},
            ErrorCode.INVALID_REQUEST,
        ),
        ({"transactional_id": "tx", "transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (
            {"transactional_id": "tx", "transaction_timeout_ms": 1 << 30},
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ),
    ],
    ids=["empty id", "no epoch", "no producer id", "no time", "too long"],
)
async def test_a_refused_grant_has_its_error_code(fields: dict[str, Any], code: ErrorCode) -> None:
    async with agent_bench() as bench:
        response = await init(bench, **fields)
        assert (response.error_code, response.producer_id) == (code, -1)


async def test_a_transactional_id_keeps_its_producer_id_and_fences_who_had_it() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        first, second = TransactionalProducer(bench), TransactionalProducer(bench)
        assert await first.init() == await second.init() == 0
        assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
        assert await first.init(keeps=True) == ErrorCode.PRODUCER_FENCED
        assert await first.init(3, keeps=True) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await first.end(commit=True) == ErrorCode.PRODUCER_FENCED
        (row,) = await first.produce((0, first.batch("t", 0, b"zombie")))
        assert row.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await second.init(keeps=True) == 0  # KIP-360: it goes on with a higher epoch


async def test_an_absent_sequencer_makes_a_transactional_client_look_for_its_coordinator() -> None:
    async with agent_bench() as bench:
        bench.sequencer.is_away = True
        response = await init(bench, transactional_id="tx", transaction_timeout_ms=1_000)
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_an_absent_sequencer_makes_an_idempotent_producer_ask_again() -> None:
    async with agent_bench() as bench:
        bench.sequencer.is_away = True
        told = await init(bench)
        assert told.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "as in Kafka"


async def test_the_producers_of_a_partition_are_described() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        producer_id = (await init(bench)).producer_id
        await produce(bench, (0, batch(b"1", b"2", producer=producer_id, sequence=0)))
        writer = TransactionalProducer(bench)
        await writer.init()
        assert await writer.send(0, b"3") == 2
        idempotent, transactional = sorted(
            (await described(bench)).active_producers, key=lambda each: each.producer_id
        )
        assert (idempotent.producer_id, idempotent.producer_epoch, idempotent.last_sequence) == (
            producer_id,
            0,
            1,
        )
        assert idempotent.current_txn_start_offset == -1
        assert (transactional.producer_id, transactional.current_txn_start_offset) == (writer.producer_id, 2)
        await writer.end(commit=True)
        assert [each.current_txn_start_offset for each in (await described(bench)).active_producers] == [
            -1,
            -1,
        ]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await described(bench, 9)).error_code == unknown
        nowhere = await described(bench, topic="nowhere")
        assert nowhere.error_code == unknown and nowhere.error_message
        impossible = await described(bench, topic="a/b")
        assert impossible.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
