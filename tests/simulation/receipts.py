"""Producers to a topic with `tailrace.flush=async`, whose batches are acknowledged on receipt.

Such an acknowledgement says nothing about what is stored, so the history has it as unanswered: records may be lost, but
not duplicated (of an idempotent producer), reordered or invented. In addition, `ReceiptWatch` checks:

- no answer has an offset;
- if no agent ended, no more records are lost than agents have counted;
- records sent long after the faults are stored, whatever was lost before.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.clients import IdempotentProducer, Log, OutBatch, PlainProducer, Producer, Stage
from tests.simulation.cluster import SimulatedAgent
from tests.support.history.events import UNKNOWN_OFFSET, Unanswered

RECEIPTS = "receipts"
"""The topic."""
SETTLED_S = 6.0
"""This long after the faults every agent has a session that lasts, and no batch waits for a lost one."""
STORED_S = 6.0
"""Records sent after that are stored within this time."""


class ReceiptWatch:
    """Which records were acknowledged on receipt, and where they can be lost."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self.agents: list[SimulatedAgent] = []
        """All agents that ever ran."""
        self.acknowledged: set[str] = set()
        self.late: set[str] = set()
        """Records sent long after the faults."""

    def answered(self, batch: OutBatch, base_offset: int) -> None:
        """Note that a batch was acknowledged."""
        if base_offset != UNKNOWN_OFFSET:
            self._violated(f"{batch.records[0]} was acknowledged on receipt, with offset {base_offset}")
        self.acknowledged.update(batch.records)

    def compare(self, stored: set[str]) -> None:
        """Check the losses. `stored`: the records that can be read at the end."""
        missing = self.acknowledged - stored
        for record in sorted(missing & self.late):
            self._violated(f"{record} was acknowledged on receipt long after the faults, and is not stored")
        if any(agent.process.is_dead or agent.is_lost for agent in self.agents):
            return
        counted = sum(_lost_records(agent) for agent in self.agents)
        if len(missing) > counted:
            self._violated(f"{len(missing)} records are lost, {counted} were counted, and no agent ended")


def _lost_records(agent: SimulatedAgent) -> int:
    families = agent.services.telemetry.lost_records.collect()
    return round(
        sum(
            sample.value for family in families for sample in family.samples if sample.name.endswith("_total")
        )
    )


class _OnReceipt(Producer):
    """Treats acknowledgements as acknowledgements on receipt."""

    def __init__(self, stage: Stage, name: str, watch: ReceiptWatch) -> None:
        super().__init__(stage, name)
        self._watch = watch

    def _acked(self, batch: OutBatch, base_offset: int) -> None:
        batch.is_acked = True
        self._watch.answered(batch, base_offset)
        for record in batch.records:
            self.stage.record(Unanswered(at=self.stage.now(), client=self.name, record=record))


class PlainOnReceipt(_OnReceipt, PlainProducer):
    """A plain producer."""


class IdempotentOnReceipt(_OnReceipt, IdempotentProducer):
    """An idempotent producer, which continues after the faults with the next sequences."""

    async def _keep_sending(self, log: Log, partition: int, batches: int, window: int, by_id: bool) -> None:
        sequence = await self._send_batches(log, partition, batches, window, by_id=by_id)
        while not self.stage.is_calm:
            await self.pause(0.2, 0.4)
        await self.pause(SETTLED_S, SETTLED_S + 1.0)
        batch = self.make(log, partition, sequence)
        self._watch.late.update(batch.records)
        while not batch.is_acked:
            await self._send_in_order([batch], by_id)
            await self.pause(0.0, 0.1)
        await self.pause(STORED_S, STORED_S)
