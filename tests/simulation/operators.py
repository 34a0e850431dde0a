"""An operator that looks for open transactions and aborts some by force: DescribeProducers, WriteTxnMarkers.

`kafka-transactions abort` sends these requests. Once such an abort is answered, the transaction has ended at every
agent, in all of its partitions, and is never committed. A producer of another epoch, or whose transaction began later,
continues.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.describe_producers import DescribeProducersRequest, ProducerState, TopicRequest
from tailrace.kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.simulation.aborts import DatabaseIdentity
from tests.simulation.clients import GONE, Client, Log
from tests.simulation.network import NoAnswer
from tests.support.history.events import Ended


class Operator(Client):
    """Aborts one open transaction after the other during the faults, and some under an old epoch."""

    async def run(self, topics: Sequence[str]) -> None:
        while not self.stage.is_calm:
            log = await self.surely_look_up(topics[self.luck.below(len(topics))])
            partition, seen_at = self.luck.below(log.partitions), self.stage.now()
            found = await self._open(log, partition)
            if found:
                await self._abort(log, partition, found[self.luck.below(len(found))], seen_at)
            await self.pause(0.05, 0.4)

    async def _open(self, log: Log, partition: int) -> list[ProducerState]:
        """Return the producers that have a transaction open in a partition."""
        response = await self.until_answered(
            ApiKey.DESCRIBE_PRODUCERS,
            0,
            DescribeProducersRequest([TopicRequest(log.topic, [partition])]),
            lambda response: response.topics[0].partitions[0].error_code in (ErrorCode.NONE, *GONE),
        )
        active: list[ProducerState] = response.topics[0].partitions[0].active_producers
        return [each for each in active if each.current_txn_start_offset >= 0]

    async def _abort(self, log: Log, partition: int, seen: ProducerState, seen_at: float) -> None:
        is_over = seen.producer_epoch > 0 and self.luck.below(4) == 0
        producer = (seen.producer_id, seen.producer_epoch - is_over)
        if self.luck.below(3) == 0:
            await self.pause(0.0, 0.4)
        await self._write_marker(log, partition, producer)
        if is_over:
            return
        aborted = self.stage.aborts.surely_aborted(producer, seen_at)
        if aborted is not None:
            self.stage.record(
                Ended(at=self.stage.now(), client=self.name, transaction=aborted, outcome="aborted")
            )
        self._check(log, partition, seen, await self._open(log, partition))

    async def _write_marker(self, log: Log, partition: int, producer: DatabaseIdentity) -> None:
        """Send WriteTxnMarkers until it is answered."""
        marker = WritableTxnMarker(*producer, topics=[WritableTxnMarkerTopic(log.topic, [partition])])
        while True:
            attempt = self.stage.aborts.asked(producer, self.stage.now())
            try:
                response = await self.ask(
                    self.some_agent(), ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest([marker])
                )
                if response.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE:
                    attempt.answered_at = self.stage.now()
                    return
            except NoAnswer:
                pass
            await self.pause(0.05, 0.2)

    def _check(self, log: Log, partition: int, seen: ProducerState, found: Sequence[ProducerState]) -> None:
        start = (seen.producer_id, seen.current_txn_start_offset)
        if start in [(each.producer_id, each.current_txn_start_offset) for each in found]:
            self.stage.violated(
                f"{log.name}-{partition}: producer {start[0]} has a transaction open from {start[1]}, which was aborted"
            )
