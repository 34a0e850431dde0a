"""Loads that need more memory than there is: measures the server's highest memory, and whether it serves all clients in
the end.

Each case starts its own processes with small budgets (`Sizes.budgets`), overloads them, and then probes: it produces a
record and reads it back. `above_start_mib` is the highest resident memory above that of the idle server. `allowed_mib`
is the sum of the budgets, CONNECTION_KIB for each connection, and `slack_mib` for the allocator and everything that is
not counted in bytes. A case needs a file descriptor for each connection, here and in the server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.support.backlog import TOPIC, make_backlog
from bench.support.kafka_socket import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    Connection,
    batch_of,
    fetch_request,
    produce_request,
)
from bench.support.process_figures import cpu_seconds, peak_rss_mib, rss_mib
from compactor.cycle import CompactionSettings, InProcess, Outcomes, run_cycle
from compactor.plan import WorkItem
from compactor.rewrite import OutputLocation, RewriteFailure, RewriteResult
from sequencer.api.compaction import CompactionRequest
from sequencer.api.errors import LeaseLost, SequencerUnavailable, SessionClosed
from sequencer.client import SequencerClient
from tailrace.background_tasks import cancel_and_wait
from tailrace.batches.record_batch import split
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.object_store.open import open_store
from tailrace.rpc.loaded_security import LoadedSecurity, SecurityFiles
from tailrace_cli.connections.kafka_client import KafkaClient
from tailrace_cli.demo.ports import free_port
from tailrace_cli.running.data_folder import SECRET

MIB = 2**20
BUDGETS_MIB = {
    "TAILRACE_AGENT__MEMORY_BUDGET_BYTES": 128,
    "TAILRACE_AGENT__FETCH_MEMORY_BYTES": 64,
    "TAILRACE_CACHE__MEMORY_BYTES": 64,
    "TAILRACE_CACHE__FRAMED_BYTES": 16,
}
CONNECTION_KIB = 8
READY_SECONDS = 150.0
RECOVERY_SECONDS = 120.0
FRAME_BYTES = 60_000
REQUESTS_EACH = 16
"""The requests that a sender keeps in flight, of half a MiB each."""
METADATA_VERSION = 12
SMALLEST_PARTITIONS = 500
"""The partitions in a request of smallest batches, with one batch each."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of each case. `make overload` runs the defaults. A test runs SMALL in seconds, with budgets so small
    that its loads exceed them too: each case was seen to fail with its limit removed."""

    away_seconds: float = 120.0
    commit_deadline_ms: int = 20_000
    senders: int = 64
    half_sent_connections: int = 10_000
    half_sent_bytes: int = 64_000
    frame_connections: int = 1_000
    frames_each: int = 64
    partitions: int = 1_000
    metadata_partitions: int = 100
    naming_connections: int = 25
    runs_each: int = 1_000
    most_seconds: float = 1_800.0
    budgets_share: int = 1
    slack_mib: int = 128

    @property
    def budgets(self) -> dict[str, int]:
        """The settings of the budgets, in bytes."""
        return {name: mib * MIB // self.budgets_share for name, mib in BUDGETS_MIB.items()}


SMALL = Sizes(
    away_seconds=6.0,
    commit_deadline_ms=500,
    senders=24,
    half_sent_connections=400,
    half_sent_bytes=300_000,
    frame_connections=60,
    frames_each=64,
    partitions=100,
    metadata_partitions=100,
    naming_connections=60,
    runs_each=800,
    most_seconds=240.0,
    budgets_share=8,
    slack_mib=24,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a case stores its data: a folder and a database's URL."""

    folder: Path
    database: str

    @property
    def objects(self) -> str:
        """The object store's URL."""
        return str(self.folder / "objects")


@dataclass
class Server:
    """The process whose memory is measured, and its address."""

    pid: int
    bootstrap: str
    rpc: str
    data: Path
    sequencer_pid: int = 0
    started_mib: float = 0.0


@dataclass
class Result:
    """A row of the table. `is_served`: the probe and the clients of the case got everything in the end."""

    case: str
    seconds: float = 0.0
    peak_mib: float = 0.0
    above_start_mib: float = 0.0
    allowed_mib: float = 0.0
    probe_worst_ms: float = 0.0
    served_after_seconds: float = 0.0
    server_cpu_seconds: float = 0.0
    is_served: bool = False
    is_within: bool = False
    notes: dict[str, Any] = field(default_factory=dict)


# --- the cases ---------------------------------------------------------------------------------------------


async def sequencer_away(sizes: Sizes, place: Place) -> Result:
    """Stop the sequencer (SIGSTOP) for two minutes under full load, then let it continue."""
    result = Result("sequencer-away")
    deadline = {"TAILRACE_AGENT__COMMIT_DEADLINE_MS": sizes.commit_deadline_ms}
    with agent_and_sequencer(place, {**sizes.budgets, **deadline}) as server:
        await create_topics(server.bootstrap)
        sent: dict[str, int] = {}
        async with watched(server, result, sizes, sizes.senders):
            stop = asyncio.Event()
            batch = batch_of(512, 1024)
            load = [
                asyncio.create_task(keep_producing(server.bootstrap, number % 16, batch, stop, sent))
                for number in range(sizes.senders)
            ]
            await asyncio.sleep(1)
            os.kill(server.sequencer_pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(sizes.away_seconds)
            finally:
                os.kill(server.sequencer_pid, signal.SIGCONT)
            result.served_after_seconds = await served_again(server.bootstrap)
            stop.set()
            await asyncio.gather(*load)
        result.notes = sent
        result.is_served = result.served_after_seconds < RECOVERY_SECONDS
    return result


async def half_sent(sizes: Sizes, place: Place) -> Result:
    """Connections that declare a megabyte and stop, while a probe runs."""
    result = Result("half-sent")
    most = {"TAILRACE_AGENT__MAX_CONNECTIONS": sizes.half_sent_connections + 100}
    with serve(place, {**sizes.budgets, **most}) as server:
        await create_topics(server.bootstrap)
        held: list[Connection] = []
        async with watched(server, result, sizes, sizes.half_sent_connections):
            try:
                while len(held) < sizes.half_sent_connections:
                    held += await asyncio.gather(
                        *(Connection.open(server.bootstrap, 4096) for _ in range(100))
                    )
                for connection in held:
                    connection.write((MIB).to_bytes(4, "big"))
                result.probe_worst_ms = await probed(server.bootstrap, 20)
                # The same connections send a part of it, together more than fits into memory.
                for connection in held:
                    connection.write(bytes(sizes.half_sent_bytes))
                result.served_after_seconds = await served_again(server.bootstrap)
            finally:
                for connection in held:
                    connection.close()
        result.notes["connections"] = len(held)
        result.is_served = result.served_after_seconds < RECOVERY_SECONDS
    return result


async def frames_60k(sizes: Sizes, place: Place) -> Result:
    """Connections that send requests of 60 KiB without waiting for responses. Every request must be answered."""
    result = Result("frames-60k")
    with serve(place, sizes.budgets) as server:
        await create_topics(server.bootstrap)
        batch = batch_of(1, FRAME_BYTES)
        answers: dict[str, int] = {}
        async with watched(server, result, sizes, sizes.frame_connections):
            began = time.monotonic()
            async with asyncio.timeout(sizes.most_seconds):
                await asyncio.gather(
                    *(
                        send_all(server.bootstrap, number % 16, batch, sizes.frames_each, answers)
                        for number in range(sizes.frame_connections)
                    )
                )
            result.served_after_seconds = time.monotonic() - began
            await served_again(server.bootstrap)
        result.notes = answers
        result.is_served = answers.get("0", 0) == sizes.frame_connections * sizes.frames_each
    return result


async def smallest_batches(sizes: Sizes, place: Place) -> Result:
    """Connections that each send a request with a smallest batch for each of 500 partitions, while the sequencer is
    stopped. Every request must be answered in the end."""
    result = Result("smallest-batches")
    rows = {"TAILRACE_AGENT__MAX_ROWS_PER_SECOND": 1_000_000}
    with agent_and_sequencer(place, {**sizes.budgets, **rows}) as server:
        await create_topics(server.bootstrap)
        await create_large_topics(server.bootstrap, sizes)
        request = smallest_request(sizes)
        connections = sizes.frame_connections * 4
        answers: dict[str, int] = {}
        async with watched(server, result, sizes, connections):
            os.kill(server.sequencer_pid, signal.SIGSTOP)
            try:
                sending = [
                    asyncio.create_task(send_until_stored(server.bootstrap, request, answers))
                    for _ in range(connections)
                ]
                await asyncio.sleep(sizes.away_seconds)
            finally:
                os.kill(server.sequencer_pid, signal.SIGCONT)
            began = time.monotonic()
            async with asyncio.timeout(sizes.most_seconds):
                await asyncio.gather(*sending)
            result.served_after_seconds = time.monotonic() - began
            await served_again(server.bootstrap)
        result.notes = answers
        result.is_served = answers.get("0", 0) == connections
    return result


async def large_answers(sizes: Sizes, place: Place) -> Result:
    """Connections that all request the metadata of all partitions at once. Some name each topic, so that their
    responses are not shared. Each retries until it has its response."""
    result = Result("large-answers")
    total = sizes.partitions * sizes.metadata_partitions
    with serve(place, sizes.budgets) as server:
        await create_topics(server.bootstrap)
        await create_large_topics(server.bootstrap, sizes)
        before = rss_mib(server.pid)
        found: dict[str, int] = {}
        named = [MetadataRequestTopic(name=f"large-{number}") for number in range(sizes.partitions)]
        async with watched(server, result, sizes, sizes.frame_connections):
            began = time.monotonic()
            async with asyncio.timeout(sizes.most_seconds):
                await asyncio.gather(
                    *(
                        ask_metadata(
                            server.bootstrap, named if number < sizes.naming_connections else None, found
                        )
                        for number in range(sizes.frame_connections)
                    )
                )
            result.served_after_seconds = time.monotonic() - began
            await served_again(server.bootstrap)
        result.notes = {
            **found,
            "partitions": total,
            "above_before_asking_mib": round(result.peak_mib - before),
        }
        result.is_served = found.get("answers", 0) == sizes.frame_connections
    return result


async def many_small_runs(sizes: Sizes, place: Place) -> Result:
    """A consumer reads a million small runs of a thousand partitions, while a probe runs."""
    result = Result("many-small-runs")
    await make_backlog(place.folder, place.database, partitions=sizes.partitions, runs=sizes.runs_each)
    with serve(place, sizes.budgets) as server:
        await create_topics(server.bootstrap)
        async with watched(server, result, sizes, 1):
            began = time.monotonic()
            probing = asyncio.create_task(keep_probing(server.bootstrap))
            read = await read_backlog(server.bootstrap, sizes)
            result.served_after_seconds = time.monotonic() - began
            probing.cancel()
            result.probe_worst_ms = await probing
        result.notes = {"records": read, "of": sizes.partitions * sizes.runs_each}
        result.is_served = read == sizes.partitions * sizes.runs_each
    return result


async def compaction_backlog(sizes: Sizes, place: Place) -> Result:
    """A compactor compacts a million runs until none is left, while a probe runs."""
    result = Result("compaction-backlog")
    total = sizes.partitions * sizes.runs_each
    await make_backlog(place.folder, place.database, partitions=sizes.partitions, runs=sizes.runs_each)
    with serve(place, sizes.budgets) as server:
        await create_topics(server.bootstrap)
        async with watched(server, result, sizes, 1):
            began = time.monotonic()
            probing = asyncio.create_task(keep_probing(server.bootstrap))
            done = await compact(server, sizes.most_seconds)
            result.served_after_seconds = time.monotonic() - began
            probing.cancel()
            result.probe_worst_ms = await probing
        result.notes = {**asdict(done), "of": total}
        is_whole = done.records == total or done.again > 0
        result.is_served = done.left == 0 and is_whole and not done.problems
    return result


@dataclass(frozen=True, slots=True)
class RunAside:
    """Runs items on a thread, as Spark runs them in processes, so that the job can renew its lease and session."""

    data: Path

    async def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
        """Yield each item's outcome in order."""
        for item in items:
            for outcome in await asyncio.to_thread(asyncio.run, self._run(item, output)):
                yield outcome

    async def _run(self, item: WorkItem, output: OutputLocation) -> list[RewriteResult | RewriteFailure]:
        clock = SystemClock()
        store = open_store(str(self.data / "objects"), clock=clock)
        runner = InProcess(store, clock, SystemEntropy())
        try:
            return [outcome async for outcome in runner.run([item], output)]
        finally:
            await store.close()


@dataclass
class Compacted:
    """What a compactor did. `again`: how often it had to restart because the sequencer was unavailable for longer than
    it waits. The records count from its last start. `left`: runs that are not compacted."""

    records: int = 0
    rounds: int = 0
    again: int = 0
    left: int = -1
    problems: list[str] = field(default_factory=list)


async def compact(server: Server, most_seconds: float) -> Compacted:
    """Run a compactor with default settings until nothing is left, for at most `most_seconds`."""
    clock, entropy, settings = SystemClock(), SystemEntropy(), CompactionSettings()
    security = LoadedSecurity(SecurityFiles(secret_file=server.data / SECRET)).rpc
    sequencer = SequencerClient([server.rpc], clock=clock, entropy=entropy, security=security)
    done = Compacted()
    with suppress(TimeoutError):
        async with asyncio.timeout(most_seconds):
            while done.left < 0:
                try:
                    part = await run_cycle(sequencer, RunAside(server.data), clock=clock, entropy=entropy)
                    done.records, done.rounds = part.records, part.rounds
                    done.problems = [*map(str, part.failures), *part.refused]
                    found = await sequencer.compaction_candidates(
                        CompactionRequest(settings.min_bytes, settings.min_age_ms, settings.max_runs)
                    )
                    done.left = sum(len(candidate.runs) for candidate in found.candidates)
                except (SequencerUnavailable, SessionClosed, LeaseLost):
                    done.again += 1
                    await asyncio.sleep(1)
    await sequencer.close()
    return done


CASES: dict[str, Callable[[Sizes, Place], Awaitable[Result]]] = {
    "sequencer-away": sequencer_away,
    "half-sent": half_sent,
    "frames-60k": frames_60k,
    "smallest-batches": smallest_batches,
    "large-answers": large_answers,
    "many-small-runs": many_small_runs,
    "compaction-backlog": compaction_backlog,
}


def run_case(name: str, sizes: Sizes, *, is_on_postgresql: bool = False) -> Result:
    """Run one case in a new folder, on SQLite or on a PostgreSQL that is started for it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-overload-")))
        database = f"sqlite:///{folder / 'tailrace.db'}"
        if is_on_postgresql:
            from tests.support.servers import postgres_server

            database = stack.enter_context(postgres_server(fsync=True)).create_database()
        began = time.monotonic()
        result = asyncio.run(CASES[name](sizes, Place(folder, database)))
        result.seconds = time.monotonic() - began
        return result


def show(result: Result) -> None:
    """Print a line of the table."""
    print(
        f"{result.case:20} peak {result.peak_mib:5.0f} MiB, {result.above_start_mib:5.0f} above idle, "
        f"{result.allowed_mib:5.0f} allowed {'  ' if result.is_within else '!!'}  "
        f"cpu {result.server_cpu_seconds:5.1f} s  probe {result.probe_worst_ms:6.0f} ms  "
        f"served after {result.served_after_seconds:6.1f} s "
        f"{'  ' if result.is_served else '!!'}  {result.notes}",
        flush=True,
    )


# --- clients -----------------------------------------------------------------------------------------------


async def create_topics(bootstrap: str) -> None:
    async with KafkaClient(bootstrap) as client:
        topics = [
            CreatableTopic(name=name, num_partitions=16, replication_factor=1) for name in ("load", "probe")
        ]
        await client.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000))


async def create_large_topics(bootstrap: str, sizes: Sizes) -> None:
    """Create `partitions` topics with `metadata_partitions` partitions each."""
    async with KafkaClient(bootstrap) as client:
        for first in range(0, sizes.partitions, 100):
            topics = [
                CreatableTopic(
                    name=f"large-{number}", num_partitions=sizes.metadata_partitions, replication_factor=1
                )
                for number in range(first, min(first + 100, sizes.partitions))
            ]
            await client.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000))


async def ask_metadata(
    bootstrap: str, topics: list[MetadataRequestTopic] | None, found: dict[str, int]
) -> None:
    """Request the metadata of these topics, or of all, until there is a response. It is read but not decoded."""
    while True:
        connection = await Connection.open(bootstrap)
        try:
            asked = encode_request(1, ApiKey.METADATA, METADATA_VERSION, MetadataRequest(topics, False))
            connection.write(b"".join(asked))
            left = int.from_bytes(await connection.read_some(4), "big")
            while left > 0:
                got = len(await connection.read_some(min(left, MIB)))
                if not got:
                    raise ConnectionError("the answer does not end")
                left -= got
        except OSError:
            found["again"] = found.get("again", 0) + 1
            await asyncio.sleep(1)
        else:
            found["answers"] = found.get("answers", 0) + 1
            return
        finally:
            connection.close()


async def keep_producing(
    bootstrap: str, partition: int, batch: bytes, stop: asyncio.Event, sent: dict[str, int]
) -> None:
    """Keep REQUESTS_EACH in flight; reopen a connection that was closed."""
    request = produce_request("load", partition, batch)
    while not stop.is_set():
        try:
            connection = await Connection.open(bootstrap)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        try:
            async with asyncio.timeout(60):
                for _ in range(REQUESTS_EACH):
                    await connection.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)
                for _ in range(REQUESTS_EACH):
                    answer = await connection.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
                    code = str(answer.responses[0].partition_responses[0].error_code)
                    sent[code] = sent.get(code, 0) + 1
        except (OSError, EOFError, TimeoutError):
            sent["closed"] = sent.get("closed", 0) + 1
        finally:
            connection.close()


async def send_all(bootstrap: str, partition: int, batch: bytes, count: int, answers: dict[str, int]) -> None:
    """Send `count` requests before reading the first response, and retry failed ones."""
    request = produce_request("load", partition, batch)
    left = count
    while left:
        connection = await Connection.open(bootstrap)
        try:
            sending = asyncio.create_task(_send(connection, request, left))
            for _ in range(left):
                answer = await connection.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
                code = answer.responses[0].partition_responses[0].error_code
                answers[str(code)] = answers.get(str(code), 0) + 1
                left -= not code
            await sending
        except (OSError, EOFError):
            answers["closed"] = answers.get("closed", 0) + 1
        finally:
            await cancel_and_wait(sending)
            connection.close()


def smallest_request(sizes: Sizes) -> ProduceRequest:
    """Return a request with a batch of one empty record for each of SMALLEST_PARTITIONS partitions."""
    data = [
        PartitionProduceData(number, memoryview(batch_of(1, 0)))
        for number in range(sizes.metadata_partitions)
    ]
    topics = SMALLEST_PARTITIONS // sizes.metadata_partitions
    return ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(f"large-{number}", partition_data=data) for number in range(topics)],
    )


async def send_until_stored(bootstrap: str, request: ProduceRequest, answers: dict[str, int]) -> None:
    """Retry a request until all of it is stored. Count the responses by their highest error code."""
    code = -1
    while code:
        try:
            code = await _sent_once(bootstrap, request)
            answers[str(code)] = answers.get(str(code), 0) + 1
        except (OSError, EOFError):
            answers["closed"] = answers.get("closed", 0) + 1


async def _sent_once(bootstrap: str, request: ProduceRequest) -> int:
    """Send a request once. Return the highest error code of its response."""
    connection = await Connection.open(bootstrap)
    try:
        await connection.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        answer = await connection.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
        return max(row.error_code for part in answer.responses for row in part.partition_responses)
    finally:
        connection.close()


async def _send(connection: Connection, request: Any, count: int) -> None:
    for _ in range(count):
        await connection.send(ApiKey.PRODUCE, PRODUCE_VERSION, request)


async def probe_once(bootstrap: str) -> float | None:
    """Produce a record and read it back. Return the seconds, None if either failed."""
    began = time.monotonic()
    with suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(30):
            connection = await Connection.open(bootstrap)
            try:
                await connection.send(
                    ApiKey.PRODUCE, PRODUCE_VERSION, produce_request("probe", 0, batch_of(1, 100))
                )
                answer = await connection.answer(ApiKey.PRODUCE, PRODUCE_VERSION)
                row = answer.responses[0].partition_responses[0]
                if row.error_code:
                    return None
                request = fetch_request("probe", 0, row.base_offset, MIB, 1_000)
                await connection.send(ApiKey.FETCH, FETCH_VERSION, request)
                found = (await connection.answer(ApiKey.FETCH, FETCH_VERSION)).responses[0].partitions[0]
                if found.error_code or not found.records:
                    return None
                return time.monotonic() - began
            finally:
                connection.close()
    return None


async def probed(bootstrap: str, times: int) -> float:
    """Return the worst latency of `times` probes in ms. A failed probe counts as a minute."""
    worst = 0.0
    for _ in range(times):
        seconds = await probe_once(bootstrap)
        worst = max(worst, 60.0 if seconds is None else seconds)
        await asyncio.sleep(0.02)
    return worst * 1000


async def keep_probing(bootstrap: str) -> float:
    """Probe until cancelled. Returns the worst latency in ms; a failed probe counts as a minute."""
    worst = 0.0
    with suppress(asyncio.CancelledError):
        while True:
            worst = max(worst, await probed(bootstrap, 1))
    return worst


async def served_again(bootstrap: str) -> float:
    """Return the seconds until a probe succeeds; RECOVERY_SECONDS if none does by then."""
    began = time.monotonic()
    while time.monotonic() - began < RECOVERY_SECONDS:
        if await probe_once(bootstrap) is not None:
            return time.monotonic() - began
        await asyncio.sleep(0.1)
    return RECOVERY_SECONDS


async def read_backlog(bootstrap: str, sizes: Sizes) -> int:
    """Fetch all partitions in every request, each from its position, until everything is read. Return the records."""
    positions = dict.fromkeys(range(sizes.partitions), 0)
    connection = await Connection.open(bootstrap)
    read = 0
    try:
        async with asyncio.timeout(sizes.most_seconds):
            while positions:
                topic = FetchTopic(
                    topic=TOPIC,
                    partitions=[
                        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=MIB)
                        for partition, offset in positions.items()
                    ],
                )
                request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=50 * MIB, topics=[topic])
                await connection.send(ApiKey.FETCH, FETCH_VERSION, request)
                answer = await connection.answer(ApiKey.FETCH, FETCH_VERSION)
                for row in answer.responses[0].partitions:
                    if row.error_code:
                        raise RuntimeError(f"partition {row.partition_index}: error {row.error_code}")
                    before = positions[row.partition_index]
                    for header, _ in split(memoryview(row.records or b"")):
                        positions[row.partition_index] = header.base_offset + header.record_count
                    after = positions.pop(row.partition_index)
                    read += after - before
                    if after < sizes.runs_each:
                        positions[row.partition_index] = after  # at the end of the queue if it got something
    except TimeoutError:
        pass
    finally:
        connection.close()
    return read


# --- processes ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def watched(server: Server, result: Result, sizes: Sizes, connections: int) -> Any:
    """Record the server's CPU time and highest resident memory inside the block, and whether that was allowed."""
    before = cpu_seconds(server.pid)
    yield
    result.server_cpu_seconds = cpu_seconds(server.pid) - before
    result.peak_mib = peak_rss_mib(server.pid)
    result.above_start_mib = result.peak_mib - server.started_mib
    budgets = sum(sizes.budgets.values()) / MIB
    result.allowed_mib = budgets + connections * CONNECTION_KIB / 1024 + sizes.slack_mib
    result.is_within = result.above_start_mib <= result.allowed_mib


@contextmanager
def serve(place: Place, settings: dict[str, int]) -> Iterator[Server]:
    """Run `tailrace serve` with its data at that place."""
    kafka, http, rpc = (free_port() for _ in range(3))
    data = place.folder
    arguments = ["serve", "--data", str(data), "--database", place.database]
    arguments += ["--listen", f"127.0.0.1:{kafka}", "--rpc", f"127.0.0.1:{rpc}"]
    with process(arguments, http, settings) as pid:
        yield Server(pid, f"127.0.0.1:{kafka}", f"127.0.0.1:{rpc}", data, started_mib=rss_mib(pid))


@contextmanager
def agent_and_sequencer(place: Place, settings: dict[str, int]) -> Iterator[Server]:
    """Run an agent and its sequencer, one process each."""
    kafka, http, rpc, sequencer_http = (free_port() for _ in range(4))
    with ExitStack() as stack:
        sequencer_pid = stack.enter_context(
            process(
                [
                    *("sequencer", "--database", place.database, "--store", place.objects),
                    *("--rpc", f"127.0.0.1:{rpc}"),
                ],
                sequencer_http,
                {},
            )
        )
        pid = stack.enter_context(
            process(
                [
                    *("agent", "--sequencer", f"127.0.0.1:{rpc}", "--store", place.objects),
                    *("--listen", f"127.0.0.1:{kafka}"),
                ],
                http,
                settings,
            )
        )
        yield Server(
            pid,
            f"127.0.0.1:{kafka}",
            f"127.0.0.1:{rpc}",
            place.folder,
            sequencer_pid,
            started_mib=rss_mib(pid),
        )


@contextmanager
def process(arguments: list[str], http: int, settings: dict[str, int]) -> Iterator[int]:
    """Run one `tailrace` process. It is ready at the start of the block, and ended by SIGTERM, then by force."""
    from tailrace_cli.demo.embedded_cluster import until_ready

    command = [sys.executable, "-m", "tailrace_cli.app", *arguments]
    command += ["--http", f"127.0.0.1:{http}", "--log-level", "error"]
    environ = {**os.environ, **{name: str(value) for name, value in settings.items()}}
    started = subprocess.Popen(command, env=environ)
    try:
        until_ready(started, f"http://127.0.0.1:{http}/readyz", READY_SECONDS)
        yield started.pid
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
