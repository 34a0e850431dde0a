"""All flush lanes of an agent, and the shares of the cluster's budgets that they divide."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agent.produce.active_buffer import BufferedBatch
from agent.produce.lane import Lane
from agent.produce.sealing import Share
from tailrace.ids import TopicPartition

SAFE_PART = 0.1
"""The fraction of its last share that an agent uses once its lease has expired without a new share."""


class Lanes:
    """All lanes of an agent. A partition's lane is a pure function of the partition."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._share = Share()

    async def start(self) -> None:
        for lane in self._lanes:
            await lane.start()

    def report_stored(self, to: Callable[[TopicPartition, int], None]) -> None:
        """Have `to` called as `Lane.on_stored`."""
        for lane in self._lanes:
            lane.on_stored = to

    def lane_of(self, partition: TopicPartition) -> Lane:
        if len(self._lanes) == 1:
            return self._lanes[0]
        return self._lanes[(partition.topic_id.int ^ partition.partition * 0x9E3779B1) % len(self._lanes)]

    def add(self, partition: TopicPartition, topic_name: str, batch: BufferedBatch) -> None:
        """Put a batch into its lane's buffer."""
        self.lane_of(partition).add(partition, topic_name, batch)

    def submit(self, batches: Sequence[tuple[TopicPartition, str, BufferedBatch]]) -> None:
        """Put the batches of one request into their lanes' buffers, in order."""
        for partition, topic_name, batch in batches:
            self.add(partition, topic_name, batch)

    @property
    def buffered_bytes(self) -> int:
        return sum(lane.buffered_bytes for lane in self._lanes)

    @property
    def unanswered_commits(self) -> int:
        return sum(lane.unanswered_commits for lane in self._lanes)

    def demand(self) -> Share:
        """Return what all lanes together can use per second."""
        wanted = [lane.demand() for lane in self._lanes]
        return Share(sum(share.early_puts for share in wanted), sum(share.rows for share in wanted))

    def take_share(self, share: Share) -> None:
        """Divide the agent's share of the cluster's budgets equally among the lanes."""
        if share == Share():
            return
        self._share = share
        for lane in self._lanes:
            lane.take_share(share * (1 / len(self._lanes)))

    def lose_share(self) -> None:
        """Use only a small part of the share until the next one: the sequencer may have given it to other agents."""
        if self._share != Share():
            self.take_share(self._share * SAFE_PART)
            self._share = Share()

    async def flush(self, seconds: float) -> bool:
        """Flush all lanes. Return False if anything is not settled after `seconds`."""
        return all(await asyncio.gather(*(lane.flush(seconds) for lane in self._lanes)))

    async def close(self, seconds: float) -> None:
        """Close all lanes. Takes at most `seconds`, plus the time to close the sessions."""
        await asyncio.gather(*(lane.close(seconds) for lane in self._lanes))
