"""Run many seeds of the simulation: `python -m tests.simulation.run --seeds 100 [--first 0]`.

Each seed runs twice, and the two traces must be equal. A seed that fails is printed with what it violated; the same
seed fails in the same way on any machine. Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.world import Result, simulate

MAX_SHOWN = 5


def run_twice(seed: int) -> Result:
    """The seed's result, with a violation more where a second run took another course."""
    first, second = simulate(seed), simulate(seed)
    if first.digest != second.digest:
        pairs = zip(first.trace, second.trace, strict=False)
        where = next((f"{one!r} / {other!r}" for one, other in pairs if one != other), "one is longer")
        first.violations.append(f"two runs of the seed differ: {where}")
    return first


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="print the trace of the first seed, and stop")
    asked = parser.parse_args()
    if asked.trace:
        result = simulate(asked.first)
        print(*result.trace, *result.violations, sep="\n")
        return int(bool(result.violations))
    started, failed, acknowledged = time.monotonic(), [], 0
    with ProcessPoolExecutor(asked.processes) as pool:
        for result in pool.map(partial(run_twice), range(asked.first, asked.first + asked.seeds)):
            acknowledged += result.acknowledged
            if result.violations:
                failed.append(result.seed)
                print(f"seed {result.seed} FAILED:", *result.violations[:MAX_SHOWN], sep="\n  ", flush=True)
    seconds = time.monotonic() - started
    print(
        f"simulation: {asked.seeds} seeds, each twice, {acknowledged} batches acknowledged, {seconds:.0f} s"
    )
    if failed:
        print(f"failed: {failed}; see one with: python -m tests.simulation.run --trace --first {failed[0]}")
        return 1
    print("simulation: all guarantees hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
