"""Agents of one cluster share its budget of early PUTs: counted, on a loop whose clock jumps."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from agent.identity import AgentIdentity
from agent.memory_budget import MemoryBudget
from agent.produce.active_buffer import BufferedBatch, Submission
from agent.produce.lane import Lane
from agent.produce.lanes import Lanes
from agent.produce.receipts import Receipts
from agent.produce.sealing import Share
from agent.settings import AgentSettings
from agent.telemetry import AgentTelemetry
from bench.latency import Forgetful, NoCache, batch_of
from sequencer.api.agents import AgentInfo, RenewAgent
from sequencer.api.topics import CreateTopic, Topic
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from tailrace.background_tasks import cancel_and_wait
from tailrace.batches.mixed_object import coordinates
from tailrace.batches.record_batch import read_header
from tailrace.ids import TopicPartition
from tests.simulation.loop import SimulatedClock, SimulatedLoop, run_simulated
from tests.support.clocks import SeededEntropy

BUDGET, SECONDS = 8.0, 40.0
DATA = batch_of(1)
HEADER = coordinates(read_header(DATA))


class SharingAgent:
    """An agent that produces at a rate, and renews its lease every second."""

    def __init__(self, loop: SimulatedLoop, number: int, rate: float, committer: Committer) -> None:
        self.clock, self.rate, self.number, self.committer = SimulatedClock(loop), rate, number, committer
        self.telemetry = AgentTelemetry()

    async def run(self, topic: Topic) -> None:
        info = AgentInfo(f"host-{self.number}", 9092, "", 0, 0, "a", "0", UUID(int=self.number))
        lease = await self.committer.register_agent(info)
        identity = AgentIdentity.of(lease, info, self.clock.monotonic())
        lane = Lane(
            0,
            settings=AgentSettings(linger_ms=2_000, quiet_ms=0, max_puts_per_second=10_000),
            clock=self.clock,
            entropy=SeededEntropy(self.number),
            store=Forgetful(self.clock),
            sequencer=self.committer,  # type: ignore[arg-type]
            cache=NoCache(),
            telemetry=self.telemetry,
            broker_identity=lambda: (identity.broker_id, identity.lease_epoch),
            receipts=Receipts(MemoryBudget(16 << 20), self.telemetry, self.clock),
        )
        self.lanes, self.partition = Lanes([lane]), TopicPartition(topic.topic_id, self.number)
        await self.lanes.start()
        producing = asyncio.create_task(self._produce())
        for _ in range(round(SECONDS) + 5):
            wanted = self.lanes.demand()
            renewed = await self.committer.renew_agent(
                RenewAgent(identity.broker_id, 1, False, wanted.early_puts, wanted.rows)
            )
            self.lanes.take_share(Share(renewed.early_puts, renewed.rows))
            await self.clock.sleep(1.0)
        await cancel_and_wait(producing)
        await self.lanes.close(10)

    async def _produce(self) -> None:
        while True:
            await self.clock.sleep(1 / self.rate)
            submission = Submission(1, lambda results: None)
            self.lanes.submit([(self.partition, "t", BufferedBatch(HEADER, DATA, submission, 0))])

    @property
    def early_puts(self) -> float:
        registry = self.telemetry.registry
        return sum(
            registry.get_sample_value("tailrace_flushes_total", {"reason": reason}) or 0.0
            for reason in ("idle", "quiet")
        )


def early_puts_of(rates: list[float]) -> list[float]:
    """Of each agent, a second, once shares were given."""

    async def main(loop: SimulatedLoop) -> list[float]:
        clock = SimulatedClock(loop)
        settings = SequencerSettings(early_puts_per_second=BUDGET)
        committer = Committer(MemoryRowStore(clock), clock, SeededEntropy(9), settings)
        await committer.start()
        topic = await committer.create_topic(CreateTopic("t", len(rates), {}))
        agents = [SharingAgent(loop, number, rate, committer) for number, rate in enumerate(rates)]
        running = asyncio.gather(*(agent.run(topic) for agent in agents))
        await clock.sleep(5.0)
        before = [agent.early_puts for agent in agents]
        await clock.sleep(SECONDS)
        counted = [agent.early_puts - old for agent, old in zip(agents, before, strict=True)]
        await running
        await committer.close()
        return [count / SECONDS for count in counted]

    return run_simulated(1, main, end_seconds=1_000.0)


def test_busy_agents_together_make_no_more_early_puts_than_the_clusters_budget() -> None:
    shares = early_puts_of([50.0, 50.0, 50.0, 50.0])
    assert sum(shares) <= BUDGET + len(shares) / SECONDS
    assert sum(shares) == pytest.approx(BUDGET, rel=0.15)
    assert min(shares) > 0.8 * BUDGET / 4, "and each gets its part"


def test_the_unused_share_of_idle_agents_goes_to_the_busy_one() -> None:
    busy, *idle = early_puts_of([50.0, 0.2, 0.2, 0.2])
    assert busy > 0.7 * BUDGET and busy + sum(idle) <= BUDGET + 4 / SECONDS
    assert idle == pytest.approx([0.2] * 3, abs=0.03), "theirs are all stored at once"
