"""A transactional producer that speaks the protocol itself over an agent bench, in either transaction version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka import ApiKey
from tailrace.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tailrace.kafka.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tailrace.kafka.messages.end_txn import EndTxnRequest
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tailrace.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tailrace.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.support.agents import AgentBench

T0 = 1_700_000_000_000


@dataclass(slots=True)
class TransactionalProducer:
    """`is_newest`: transaction version 2 (Produce 12, EndTxn 5), else 0 (Produce 9, EndTxn 3)."""

    bench: AgentBench
    transactional_id: str = "tx"
    is_newest: bool = True
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    async def init(self, version: int = 5, timeout_ms: int = 60_000, *, keeps: bool = False) -> int:
        """Send InitProducerId (`keeps`: with its current id and epoch, KIP-360); returns the error code."""
        request = InitProducerIdRequest(self.transactional_id, timeout_ms)
        if keeps:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        response = await self._ask(ApiKey.INIT_PRODUCER_ID, version, request)
        if not response.error_code:
            self._goes_on_with(response.producer_id, response.producer_epoch)
        return int(response.error_code)

    def _goes_on_with(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def batch(self, topic: str, partition: int, *values: bytes, is_transactional: bool = True) -> bytes:
        """Make the producer's next batch for the partition."""
        first = self.sequences.get((topic, partition), 0)
        self.sequences[topic, partition] = first + len(values)
        return encode_batch(
            [NewRecord(b"k", value) for value in values],
            timestamps=[T0 + number for number in range(len(values))],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=first,
            is_transactional=is_transactional,
        )

    async def produce(
        self, *parts: tuple[int, bytes], topic: str = "t", version: int | None = None
    ) -> list[PartitionProduceResponse]:
        """Produce batches to the topic's partitions in one request; returns the rows of the answer."""
        data = [PartitionProduceData(index, memoryview(each)) for index, each in parts]
        request = ProduceRequest(
            self.transactional_id, -1, 1_000, [TopicProduceData(topic, partition_data=data)]
        )
        version = version or (12 if self.is_newest else 9)
        response = await self._ask(ApiKey.PRODUCE, version, request)
        return [row for each in response.responses for row in each.partition_responses]

    async def send(self, partition: int, *values: bytes, topic: str = "t") -> int:
        """Produce one batch, after AddPartitionsToTxn if the version needs it; returns the base offset."""
        if not self.is_newest:
            assert await self.add(partition, topic=topic) == [0]
        (row,) = await self.produce((partition, self.batch(topic, partition, *values)), topic=topic)
        assert row.error_code == 0, row
        return int(row.base_offset)

    async def add(self, *partitions: int, topic: str = "t", version: int = 3) -> list[int]:
        """Send AddPartitionsToTxn as clients do; returns the error codes."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(topic, list(partitions))],
        )
        response = await self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        return [
            row.partition_error_code
            for each in response.results_by_topic_v3_and_below
            for row in each.results_by_partition
        ]

    async def add_offsets(self, group: str = "g", version: int = 3) -> int:
        request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)
        return int((await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, version, request)).error_code)

    async def commit_offset(
        self,
        offset: int,
        *,
        partition: int = 0,
        topic: str = "t",
        group: str = "g",
        member: str = "",
        generation: int = -1,
        version: int | None = None,
    ) -> int:
        """Send TxnOffsetCommit of one offset; returns its error code."""
        request = TxnOffsetCommitRequest(
            self.transactional_id,
            group,
            self.producer_id,
            self.epoch,
            generation,
            member,
            topics=[TxnOffsetCommitRequestTopic(topic, [TxnOffsetCommitRequestPartition(partition, offset)])],
        )
        version = version or (5 if self.is_newest else 3)
        response = await self._ask(ApiKey.TXN_OFFSET_COMMIT, version, request)
        return int(response.topics[0].partitions[0].error_code)

    async def end(self, *, commit: bool, version: int | None = None) -> int:
        """Send EndTxn; returns the error code."""
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)
        version = version or (5 if self.is_newest else 3)
        response = await self._ask(ApiKey.END_TXN, version, request)
        if not response.error_code and version >= 5:
            self._goes_on_with(response.producer_id, response.producer_epoch)
        return int(response.error_code)

    async def _ask(self, api: int, version: int, request: Any) -> Any:
        return await until_answered(self.bench, self.bench.ask(api, version, request))


async def until_answered(bench: AgentBench, asked: Awaitable[Any]) -> Any:
    return await bench.until(asyncio.ensure_future(asked))
