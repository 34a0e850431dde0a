"""A client whose changes the database refuses, as PostgreSQL refuses values that its indexes don't take.

Whatever bounds the product sets, a value may pass them: it must fail alone. None of the poisoner's changes may be
reported as done, and no other client may be refused because of them.
"""

from __future__ import annotations

from sequencer.store.rows import GroupRow, Row, TransactionRow
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.simulation.clients import Client
from tests.simulation.network import NoAnswer

POISON = "poison"


def is_poison(row: Row) -> bool:
    """Return whether the simulated database refuses this row."""
    if isinstance(row, GroupRow):
        return row.group_id.startswith(POISON)
    return isinstance(row, TransactionRow) and row.transactional_id.startswith(POISON)


class Poisoner(Client):
    """Requests, again and again, changes that the database refuses."""

    async def run(self, topic: str) -> None:
        while True:
            try:
                if self.luck.below(2):
                    await self._commit_offsets(topic)
                else:
                    await self._take_transactional_id()
            except NoAnswer:
                await self.pause(0.05, 0.2)
            await self.pause(0.0, 0.05)

    async def _commit_offsets(self, topic: str) -> None:
        positions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=0)]
        request = OffsetCommitRequest(
            group_id=f"{POISON}-{self.luck.below(100)}",
            topics=[OffsetCommitRequestTopic(name=topic, partitions=positions)],
        )
        answer = await self.ask(self.some_agent(), ApiKey.OFFSET_COMMIT, 7, request)
        self._expect_refusal("OffsetCommit", answer.topics[0].partitions[0].error_code)

    async def _take_transactional_id(self) -> None:
        request = InitProducerIdRequest(f"{POISON}-{self.luck.below(100)}", 1_000)
        answer = await self.ask(self.some_agent(), ApiKey.INIT_PRODUCER_ID, 4, request)
        self._expect_refusal("InitProducerId", answer.error_code)

    def _expect_refusal(self, api: str, code: int) -> None:
        if code == ErrorCode.NONE:
            self.stage.violated(f"{api} with poison is told as done")
