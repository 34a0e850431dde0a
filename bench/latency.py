"""The cost and latency of each `tailrace.latency` on a modelled S3: PUTs, dollars, time to the acknowledgement.

    python -m bench.latency [--seconds 30] [--json FILE]

A lane of an agent, with the default settings for S3, runs over a store with S3's latencies (PUT 150 ms at the median,
400 ms at p99, hedged as in production) and a sequencer whose commits take 5 ms. The loop's clock jumps from event to
event, so seconds are modelled and the same on any machine. PUTs are counted below the hedging. An open producer sends
at its rate without waiting for responses. A closed one behaves like the Java client, with at most five requests in
flight.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from agent.identity import AgentIdentity
from agent.memory_budget import MemoryBudget
from agent.produce.active_buffer import BufferedBatch, Submission
from agent.produce.lane import Lane
from agent.produce.receipts import Receipts
from agent.settings import AgentSettings
from agent.telemetry import AgentTelemetry
from sequencer.api.agents import AgentInfo
from sequencer.api.commits import CommitAnswer, CommitRequest
from sequencer.api.topics import CreateTopic, Topic
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace.batches.mixed_object import coordinates
from tailrace.batches.record_batch import read_header
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.buffers import Buffer
from tailrace.configs.topic_config import Flush, Latency
from tailrace.cost import MONTH_SECONDS, Usage, bill_of, read_prices
from tailrace.ids import TopicPartition
from tailrace.object_store.hedged import HedgedStore
from tailrace.object_store.memory import MemoryStore
from tailrace.object_store.metered import MeteredStore
from tests.simulation.loop import SimulatedClock, SimulatedLoop, run_simulated
from tests.support.clocks import SeededEntropy
from tests.support.faulty_store import S3_STANDARD, FaultyStore

MIB = 1 << 20
COMMIT_SECONDS = 0.005
PARTITIONS = 16
REQUESTS_UNDER_WAY = 5
"""The Java client's default of max.in.flight.requests.per.connection."""
CASES = (
    ("10 requests/s of 1 KiB", 10.0, 1),
    ("1 MiB/s of 16 KiB", 64.0, 16),
    ("20 MiB/s of 64 KiB", 320.0, 64),
)
"""Name, requests per second, KiB of each request."""
JAVA = (
    ("defaults: batch.size=16384", 16),
    ("batch.size=65536", 64),
    ("batch.size=524288, max.request.size=8388608", 512),
)
"""Name, KiB of each partition's batch."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a case. `puts` includes hedges. Latencies are ms from a request's arrival to its
    acknowledgement."""

    seconds: float
    requests: int
    puts: int
    puts_per_second: float
    dollars_a_month: float
    p50_ms: float
    p99_ms: float
    mib_per_second: float


class SlowCommits:
    """A sequencer whose commits take COMMIT_SECONDS."""

    def __init__(self, inner: Committer, clock: SimulatedClock) -> None:
        self._inner = inner
        self._clock = clock
        self.open_session = inner.open_session
        self.renew_session = inner.renew_session
        self.close_session = inner.close_session

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        await self._clock.sleep(COMMIT_SECONDS)
        return await self._inner.commit(request)


class Forgetful(MemoryStore):
    """A store that keeps nothing."""

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Do nothing."""


class NoCache:
    """A cache that stores nothing."""

    def write_through(self, key: str, parts: Sequence[Buffer]) -> None:
        """Do nothing."""


class Bench:
    """One lane, with the latencies of the requests that it answered."""

    def __init__(self, loop: SimulatedLoop, latency: Latency, seed: int, flush: Flush) -> None:
        self.clock, self.entropy = SimulatedClock(loop), SeededEntropy(seed)
        self.latency, self.flush = latency, flush
        self.store = MeteredStore(
            FaultyStore(Forgetful(self.clock), self.clock, SeededEntropy(seed + 1), S3_STANDARD), self.clock
        )
        self.taken: list[float] = []
        self.bytes = 0

    async def open(self) -> None:
        committer = Committer(MemoryRowStore(self.clock), self.clock, SeededEntropy(3))
        await committer.start()
        self.committer = committer
        info = AgentInfo("host", 9092, "host", 0, 0, "a", "0", UUID(int=1))
        identity = AgentIdentity.of(await committer.register_agent(info), info, self.clock.monotonic())
        self.topic: Topic = await committer.create_topic(CreateTopic("t", PARTITIONS, {}))
        settings = AgentSettings().on_store("s3://bucket", read_prices().put_per_1000)
        telemetry = AgentTelemetry()
        self.lane = Lane(
            0,
            settings=settings,
            clock=self.clock,
            entropy=self.entropy,
            store=HedgedStore(self.store, self.clock, self.entropy),
            sequencer=SlowCommits(committer, self.clock),  # type: ignore[arg-type]
            cache=NoCache(),
            telemetry=telemetry,
            broker_identity=lambda: (identity.broker_id, identity.lease_epoch),
            receipts=Receipts(MemoryBudget(settings.memory_budget_bytes), telemetry, self.clock),
        )
        await self.lane.start()

    async def close(self) -> None:
        await self.lane.close(60)
        await self.committer.close()

    def send(self, data: bytes, partitions: Sequence[int]) -> asyncio.Future[None]:
        """Send one request with a batch for each partition. The future is done when it is acknowledged."""
        began, done = self.clock.monotonic(), asyncio.get_running_loop().create_future()

        def settled(results: object) -> None:
            self.taken.append(self.clock.monotonic() - began)
            done.set_result(None)

        submission = Submission(len(partitions), settled)
        header = coordinates(read_header(data))
        self.bytes += len(data) * len(partitions)
        for index, partition in enumerate(partitions):
            batch = BufferedBatch(
                coordinates=header,
                data=data,
                submission=submission,
                index=index,
                latency=self.latency,
                is_answered_on_receipt=self.flush is Flush.ASYNC,
            )
            self.lane.add(TopicPartition(self.topic.topic_id, partition), "t", batch)
        return done


def batch_of(kib: int) -> bytes:
    return encode_batch([NewRecord(None, b"v" * (kib * 1024 - 100))], timestamps=[0])


def _run(
    latency: Latency,
    seconds: float,
    seed: int,
    *,
    rate: float,
    kib: int,
    is_closed: bool,
    flush: Flush = Flush.SYNC,
) -> Outcome:
    async def main(loop: SimulatedLoop) -> Outcome:
        bench, data = Bench(loop, latency, seed, flush), batch_of(kib)
        await bench.open()
        began, before = bench.clock.monotonic(), bench.store.counts.puts
        until = began + seconds

        async def closed() -> None:
            while bench.clock.monotonic() < until:
                await bench.send(data, range(PARTITIONS))

        if is_closed:
            await asyncio.gather(*(closed() for _ in range(REQUESTS_UNDER_WAY)))
        else:
            sent = []
            while bench.clock.monotonic() < until:
                await bench.clock.sleep(2 * bench.entropy.fraction() / rate)
                sent.append(bench.send(data, [len(sent) % PARTITIONS]))
            await asyncio.gather(*sent)
        took, puts = bench.clock.monotonic() - began, bench.store.counts.puts - before
        await bench.close()
        times = sorted(bench.taken)
        return Outcome(
            seconds=took,
            requests=len(times),
            puts=puts,
            puts_per_second=puts / took,
            dollars_a_month=bill_of(Usage(puts=puts / took * MONTH_SECONDS), read_prices()).put,
            p50_ms=times[len(times) // 2] * 1000,
            p99_ms=times[len(times) * 99 // 100] * 1000,
            mib_per_second=bench.bytes / MIB / took,
        )

    return run_simulated(seed, main, end_seconds=100_000.0)


def run_open(
    latency: Latency,
    rate: float,
    kib: int,
    seconds: float = 30.0,
    seed: int = 1,
    flush: Flush = Flush.SYNC,
) -> Outcome:
    """Run a producer of `rate` requests per second, each with one batch."""
    return _run(latency, seconds, seed, rate=rate, kib=kib, is_closed=False, flush=flush)


def run_closed(latency: Latency, kib: int, seconds: float = 30.0, seed: int = 1) -> Outcome:
    """Run the Java client at its limit: five requests in flight, each with a full batch for every partition."""
    return _run(latency, seconds, seed, rate=0.0, kib=kib, is_closed=True)


def table(rows: Sequence[tuple[str, Latency, Outcome]]) -> str:
    """Return the figures as the table in the docs."""
    lines = [
        "| load | policy | PUTs a second | $ a month | p50 ms | p99 ms | MiB/s |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {latency.name.lower()} | {out.puts_per_second:.1f} | {out.dollars_a_month:,.0f} | "
        f"{out.p50_ms:.0f} | {out.p99_ms:.0f} | {out.mib_per_second:.2f} |"
        for name, latency, out in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Run all cases and print them as tables. Write them to the file of --json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="modelled time of a case (default 30)")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    paced = [
        (name, latency, run_open(latency, rate, kib, options.seconds))
        for name, rate, kib in CASES
        for latency in Latency
    ]
    java = [
        (name, latency, run_closed(latency, kib, options.seconds / 2))
        for name, kib in JAVA
        for latency in Latency
    ]
    on_receipt = [
        (
            f"{name}, tailrace.flush=async",
            latency,
            run_open(latency, rate, kib, options.seconds, flush=Flush.ASYNC),
        )
        for name, rate, kib in CASES
        for latency in (Latency.COST, Latency.BALANCED)
    ]
    print(table(paced), table(java), table(on_receipt), sep="\n\n")
    if options.json is not None:
        rows = [
            {"load": name, "policy": latency.name.lower(), **asdict(out)}
            for name, latency, out in paced + java + on_receipt
        ]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
