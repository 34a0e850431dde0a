"""`make hostile N=...`: bad clients beside good ones, for N seconds on SQLite and as long on PostgreSQL.

A `tailrace serve` process gets every API and version with values at their bounds, and what else `cases.py` lists, while
a producer without retries and a consumer of their own topic go on. Nothing of theirs may be lost, the broker stays
ready, no request fails in a way that no handler foresaw, no traceback is logged, and memory stays bounded; their p99 is
shown beside that of quiet seconds before. Exit 1 on a fault, or when p99 doubled. The seed that is printed plays it
again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.compat.broker import Broker, running_broker
from tests.hostile.cases import CASES, Stage, play
from tests.support.servers import postgres_server

QUIET_SECONDS = 8.0
RATE = 150.0
MAX_GROWTH_MIB = 256
READY_EVERY_SECONDS = 0.5
SETTINGS = {
    "TAILRACE_LOG_FORMAT": "json",
    "TAILRACE_SEQUENCER__MAX_TOPICS": "100",
    "TAILRACE_SEQUENCER__MAX_PARTITIONS": "1000",
    "TAILRACE_SEQUENCER__MAX_GROUPS": "200",
    "TAILRACE_SEQUENCER__MAX_TRANSACTIONAL_IDS": "200",
}
"""Limits that are reached within the minute."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(slots=True)
class Verdict:
    """What came of one run. `faults` is empty when all went well."""

    faults: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    last_sent: list[str] = field(default_factory=list)

    @property
    def p99_ratio(self) -> float:
        return float(self.figures["hostile_p99_ms"] / max(self.figures["quiet_p99_ms"], 1e-9))

    def lines(self) -> Iterator[str]:
        """For a person."""
        yield ", ".join(f"{name} {value}" for name, value in self.figures.items())
        yield from (f"FAULT: {fault}" for fault in self.faults)
        if self.faults:
            yield "the last that was sent:"
            yield from (f"  {sent[:300]}" for sent in self.last_sent)


def try_broker(broker: Broker, seconds: float, *, seed: int, rate: float = RATE) -> Verdict:
    """Play all cases for so long against a running broker, beside the bystanders."""
    verdict = Verdict()
    with _bystanders(broker) as bystanders:
        before = _resident_mib(broker)
        asyncio.run(asyncio.sleep(QUIET_SECONDS))
        stage = Stage(broker.port, seed, rate)
        _tell(bystanders)
        asyncio.run(_play_and_watch(broker, stage, seconds, verdict))
        _tell(bystanders)
        said = bystanders.stdout.readline() if bystanders.stdout else ""
    verdict.last_sent = list(stage.last)
    if stage.unforeseen:
        verdict.faults.append(
            f"{len(stage.unforeseen)} answers are UNKNOWN_SERVER_ERROR; the first: {stage.unforeseen[0]}"
        )
    _judge(broker, verdict, json.loads(said or "{}"), before)
    verdict.figures["requests"] = stage.sent.total()
    return verdict


async def _play_and_watch(broker: Broker, stage: Stage, seconds: float, verdict: Verdict) -> None:
    playing = asyncio.ensure_future(play(stage, seconds))
    while not playing.done():
        await asyncio.wait([playing], timeout=READY_EVERY_SECONDS)
        try:
            await asyncio.to_thread(_get, broker, "/readyz")
        except OSError as error:
            verdict.faults.append(f"/readyz: {error}")
            stage.is_over.set()
    await playing


def _judge(broker: Broker, verdict: Verdict, told: dict[str, Any], before_mib: float) -> None:
    faults = verdict.faults
    if not told:
        faults.append("the bystanders said nothing of their records")
    for what in ("failed", "lost", "doubled", "consumer_errors"):
        if told.get(what):
            faults.append(f"the bystanders' records: {what}: {told[what]}")
    verdict.figures = {
        name: round(value, 1) for name, value in told.items() if isinstance(value, int | float)
    }
    metrics = _get(broker, "/metrics")
    for line in metrics.splitlines():
        if line.startswith("tailrace_request_failures_total") and not line.endswith(" 0.0"):
            faults.append(line)
    grown = _resident_mib(broker) - before_mib
    verdict.figures["memory grew MiB"] = round(grown)
    if grown > MAX_GROWTH_MIB:
        faults.append(f"the broker's memory grew by {grown:.0f} MiB; {MAX_GROWTH_MIB} are allowed")
    if not broker.is_alive:
        faults.append("the broker ended")
    log = broker.log.read_text(errors="replace").splitlines()
    for what, sign in (("tracebacks", "Traceback"), ("errors", '"level": "error"')):
        found = [line for line in log if sign in line]
        if found:
            faults.append(f"{len(found)} {what} were logged; the first: {found[0][:3000]}")


@contextmanager
def _bystanders(broker: Broker) -> Iterator[subprocess.Popen[str]]:
    """The two, begun and settled; ended at the end, whatever happens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.bystanders", broker.address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "quiet\n":
            raise RuntimeError(
                f"the bystanders did not begin:\n{broker.log.read_text(errors='replace')[-3000:]}"
            )
        yield process
    finally:
        process.kill()
        process.wait()


def _tell(bystanders: subprocess.Popen[str]) -> None:
    assert bystanders.stdin is not None
    bystanders.stdin.write("\n")
    bystanders.stdin.flush()


def _get(broker: Broker, path: str) -> str:
    with _DIRECT.open(f"http://127.0.0.1:{broker.http}{path}", timeout=30) as response:
        return str(response.read().decode())


def _resident_mib(broker: Broker) -> float:
    with open(f"/proc/{broker.process.pid}/status") as status:
        found = re.search(r"VmRSS:\s+(\d+) kB", status.read())
    return int(found.group(1)) / 1024 if found else 0.0


def main() -> int:
    """Both databases, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second, of all cases together")
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if asked.seed is None else asked.seed
    print(f"seed {seed}; cases: {', '.join(case.name for case in CASES)}")
    is_clean = True
    for database in ("sqlite", "postgresql"):
        if asked.only not in (None, database):
            continue
        with ExitStack() as stack:
            url = None
            if database == "postgresql":
                url = stack.enter_context(postgres_server()).create_database()
            broker = stack.enter_context(running_broker(url, SETTINGS))
            verdict = try_broker(broker, asked.seconds, seed=seed, rate=asked.rate)
        print(f"{database}: p99 {verdict.p99_ratio:.1f} times its quiet value")
        print("\n".join(f"  {line}" for line in verdict.lines()))
        is_clean = is_clean and not verdict.faults and verdict.p99_ratio < 2
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
