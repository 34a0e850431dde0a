"""The simulation itself: it finds nothing in a handful of seeds, is repeatable, and finds planted bugs.

All planted bugs, and many seeds: docs/simulation.md.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

import sequencer.rules.garbage as garbage
from tests.simulation.loop import (
    Deadlock,
    Overtime,
    SimulatedClock,
    SimulatedLoop,
    SimulatedProcess,
    run_simulated,
)
from tests.simulation.mutations import MUTATIONS, PRODUCT, BrokenPatch, Mutation, find
from tests.simulation.scenario import MISFORTUNES, Scenario, slowing_its_database
from tests.simulation.world import overtaken_at_the_end, simulate
from tests.support.clocks import SeededEntropy
from tests.support.history.events import Read, Sent

SMALL = Scenario(
    idempotent_producers=1,
    transactional_producers=1,
    batches=3,
    trouble_s=1.5,
    misfortunes=((0.5, "an agent crashes"), (0.7, "the committer crashes")),
)
QUICKLY_FOUND = (
    "a produce request is answered before its commit",
    "a retried commit is applied twice",
    "the last stable offset is the high watermark",
)
SEEDS_TO_FIND = 5


@pytest.mark.parametrize("seed", [0, 4, 9, 23])
def test_nothing_is_violated(seed: int) -> None:
    result = simulate(seed)

    assert result.violations == []
    assert result.acknowledged > 20
    assert result.reads > 50
    assert result.windows > 50


def test_nothing_is_violated_where_chunks_are_read_from_disks() -> None:
    result = simulate(4, replace(SMALL, has_disks=True, rereads=True, plain_producers=3, batches=8))

    assert result.violations == []
    assert result.disk_hits > 20


def test_nothing_is_violated_with_everything_at_once() -> None:
    scenario = Scenario(
        agents=3,
        plain_producers=1,
        idempotent_producers=1,
        transactional_producers=1,
        processors=1,
        group_members=2,
        standalone_consumers=1,
        aborts=True,
        grants=True,
        batches=4,
        compactors=2,
        expires=True,
        makes_again=True,
        trouble_s=4.0,
        misfortunes=(
            (0.5, "an agent crashes"),
            (1.0, "the committer stops for a while"),
            (1.5, "a topic is made again"),
        ),
    )

    result = simulate(1, scenario)

    assert result.violations == []
    assert result.committed > 0


def test_nothing_is_violated_on_sqlite() -> None:
    assert simulate(3, Scenario(is_on_sqlite=True, batches=3, trouble_s=1.5)).violations == []


def test_nothing_is_violated_before_a_slow_database() -> None:
    scenario = slowing_its_database(Scenario(batches=6, group_members=1, misfortunes=()), SeededEntropy(1))

    result = simulate(6, scenario)

    assert result.violations == []
    assert result.acknowledged > 10


def test_every_misfortune_can_be_had() -> None:
    every = tuple((0.2 * number, kind) for number, kind in enumerate(MISFORTUNES))
    scenario = Scenario(agents=3, batches=4, makes_again=True, trouble_s=4.0, misfortunes=every)

    assert simulate(5, scenario).violations == []


def test_a_seed_run_twice_gives_the_same_trace() -> None:
    assert simulate(7, SMALL).trace == simulate(7, SMALL).trace


def test_another_seed_gives_another_trace() -> None:
    assert simulate(7, SMALL).digest != simulate(8, SMALL).digest


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    program = "from tests.simulation.test_simulation import SMALL, simulate; print(simulate(7, SMALL).digest)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.strip() == simulate(7, SMALL).digest


async def _ends_early(*args: Any) -> None:
    raise ValueError("as planned")


def _fails(*args: Any) -> None:
    raise ValueError("as planned")


@pytest.mark.parametrize(
    ("place", "instead"),
    [
        ("Reader.read_for_ever", _ends_early),
        ("Poisoner.run", _ends_early),
        ("World._restart_lost_agents", _ends_early),
        ("WindowWatch.check", _fails),
    ],
)
def test_a_client_or_a_watch_that_fails_is_a_violation(place: str, instead: Any) -> None:
    with mock.patch(f"tests.simulation.world.{place}", instead):
        violations = simulate(7, replace(SMALL, poisoners=1)).violations

    assert any("as planned" in violation for violation in violations)


def test_after_a_recovery_a_record_that_overtook_another_of_its_idempotent_producer_is_reported() -> None:
    sent = [
        Sent(client=client, topic="events", partition=0, record=f"{client}/{n}", number=n, guarantee=of, at=n)
        for client, of in (("a", "idempotent"), ("b", "plain"))
        for n in range(3)
    ]
    read = [
        Read(client="last reader uncommitted#1", topic="events", partition=0, offset=n, record=record, at=9)
        for n, record in enumerate(["b/1", "a/0", "b/0", "a/2", "a/1"])
    ]

    assert overtaken_at_the_end([*sent, *read]) == ["a/1 stands after a/2 after the recovery"]


# --- planted bugs


def test_planted_bugs_have_names_of_their_own() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 25


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_in_the_place_of_something_of_the_products(mutation: Mutation) -> None:
    places = [(where, attribute) for where, attribute, _ in mutation.patches]
    names = [getattr(where, "__module__", None) or where.__name__ for where, _ in places]
    before = [getattr(where, attribute) for where, attribute in places]

    with mutation.planted():
        planted = [getattr(where, attribute) for where, attribute in places]

    assert all(now is not was for now, was in zip(planted, before, strict=True))
    assert [getattr(where, attribute) for where, attribute in places] == before
    assert {name.partition(".")[0] for name in names} <= {*PRODUCT}


@pytest.mark.parametrize("name", QUICKLY_FOUND)
def test_a_planted_bug_is_found(name: str) -> None:
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == name)

    assert find(mutation, SEEDS_TO_FIND).seeds


def test_a_planted_bug_that_fails_by_itself_is_no_finding() -> None:
    outdated = Mutation(
        "is called with more arguments than it takes",
        [(garbage, "find_garbage", lambda original: lambda state: original(state))],
    )

    with pytest.raises(BrokenPatch):
        find(outdated, 3)


# --- the loop


def test_time_passes_only_where_everybody_sleeps() -> None:
    async def main(loop: SimulatedLoop) -> float:
        await asyncio.gather(*(SimulatedClock(loop).sleep(hours * 3600.0) for hours in (1, 5, 3)))
        return loop.time()

    assert run_simulated(1, main, end_seconds=1e6) == 5 * 3600.0


def test_a_process_that_is_stopped_does_later_what_is_overdue() -> None:
    async def main(loop: SimulatedLoop) -> list[float]:
        process = SimulatedProcess("one", loop)
        woken: list[float] = []

        async def wake_twice() -> None:
            for _ in range(2):
                await asyncio.sleep(1.0)
                woken.append(loop.time())

        task = process.spawn(wake_twice())
        await asyncio.sleep(0.5)
        process.stop()
        await asyncio.sleep(4.5)
        process.go_on()
        await task
        return woken

    assert run_simulated(1, main, end_seconds=100.0) == [5.0, 6.0]


def test_a_process_that_has_crashed_does_nothing_more() -> None:
    async def main(loop: SimulatedLoop) -> bool:
        process = SimulatedProcess("one", loop)
        task = process.spawn(asyncio.sleep(1.0))
        process.crash()
        await asyncio.sleep(10.0)
        return task.done()

    assert run_simulated(1, main, end_seconds=100.0) is False


def test_a_process_that_has_crashed_while_it_was_stopped_does_not_continue() -> None:
    async def main(loop: SimulatedLoop) -> bool:
        process = SimulatedProcess("one", loop)
        task = process.spawn(asyncio.sleep(1.0))
        process.stop()
        process.crash()
        process.go_on()
        await asyncio.sleep(10.0)
        return task.done()

    assert run_simulated(1, main, end_seconds=100.0) is False


def test_a_dead_process_whose_clean_up_takes_long_does_not_make_the_world_late() -> None:
    async def main(loop: SimulatedLoop) -> str:
        process = SimulatedProcess("one", loop)

        async def slow_to_end() -> None:
            try:
                await asyncio.sleep(1.0)
            finally:
                await asyncio.sleep(300.0)

        process.spawn(slow_to_end())
        await asyncio.sleep(0.5)
        process.crash()
        return "done"

    assert run_simulated(1, main, end_seconds=10.0) == "done"


def test_a_task_that_nothing_will_wake_is_reported_with_its_stack() -> None:
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
