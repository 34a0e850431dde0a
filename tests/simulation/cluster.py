"""The product's own processes in a simulated world: sequencer nodes, agents, a compactor, over a database and a store.

All of it is the product's code, from the bytes of a Kafka request to the rows: `agent.server.Agent` except its sockets,
`sequencer.server.SequencerServer` with its committer's lease, RPC with its retries, the collector, the compactor with
its tasks in this process. Time, the network, and the faults of database and store are simulated.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from agent.connection import KafkaConnection
from agent.options import AgentOptions
from agent.server import Agent
from agent.settings import AgentSettings
from cache.disk import DiskTier
from cache.settings import CacheSettings
from compactor.cycle import CompactionSettings, CompactionSummary, InProcess, run_cycle
from compactor.erasure.erase import EraseFailed, EraseRequest, ErasureWork, erase_keys
from compactor.erasure.search import SearchKeys
from compactor.rounds import RoundOutcome, Rounds
from sequencer.api.agents import Member
from sequencer.api.errors import IncarnationChanged, SequencerError, SequencerUnavailable
from sequencer.api.topics import MetadataRequest
from sequencer.client import SequencerClient
from sequencer.recovery.recover import RecoveryRefused, recover
from sequencer.recovery.report import RecoveryReport
from sequencer.server import SequencerServer
from sequencer.settings import SequencerSettings, ServerSettings
from sequencer.store.row_store import DatabaseIdentity, RowStore
from sequencer.store.rows import Changes, Row
from tailrace.clock import Clock, Entropy
from tailrace.object_store.api import ObjectInfo, ObjectStore, StoreError
from tailrace.rpc import KnownCluster, RpcClient, RpcServer
from tests.simulation.disk import CountedReads, disk_tier
from tests.simulation.loop import PROCESS, Crashed, SimulatedClock, SimulatedLoop, SimulatedProcess
from tests.simulation.network import Network
from tests.simulation.scenario import CALM
from tests.support.faulty_store import FaultPlan, FaultyStore, Operation
from tests.support.simulated_link import Weather

T = TypeVar("T")

UNFORESEEN = "unforeseen (simulated)"

SLOWEST_WRITE_S = 1.9
"""Longer than the committer's lease, shorter than half the deletion's grace."""
MAX_RECOVERIES_IN_BAD_WEATHER = 3
KAFKA_PORT, PEER_PORT, SEQUENCER_PORT = 9092, 9093, 9094


class Unforeseen(RuntimeError):
    """An error that no interface declares."""


class ErasureWatch(Protocol):
    """Observes the results of erasures."""

    def erasure_begins(self, key: bytes) -> Any:
        """Return what is known about the key, to be passed to `erasure_ended`."""
        ...

    def erasure_ended(self, begun: Any, count: int) -> None: ...

    def erasure_failed(self, error: Exception) -> None: ...


class SimulatedRows:
    """Rows whose transactions and reads take time and sometimes fail. A transaction may fail before or after it took
    effect.

    A transaction that was sent to the database is carried out, whatever happens to the process that sent it.
    """

    def __init__(
        self,
        inner: RowStore,
        database: SimulatedProcess,
        clock: Clock,
        entropy: Entropy,
        slow_luck: Entropy,
    ) -> None:
        self.inner = inner
        self._database = database
        self._clock = clock
        self._luck = entropy
        self._identity: DatabaseIdentity | None = None
        self.failing = 0.0
        self.unforeseen = 0.0
        """The chance that a call raises an error that no interface declares: a bug in a driver, no memory left."""
        self.slow_reads = 0.0
        self.slow_writes = 0.0
        self.max_write_s = 0.02
        self.max_load_s = 0.01
        self.answers_s = 0.0
        """Every answer takes between 2/5 of this and all of it; half of that passes before a call takes effect."""
        self.slow_luck = slow_luck
        self.loads: Counter[SimulatedProcess | None] = Counter()
        """How often each process loaded the state: a server does so once, whether it commits or follows."""
        self.writes = 0
        """How many writes reached the database, including those that it refused."""
        self.terms = 0
        """How many committers have begun."""
        self.watch: Callable[[Changes], None] = lambda changes: None
        self.cut_off: list[SimulatedProcess] = []
        """Processes that can't reach the database, while others can."""

    async def open(self) -> DatabaseIdentity:
        await self._find_a_way()
        if self._identity is None:
            self._identity = await self.inner.open()
        return self._identity

    def replace(self, inner: RowStore) -> None:
        """Replace the database. Calls in progress to the old one are lost with it."""
        self.inner, self._identity = inner, None

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        await self._clock.sleep(0.01 * self._luck.fraction())  # a process that stops now sends it later
        await self._find_a_way()
        await self._outside(self._write(changes, committer_epoch))
        await self._find_a_way()

    async def _write(self, changes: Changes, committer_epoch: int) -> None:
        inner = self.inner
        is_slow = self.slow_writes and self._luck.fraction() < self.slow_writes
        most = SLOWEST_WRITE_S if is_slow else self.max_write_s
        await self._clock.sleep(0.001 + most * self._luck.fraction())
        luck = self._luck.fraction()
        if luck < self.failing / 2:
            raise SequencerUnavailable("the write failed before it took effect (simulated)")
        self._be_surprising()
        await self._be_slow()
        if inner is not self.inner:
            raise SequencerUnavailable("the database is gone (simulated)")
        self.writes += 1
        await inner.write(changes, committer_epoch)
        self.watch(changes)
        await self._be_slow()
        self._be_surprising()
        if luck < self.failing:
            raise SequencerUnavailable("the write failed after it took effect (simulated)")

    def _be_surprising(self) -> None:
        if self.unforeseen and self._luck.fraction() < self.unforeseen:
            raise Unforeseen(UNFORESEEN)

    async def load(self) -> dict[type[Row], list[Row]]:
        self.loads[PROCESS.get()] += 1
        await self._find_a_way()
        await self._clock.sleep(self.max_load_s * (0.7 + 0.3 * self._luck.fraction()))
        self._be_surprising()
        await self._be_slow()
        return await self.inner.load()

    async def take_committer_lease(self, holder: str, address: str, lease_ms: int) -> int | None:
        await self._ask_for_lease()
        epoch = await self.inner.take_committer_lease(holder, address, lease_ms)
        self.terms += epoch is not None
        await self._ask_for_lease()
        return epoch

    async def renew_committer_lease(self, epoch: int, lease_ms: int) -> bool:
        await self._ask_for_lease()
        is_held = await self.inner.renew_committer_lease(epoch, lease_ms)
        await self._ask_for_lease()
        return is_held

    async def _ask_for_lease(self) -> None:
        await self._clock.sleep(0.005 * self._luck.fraction())
        await self._be_slow()
        self._be_surprising()
        await self._maybe_fail()

    async def _maybe_fail(self) -> None:
        await self._find_a_way()
        if self.failing and self._luck.fraction() < self.failing / 2:
            raise SequencerUnavailable("the database did not answer (simulated)")

    async def _find_a_way(self) -> None:
        """Fail if the process can't reach the database: at once, or after a while without an answer."""
        if PROCESS.get() in self.cut_off:
            await self._clock.sleep(max(0.001, 2.0 * self._luck.fraction() - 1.0))
            raise SequencerUnavailable("no way to the database (simulated)")

    async def close(self) -> None:
        """Keep the rows."""

    def __getattr__(self, name: str) -> Any:
        """Forward every other attribute to the database."""
        return partial(self._ask, getattr(self.inner, name))

    async def _ask(self, asked: Callable[..., Awaitable[T]], *query: Any, **named: Any) -> T:
        await self._read()
        answer = await asked(*query, **named)
        await self._read()
        return answer

    async def _be_slow(self) -> None:
        if self.answers_s:
            await self._clock.sleep(self.answers_s / 2 * (0.4 + 0.6 * self.slow_luck.fraction()))

    async def _read(self) -> None:
        self._be_surprising()
        await self._maybe_fail()
        await self._be_slow()
        if self.slow_reads and self._luck.fraction() < self.slow_reads:
            await self._clock.sleep(0.02 * self._luck.fraction())

    async def _outside(self, work: Any) -> Any:
        task = self._database.spawn(work)
        task.add_done_callback(seen, context=self._database.context)
        return await asyncio.shield(task)


class SimulatedStore(FaultyStore):
    """The object store as one process reaches it. A request that was sent is carried out, whether or not the caller
    still waits."""

    def __init__(
        self,
        inner: ObjectStore,
        outside: SimulatedProcess,
        clock: Clock,
        entropy: Entropy,
        plan: FaultPlan,
    ) -> None:
        super().__init__(inner, clock, entropy, plan)
        self._outside = outside
        self._unforeseen_luck = entropy
        self.unforeseen = 0.0
        """See SimulatedRows."""

    async def _do(self, operation: Operation, key: str, effect: Callable[[], Awaitable[T]]) -> T:
        if self.unforeseen and self._unforeseen_luck.fraction() < self.unforeseen:
            raise Unforeseen(UNFORESEEN)
        task = self._outside.spawn(super()._do(operation, key, effect))
        task.add_done_callback(seen, context=self._outside.context)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Do nothing: the store outlives its users."""

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        found = [info async for info in super().list(prefix, start_after=start_after)]
        for info in found:
            yield info


def seen(task: asyncio.Task[Any]) -> None:
    """Mark a task's error as seen: its caller may be gone and do nothing more."""
    if not task.cancelled():
        task.exception()


class _Listener:
    """Stands in for the socket that a simulated agent doesn't have."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close


class SimulatedAgent(Agent):
    """An agent without sockets: the network gives it connections."""

    def __init__(
        self,
        process: SimulatedProcess,
        network: Network,
        *,
        host: str,
        zone: str,
        settings: AgentSettings,
        cache_settings: CacheSettings,
        sequencer: SequencerClient,
        store: SimulatedStore,
        entropy: Entropy,
        cache_disk: DiskTier | None,
    ) -> None:
        super().__init__(
            AgentOptions(host, KAFKA_PORT, host, KAFKA_PORT, zone, host, PEER_PORT, host),
            settings,
            sequencer=sequencer,
            store=store,
            clock=SimulatedClock(process.loop, process),
            entropy=entropy,
            cache_settings=cache_settings,
            cache_disk=cache_disk,
            on_lost=self._mark_lost,
        )
        self.is_lost = False
        """It asked to be ended; its supervisor restarts it."""
        self.process = process
        self.host = host
        self.address = f"{host}:{KAFKA_PORT}"
        self.remote = sequencer
        self.faults = store
        self._network = network

    async def start(self) -> None:
        self._peer_server = RpcServer(
            self._serve_peer, clock=self._clock, entropy=self._entropy, known=self._known
        )
        self._network.serve(f"{self.host}:{PEER_PORT}", self.process, self._peer_server)
        self.kafka_ports, self.peer_port = {"": KAFKA_PORT}, PEER_PORT
        await self._join()
        listener = _Listener(lambda: self._network.stop_listening(self.address))
        self._listeners = [cast(asyncio.Server, listener)]
        self._network.listen(self.address, self)

    @property
    def has_joined(self) -> bool:
        """Whether it has its services."""
        return self._services is not None

    def _mark_lost(self, reason: str) -> None:
        self.is_lost = True

    def accept(self) -> KafkaConnection:
        """A connection for a client."""
        return self._connections.accepting("")()

    def _peer_link(self, member: Member) -> RpcClient:
        address = f"{member.info.peer_host}:{member.info.peer_port}"
        link = self._network.link(address, self._network.peer_weather)
        return RpcClient(link, clock=self._clock, entropy=self._entropy, known=self._known)


class Cluster:
    """The processes of one run. It makes no random choices itself; see tests.simulation.world."""

    def __init__(
        self,
        loop: SimulatedLoop,
        entropy: Callable[[str], Entropy],
        *,
        rows: RowStore,
        objects: ObjectStore,
        agent_settings: AgentSettings,
        sequencer_settings: SequencerSettings,
        node_settings: ServerSettings,
        cache_settings: CacheSettings,
        plan: FaultPlan,
        sequencers: int,
        call_timeout_s: float = 1.0,
        patience_s: float = 3.0,
    ) -> None:
        self.loop = loop
        self.entropy = entropy
        self.clock = SimulatedClock(loop)
        self.outside = SimulatedProcess("outside", loop)
        self.network = Network(loop, entropy("network"))
        self.objects = objects
        self.rows = SimulatedRows(
            rows, self.outside, self.clock, entropy("rows"), entropy("the database is slow")
        )
        self.agents: dict[str, SimulatedAgent] = {}
        self.nodes: dict[str, tuple[SimulatedProcess, SequencerServer]] = {}
        self.stores: list[SimulatedStore] = []
        self.weathers: dict[str, Weather] = {}
        self.plan = plan
        self._agent_settings = agent_settings
        self._sequencer_settings = sequencer_settings
        self._node_settings = node_settings
        self._cache_settings = cache_settings
        self.addresses = [f"sequencer-{number}:{SEQUENCER_PORT}" for number in range(1, sequencers + 1)]
        self._call_timeout_s = call_timeout_s
        self._patience_s = patience_s
        self._births = 0
        self.is_compacting = True
        self.workers: list[SimulatedProcess] = []
        """Processes that are compacting or erasing now."""
        self.at_work: list[SimulatedProcess] = []
        """Those that are in the middle of a round, or were when they ended."""
        self.done: Counter[str] = Counter()
        """How many rounds compactors and erasers have completed."""
        self.max_compacted_runs = 20_000
        self.merges = False
        self.compacts_keys = False
        self.stutter = 0.0
        self.disk_reads: CountedReads | None = None
        """What agents read from their disks; None if they have none."""

    def process(self, name: str, wall_offset_ms: int = 0) -> SimulatedProcess:
        """Create a process with a unique name."""
        self._births += 1
        return SimulatedProcess(f"{name}#{self._births}", self.loop, wall_offset_ms)

    def product_process(self, name: str, wall_offset_ms: int = 0) -> SimulatedProcess:
        """Create a process of the product. It stutters if the cluster does."""
        process = self.process(name, wall_offset_ms)
        process.stutter = self.stutter
        return process

    def begin_stutter(self, chance: float) -> None:
        """From now on every process of the product, also a new one, may pause before any of its steps."""
        self.stutter = chance
        for process in [agent.process for agent in self.agents.values()]:
            process.stutter = chance
        for process, _ in self.nodes.values():
            process.stutter = chance

    def store_of(self, process: SimulatedProcess) -> SimulatedStore:
        store = SimulatedStore(
            self.objects, self.outside, self.clock, self.entropy(process.name + " store"), self.plan
        )
        store.unforeseen = self.rows.unforeseen
        self.stores.append(store)
        return store

    def sequencer_of(self, process: SimulatedProcess) -> SequencerClient:
        """Return a client through which the process reaches the sequencer."""
        at = len(self.nodes) and self._births % len(self.addresses)
        weather = self.weathers[process.name] = replace(self.network.weather)
        return SequencerClient(
            [*self.addresses[at:], *self.addresses[:at]],
            clock=SimulatedClock(self.loop, process),
            entropy=self.entropy(process.name + " rpc"),
            known=KnownCluster(),
            patience_s=self._patience_s,
            timeout_s=self._call_timeout_s,
            slow_timeout_s=5.0 * self._call_timeout_s,
            link=lambda address: self.network.link(address, weather, process.name),
        )

    # --- sequencers

    async def start_node(self, address: str, wall_offset_ms: int = 0) -> None:
        """Start a sequencer server at one of the addresses, in place of the one that was there."""
        if address in self.nodes:
            former, _ = self.nodes[address]
            former.crash()  # it may still live and drain: two can't have one address
            self.network.reset(former)  # callers of this address reach another machine now
        process = self.product_process(address, wall_offset_ms)
        node = SequencerServer(
            cast(RowStore, self.rows),
            SimulatedClock(self.loop, process),
            self.entropy(process.name),
            settings=replace(self._node_settings, advertise=address),
            sequencer_settings=self._sequencer_settings,
            object_store=self.store_of(process),
            link=self.network.link,
        )
        self.nodes[address] = (process, node)
        self.network.serve(address, process, node.server)
        while True:
            try:
                await process.run(node.start(listen=False))
                return
            except Crashed:
                return
            except SequencerError:
                await self.clock.sleep(0.1)

    def committer(self) -> str | None:
        """Return the address of the node that is the committer now."""
        return next(
            (address for address, (process, node) in self.nodes.items() if node.is_committer and not process.is_dead),
            None,
        )  # fmt: skip

    def followers(self) -> list[str]:
        """Return the addresses of the live nodes that are not the committer."""
        committer = self.committer()
        return [
            address
            for address, (process, _) in self.nodes.items()
            if address != committer and not process.is_dead
        ]

    # --- agents

    async def start_agent(self, host: str, zone: str, wall_offset_ms: int = 0) -> SimulatedAgent:
        """Start an agent at this host, in place of the one that was there, and wait until it serves.

        A process that gets no answer from the sequencer ends, and its supervisor starts another. Whatever the first had
        learned, such as the cluster's incarnation, is lost with it.
        """
        while True:
            agent = self._new_agent(host, zone, wall_offset_ms)
            try:
                with suppress(Crashed):
                    await agent.process.run(agent.start())
                return agent
            except SequencerError:
                await self.clock.sleep(0.2)

    def _new_agent(self, host: str, zone: str, wall_offset_ms: int) -> SimulatedAgent:
        if host in self.agents:
            self.crash(self.agents[host].process, is_seen=True)  # it may live: two can't share an address
            self.network.reset(self.agents[host].process)
        process = self.product_process(host, wall_offset_ms)
        agent = SimulatedAgent(
            process,
            self.network,
            host=host,
            zone=zone,
            settings=self._agent_settings,
            cache_settings=self._cache_settings,
            sequencer=self.sequencer_of(process),
            store=self.store_of(process),
            entropy=self.entropy(process.name),
            cache_disk=self._disk_of(process),
        )
        self.agents[host] = agent
        return agent

    def _disk_of(self, process: SimulatedProcess) -> DiskTier | None:
        if self.disk_reads is None:
            return None
        return disk_tier(
            SimulatedClock(self.loop, process), self.entropy(process.name + " disk"), self.disk_reads
        )

    # --- the compactor

    async def compact_for_ever(self, pause_s: Callable[[], float], note: Callable[[str], None]) -> None:
        """Run compaction jobs one after the other in their own process; several may run at once. Each opens an upload
        session, so they must end (`is_compacting`) before all sessions must be gone."""
        await self._keep_running("compactor", lambda process: self._compact(process, pause_s, note))

    async def _keep_running(
        self, name: str, work: Callable[[SimulatedProcess], Coroutine[Any, Any, None]]
    ) -> None:
        """Run the work in its own process, and after a crash in another, as under a supervisor."""
        while self.is_compacting:
            process = self.product_process(name)
            self.workers.append(process)
            with suppress(Crashed):
                await process.run(_crashed_by_what_is_foreseen(process, work(process)))
            if process.is_dead:
                await self.clock.sleep(0.5)
            self.workers.remove(process)

    async def _compact(
        self, process: SimulatedProcess, pause_s: Callable[[], float], note: Callable[[str], None]
    ) -> None:
        clock = SimulatedClock(self.loop, process)
        entropy = self.entropy(process.name)
        sequencer = self.sequencer_of(process)
        runner = InProcess(self.store_of(process), clock, entropy)
        settings = CompactionSettings(
            min_bytes=1,
            min_age_ms=0,
            lease_ms=3_000,
            max_rounds=6 if self.merges else 3,
            max_runs=self.max_compacted_runs,
            merges=self.merges,
            key_memory_bytes=1 << 20,
        )

        async def run_round(summary: CompactionSummary) -> None:
            await run_cycle(
                sequencer,
                runner,
                clock=clock,
                entropy=entropy,
                settings=settings,
                summary=summary,
                keyed=runner if self.compacts_keys else None,
            )

        rounds = Rounds(run_round, clock)
        while self.is_compacting:
            await clock.sleep(pause_s())
            self.at_work.append(process)
            outcome = await rounds.run_once()
            self.at_work.remove(process)
            self.done["compactor"] += outcome is RoundOutcome.DONE
            done = rounds.current
            note(f"compaction {outcome}: {done.objects} objects, {len(done.refused)} refused")
            if done.merged_objects:
                note(f"merged {done.merged_objects} objects")

    async def erase_for_ever(
        self, topic: str, key: bytes, watch: ErasureWatch, pause_s: Callable[[], float]
    ) -> None:
        """Erase a key, again and again, beside compaction and for as long."""
        await self._keep_running(
            "eraser", lambda process: self._erase(process, topic, key, watch=watch, pause_s=pause_s)
        )

    async def _erase(
        self,
        process: SimulatedProcess,
        topic: str,
        key: bytes,
        *,
        watch: ErasureWatch,
        pause_s: Callable[[], float],
    ) -> None:
        clock = SimulatedClock(self.loop, process)
        sequencer = self.sequencer_of(process)
        work = ErasureWork(sequencer, self.store_of(process), clock, self.entropy(process.name))
        while self.is_compacting:
            await clock.sleep(pause_s())
            try:
                topics = (await sequencer.metadata(MetadataRequest())).topics or []
                for found in topics:
                    if found.name == topic:
                        begun = watch.erasure_begins(key)
                        done = await erase_keys(work, EraseRequest(found, SearchKeys.of([key])))
                        watch.erasure_ended(begun, done.erased_records)
                        self.done["eraser"] += 1
            except IncarnationChanged:
                raise
            except (SequencerError, StoreError, EraseFailed) as error:
                watch.erasure_failed(error)

    # --- the loss of the database

    async def recover(
        self, make_rows: Callable[[], RowStore], note_recovery: Callable[[str], None]
    ) -> RecoveryReport:
        """Fill new databases from the bucket until one is complete, as an operator would; no other process is running.

        One failed request ends a recovery. After a few failures the operator waits until store and database work.
        """
        attempts = 0
        while True:
            attempts += 1
            if attempts > MAX_RECOVERIES_IN_BAD_WEATHER:
                self.rows.failing = self.rows.unforeseen = 0.0
            self.rows.replace(make_rows())
            process = self.process("recover")
            clock = SimulatedClock(self.loop, process)
            try:
                await self.rows.open()
                store = self.store_of(process)
                if attempts > MAX_RECOVERIES_IN_BAD_WEATHER:
                    store.plan, store.unforeseen = CALM, 0.0
                report = await process.run(
                    recover(
                        store,
                        cast(RowStore, self.rows),
                        clock,
                        holder=process.name,
                        settings=self._sequencer_settings,
                    )
                )
            except (
                SequencerError,
                StoreError,
                RecoveryRefused,
                Unforeseen,
            ) as error:
                note_recovery(f"the recovery failed: {type(error).__name__}: {error}")
                await self.clock.sleep(0.3)
            else:
                self.rows.replace(self.rows.inner)  # it is reopened under its new incarnation
                return report

    # --- the end of processes

    def crash(self, process: SimulatedProcess, *, is_seen: bool) -> None:
        """End the process for good; `is_seen`: its kernel closes its connections, so its peers notice."""
        process.crash()
        if is_seen:
            self.loop.call_later(0.002, self.network.reset, process)

    def calm(self, plan: FaultPlan) -> None:
        """Stop all faults."""
        self.plan = plan
        self.begin_stutter(0.0)
        self.rows.failing = self.rows.unforeseen = self.rows.slow_writes = self.rows.answers_s = 0.0
        for store in self.stores:
            store.plan, store.unforeseen = plan, 0.0
            store.outage.end()
        for weather in (self.network.weather, self.network.peer_weather, *self.weathers.values()):
            weather.loss = weather.repetition = 0.0
            weather.max_delay_s = 0.003
        self.network.kafka.cut = self.network.kafka.full = 0.0
        self.network.kafka.max_delay_s = 0.005


async def _crashed_by_what_is_foreseen(process: SimulatedProcess, work: Coroutine[Any, Any, None]) -> None:
    """Run work that a supervisor would restart, and handle its end here, because nobody waits for it when the world
    ends."""
    try:
        await work
    except (IncarnationChanged, Unforeseen):
        process.crash()
