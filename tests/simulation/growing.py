"""A topic that grows (CreatePartitions), and a client that uses its new partitions at once, through any agent.

Once a growth was answered, no agent may know fewer partitions: an agent that can reach the sequencer never answers
UNKNOWN_TOPIC_OR_PARTITION for them. During the faults it may, because it may be unable to reach the sequencer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tailrace.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.simulation.clients import GONE, IdempotentProducer, Log, OutBatch, Reader, Stage
from tests.simulation.network import NoAnswer

GROWING = "growing"
GROUP = "of growing"
GROWTHS = 2
"""During the faults; there is one more after them."""


class Grower(IdempotentProducer):
    """Grows the topic, and writes to, reads, and commits positions of each new partition."""

    def __init__(self, stage: Stage, name: str = "grower") -> None:
        super().__init__(stage, name)
        self._reader = Reader(stage, f"{name}'s reader", "uncommitted", self.process)

    async def run_growths(self, topic: str, batches: int) -> None:
        await self.take_producer_id()
        log = await self.surely_look_up(topic)
        for _ in range(GROWTHS):
            await self.pause(0.2, 1.5)
            log = await self._grow_and_use(log, batches)
        while not self.stage.is_calm:
            await self.pause(0.2, 0.4)
        await self._grow_and_use(log, batches)

    async def _grow_and_use(self, log: Log, batches: int) -> Log:
        grown = replace(log, partitions=log.partitions + 1 + self.luck.below(2))
        await self._grow(grown)
        for partition in range(log.partitions, grown.partitions):
            await self._see_in_metadata(grown)
            await self._ask_for_offsets(grown, partition)
            await self._read(grown, partition)
            await self._keep_sending(grown, partition, batches, window=3, by_id=bool(self.luck.below(2)))
            await self._commit(grown, partition)
        return grown

    async def _grow(self, log: Log) -> None:
        """Ask until the answer is that there are this many partitions: a repetition finds them there."""
        asked = CreatePartitionsRequest([CreatePartitionsTopic(log.topic, log.partitions, None)], 4_000)
        await self.until_answered(
            ApiKey.CREATE_PARTITIONS,
            3,
            asked,
            lambda answer: answer.results[0].error_code in (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS),
        )
        self.stage.note(f"{log.name} has {log.partitions} partitions")

    def _check(self, code: int, is_strict: bool, what: str) -> None:
        if code in GONE and is_strict:
            self.stage.violated(f"{what}: {ErrorCode(code).name}, after it was told that the topic has grown")

    @property
    def _is_strict(self) -> bool:
        """Return whether every agent can reach the sequencer."""
        return self.stage.is_calm or not self.stage.may_refuse

    async def _until_known(
        self, api: ApiKey, version: int, request: Any, codes_of: Callable[[Any], list[int]], what: str
    ) -> None:
        """Ask any agent until none of the answer's codes is an error."""
        while True:
            is_strict = self._is_strict
            try:
                answer = await self.ask(self.some_agent(), api, version, request)
            except NoAnswer:
                await self.pause(0.05, 0.2)
                continue
            for code in codes_of(answer):
                self._check(code, is_strict, what)
            if not any(codes_of(answer)):
                return
            await self.pause(0.05, 0.2)

    async def _see_in_metadata(self, log: Log) -> None:
        while True:
            is_strict = self._is_strict
            found = await self.look_up(log.topic)
            if found == log:
                return
            if is_strict:
                self.stage.violated(f"{log.name} has {log.partitions} partitions; metadata has {found}")
            await self.pause(0.05, 0.2)

    async def _ask_for_offsets(self, log: Log, partition: int) -> None:
        place = f"{log.name}-{partition}"
        times = [ListOffsetsPartition(partition, timestamp=-1)]
        await self._until_known(
            ApiKey.LIST_OFFSETS,
            7,
            ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(log.topic, times)]),
            lambda answer: [answer.topics[0].partitions[0].error_code],
            f"{place}: ListOffsets",
        )
        epochs = [OffsetForLeaderPartition(partition, leader_epoch=0)]
        await self._until_known(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(log.topic, epochs)]),
            lambda answer: [answer.topics[0].partitions[0].error_code],
            f"{place}: OffsetForLeaderEpoch",
        )

    async def _read(self, log: Log, partition: int) -> None:
        """Check that the new partition exists and has no records yet."""
        while True:
            is_strict = self._is_strict
            try:
                found = await self._reader.fetch(self.some_agent(), log, {partition: 0}, max_wait_ms=0)
            except NoAnswer:
                await self.pause(0.05, 0.2)
                continue
            got = found.get(partition)
            if got is not None:
                self._check(got.code, is_strict, f"{log.name}-{partition}: Fetch")
                if got.code is ErrorCode.NONE:
                    return
            await self.pause(0.05, 0.2)

    async def _commit(self, log: Log, partition: int) -> None:
        """Commit a position of a group without members."""
        positions = [OffsetCommitRequestPartition(partition_index=partition, committed_offset=0)]
        await self._until_known(
            ApiKey.OFFSET_COMMIT,
            7,
            OffsetCommitRequest(
                group_id=GROUP,
                generation_id_or_member_epoch=-1,
                topics=[OffsetCommitRequestTopic(name=log.topic, partitions=positions)],
            ),
            lambda answer: [answer.topics[0].partitions[0].error_code],
            f"{log.name}-{partition}: OffsetCommit",
        )

    def settle(self, batches: Sequence[OutBatch], response: Any) -> None:
        super().settle(batches, response)
        for batch in batches:
            if batch.refusal is not None:
                place = f"{batch.log.name}-{batch.partition}"
                self._check(batch.refusal, self._is_strict, f"{place}: Produce")
