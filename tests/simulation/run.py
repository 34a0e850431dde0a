"""Run many seeds of the simulation: `python -m tests.simulation.run --seeds 100 [--first 0] [--once]`.

Each seed runs twice, and the two traces must be equal (`--once`: one run, twice as fast). For a seed that fails it
prints what the seed violated and how to see it again: as long as the code is the same, the same seed fails in the same
way on any machine. The exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulation.world import Result, simulate
from tests.support.history.files import write_history

MAX_SHOWN = 5
MAX_LENGTH = 1_000
COLLECTED_EVERY = 50
"""How many worlds are left to Python's collector at once: some 5 MiB each."""
REPLAY = "python -m tests.simulation.run --trace --first {seed}"


def run_once(seed: int) -> Result:
    """Return the seed's result without the trace, which is long."""
    if seed % COLLECTED_EVERY == 0:
        gc.collect()
    result = simulate(seed)
    result.trace, result.history = [], []
    return result


def run_twice(seed: int) -> Result:
    """Return the seed's result, with one more violation if a second run took another course."""
    if seed % COLLECTED_EVERY == 0:
        gc.collect()
    first, second = simulate(seed), simulate(seed)
    if first.trace != second.trace:
        pairs = zip(first.trace, second.trace, strict=False)
        where = next((f"{one!r} / {other!r}" for one, other in pairs if one != other), "one is longer")
        first.violations.append(f"two runs of the seed differ: {where}")
    first.turns += second.turns
    first.trace, first.history = [], []
    return first


def results(seeds: Iterable[int], processes: int, *, is_once: bool) -> Iterator[Result]:
    """Yield the result of each seed, in order."""
    work = run_once if is_once else run_twice
    if processes == 1:
        collect_less()
        yield from map(work, seeds)
        return
    with ProcessPoolExecutor(processes, initializer=collect_less) as pool:
        yield from pool.map(work, seeds)


def collect_less() -> None:
    """Make Python's own collector ignore what is imported, and run seldom: it is called between worlds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--once", action="store_true", help="run each seed once, not twice")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="print the trace of the first seed, and stop")
    parser.add_argument("--history", type=Path, help="with --trace: write the clients' history to this file")
    asked = parser.parse_args()
    if asked.trace:
        return show(asked.first, asked.history)
    started, used, failed = time.monotonic(), time.process_time(), []
    acknowledged = reads = committed = 0
    seeds = range(asked.first, asked.first + asked.seeds)
    for result in results(seeds, asked.processes, is_once=asked.once):
        acknowledged += result.acknowledged
        reads += result.reads
        committed += result.committed
        if result.violations:
            failed.append(result.seed)
            shown = [violation[:MAX_LENGTH] for violation in result.violations[:MAX_SHOWN]]
            print(f"seed {result.seed} FAILED:", *shown, sep="\n  ")
            print(f"  again: {REPLAY.format(seed=result.seed)}", flush=True)
    minutes = (time.monotonic() - started) / 60
    histories = asked.seeds * (1 if asked.once else 2)
    print(
        f"simulation: {asked.seeds} seeds{'' if asked.once else ', each twice'}: {acknowledged} records acknowledged,"
        f" {committed} transactions committed, {reads} records read; {histories / minutes:.0f} histories a minute"
    )
    if asked.processes == 1:
        used = (time.process_time() - used) / 60
        print(f"simulation: {histories / used:.0f} histories a minute of one core's time")
    if failed:
        print(f"failed: {failed}")
        return 1
    print("simulation: nothing was violated")
    return 0


def show(seed: int, history: Path | None) -> int:
    """Show one seed in all detail."""
    result = simulate(seed)
    print(result.scenario)
    print(*result.trace, sep="\n")
    print(*(result.violations or ["nothing was violated"]), sep="\n")
    if history is not None:
        count = write_history(history, result.history)
        print(f"{count} events in {history}; python -m tests.support.history {history} checks them")
    return int(bool(result.violations))


if __name__ == "__main__":
    sys.exit(main())
