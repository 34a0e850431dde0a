"""Finds the figures that changed between two runs of a bench by more than their noise.

    python -m bench.compare A.json B.json [--least 0.05] [--all]

A load is identified by its row's texts (server, load, batches) and the size of its records. Its rounds show how much a
figure varies. A figure *moved* if the rounds of A and B do not overlap, and the medians differ by at least `--least`.
Three rounds do not overlap by chance one time in ten, so repeat a surprising result. The noise of a load with one round
is not known, so its figure must differ by a quarter.

It compares figures per server CPU-second. `--all` adds rates and latencies, which also depend on other work on the
machine. If a run has Kafka too and Kafka's figure moved in the same way, the machine is the cause.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEAST = 0.05
LEAST_ALONE = 0.25
"""The least change for a load with one round."""
PER_CPU_SECOND = ("_per_cpu_second", "_per_server_cpu_second")
OTHERS = ("_per_second", "_ms")
LESS_IS_BETTER = "_ms"

Load = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A figure of one load in both runs: its medians, and whether it moved."""

    load: Load
    figure: str
    before: float
    after: float
    is_moved: bool

    @property
    def ratio(self) -> float:
        """The ratio of after to before."""
        return self.after / self.before if self.before else float("inf")

    @property
    def is_better(self) -> bool:
        return (self.after < self.before) is self.figure.endswith(LESS_IS_BETTER)


def main() -> None:
    """Print a line for each figure that both runs have, those that moved first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, metavar="A.json")
    parser.add_argument("after", type=Path, metavar="B.json")
    parser.add_argument("--least", type=float, default=LEAST, help="share of the median (default 0.05)")
    parser.add_argument("--all", action="store_true", help="rates and latencies, too")
    options = parser.parse_args()
    runs = [json.loads(path.read_text())["rows"] for path in (options.before, options.after)]
    ends = (*PER_CPU_SECOND, *OTHERS) if options.all else PER_CPU_SECOND
    found = moves(*runs, least=options.least, ends=ends)
    print("\n".join(map(_line, sorted(found, key=lambda move: not move.is_moved))))


def moves(
    before: Iterable[Mapping[str, Any]],
    after: Iterable[Mapping[str, Any]],
    *,
    least: float = LEAST,
    ends: tuple[str, ...] = PER_CPU_SECOND,
) -> list[Move]:
    """Return each figure with one of these endings, for each load in both runs, in the order of the first run."""
    old, new = _rounds(before, ends), _rounds(after, ends)
    return [
        Move(
            *place,
            before=statistics.median(rounds),
            after=statistics.median(new[place]),
            is_moved=is_moved(rounds, new[place], least),
        )
        for place, rounds in old.items()
        if place in new
    ]


def is_moved(before: Sequence[float], after: Sequence[float], least: float = LEAST) -> bool:
    """Whether the rounds do not overlap, and their medians differ by at least this share of the smaller."""
    if max(before) >= min(after) and max(after) >= min(before):
        return False
    if min(len(before), len(after)) < 2:
        least = max(least, LEAST_ALONE)
    low, high = sorted((statistics.median(before), statistics.median(after)))
    return high - low >= least * low


def _rounds(rows: Iterable[Mapping[str, Any]], ends: tuple[str, ...]) -> dict[tuple[Load, str], list[float]]:
    """Return the values of all rounds by load and figure."""
    rounds: dict[tuple[Load, str], list[float]] = {}
    for row in rows:
        load = tuple(str(row[name]) for name in row if isinstance(row[name], str) or name == "record_bytes")
        for figure, value in row.items():
            if figure.endswith(ends) and isinstance(value, int | float):
                rounds.setdefault((load, figure), []).append(value)
    return rounds


def _line(move: Move) -> str:
    says = ("better" if move.is_better else "worse") if move.is_moved else "-"
    return (
        f"{says:6} {move.ratio:6.2f}x  {move.before:12,.1f} -> {move.after:12,.1f}  {', '.join(move.load)}: "
        f"{move.figure.replace('_', ' ')}"
    )


if __name__ == "__main__":
    main()
