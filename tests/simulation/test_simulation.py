"""The simulation itself: it finds nothing in a handful of seeds, repeats itself, and finds planted bugs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from agent.produce.active_buffer import FlushFailure
from agent.produce.lanes import Lane, Session
from sequencer.api import (
    BatchError,
    BatchOutcome,
    CommitAnswer,
    FindPartition,
    FindRequest,
    ObjectDescription,
    RunOutcome,
    RunProposal,
)
from tailrace.mixed_object import SealedObject
from tests.simulation.loop import Deadlock, Overtime, SimulatedClock, SimulatedLoop, run_simulated
from tests.simulation.world import Scenario, simulate

SMALL = Scenario(batches_per_partition=3)
SEEDS_TO_FIND = 6


@pytest.mark.parametrize("seed", range(3))
def test_the_guarantees_hold(seed: int) -> None:
    result = simulate(seed)

    assert result.violations == []
    assert result.acknowledged > 100
    assert result.crashes > 0


def test_a_seed_run_twice_gives_the_same_trace() -> None:
    assert simulate(7, SMALL).trace == simulate(7, SMALL).trace


def test_another_seed_gives_another_trace() -> None:
    assert simulate(7, SMALL).digest != simulate(8, SMALL).digest


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from tests.simulation.world import Scenario, simulate;"
        "print(simulate(7, Scenario(batches_per_partition=3)).digest)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.strip() == simulate(7, SMALL).digest


# --- planted bugs


class AnswersBeforeTheCommit(Lane):
    """Tells producers the offsets that it expects, and commits afterwards."""

    async def _commit(
        self,
        session: Session,
        number: int,
        description: ObjectDescription | None,
        proposals: list[RunProposal],
        deadline: float | None,
        on_late: Callable[[], None] = lambda: None,
    ) -> CommitAnswer | None:
        sequencer: Any = self._sequencer
        wanted = [FindPartition(each.topic_id, each.partition, 0, 0) for each in proposals]
        found = await sequencer._current().find_batches(FindRequest(wanted))
        runs = []
        for proposal, partition in zip(proposals, found.partitions, strict=True):
            offset, outcomes = partition.high_watermark, []
            for batch in proposal.batches:
                outcomes.append(BatchOutcome(BatchError.NONE, offset))
                offset += batch.record_count
            runs.append(RunOutcome(outcomes, 0))

        async def commit_later() -> None:
            await Lane._commit(self, session, number, description, proposals, None)

        self._spawn(commit_later())
        return CommitAnswer(0, runs)


class TrustsEveryUpload(Lane):
    """Commits objects that the store refused."""

    async def _upload(self, session: Session, key: str, sealed: SealedObject) -> FlushFailure | None:
        await super()._upload(session, key, sealed)
        return None


@pytest.mark.parametrize("bug", [AnswersBeforeTheCommit, TrustsEveryUpload])
def test_a_planted_bug_is_found(bug: type[Lane]) -> None:
    scenario = Scenario(batches_per_partition=6, lane=bug)

    assert any(simulate(seed, scenario).violations for seed in range(SEEDS_TO_FIND))


# --- the loop


def test_time_passes_only_where_everybody_sleeps() -> None:
    async def main(loop: SimulatedLoop) -> float:
        await asyncio.gather(*(SimulatedClock(loop).sleep(hours * 3600.0) for hours in (1, 5, 3)))
        return loop.time()

    assert run_simulated(1, main, end_seconds=1e6) == 5 * 3600.0


def test_what_nobody_will_ever_wake_is_reported_with_its_stack() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def main(loop: SimulatedLoop) -> None:
        await asyncio.gather(waits_for_ever())

    with pytest.raises(Deadlock, match="waits_for_ever"):
        run_simulated(1, main, end_seconds=1.0)


def test_a_run_that_takes_too_long_is_reported() -> None:
    async def main(loop: SimulatedLoop) -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(Overtime):
        run_simulated(1, main, end_seconds=10.0)


def test_the_order_of_what_is_ready_is_drawn_by_the_seed() -> None:
    def order_of(seed: int) -> list[int]:
        order: list[int] = []

        async def note(number: int) -> None:
            order.append(number)

        async def main(loop: SimulatedLoop) -> None:
            await asyncio.gather(*(note(number) for number in range(20)))

        run_simulated(seed, main, end_seconds=1.0)
        return order

    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(5)}) == 5
