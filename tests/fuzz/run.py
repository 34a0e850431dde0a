"""`make fuzz N=1000000`: mutated inputs over all targets; prints accepted, refused and found inputs. Exit status 1 on a
finding.

The same seed and number give the same inputs. An input is a finding when its target raises anything undeclared, when
resident memory grows by more than the target allows, or when it takes too much processor time.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import resource
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tests.fuzz import formats, kafka, live, parquet_objects, rpc
from tests.fuzz.mutate import mutated
from tests.fuzz.target import Target

REGRESSIONS = Path(__file__).parent / "regressions"
FOUND = Path("fuzz-findings")
ADDRESS_SPACE_MIB = 8 << 10
"""The address space of a whole run: an allocation of a larger declared size fails, and is a finding."""
_AT_MOST = 20


@dataclass(slots=True)
class Finding:
    """An input and what it did."""

    target: str
    data: bytes
    what: str

    @property
    def summary(self) -> str:
        """The line of the first error, not of one that wraps it."""
        lines = self.what.strip().splitlines()
        return next((line for line in lines if line[:1].isalpha() and line[:9] != "Traceback"), lines[-1])


@dataclass(slots=True)
class Tally:
    """What became of a target's inputs."""

    name: str
    inputs: int = 0
    taken: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest_ms: float = 0.0
    largest_growth_mib: float = 0.0
    findings: list[Finding] = field(default_factory=list)


def all_targets() -> list[Target]:
    """Every target, opened lazily by its first input."""
    return [
        *kafka.targets(), *formats.targets(), *rpc.targets(), *parquet_objects.targets(), *live.targets(),
    ]  # fmt: skip


def run_target(target: Target, inputs: int, seed: int) -> Tally:
    """Feed a target its seeds, then mutations of them."""
    tally = Tally(target.name)
    rng = random.Random(f"{seed} {target.name}")
    began = time.process_time()
    pool = list(target.seeds)
    for seed_input in pool[:3]:
        target.check(seed_input)  # imports and compilation on first use are not the input's cost
    for number in range(inputs):
        data = pool[number] if number < len(pool) else mutated(rng.choice(pool), pool, rng)
        one(target, data, tally)
        if len(tally.findings) >= _AT_MOST:
            break
    tally.seconds = time.process_time() - began
    return tally


def one(target: Target, data: bytes, tally: Tally) -> None:
    """One input, judged."""
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    tally.inputs += 1
    try:
        if target.check(data):
            tally.taken += 1
        else:
            tally.refused += 1
    except Exception:
        tally.findings.append(Finding(target.name, data, traceback.format_exc()))
        return
    took = time.process_time() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) / 1024
    tally.slowest_ms = max(tally.slowest_ms, took * 1000)
    tally.largest_growth_mib = max(tally.largest_growth_mib, grown)
    if grown > target.max_growth_mib:
        tally.findings.append(Finding(target.name, data, f"{grown:.0f} MiB more were resident"))
    elif took > target.max_seconds:
        tally.findings.append(Finding(target.name, data, f"{took:.2f} s of processor time"))


def shares(targets: Sequence[Target], inputs: int) -> list[int]:
    """How many inputs each target gets, by weight."""
    whole = sum(target.weight for target in targets)
    given = [inputs * target.weight // whole for target in targets]
    given[0] += inputs - sum(given)
    return given


def quiet() -> None:
    """Log errors only: there are tens of thousands of refusals."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def keep(finding: Finding, folder: Path) -> Path:
    """Write a finding's input, to be replayed by `--replay`."""
    folder.mkdir(exist_ok=True)
    name = finding.target.replace(" ", "-") + "~" + hashlib.sha256(finding.data).hexdigest()[:10]
    path = folder / name
    path.write_bytes(finding.data)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", default="", help="only targets whose name has this in it")
    parser.add_argument("--replay", type=Path, nargs="*", help="inputs kept by an earlier run")
    asked = parser.parse_args(arguments)
    quiet()
    limit = ADDRESS_SPACE_MIB << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    targets = [target for target in all_targets() if asked.target.lower() in target.name.lower()]
    if not targets:
        parser.error(f"no target's name contains {asked.target!r}")
    if asked.replay:
        return _replay(targets, asked.replay)
    print(f"{asked.inputs} inputs, seed {asked.seed}")
    print(
        f"{'target':34} {'inputs':>8} {'taken':>8} {'refused':>8} {'us each':>8} {'slowest ms':>10} {'MiB':>5} found"
    )
    tallies = []
    for target, inputs in zip(targets, shares(targets, asked.inputs), strict=True):
        tally = run_target(target, inputs, asked.seed)
        target.close()
        tallies.append(tally)
        print(
            f"{tally.name:34} {tally.inputs:8} {tally.taken:8} {tally.refused:8} "
            f"{tally.seconds / max(tally.inputs, 1) * 1e6:8.0f} {tally.slowest_ms:10.1f} "
            f"{tally.largest_growth_mib:5.1f} {len(tally.findings)}",
            flush=True,
        )
        for finding in tally.findings:
            print(f"  {keep(finding, FOUND)}\n    {finding.summary}")
    found = sum(len(tally.findings) for tally in tallies)
    print(
        f"fuzz: {sum(tally.inputs for tally in tallies)} inputs, {found} findings, "
        f"{sum(tally.seconds for tally in tallies):.0f} s of processor time, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB resident at most"
    )
    return 1 if found else 0


def _replay(targets: Sequence[Target], paths: Sequence[Path]) -> int:
    by_name = {target.name.replace(" ", "-"): target for target in targets}
    failed = 0
    for path in paths:
        tally = Tally(path.name)
        one(by_name[path.name.partition("~")[0]], path.read_bytes(), tally)
        print(path, "taken" if tally.taken else "refused" if tally.refused else "FOUND")
        for finding in tally.findings:
            print(finding.what)
        failed += len(tally.findings)
    for target in targets:
        target.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
