"""A small cluster in one simulated loop: agents' write paths, a sequencer, a store, producers, a reader, and bad luck.

What runs is the product's own code (lanes, committer, sessions, collector, chunk cache, reader); simulated are time,
the network between agents and sequencer, the store's faults and the clients. `simulate` gives the trace of a run and
the violations of the guarantees that it found:

- every acknowledged batch is readable at the offset that its producer was told;
- the offsets of a partition are contiguous from 0 to the high watermark;
- an idempotent batch is stored once, any other at most once for each time it was sent;
- one producer's batches stand in a partition in the order in which they were sent;
- what was once read at an offset is what is always read there;
- once the faults end, every idempotent producer gets all its batches acknowledged.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from structlog.testing import capture_logs

from agent.produce.active_buffer import BufferedBatch, Submission
from agent.produce.lanes import Lane
from agent.settings import AgentSettings
from agent.telemetry import AgentTelemetry
from cache.chunk_cache import ChunkCache
from cache.reader import BatchReader
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api import (
    AgentInfo,
    AgentLease,
    BatchError,
    CommitAnswer,
    CommitRequest,
    CreateTopic,
    Empty,
    FindPartition,
    FindRequest,
    FoundPartition,
    InitProducer,
    LeaseLost,
    OpenSession,
    PartitionError,
    RenewAgent,
    Ring,
    SequencerError,
    SequencerUnavailable,
    SessionGrant,
    SessionRef,
)
from sequencer.collector import collect
from sequencer.committer import LocalSequencer
from sequencer.memory import MemoryRowStore
from sequencer.rows import Changes
from sequencer.settings import SequencerSettings
from tailrace.clock import Clock, Entropy, SeededEntropy
from tailrace.ids import TopicPartition
from tailrace.mixed_object import coordinates
from tailrace.object_store.api import ObjectStore, StoreError
from tailrace.object_store.faulty import FaultPlan, Faults, FaultyStore, Latency
from tailrace.object_store.memory import MemoryStore
from tailrace.record_batch import read_header
from tailrace.records import NewRecord, Record, decode_records, encode_batch
from tests.simulation.loop import SimulatedClock, SimulatedLoop, run_simulated

TOPIC_NAME = "events"
TROUBLE_SECONDS = 20.0
END_SECONDS = 60.0
ALONE = ZoneRing(Ring(1, []), "zone", 1)
RETRIED = (BatchError.SEQUENCE_GAP, BatchError.OUT_OF_ORDER_SEQUENCE, BatchError.UNKNOWN_PRODUCER_ID)
STORED = (BatchError.NONE, BatchError.DUPLICATE)

AGENT_SETTINGS = AgentSettings(
    linger_ms=50,
    flush_bytes=64 * 1024,
    upload_deadline_ms=1_000,
    commit_deadline_ms=3_000,
    gap_deadline_ms=1_500,
    session_rotation_seconds=4,
)
SEQUENCER_SETTINGS = SequencerSettings(
    session_lease_ms=4_000,
    agent_lease_ms=4_000,
    committer_lease_ms=1_500,
    deletion_grace_ms=5_000,
    sweep_interval_ms=5_000,
    commit_wait_ms=1_000,
)
CACHE_SETTINGS = CacheSettings(chunk_bytes=4_096, memory_bytes=64 * 1024, catch_up_age_ms=2_000)

_PUT = Faults(
    Latency(40, 300), fails_before=0.05, fails_after=0.05, hangs_before=0.02, hangs_after=0.02, hang_seconds=8
)
_GET = Faults(Latency(10, 80), fails_before=0.05)
_OTHER = Faults(Latency(20, 100), fails_before=0.05, fails_after=0.05)
TROUBLED = FaultPlan(put=_PUT, get=_GET, list=_OTHER, delete=_OTHER)
CALM = FaultPlan(put=Faults(Latency(40, 120)), get=Faults(Latency(10, 40)))

LaneOf = Callable[..., Lane]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated. `lane`: the write path under test, so that a test can plant a bug in it."""

    partitions: int = 3
    idempotent_producers: int = 3
    plain_producers: int = 1
    batches_per_partition: int = 12
    window: int = 3
    lane: LaneOf = Lane


@dataclass(slots=True)
class Result:
    """What a run did: its events in order, and which guarantees did not hold."""

    seed: int
    trace: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    acknowledged: int = 0
    crashes: int = 0

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


def simulate(seed: int, scenario: Scenario | None = None) -> Result:
    """Run one seed to its end. What breaks (deadlock, overtime, an unforeseen error) is a violation too."""
    result = Result(seed)
    chosen = scenario or Scenario()

    async def main(loop: SimulatedLoop) -> None:
        await World(loop, seed, chosen, result).run()

    with capture_logs() as logs:
        try:
            run_simulated(seed, main, END_SECONDS)
        except Exception as error:
            result.violations.append(f"{type(error).__name__}: {error}")
    for entry in logs:
        result.trace.append(f"log {entry['log_level']} {entry['event']}")
        if entry["log_level"] == "error":
            result.violations.append(f"logged as unforeseen: {entry['event']}: {entry.get('exc_info')!r}")
    return result


class SlowRowStore(MemoryRowStore):
    """Rows whose writes take time and sometimes fail, before or after they took effect."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        super().__init__(clock)
        self._pace = clock
        self._luck = entropy
        self.failing = 0.0

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        await self._pace.sleep(0.002 + 0.02 * self._luck.fraction())
        luck = self._luck.fraction()
        if luck < self.failing:
            self.fail_next_write("before" if luck < self.failing / 2 else "after")
        await super().write(changes, committer_epoch)


class UnreliableSequencer:
    """The sequencer as an agent reaches it over a bad network: requests and answers are lost, late, or repeated.

    A request that was sent takes effect even where its sender has gone: a crash cancels who waits, not what is under
    way.
    """

    def __init__(self, current: Callable[[], LocalSequencer], clock: Clock, entropy: Entropy) -> None:
        self._current = current
        self._clock = clock
        self._entropy = entropy
        self._sent: dict[asyncio.Task[Any], None] = {}
        self.trouble = 0.1

    async def open_session(self, request: OpenSession) -> SessionGrant:
        return await self._send(lambda: self._current().open_session(request))

    async def renew_session(self, request: SessionRef) -> SessionGrant:
        return await self._send(lambda: self._current().renew_session(request))

    async def close_session(self, request: SessionRef) -> Empty:
        return await self._send(lambda: self._current().close_session(request))

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        return await self._send(lambda: self._current().commit(request))

    async def renew_agent(self, request: RenewAgent) -> AgentLease:
        return await self._send(lambda: self._current().renew_agent(request))

    async def _send(self, call: Callable[[], Awaitable[Any]]) -> Any:
        luck, delay = self._entropy.fraction(), 0.001 + 0.01 * self._entropy.fraction()
        share = self.trouble / 4
        if luck < share:
            await self._clock.sleep(delay)
            raise SequencerUnavailable("the request was lost (simulated)")
        if luck < 2 * share:
            self._start(call, delay + 3 * self._entropy.fraction())
            await self._clock.sleep(0.5)
            raise SequencerUnavailable("the request is late (simulated)")
        if luck < 3 * share:
            self._start(call, delay + 2 * self._entropy.fraction())  # the same request a second time, later
        answer = self._start(call, delay)
        done, _ = await asyncio.wait({answer}, timeout=4.0)
        if not done:
            raise SequencerUnavailable("no answer in time (simulated)")
        if 3 * share <= luck < 4 * share:
            raise SequencerUnavailable("the answer was lost (simulated)")
        return await answer

    def _start(self, call: Callable[[], Awaitable[Any]], delay: float) -> asyncio.Task[Any]:
        async def sent() -> Any:
            await self._clock.sleep(delay)
            return await call()

        task = asyncio.ensure_future(sent())
        self._sent[task] = None
        task.add_done_callback(self._arrived)
        return task

    def _arrived(self, task: asyncio.Task[Any]) -> None:
        self._sent.pop(task, None)
        if not task.cancelled():
            task.exception()  # whoever still waits has it too


class SimulatedAgent:
    """One agent's write path: a lane, its lease, its place in the cluster. A crash ends it for good."""

    def __init__(self, world: World, name: str, scenario: Scenario) -> None:
        self._world = world
        self.name = name
        self.sequencer = UnreliableSequencer(
            lambda: world.sequencer, world.clock, world.entropy(name + " network")
        )
        self.store = FaultyStore(world.objects, world.clock, world.entropy(name + " store"), TROUBLED)
        self.cache = ChunkCache(self.store, CACHE_SETTINGS, lambda: ALONE)
        self.reader = BatchReader(self.cache, world.clock, world.pool)
        self._lease: AgentLease | None = None
        self._heart: asyncio.Task[None] | None = None
        self.crashed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lane = scenario.lane(
            0,
            settings=AGENT_SETTINGS,
            clock=world.clock,
            entropy=world.entropy(name + " lane"),
            store=self.store,
            sequencer=self.sequencer,
            cache=self.cache,
            telemetry=AgentTelemetry(),
            broker_identity=self._identity,
        )

    def _identity(self) -> tuple[int, int]:
        assert self._lease is not None
        return self._lease.broker_id, self._lease.epoch

    async def start(self) -> None:
        await self._register()
        await patiently(self._world.clock, self.lane.start)
        self._heart = asyncio.create_task(self._beat())

    async def _register(self) -> None:
        info = AgentInfo(
            self.name, 9092, self.name, 0, 0, "zone", "test", self._world.entropy(self.name).uuid()
        )
        self._lease = await patiently(self._world.clock, lambda: self._world.sequencer.register_agent(info))

    async def _beat(self) -> None:
        while True:
            await self._world.clock.sleep(0.5)
            try:
                await self.sequencer.renew_agent(RenewAgent(*self._identity()))
            except LeaseLost:
                self._world.note(f"{self.name}: registers again")
                await self._register()
            except SequencerError as error:
                self._world.note(f"{self.name}: lease not renewed: {error.code}")

    def crash(self) -> None:
        """Everything that this process runs stops where it is; what it sent is on its way."""
        lane: Any = self.lane
        for task in [self._heart, lane._sealer, lane._keeper, *sorted(lane._inflight, key=hash)]:
            if task is not None:
                task.cancel()
        self.crashed.set_result(None)

    def calm(self) -> None:
        self.store.plan = CALM
        self.sequencer.trouble = 0.0

    async def close(self) -> None:
        if not self.crashed.done():
            await self.lane.close()
            if self._heart is not None:
                self._heart.cancel()
        await self.reader.close()
        await self.cache.close()


@dataclass(slots=True)
class Sent:
    """A batch that a producer has sent at least once. `offset`: what it was told, -1 for nothing yet."""

    producer: str
    number: int
    data: bytes
    values: list[bytes]
    is_idempotent: bool
    offset: int = -1


class World:
    """The cluster of one run."""

    def __init__(self, loop: SimulatedLoop, seed: int, scenario: Scenario, result: Result) -> None:
        self._loop = loop
        self._seed = seed
        self._scenario = scenario
        self._result = result
        self.clock = SimulatedClock(loop)
        self.luck = self.entropy("world")
        self.objects = MemoryStore(self.clock)
        self.rows = SlowRowStore(self.clock, self.entropy("rows"))
        self.pool = ThreadPoolExecutor(1)  # never used: the loop runs what it is given itself
        self._sequencers = 0
        self.sequencer = self._new_sequencer()
        self.agents: list[SimulatedAgent] = []
        self._fallen: list[SimulatedAgent] = []
        self._topic = UUID(int=0)
        self._sent: dict[int, list[Sent]] = {number: [] for number in range(scenario.partitions)}
        self._read: dict[tuple[int, int], Record] = {}

    def entropy(self, name: str) -> SeededEntropy:
        """A source of its own for each part: what one draws doesn't shift another's."""
        digest = hashlib.sha256(f"{self._seed} {name}".encode()).digest()
        return SeededEntropy(int.from_bytes(digest[:8], "big"))

    def note(self, event: str) -> None:
        self._result.trace.append(f"{self._loop.time():.6f} {event}")

    def violated(self, what: str) -> None:
        self._result.violations.append(f"at {self._loop.time():.3f} s: {what}")

    # --- the run

    async def run(self) -> None:
        await patiently(self.clock, self.sequencer.start)
        self._topic = (
            await patiently(
                self.clock,
                lambda: self.sequencer.create_topic(CreateTopic(TOPIC_NAME, self._scenario.partitions, {})),
            )
        ).topic_id
        self.rows.failing = 0.03
        self.agents = [SimulatedAgent(self, f"agent {number}", self._scenario) for number in (1, 2)]
        for agent in self.agents:
            await agent.start()
        background = [
            asyncio.create_task(each) for each in (self._maintain(), self._read_on(), self._misfortune())
        ]
        async with asyncio.TaskGroup() as producers:
            for number in range(self._scenario.idempotent_producers):
                producers.create_task(self._produce_idempotently(f"producer {number}"))
            for number in range(self._scenario.plain_producers):
                producers.create_task(self._produce_plainly(f"plain {number}"))
        for task in background:
            task.cancel()
        for outcome in await asyncio.gather(*background, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        self._end_trouble()
        for agent in [*self.agents, *self._fallen]:
            await agent.close()
        await self._check()
        await self.sequencer.close()
        self._result.violations.extend(self._loop.unhandled)

    def _new_sequencer(self) -> LocalSequencer:
        self._sequencers += 1
        entropy = self.entropy(f"sequencer {self._sequencers}")
        return LocalSequencer(self.rows, self.clock, entropy, SEQUENCER_SETTINGS)

    def _end_trouble(self) -> None:
        self.rows.failing = 0.0
        for agent in self.agents:
            agent.calm()

    # --- bad luck and housekeeping

    async def _misfortune(self) -> None:
        """One agent crashes and another takes its place; the committer crashes and another takes over."""
        misfortunes = [(self._crash_an_agent, 0.0), (self._crash_the_sequencer, 0.0)]
        times = sorted((0.3 + 1.5 * self.luck.fraction(), number) for number in range(len(misfortunes)))
        for at, number in times:
            await self.clock.sleep(max(0.0, at - self.clock.monotonic()))
            await misfortunes[number][0]()
        await self.clock.sleep(max(0.0, TROUBLE_SECONDS - self.clock.monotonic()))
        self.note("the faults end")
        self._end_trouble()

    async def _crash_an_agent(self) -> None:
        index = self.luck.below(len(self.agents))
        fallen = self.agents[index]
        self.note(f"{fallen.name} crashes")
        self._result.crashes += 1
        fallen.crash()
        self._fallen.append(fallen)
        successor = SimulatedAgent(self, f"agent {len(self.agents) + len(self._fallen)}", self._scenario)
        await self.clock.sleep(self.luck.fraction())
        await successor.start()
        self.agents[index] = successor
        self.note(f"{successor.name} is there")

    async def _crash_the_sequencer(self) -> None:
        self.note("the committer crashes")
        self._result.crashes += 1
        fallen: Any = self.sequencer
        for task in fallen._tasks:
            task.cancel()
        successor = self._new_sequencer()
        await patiently(self.clock, successor.start)
        self.sequencer = successor
        self.note("another committer is there")

    async def _maintain(self) -> None:
        """Retention and the collector, as a sequencer node runs them."""
        store = FaultyStore(self.objects, self.clock, self.entropy("collector store"), TROUBLED)
        while True:
            await self.clock.sleep(1.0)
            try:
                await bounded(self.sequencer.apply_retention(Empty()))
                async with asyncio.timeout(20.0):
                    done = await collect(self.sequencer, store, self.clock)
                self.note(f"collected {done.objects_deleted} objects, {done.orphans_deleted} orphans")
            except (SequencerError, StoreError, TimeoutError) as error:
                self.note(f"collector: {type(error).__name__}")

    # --- producers

    def _batch(self, producer: str, partition: int, number: int, producer_id: int, sequence: int) -> Sent:
        count = 1 + self.luck.below(3)
        values = [f"{producer}/{partition}/{number}/{record}".encode() for record in range(count)]
        now = self.clock.wall_ms()
        data = encode_batch(
            [NewRecord(b"k", value + b"." * self.luck.below(300)) for value in values],
            timestamps=[now] * count,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
        )
        sent = Sent(producer, number, data, values, producer_id >= 0)
        self._sent[partition].append(sent)
        return sent

    async def _send(self, agent: SimulatedAgent, partition: int, batch: Sent) -> tuple[bool, bool]:
        """Give the batch to the agent and wait: (is it stored, may it be sent again)."""
        if agent.crashed.done():
            await self.clock.sleep(0.1)
            return False, True
        submission = Submission(1)
        buffered = BufferedBatch(coordinates(read_header(batch.data)), batch.data, submission, 0)
        agent.lane.add(TopicPartition(self._topic, partition), TOPIC_NAME, buffered)
        await asyncio.wait({submission.done, agent.crashed}, timeout=8.0, return_when=asyncio.FIRST_COMPLETED)
        found = submission.results[0]
        if found is None or agent.crashed.done():
            self.note(f"{batch.producer} {partition} {batch.number}: no answer from {agent.name}")
            return False, True
        if found.failure is not None or found.error in RETRIED:
            reason = found.failure.kind if found.failure else found.error.name
            self.note(f"{batch.producer} {partition} {batch.number}: {reason} from {agent.name}")
            return False, True
        if found.error not in STORED:
            self.violated(f"{batch.producer} {partition} {batch.number}: refused with {found.error.name}")
            return False, False
        if batch.offset >= 0 and batch.offset != found.base_offset:
            self.violated(f"{batch.values} was given offsets {batch.offset} and {found.base_offset}")
        batch.offset = found.base_offset
        self._result.acknowledged += 1
        self.note(f"{batch.producer} {partition} {batch.number}: at {found.base_offset} from {agent.name}")
        return True, False

    async def _produce_idempotently(self, name: str) -> None:
        grant = await patiently(self.clock, lambda: self.sequencer.init_producer(InitProducer()))
        async with asyncio.TaskGroup() as partitions:
            for partition in range(self._scenario.partitions):
                partitions.create_task(self._keep_sending(name, partition, grant.producer_id))

    async def _keep_sending(self, name: str, partition: int, producer_id: int) -> None:
        """Batches in windows, as Kafka's clients send them: what failed is sent again, in order, perhaps elsewhere."""
        number = sequence = 0
        while number < self._scenario.batches_per_partition:
            window: list[Sent] = []
            for _ in range(1 + self.luck.below(self._scenario.window)):
                batch = self._batch(name, partition, number, producer_id, sequence)
                number, sequence = number + 1, sequence + len(batch.values)
                window.append(batch)
            while window:
                agent = self.agents[self.luck.below(len(self.agents))]
                fates = await self._send_in_order(agent, partition, window)
                window = [batch for batch, (_, is_again) in zip(window, fates, strict=True) if is_again]
                if window:
                    await self.clock.sleep(0.05 * self.luck.fraction())
            await self.clock.sleep(0.3 * self.luck.fraction())

    async def _send_in_order(
        self, agent: SimulatedAgent, partition: int, window: Sequence[Sent]
    ) -> list[tuple[bool, bool]]:
        sending: list[asyncio.Task[tuple[bool, bool]]] = []
        for batch in window:  # one connection: each enters the buffer before the next is read
            sending.append(asyncio.create_task(self._send(agent, partition, batch)))
            await self.clock.sleep(0.001 + 0.02 * self.luck.fraction())
        return [await each for each in sending]

    async def _produce_plainly(self, name: str) -> None:
        """Batches without sequences, each sent once to one agent while it lives, several in flight."""
        agent = self.agents[0]
        for number in range(self._scenario.batches_per_partition):
            if agent.crashed.done():
                return
            partition = number % self._scenario.partitions
            window = [self._batch(name, partition, number * 10 + each, -1, -1) for each in range(2)]
            await self._send_in_order(agent, partition, window)
            await self.clock.sleep(0.2 * self.luck.fraction())

    # --- readers

    async def _read_on(self) -> None:
        """Read each partition from its start to its end, again and again, through the living agents' caches."""
        positions = dict.fromkeys(range(self._scenario.partitions), 0)
        while True:
            partition = self.luck.below(self._scenario.partitions)
            agent = self.agents[self.luck.below(len(self.agents))]
            try:
                records, end, _ = await self._read_once(agent.reader, partition, positions[partition])
            except (SequencerError, StoreError) as error:
                self.note(f"reader {partition}: {type(error).__name__}")
                await self.clock.sleep(0.05)
                continue
            self._saw(partition, records)
            self.note(f"read {partition} from {positions[partition]} to {end}")
            positions[partition] = 0 if not records and self.luck.below(3) == 0 else end
            await self.clock.sleep(0.02 + 0.1 * self.luck.fraction())

    async def _read_once(
        self, reader: BatchReader, partition: int, offset: int
    ) -> tuple[list[Record], int, FoundPartition]:
        wanted = FindPartition(self._topic, partition, offset, 8_192)
        found = (await bounded(self.sequencer.find_batches(FindRequest([wanted])))).partitions[0]
        if found.error is not PartitionError.NONE:
            self.violated(f"partition {partition}: {found.error.name} at {offset}")
            return [], offset, found
        got = await reader.read(found.runs, offset, 8_192, found.leader_epoch, end_limit=found.high_watermark)
        data = memoryview(b"".join(got.parts))
        records: list[Record] = []
        while data:
            length = read_header(data).length
            records.extend(decode_records(data[:length]))
            data = data[length:]
        return [record for record in records if record.offset >= offset], got.end_offset, found

    def _saw(self, partition: int, records: Sequence[Record]) -> None:
        for record in records:
            before = self._read.setdefault((partition, record.offset), record)
            if before != record:
                self.violated(
                    f"partition {partition} offset {record.offset}: {before.value!r}, then {record.value!r}"
                )

    # --- what must hold

    async def _check(self) -> None:
        plain_store: ObjectStore = self.objects
        cache = ChunkCache(plain_store, CACHE_SETTINGS, lambda: ALONE)
        reader = BatchReader(cache, self.clock, self.pool)
        for partition in range(self._scenario.partitions):
            log: list[Record] = []
            offset, high_watermark = 0, 1
            while offset < high_watermark:
                try:
                    records, end, found = await self._read_once(reader, partition, offset)
                except StoreError as error:
                    self.violated(f"partition {partition} offset {offset}: {type(error).__name__}: {error}")
                    break
                high_watermark = found.high_watermark
                if end <= offset and offset < high_watermark:
                    self.violated(f"partition {partition}: nothing at {offset} below {high_watermark}")
                    break
                log.extend(records)
                offset = end
            self._saw(partition, log)
            self._check_log(partition, log, offset)
        await reader.close()
        await cache.close()

    def _check_log(self, partition: int, log: Sequence[Record], end: int) -> None:
        if [record.offset for record in log] != list(range(end)):
            self.violated(f"partition {partition}: offsets {[record.offset for record in log]}, end {end}")
        values = [bytes(record.value or b"").rstrip(b".") for record in log]
        if len(set(values)) != len(values):
            doubled = sorted({value for value in values if values.count(value) > 1})
            self.violated(f"partition {partition}: stored more than once: {doubled[:5]}")
        at = {record.offset: value for record, value in zip(log, values, strict=True)}
        for batch in self._sent[partition]:
            if batch.offset < 0 and batch.is_idempotent:
                self.violated(f"partition {partition}: {batch.values[0]!r} was never acknowledged")
            if (
                batch.offset >= 0
                and [at.get(batch.offset + n) for n in range(len(batch.values))] != batch.values
            ):
                self.violated(
                    f"partition {partition}: {batch.values[0]!r} acknowledged at {batch.offset} is not there"
                )
        numbers: dict[bytes, list[tuple[int, int]]] = {}
        for value in values:
            producer, _, number, record = value.split(b"/")
            numbers.setdefault(producer, []).append((int(number), int(record)))
        for name, order in numbers.items():
            if order != sorted(order):
                self.violated(f"partition {partition}: {name.decode()} out of order: {order}")
        self.note(f"log {partition}: {hashlib.sha256(b' '.join(values)).hexdigest()}")


async def bounded(call: Awaitable[Any]) -> Any:
    """The answer, or SequencerUnavailable where none comes: a crashed committer answers nothing."""
    try:
        async with asyncio.timeout(2.0):
            return await call
    except TimeoutError:
        raise SequencerUnavailable("no answer in time (simulated)") from None


async def patiently(clock: Clock, call: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until there is an answer."""
    while True:
        try:
            return await bounded(call())
        except SequencerError:
            await clock.sleep(0.1)
