"""`make hostile N=...`: hostile clients beside well-behaved ones, for N seconds on SQLite and N seconds on PostgreSQL.

A `tailrace serve` process gets every API and version with values at their bounds, and whatever else `cases.py` lists,
while a producer without retries and a consumer use their own topic. They lose nothing, the broker stays ready, no
request fails in a way that no handler foresaw, no traceback is logged, and memory stays bounded. The hostile clients
pause again and again: in at least one of three runs, the p99 of the others beside them stays below twice its value in
the pauses, no records stall, and the broker's loop is not held (`judge.py`). The exit status is 1 after a fault, or if
the others had to wait; the output says if the machine was busy with other work. The printed seed repeats the run.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import math
import random
import re
import subprocess
import sys
import urllib.request
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.compat.broker import ADMIN, Broker, running_broker
from tests.hostile.bystanders import BETWEEN, HOSTILE, OVER, QUIET
from tests.hostile.cases import CASES, COUNTS, Case, Stage, play
from tests.hostile.gateway import GATEWAY
from tests.hostile.judge import (
    MAX_HELD_SECONDS,
    MAX_RATIO,
    STALL_RATIO,
    Slice,
    longest_held_s,
    p99_ratio,
    stalls,
    was_busy,
)
from tests.hostile.metrics import MetricMissing, held_s, loop_turns, unforeseen_failures
from tests.hostile.storms import STORMS
from tests.hostile.tenants import NEIGHBOUR, TENANT, TENANTS
from tests.support.servers import postgres_server

HOSTILE_SECONDS, QUIET_SECONDS = 4.0, 2.0
"""The length of each slice."""
SETTLING_SECONDS = 0.5
"""Requests from before a pause are answered within this time of it."""
TRIES = 3
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
"""Limits low enough to be reached within the minute."""
PLAYS = {"requests": CASES, "counts": COUNTS, "storms": STORMS, "gateway": GATEWAY, "tenants": TENANTS}
"""The cases that run together."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Running:
    """The broker in one slice, in seconds: how long it ran, waited to run, and its loop was held."""

    ran_s: float
    waited_s: float
    held_s: float


@dataclass(slots=True)
class Verdict:
    """The result of one run. `faults` is empty if all went well."""

    faults: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    last_sent: list[str] = field(default_factory=list)
    running: dict[str, list[Running]] = field(default_factory=lambda: {QUIET: [], HOSTILE: []})
    """The broker in each slice."""
    quiet: list[Slice] = field(default_factory=list)
    hostile: list[Slice] = field(default_factory=list)
    p99_ratio: float = math.inf
    """The bystanders' p99 beside hostile clients over their quiet p99, in this try and those before it."""
    was_busy: bool = False
    """The machine was so busy with other work that long latencies prove nothing."""

    @property
    def is_fit(self) -> bool:
        """Whether nobody had to wait because of the hostile clients."""
        return not any(self.waits())

    @property
    def is_held(self) -> bool:
        """Whether a request held the broker's loop."""
        return bool(self.hostile) and longest_held_s(self.hostile) >= MAX_HELD_SECONDS

    @property
    def is_excused(self) -> bool:
        """Whether others may have waited because of the machine's other work."""
        return self.was_busy and not self.is_held

    def waits(self) -> Iterator[str]:
        """Yield how others had to wait because of the hostile clients."""
        if not self.p99_ratio < MAX_RATIO:
            yield f"p99 is {self.p99_ratio:.1f} times its quiet value; less than {MAX_RATIO:.0f} times is allowed"
        if self.quiet and (stalled := stalls(self.quiet, self.hostile)):
            yield f"in {stalled} slices records stalled for {STALL_RATIO:.0f} times the quiet p99, or longer"
        if self.is_held:
            held = longest_held_s(self.hostile)
            yield f"the loop was held for at least {held} s; less than {MAX_HELD_SECONDS} s is allowed"

    def judge_beside(self, earlier: Sequence[Verdict]) -> None:
        """Compare the p99 of the slices of this try and of those before it: more slices make the median more
        certain."""
        quiet = [each for verdict in (*earlier, self) for each in verdict.quiet]
        hostile = [each for verdict in (*earlier, self) for each in verdict.hostile]
        if quiet and hostile:
            self.p99_ratio = p99_ratio(quiet, hostile)

    def lines(self) -> Iterator[str]:
        """Yield the result as text."""
        yield ", ".join(f"{name} {value}" for name, value in self.figures.items())
        yield from (f"FAULT: {fault}" for fault in self.faults)
        yield from (f"OTHERS WAIT: {wait}" for wait in self.waits())
        if self.faults or not self.is_fit:
            yield "the last that was sent:"
            yield from (f"  {sent[:300]}" for sent in self.last_sent)


def try_until_fit(
    database: str,
    seconds: float,
    *,
    seed: int,
    rate: float = RATE,
    tries: int = TRIES,
    cases: Sequence[Case] = CASES,
) -> list[Verdict]:
    """Try brokers on this database, one after the other, until one is fit, has a fault, or ran on a busy machine.
    Returns a verdict for each."""
    verdicts: list[Verdict] = []
    while len(verdicts) < tries:
        with ExitStack() as stack:
            url = None
            if database == "postgresql":
                url = stack.enter_context(postgres_server()).create_database()
            broker = stack.enter_context(
                running_broker(
                    url, SETTINGS, with_logins=True, with_gateway=True, tenants=(TENANT, NEIGHBOUR)
                )
            )
            verdicts.append(try_broker(broker, seconds, seed=seed, rate=rate, cases=cases))
        verdicts[-1].judge_beside(verdicts[:-1])
        if verdicts[-1].faults or verdicts[-1].is_fit or verdicts[-1].is_excused:
            break
    return verdicts


def try_broker(
    broker: Broker, seconds: float, *, seed: int, rate: float = RATE, cases: Sequence[Case] = CASES
) -> Verdict:
    """Run these cases for `seconds` against a running broker, with pauses, beside the bystanders."""
    verdict = Verdict()
    is_among_tenants = cases is TENANTS
    door = broker.tenants[NEIGHBOUR] if is_among_tenants else broker.port
    with _bystanders(broker, door) as bystanders:
        before = _memory_mib(broker, "VmRSS")
        stage = Stage(
            broker.port, seed, rate, broker.login_port, gateway=broker.gateway, operator_port=broker.port
        )
        if is_among_tenants:
            stage.port = broker.tenants[TENANT]
            stage.secrets = (f"{TENANT}~".encode(), f"{NEIGHBOUR}~".encode())
        asyncio.run(_play_and_watch(broker, stage, bystanders, seconds, verdict, cases))
        _tell(bystanders, OVER)
        said = bystanders.stdout.readline() if bystanders.stdout else ""
    verdict.last_sent = list(stage.last)
    if stage.unforeseen:
        verdict.faults.append(
            f"{len(stage.unforeseen)} answers are UNKNOWN_SERVER_ERROR; the first: {stage.unforeseen[0]}"
        )
    if stage.told:
        verdict.faults.append(f"{len(stage.told)} answers name what is not told; the first: {stage.told[0]}")
    _judge(broker, verdict, json.loads(said or "{}"), before)
    verdict.figures["requests"] = stage.sent.total()
    return verdict


async def _play_and_watch(
    broker: Broker,
    stage: Stage,
    bystanders: subprocess.Popen[str],
    seconds: float,
    verdict: Verdict,
    cases: Sequence[Case],
) -> None:
    playing = asyncio.ensure_future(play(stage, cases))
    slicing = asyncio.ensure_future(_slice(broker, stage, bystanders, seconds, verdict))
    while not slicing.done() and not playing.done():
        await asyncio.wait([playing, slicing], timeout=READY_EVERY_SECONDS, return_when=FIRST_COMPLETED)
        try:
            await asyncio.to_thread(_get, broker, "/readyz")
        except OSError as unready:
            verdict.faults.append(f"/readyz: {unready}")
            break
    slicing.cancel()
    await asyncio.wait([slicing])
    if not slicing.cancelled() and (error := slicing.exception()) is not None:
        verdict.faults.append(f"the watch over the slices ended: {error}")
    stage.is_over.set()
    stage.may_send.set()
    await playing


async def _slice(
    broker: Broker, stage: Stage, bystanders: subprocess.Popen[str], seconds: float, verdict: Verdict
) -> None:
    """Let the hostile clients send for so long in total, with a pause before each slice."""
    for _ in range(max(1, round(seconds / HOSTILE_SECONDS))):
        async with _watched(broker, verdict.running[QUIET]):
            _tell(bystanders, QUIET)
            await asyncio.sleep(QUIET_SECONDS)
            _tell(bystanders, BETWEEN)
        async with _watched(broker, verdict.running[HOSTILE]):
            _tell(bystanders, HOSTILE)
            stage.may_send.set()
            await asyncio.sleep(HOSTILE_SECONDS)
            stage.may_send.clear()
            _tell(bystanders, BETWEEN)
            await asyncio.sleep(SETTLING_SECONDS)


@asynccontextmanager
async def _watched(broker: Broker, running: list[Running]) -> AsyncIterator[None]:
    """Add how the broker runs during the block."""
    turns, before = loop_turns(await asyncio.to_thread(_get, broker, "/metrics")), _ran_and_waited(broker)
    yield
    after = _ran_and_waited(broker)
    held = held_s(turns, loop_turns(await asyncio.to_thread(_get, broker, "/metrics")))
    running.append(Running(after[0] - before[0], after[1] - before[1], held))


def _ran_and_waited(broker: Broker) -> tuple[float, float]:
    """Return the seconds of all threads together; (0, 0) if the kernel does not report them."""
    ran = waited = 0
    for path in Path(f"/proc/{broker.process.pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has ended
            said = path.read_text().split()
            ran, waited = ran + int(said[0]), waited + int(said[1])
    return ran / 1e9, waited / 1e9


def _judge(broker: Broker, verdict: Verdict, told: dict[str, Any], before_mib: float) -> None:
    faults = verdict.faults
    if not told:
        faults.append("the bystanders said nothing of their records")
    for what in ("failed", "lost", "doubled", "consumer_errors"):
        if told.get(what):
            faults.append(f"the bystanders' records: {what}: {told[what]}")
    quiet, hostile = (_slices(told, verdict, kind) for kind in (QUIET, HOSTILE))
    verdict.quiet, verdict.hostile = quiet, hostile
    if hostile:
        verdict.was_busy = was_busy(hostile)
    verdict.figures = {"records": told.get("records", 0)}
    for kind, slices in ((QUIET, quiet), (HOSTILE, hostile)):
        verdict.figures[f"{kind} p99 ms"] = [round(1000 * each.p99_s) for each in slices]
        verdict.figures[f"{kind} slices stretched by"] = [round(each.stretch, 1) for each in slices]
        verdict.figures[f"{kind} loop held ms"] = [round(1000 * each.held_s) for each in slices]
    try:
        faults += unforeseen_failures(_get(broker, "/metrics"))
    except (OSError, MetricMissing) as error:
        faults.append(f"/metrics: {error}")
    grown = _memory_mib(broker, "VmHWM") - before_mib
    verdict.figures["memory grew MiB"] = round(grown)
    if grown > MAX_GROWTH_MIB:
        faults.append(
            f"the broker's memory grew by {grown:.0f} MiB at its peak; {MAX_GROWTH_MIB} are allowed"
        )
    if not broker.is_alive:
        faults.append("the broker ended")
    log = broker.log.read_text(errors="replace").splitlines()
    for what, sign in (("tracebacks", "Traceback"), ("errors", '"level": "error"')):
        found = [line for line in log if sign in line]
        if found:
            faults.append(f"{len(found)} {what} were logged; the first: {found[0][:3000]}")


def _slices(told: dict[str, Any], verdict: Verdict, kind: str) -> list[Slice]:
    latencies = told.get("slices", {}).get(kind, [])
    return [
        Slice(each, ran.ran_s, ran.waited_s, ran.held_s)
        for each, ran in zip(latencies, verdict.running[kind], strict=False)
    ]


@contextmanager
def _bystanders(broker: Broker, port: int) -> Iterator[subprocess.Popen[str]]:
    """Start the two bystanders, who connect to this port, and wait until they have settled; end them with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.bystanders", f"127.0.0.1:{port}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(
                f"the bystanders did not begin:\n{broker.log.read_text(errors='replace')[-3000:]}"
            )
        yield process
    finally:
        process.kill()
        process.wait()


def _tell(bystanders: subprocess.Popen[str], what: str) -> None:
    assert bystanders.stdin is not None
    bystanders.stdin.write(f"{what}\n")
    bystanders.stdin.flush()


def _get(broker: Broker, path: str) -> str:
    login = base64.b64encode(ADMIN.encode()).decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{broker.http}{path}", headers={"Authorization": f"Basic {login}"}
    )
    with _DIRECT.open(request, timeout=30) as response:
        return str(response.read().decode())


def _memory_mib(broker: Broker, kind: str) -> float:
    """Return the resident memory: the current value (`VmRSS`) or the peak (`VmHWM`)."""
    with open(f"/proc/{broker.process.pid}/status") as status:
        found = re.search(rf"{kind}:\s+(\d+) kB", status.read())
    return int(found.group(1)) / 1024 if found else 0.0


def main() -> int:
    """Run on both databases, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second, of all cases together")
    parser.add_argument("--cases", choices=PLAYS, default="requests")
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if asked.seed is None else asked.seed
    cases = PLAYS[asked.cases]
    print(f"seed {seed}; cases: {', '.join(case.name for case in cases)}")
    is_clean = True
    for database in ("sqlite", "postgresql"):
        if asked.only not in (None, database):
            continue
        for verdict in try_until_fit(database, asked.seconds, seed=seed, rate=asked.rate, cases=cases):
            busy = "; the machine was busy with something else" if verdict.was_busy else ""
            print(f"{database}: p99 {verdict.p99_ratio:.1f} times its quiet value{busy}")
            print("\n".join(f"  {line}" for line in verdict.lines()), flush=True)
        is_clean = is_clean and not verdict.faults and (verdict.is_fit or verdict.is_excused)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
