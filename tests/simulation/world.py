"""One run: a cluster, its clients, faults, and the invariants that must hold.

`simulate` runs a seed to its end and reports violations:

- of the history that the clients saw (tests.support.history): nothing acknowledged is lost, nothing is duplicated,
  reordered, torn or invented, offsets keep their meaning, reads are of committed transactions where that was requested,
  groups' positions are what was committed;
- of the internal invariants (tests.simulation.invariants): at each transaction of the database and at the end;
- at the end: once the faults are over every client that retries succeeds, everything can be read, and after the grace
  there is no object that no row names, no row that names nothing, and no session.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import traceback
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

from fastcrc.crc32 import iscsi as crc32c
from structlog.testing import capture_logs
from structlog.typing import EventDict

from sequencer.api.errors import SequencerUnavailable
from sequencer.settings import SequencerSettings, ServerSettings
from sequencer.store.row_store import RowStore
from sequencer.store.rows import Changes
from sequencer.store.sql.store import SqlRowStore
from tailrace.batches.mixed_object import HEADER_BYTES as OBJECT_HEADER_BYTES
from tailrace.batches.record_batch import HEADER_BYTES
from tailrace.object_store.memory import MemoryStore
from tests.simulation.aborts import AbortWatch
from tests.simulation.bounds import low_bounds
from tests.simulation.clients import (
    Admin,
    Client,
    Home,
    IdempotentProducer,
    Log,
    LogNames,
    PlainProducer,
    Reader,
    ReturningReader,
)
from tests.simulation.cluster import UNFORESEEN, Cluster, SimulatedAgent
from tests.simulation.consumers import ConsumerMember, OwnerWatch
from tests.simulation.credentials import CredentialsAdmin
from tests.simulation.disk import CountedReads
from tests.simulation.forgotten import RestingMember, RestingProducer, RestingTransactions
from tests.simulation.groups import GroupMember, GroupProcessor, GroupWatch, may_fall
from tests.simulation.growing import GROWING, Grower
from tests.simulation.invariants import (
    NAMED_BY_NO_ROW,
    RESETTERS,
    RowWatch,
    faults_in_copy,
    faults_in_rows,
    garbage_left,
)
from tests.simulation.jobs import WritingJob
from tests.simulation.keyed import (
    ERASED,
    KEYED,
    TRANSACTIONS,
    KeyedReader,
    KeyedWatch,
    KeyedWriter,
    make_keyed_topic,
    quiet,
)
from tests.simulation.loop import SimulatedClock, SimulatedLoop, SimulatedProcess, run_simulated
from tests.simulation.operators import Operator
from tests.simulation.poison import Poisoner, is_poison
from tests.simulation.receipts import RECEIPTS, IdempotentOnReceipt, PlainOnReceipt, ReceiptWatch
from tests.simulation.resets import ResettingMember
from tests.simulation.rights import Granter
from tests.simulation.scenario import (
    ABORT_SEEDS,
    AGENT_SETTINGS,
    CACHE_SETTINGS,
    CALM,
    CONSUMER_SEEDS,
    CREDENTIALS_SEEDS,
    DISK_SEEDS,
    ERASURE_SEEDS,
    FEW_RESERVED,
    FEW_RESERVED_SEEDS,
    FORGETFUL_SEEDS,
    FORGETFUL_SETTINGS,
    FULL_SEEDS,
    GROWING_SEEDS,
    JOB_SEEDS,
    KEYED_SEEDS,
    LITTLE_MEMORY,
    LONG_GRACE_MS,
    LONG_SESSION_MS,
    LONG_SESSION_SEEDS,
    NODE_SETTINGS,
    RECEIPT_SEEDS,
    REREAD_SEEDS,
    RESET_SEEDS,
    RESTART_SEEDS,
    RETENTION_OFF_SEEDS,
    RIGHTS_SEEDS,
    SEQUENCER_SETTINGS,
    SHARE_SEEDS,
    SLOW_NODE_SETTINGS,
    SLOW_SEEDS,
    SLOW_SEQUENCER_SETTINGS,
    STANDALONE_SEEDS,
    STATIC_SEEDS,
    TIMED_SEEDS,
    WITH_A_DISK,
    Scenario,
    draw,
    forgetting,
    outliving_objects,
    restarting_its_committer,
    slowing_its_database,
    turning_retention_off,
)
from tests.simulation.shares import ShareMember, ShareWatch, make_dead_letter_topic, missing_letters
from tests.simulation.standalone import StandaloneConsumer
from tests.simulation.static import RETURNS, SETTLED_S, StaticMember, StaticWatch
from tests.simulation.times import AGED, RETENTION_MS, AgeWatch, TimeReader
from tests.simulation.transactions import Processor, Progress, TransactionalProducer
from tests.simulation.windows import WindowWatch
from tests.support.clocks import SeededEntropy
from tests.support.faulty_store import Operation
from tests.support.history.checker import check
from tests.support.history.events import Acked, AnyEvent, Isolation, Read, Sent
from tests.support.history.log_rules import WINDOW_LAG_S
from tests.support.history.violations import Kind
from tests.support.hooked_rows import HookedRowStore

END_SECONDS = 150.0
PATIENCE_SECONDS = 40.0
"""How long clients may take to finish once the faults are over."""
GRACE_SECONDS = 40.0
"""How long the collector may take to clean up once everything is closed."""
MORE_AFTER_A_SLOW_DATABASE = 60.0
"""Seconds added to each of the two: the lease grew to 20 s, upload sessions live for 30 s, and objects for 20 s."""
MORE_WHILE_FORGETTING = 90.0
"""Clients rest three times, up to 16 s each, and 8 s after each batch that they sent to machines that are gone."""
TERMS_BEFORE_A_SLOW_DATABASE = 1
"""How many committers may begin while the database is slow: the lease lapses once, when it becomes slow."""
CALL_TIMEOUT_S, CALL_PATIENCE_S = 1.0, 3.0
SLOW_CALL_TIMEOUT_S, SLOW_PATIENCE_S = 20.0, 10.0
"""The defaults of SequencerClient."""
WINDOWS_LOOKED_AT_S = 0.1
SECONDS_TO_NOTICE = 5.0
"""Within this time every agent notices that its database was replaced, and is restarted."""
LAST_READER = "last reader"
MOVED = (Kind.LOST, Kind.OFFSET_MOVED, Kind.DUPLICATED, Kind.HOLE)
"""After a recovery, what was committed since the last checkpoint is at other offsets, above a hole. The log's content
at the end is checked instead."""
MOVED_BY_WRONG_CLOCKS = (*MOVED, Kind.REORDERED)
"""Recovered batches are in the order of the agents' clocks. If these differ, only idempotent producers keep their
order."""
RETENTION_BYTES = "900"
EVENTS, EXPIRING, REMADE, OUTPUT = "events", "expiring", "remade", "output"
SHARERS = "sharers"
"""The share group."""
STATIC = "static"
"""The group of static members."""
CONSUMERS = "consumers"
"""The group whose coordinator assigns."""


@dataclass(slots=True)
class Result:
    """The result of a run: its events in order, and the violations."""

    seed: int
    scenario: Scenario = field(default_factory=Scenario)
    trace: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    history: list[AnyEvent] = field(default_factory=list)
    acknowledged: int = 0
    reads: int = 0
    committed: int = 0
    windows: int = 0
    """How many windows with runs were checked."""
    disk_hits: int = 0
    """How many chunks agents read from their disks."""
    turns: int = 0
    seconds: float = 0.0

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


def entropy_of(seed: int, name: str) -> SeededEntropy:
    """Return a separate source of randomness for each part, so that one part's draws don't shift another's."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return SeededEntropy(int.from_bytes(digest[:8], "big"))


def scenario_of(seed: int) -> Scenario:
    """Return the scenario that the seed draws."""
    drawn, luck = draw(entropy_of(seed, "scenario")), entropy_of(seed, "slow database")
    may_be_slow = not drawn.loses_database and not drawn.is_only_poisoned
    if luck.fraction() < SLOW_SEEDS and may_be_slow:
        drawn = slowing_its_database(drawn, luck)
    luck = entropy_of(seed, "retention")
    if drawn.expires and may_be_slow and luck.fraction() < RETENTION_OFF_SEEDS:
        drawn = turning_retention_off(drawn, luck)
    is_usual = may_be_slow and not drawn.slow_for_s
    if is_usual and entropy_of(seed, "times").fraction() < TIMED_SEEDS:
        drawn = replace(drawn, is_timed=True)
    if is_usual and entropy_of(seed, "growing").fraction() < GROWING_SEEDS:
        drawn = replace(drawn, grows=True)
    luck = entropy_of(seed, "static members")
    if is_usual and luck.fraction() < STATIC_SEEDS:
        drawn = replace(drawn, static_members=2 + luck.below(2))
    luck = entropy_of(seed, "operator")
    has_transactions = drawn.transactional_producers or drawn.processors or drawn.group_processors
    if is_usual and has_transactions and luck.fraction() < ABORT_SEEDS:
        drawn = replace(drawn, aborts=True)
    if is_usual and entropy_of(seed, "rights").fraction() < RIGHTS_SEEDS:
        drawn = replace(drawn, grants=True)
    if is_usual and entropy_of(seed, "credentials").fraction() < CREDENTIALS_SEEDS:
        drawn = replace(drawn, credentials=True)
    luck = entropy_of(seed, "standalone consumers")
    if is_usual and luck.fraction() < STANDALONE_SEEDS:
        drawn = replace(drawn, standalone_consumers=1 + luck.below(2))
    if is_usual and entropy_of(seed, "readers who return").fraction() < REREAD_SEEDS:
        drawn = replace(drawn, rereads=True)
    if is_usual and entropy_of(seed, "disks").fraction() < DISK_SEEDS:
        drawn = replace(drawn, has_disks=True, rereads=True)
    luck = entropy_of(seed, "full sockets")
    if is_usual and luck.fraction() < FULL_SEEDS:
        drawn = replace(drawn, full=0.3 * luck.fraction())
    luck = entropy_of(seed, "restarts")
    if is_usual and drawn.misfortunes and luck.fraction() < RESTART_SEEDS:
        drawn = restarting_its_committer(drawn, luck)
    if is_usual and entropy_of(seed, "forgetting").fraction() < FORGETFUL_SEEDS:
        return forgetting(drawn)
    luck = entropy_of(seed, "share group")
    if luck.fraction() < SHARE_SEEDS and may_be_slow and not drawn.slow_for_s:
        drawn = replace(drawn, share_members=1 + luck.below(3))
    if is_usual and entropy_of(seed, "resets").fraction() < RESET_SEEDS:
        drawn = replace(drawn, resets=True)
    luck = entropy_of(seed, "consumers")
    if luck.fraction() < CONSUMER_SEEDS and may_be_slow and not drawn.slow_for_s:
        drawn = replace(drawn, consumers=2 + luck.below(2))
    if drawn.compactors and may_be_slow and entropy_of(seed, "keyed").fraction() < KEYED_SEEDS:
        erases = entropy_of(seed, "erasure").fraction() < ERASURE_SEEDS
        drawn = replace(drawn, is_keyed=True, erases=erases)
    luck = entropy_of(seed, "jobs")
    if luck.fraction() < JOB_SEEDS and not drawn.is_only_poisoned and not drawn.slow_for_s:
        drawn = replace(drawn, jobs=1 + luck.below(2))
    luck = entropy_of(seed, "receipts")
    if is_usual and luck.fraction() < RECEIPT_SEEDS:
        drawn = replace(drawn, receipt_producers=1 + luck.below(2))
    luck = entropy_of(seed, "long sessions")
    if is_usual and not drawn.receipt_producers and luck.fraction() < LONG_SESSION_SEEDS:
        drawn = outliving_objects(drawn)
    may_reserve_few = drawn.has_small_commits and not drawn.is_only_poisoned and not drawn.slow_for_s
    if may_reserve_few and entropy_of(seed, "few offsets").fraction() < FEW_RESERVED_SEEDS:
        drawn = replace(drawn, reserves_few=True)
    return drawn


def simulate(seed: int, scenario: Scenario | None = None) -> Result:
    """Run one seed to its end. A deadlock, overtime or an unforeseen error is a violation too."""
    result = Result(seed, scenario or scenario_of(seed))

    async def main(loop: SimulatedLoop) -> None:
        world = World(loop, result)
        try:
            await world.run()
        finally:
            result.turns, result.seconds = loop.turns, loop.time()
            errors = [*loop.unhandled, *loop.unseen_errors()]
            result.violations.extend(error for error in errors if UNFORESEEN not in error)

    with capture_logs(processors=[_with_its_error]) as logs, low_bounds(result.scenario):
        try:
            run_simulated(seed, main, END_SECONDS + 3 * more_seconds(result.scenario))
        except Exception as error:
            result.violations.append("".join(traceback.format_exception(error)[-6:]).strip())
    for entry in logs:
        is_bug = entry["log_level"] in ("error", "critical") and entry.get("exc_info")
        if is_bug and UNFORESEEN not in repr(entry):
            result.violations.append(
                f"logged as unforeseen: {entry['event']} {entry.get('api', '')}: {_shown(entry['exc_info'])}"
            )
    report = check(result.history)
    result.acknowledged, result.reads = report.records_acked, report.reads
    result.committed = report.transactions_committed
    if result.scenario.loses_database:
        moved = MOVED_BY_WRONG_CLOCKS if result.scenario.has_wrong_clocks else MOVED
        report.violations = [each for each in report.violations if each.kind not in moved]
        result.violations.extend(missing_at_the_end(result.history))
        result.violations.extend(overtaken_at_the_end(result.history))
    result.violations.extend(str(violation) for violation in report.violations)
    return result


def _sequencer_settings(scenario: Scenario) -> SequencerSettings:
    if scenario.slow_for_s:
        return SLOW_SEQUENCER_SETTINGS
    settings = FORGETFUL_SETTINGS if scenario.forgets else SEQUENCER_SETTINGS
    changed: dict[str, object] = {}
    if scenario.receipt_producers:
        changed["deletion_grace_ms"] = LONG_GRACE_MS
    if scenario.has_long_sessions:
        changed["session_lease_ms"] = LONG_SESSION_MS
    if scenario.reserves_few:
        changed["checkpoint_reservation"] = FEW_RESERVED
    return settings.model_copy(update=changed)


def _node_settings(scenario: Scenario) -> ServerSettings:
    settings = SLOW_NODE_SETTINGS if scenario.slow_for_s else NODE_SETTINGS
    return replace(settings, follow_pause_s=scenario.follow_pause_s)


def more_seconds(scenario: Scenario) -> float:
    """Return how much longer the end may take if the database was slow, or clients rest."""
    if scenario.forgets:
        return MORE_WHILE_FORGETTING
    return MORE_AFTER_A_SLOW_DATABASE if scenario.slow_for_s else 0.0


def missing_at_the_end(history: Sequence[AnyEvent]) -> list[str]:
    """Return the acknowledged records that the last reader did not read or, if idempotent, read twice."""
    times = Counter(_read_at_the_end(history))
    idempotent = _sent_by_idempotent(history)
    acknowledged = dict.fromkeys(event.record for event in history if isinstance(event, Acked))
    return [
        f"{record} was acknowledged and is nowhere after the recovery"
        for record in acknowledged
        if record not in times
    ] + [
        f"{record} is there {count} times after the recovery"
        for record, count in times.items()
        if count > 1 and record in idempotent
    ]


def overtaken_at_the_end(history: Sequence[AnyEvent]) -> list[str]:
    """Return the records of idempotent producers that the last reader read after a later one."""
    idempotent = _sent_by_idempotent(history)
    last: dict[tuple[str, str, int], Sent] = {}
    overtaken: list[str] = []
    for identity in _read_at_the_end(history):
        record = idempotent.get(identity)
        if record is None:
            continue
        log = record.client, record.topic, record.partition
        if record.number < last.get(log, record).number:
            overtaken.append(f"{record.record} stands after {last[log].record} after the recovery")
        last[log] = record
    return overtaken


def _read_at_the_end(history: Sequence[AnyEvent]) -> list[str]:
    """Return the records that the last reader read, in order."""
    return [
        event.record
        for event in history
        if isinstance(event, Read) and event.client.startswith(f"{LAST_READER} uncommitted")
    ]


def _sent_by_idempotent(history: Sequence[AnyEvent]) -> dict[str, Sent]:
    sent = (event for event in history if isinstance(event, Sent))
    return {event.record: event for event in sent if event.guarantee == "idempotent"}


def _with_its_error(logger: object, method: str, entry: EventDict) -> EventDict:
    """Replace `exc_info=True` by the error that is being handled now; later it could not be determined."""
    if entry.get("exc_info") is True:
        entry["exc_info"] = sys.exc_info()[1]
    return entry


def _shown(error: object) -> str:
    if isinstance(error, BaseException):
        return "".join(traceback.format_exception(error)[-4:]).strip()
    return repr(error)


class World:
    """The cluster and the clients of one run; the `Stage` of its clients."""

    def __init__(self, loop: SimulatedLoop, result: Result) -> None:
        self._loop = loop
        self._result = result
        self._scenario = scenario = result.scenario
        self.clock = SimulatedClock(loop)
        self.luck = self.entropy("world")
        self.is_calm = False
        self.is_input_over = False
        self.may_refuse = not scenario.is_calm
        self.may_surprise = scenario.unforeseen > 0.0
        self.is_time_kept = True
        self.names, self.aborts = LogNames(), AbortWatch()
        self.objects = MemoryStore(self.clock)
        self._database = SimulatedProcess("database", loop, self._wall_error("database"))
        self.rows = self._open_rows()
        self.cluster = Cluster(
            loop,
            self.entropy,
            rows=self.rows,
            objects=self.objects,
            agent_settings=LITTLE_MEMORY if scenario.has_low_bounds else AGENT_SETTINGS,
            sequencer_settings=_sequencer_settings(scenario),
            node_settings=_node_settings(scenario),
            cache_settings=WITH_A_DISK if scenario.has_disks else CACHE_SETTINGS,
            plan=CALM,
            sequencers=scenario.sequencers,
            call_timeout_s=SLOW_CALL_TIMEOUT_S if scenario.slow_for_s else CALL_TIMEOUT_S,
            patience_s=SLOW_PATIENCE_S if scenario.slow_for_s else CALL_PATIENCE_S,
        )
        self.cluster.disk_reads = CountedReads() if scenario.has_disks else None
        self._watch = RowWatch(self.violated, partial(may_fall, result.history))
        self._window_watch = WindowWatch(self.violated)
        self._age_watch = AgeWatch(self.violated, self._database_ms)
        self.cluster.rows.watch = self._see
        self.cluster.merges = scenario.merges
        if scenario.has_low_bounds:
            self.cluster.max_compacted_runs = 4
        self._admin = Admin(self, "admin")
        self._logs: dict[str, Log] = {}
        self._clients: dict[Client, asyncio.Task[None]] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._inputs: list[asyncio.Task[None]] = []
        self._poisoners: list[asyncio.Task[None]] = []
        self._sound: dict[str, tuple[bytes, int]] = {}
        """The original bytes of corrupted objects."""
        self._followers: list[asyncio.Task[None]] = []
        self._done_in_trouble: Counter[str] = Counter()
        self._struck: list[SimulatedProcess] = []
        self._lost_servers: list[SimulatedProcess] = []
        self._shares, self._resets = ShareWatch(self.violated), ShareWatch(self.violated)
        self._keyed_watch = KeyedWatch(
            self.violated, bool(self.entropy("keyed topic").below(2)), self.now, self.note
        )
        self.cluster.compacts_keys = scenario.is_keyed
        self._receipt_watch = ReceiptWatch(self.violated)

    # --- the Stage

    def entropy(self, name: str) -> SeededEntropy:
        return entropy_of(self._result.seed, name)

    def now(self) -> float:
        return self._loop.time()

    def note(self, event: str) -> None:
        self._result.trace.append(f"{self._loop.time():.6f} {event}")

    def record(self, event: AnyEvent) -> None:
        self._result.history.append(event)
        self._result.trace.append(repr(event))

    def violated(self, what: str) -> None:
        self._result.violations.append(f"at {self._loop.time():.3f} s: {what}")

    # --- the run

    async def run(self) -> None:
        scenario = self._scenario
        await self._start_cluster()
        self._begin_trouble()
        background = [asyncio.create_task(self._have_bad_luck())]
        for _ in range(scenario.compactors):
            background.append(
                asyncio.create_task(
                    self.cluster.compact_for_ever(lambda: 0.3 + 1.5 * self.luck.fraction(), self.note)
                )
            )
        if scenario.erases:
            luck = self.entropy("eraser")
            erasing = self.cluster.erase_for_ever(
                KEYED, ERASED, self._keyed_watch, lambda: 0.5 + 2 * luck.fraction()
            )
            background.append(asyncio.create_task(erasing))
        supervisor = asyncio.create_task(self._restart_lost_agents())
        window_watch = asyncio.create_task(self._watch_windows())
        self._start_clients()
        await background[0]
        await self._end_trouble()
        await self._wait_for_clients()
        if scenario.share_members:
            last = ShareMember(self, "last sharer", SHARERS, self._shares)
            await self._wait_for(
                [asyncio.create_task(self._run_as(last, last.drain(EVENTS)), name=last.name)]
            )
        await self._wait_for([asyncio.create_task(self._see_workers_done(), name="compactors, erasers")])
        for task in [*self._readers, *self._poisoners, *background]:
            task.cancel()
        self.note("clients are done")
        loads = max(self.cluster.rows.loads.values())
        if not self.may_refuse and loads > 1:
            self.violated(f"nothing goes wrong, and a server loaded the state {loads} times")
        if scenario.loses_database:
            await self.clock.sleep(SECONDS_TO_NOTICE)
        await self.clock.sleep(WINDOW_LAG_S)
        await self._read_everything()
        self._receipt_watch.compare(set(_read_at_the_end(self._result.history)))
        if scenario.share_members:
            self._compare_shared()
        if scenario.share_members and not scenario.loses_database:
            undertaker = Reader(quiet(self), "undertaker", "uncommitted")
            missing = missing_letters(undertaker, self._shares, self._logs[EVENTS])
            for place in await self._run_as(undertaker, missing):
                self.violated(f"{place} was rejected, and is not in the dead-letter topic")
        if scenario.is_timed:
            timed = TimeReader(self, "last time-reader")
            await self._run_as(timed, timed.ask_at_the_end(EVENTS))
        if scenario.is_keyed:
            last_reader = KeyedReader(self, "last keyed reader", self._keyed_watch)
            await self._run_as(last_reader, last_reader.read_all())
        supervisor.cancel()
        window_watch.cancel()
        await self._close_cluster()
        await self._wait_for_collector()

    def _see(self, changes: Changes) -> None:
        self._watch(changes)
        self._window_watch(changes)
        self._age_watch(changes)

    def _database_ms(self) -> int | None:
        return SimulatedClock(self._loop, self._database).wall_ms() if self.is_time_kept else None

    async def _watch_windows(self) -> None:
        while True:
            await self.clock.sleep(WINDOWS_LOOKED_AT_S)
            for agent in self.cluster.agents.values():
                if agent.has_joined and not agent.process.is_dead:
                    self._window_watch.check(agent.process.name, *agent.services.tail.live())
            self._result.windows = self._window_watch.checked
            if self.cluster.disk_reads is not None:
                self._result.disk_hits = self.cluster.disk_reads.hits

    async def _start_cluster(self) -> None:
        for address in self.cluster.addresses:
            await self.cluster.start_node(address, self._wall_error(address))
        for number in range(self._scenario.agents):
            await self._start_agent(f"agent-{number + 1}")
        await self._make_topic(EVENTS, self._scenario.partitions)
        if self._scenario.expires:
            await self._make_topic(EXPIRING, 1, retention_bytes=RETENTION_BYTES)
        if self._scenario.makes_again:
            await self._make_topic(REMADE, 1)
        if self._scenario.is_timed:
            await self._make_topic(AGED, 1, retention_ms=str(RETENTION_MS))
            self._age_watch.topic_id = self._logs[AGED].topic_id
        if self._scenario.processors or self._scenario.group_processors:
            await self._make_topic(OUTPUT, 1)
        if self._scenario.grows:
            await self._make_topic(GROWING, 1)
        if self._scenario.receipt_producers:
            await self._make_topic(RECEIPTS, self._scenario.partitions, tailrace_flush="async")
        if self._scenario.share_members:
            admin = Admin(quiet(self), "share admin")
            await self._run_as(admin, make_dead_letter_topic(admin, SHARERS))
        if self._scenario.is_keyed:
            admin = Admin(quiet(self), "keyed admin")
            await self._run_as(admin, make_keyed_topic(admin, self._keyed_watch, self._scenario.partitions))

    async def _start_agent(self, host: str) -> SimulatedAgent:
        zone = f"zone-{int(host.rpartition('-')[2]) % self._scenario.zones}"
        agent = await self.cluster.start_agent(host, zone, self._wall_error(host))
        self._receipt_watch.agents.append(agent)
        self.note(f"{host} is there as {agent.process.name}")
        return agent

    async def _make_topic(self, topic: str, partitions: int, **configs: str) -> None:
        self._logs[topic] = await self._run_as(
            self._admin, self._admin.make_topic(topic, partitions, **configs)
        )

    async def _run_as(self, client: Client, work: Coroutine[Any, Any, Any]) -> Any:
        return await client.process.run(work)

    def _open_rows(self) -> RowStore:
        clock = SimulatedClock(self._loop, self._database)
        if self._scenario.is_on_sqlite:
            return SqlRowStore("sqlite://", clock=clock, entropy=self.entropy("sqlite"))
        rows = HookedRowStore(clock)
        rows.refuse(is_poison)
        return rows

    def _wall_error(self, name: str) -> int:
        most = self._scenario.wall_errors_ms
        return self.entropy(f"wall of {name}").below(2 * most + 1) - most

    # --- clients

    def _start_clients(self) -> None:
        scenario = self._scenario
        for number in range(scenario.plain_producers):
            plain = PlainProducer(self, f"plain-{number}")
            self._start(plain, plain.run(EVENTS, scenario.batches))
        for number in range(scenario.idempotent_producers):
            self._start_idempotent(f"idempotent-{number}", EVENTS)
        if scenario.expires:
            expiring = PlainProducer(self, "expiring")
            self._start(expiring, expiring.run(EXPIRING, 2 * scenario.batches))
        if scenario.makes_again:
            self._start_idempotent("remade", REMADE)
        if scenario.is_timed:
            aging = PlainProducer(self, "aging")
            self._start(aging, aging.run(AGED, 2 * scenario.batches))
            timed = TimeReader(self)
            self._readers.append(timed.process.spawn(timed.ask_for_ever(EVENTS)))
        for number in range(scenario.transactional_producers):
            self._inputs.append(
                asyncio.create_task(self._run_transactions(f"transactional-{number}"), name="transactions")
            )
        for number in range(scenario.processors):
            self._followers.append(asyncio.create_task(self._run_processors(number), name="processors"))
        processing = GroupWatch(self.violated)
        for number in range(scenario.group_processors):
            self._followers.append(
                asyncio.create_task(
                    self._run_group_processors(f"group-processor-{number}", processing), name="processors"
                )
            )
        watch = GroupWatch(self.violated)
        for number in range(scenario.group_members):
            member = GroupMember(self, f"member-{number}", "group", watch)
            self._followers.append(self._follow(member, member.run(EVENTS)))
        for number in range(scenario.poisoners if not scenario.is_on_sqlite else 0):
            poisoner = Poisoner(self, f"poisoner-{number}")
            self._poisoners.append(poisoner.process.spawn(poisoner.run(EVENTS)))
        isolations: tuple[Isolation, Isolation] = ("uncommitted", "committed")
        for number in range(scenario.readers):
            for topic in self._logs:
                reader = Reader(self, f"reader-{number}", isolations[self.luck.below(2)])
                reader.has_sessions = bool(reader.luck.below(2))
                self._readers.append(reader.process.spawn(reader.read_for_ever(topic)))
        home = Home()
        for topic, isolation in product(self._logs, isolations) if scenario.rereads else ():
            returning = ReturningReader(self, "returning", isolation, home)
            self._readers.append(returning.process.spawn(returning.read_for_ever(topic)))
        for number in range(scenario.jobs):
            job = WritingJob(self, f"job-{number}")
            self._start(job, job.run(EVENTS, scenario.batches))
        owners = OwnerWatch(self.violated)
        for number in range(scenario.consumers):
            consumer = ConsumerMember(self, f"consumer-{number}", CONSUMERS, owners)
            self._followers.append(self._follow(consumer, consumer.run(EVENTS)))
        for number in range(scenario.share_members):
            sharer = ShareMember(self, f"sharer-{number}", SHARERS, self._shares)
            self._followers.append(self._follow(sharer, sharer.run(EVENTS)))
        if scenario.resets:
            resetting = ResettingMember(self, "resetting", RESETTERS, self._resets)
            self._followers.append(self._follow(resetting, resetting.run_resets(EVENTS)))
        if scenario.forgets:
            self._start_resting()
        static = StaticWatch(self.violated, scenario.static_members)
        for number in range(scenario.static_members):
            returning = self._run_static(f"static-{number}", static)
            self._followers.append(asyncio.create_task(returning, name="static members"))
        for number in range(min(scenario.standalone_consumers, scenario.partitions)):
            standalone = StandaloneConsumer(self, f"standalone-{number}", number)
            self._followers.append(self._follow(standalone, standalone.run_steps(EVENTS, scenario.batches)))
        if scenario.grants:
            granter = Granter(self, "granter")
            self._followers.append(self._follow(granter, granter.run(2 * scenario.batches)))
        if scenario.credentials:
            admin = CredentialsAdmin(self, "credentials-admin")
            self._followers.append(self._follow(admin, admin.run(3 * scenario.batches)))
        if scenario.aborts:
            operator = Operator(self, "operator")
            self._followers.append(self._follow(operator, operator.run(self._transacted())))
        if scenario.grows:
            grower = Grower(self)
            self._followers.append(self._follow(grower, grower.run_growths(GROWING, 2)))
        if scenario.receipt_producers:
            self._start_on_receipt()
        if scenario.is_keyed:
            self._inputs.append(asyncio.create_task(self._write_keyed(), name="keyed"))
            keyed = KeyedReader(self, "keyed-reader", self._keyed_watch)
            self._readers.append(keyed.process.spawn(keyed.read_for_ever()))

    def _transacted(self) -> list[str]:
        """Return the topics whose transactions an operator aborts."""
        return [EVENTS, OUTPUT] if OUTPUT in self._logs else [EVENTS]

    def _start_resting(self) -> None:
        resting = RestingProducer(self, "resting")
        self._start(resting, resting.run(EVENTS))
        is_second_version = bool(self.entropy("resting version").below(2))
        transactions = RestingTransactions(
            self, "resting-transactions", "resting", is_second_version=is_second_version
        )
        self._start(transactions, transactions.work(EVENTS))
        member = RestingMember(self, "resting-member")
        self._followers.append(self._follow(member, member.run(EVENTS)))

    async def _write_keyed(self) -> None:
        progress = Progress(TRANSACTIONS)
        while progress.transactions_left > 0:
            writer = KeyedWriter(self, self._keyed_watch)
            await self._let_run(writer, writer.write(progress), self._inputs)

    def _start_on_receipt(self) -> None:
        scenario, watch = self._scenario, self._receipt_watch
        idempotent = IdempotentOnReceipt(self, "idempotent-on-receipt", watch)
        self._start(idempotent, idempotent.run(RECEIPTS, 2 * scenario.batches, scenario.window, by_id=True))
        if scenario.receipt_producers > 1:
            plain = PlainOnReceipt(self, "plain-on-receipt", watch)
            self._start(plain, plain.run(RECEIPTS, scenario.batches))

    def _start_idempotent(self, name: str, topic: str) -> None:
        producer = IdempotentProducer(self, name)
        scenario = self._scenario
        by_id = topic == REMADE or bool(self.luck.below(2))
        self._start(producer, producer.run(topic, scenario.batches, scenario.window, by_id=by_id))

    def _start(self, client: Client, work: Coroutine[Any, Any, None]) -> None:
        self._inputs.append(self._follow(client, work))

    def _follow(self, client: Client, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a client; the task is done when the client is, or when its process has crashed."""
        task = client.process.spawn(work)
        self._clients[client] = task

        async def follow() -> None:
            await asyncio.wait({task, client.process.crashed}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()

        return asyncio.create_task(follow(), name=client.name)

    async def _run_transactions(self, name: str) -> None:
        """Run instances of one transactional producer, one after the other, now and then before the last one is gone.
        After the faults one of them must commit, whatever the others had to abort."""
        progress = Progress(2 + self._scenario.batches // 2)
        is_second_version = bool(self.luck.below(2))
        while progress.transactions_left > 0:
            producer = TransactionalProducer(self, name, name, is_second_version=is_second_version)
            await self._let_run(producer, producer.run([EVENTS], progress), self._inputs)
        while not self.is_calm:
            await self.clock.sleep(0.2)
        is_committed = False
        while not is_committed:
            producer = TransactionalProducer(self, name, name, is_second_version=is_second_version)
            is_committed = await self._run_as(producer, producer.commit_one([EVENTS], progress))

    async def _run_processors(self, number: int) -> None:
        log = self._logs[EVENTS]
        partitions = [each for each in range(log.partitions) if each % self._scenario.processors == number]
        if not partitions:
            return
        progress = Progress(1)
        name, is_second_version = f"processor-{number}", bool(self.luck.below(2))
        while progress.transactions_left > 0:
            processor = Processor(self, name, name, is_second_version=is_second_version)
            work = processor.work(EVENTS, OUTPUT, partitions, "processors", progress)
            await self._let_run(processor, work, self._followers)

    async def _run_group_processors(self, name: str, watch: GroupWatch) -> None:
        progress, is_second_version = Progress(1), bool(self.luck.below(2))
        while progress.transactions_left > 0:
            processor = GroupProcessor(
                self, name, name, "processors", watch, is_second_version=is_second_version
            )
            work = processor.work_in_group(EVENTS, OUTPUT, "processors", progress)
            await self._let_run(processor, work, self._followers)

    async def _run_static(self, instance: str, watch: StaticWatch) -> None:
        """Run processes of one instance: each is replaced after a crash, or while it still runs."""
        luck = self.entropy(f"returns of {instance}")
        for _ in range(RETURNS):
            member, following = self._start_static(instance, watch)
            await asyncio.wait({following}, timeout=0.5 + 2.0 * luck.fraction())
            member.is_retired = True
            if luck.below(2):
                member.process.crash()
        while not self.is_calm:
            await self.clock.sleep(0.2)
        member, _ = self._start_static(instance, watch)
        await self.clock.sleep(SETTLED_S)
        while not watch.is_stable:
            await self.clock.sleep(0.1)
        await self._return_quickly(member, watch)

    def _start_static(self, instance: str, watch: StaticWatch) -> tuple[StaticMember, asyncio.Task[None]]:
        member = StaticMember(self, instance, STATIC, watch)
        return member, self._follow(member, member.run(EVENTS))

    async def _return_quickly(self, member: StaticMember, watch: StaticWatch) -> None:
        """Return an instance quickly; the group stays in its generation, unless a process rejoins meanwhile."""
        before, rejoins = watch.newest, watch.rejoins
        member.process.crash()
        returned, following = self._start_static(member.instance_id or "", watch)
        while not returned.has_joined:
            await self.clock.sleep(0.1)
        if watch.newest > before and watch.rejoins == rejoins:
            self.violated(f"{member.instance_id} came back: generation {watch.newest} after {before}")
        watch.settled += 1
        await following

    async def _let_run(
        self, client: Client, work: Coroutine[Any, Any, None], zombies: list[asyncio.Task[None]]
    ) -> None:
        """Wait until the instance has ended, or is so slow that the next one takes its place."""
        following = self._follow(client, work)
        if self.is_calm or self.luck.below(4):
            await following
            return
        await asyncio.wait({following}, timeout=0.2 + 2.0 * self.luck.fraction())
        if not following.done():
            zombies.append(following)
            client.process.stop()
            self.note(f"{client.name} is taken for dead")
            self._loop.call_later(0.5 + 4.0 * self.luck.fraction(), client.process.go_on)

    async def _wait_for_clients(self) -> None:
        await self._wait_for(self._inputs)
        self.is_input_over = True
        self.note("the input is over")
        await self._wait_for(self._followers)

    async def _see_workers_done(self) -> None:
        """Wait until a compactor and an eraser complete a round after the faults, whichever of them died before."""
        wanted = {"compactor": bool(self._scenario.compactors), "eraser": self._scenario.erases}
        names = [name for name, is_wanted in wanted.items() if is_wanted]
        while not all(self.cluster.done[name] > self._done_in_trouble[name] for name in names):
            await self.clock.sleep(0.1)

    async def _wait_for(self, tasks: list[asyncio.Task[None]]) -> None:
        patience_s = PATIENCE_SECONDS + more_seconds(self._scenario)
        give_up = self._loop.time() + patience_s
        while waiting := [task for task in tasks if not task.done()]:
            await asyncio.wait(waiting, timeout=max(0.0, give_up - self._loop.time()))
            if self._loop.time() >= give_up:
                names = ", ".join(task.get_name() for task in tasks if not task.done())
                self.violated(f"not done {patience_s} s after the last fault: {names}")
                raise AssertionError(f"stuck: {names}\n{self._loop.stacks()[-6000:]}")
        for task in tasks:
            task.result()

    async def _read_everything(self) -> None:
        isolations: tuple[Isolation, Isolation] = ("uncommitted", "committed")
        for isolation in isolations:
            reader = Reader(self, LAST_READER, isolation)
            reader.has_sessions = isolation == "committed"
            for topic in self._logs:
                await self._run_as(reader, reader.read_once(topic))

    def _compare_shared(self) -> None:
        """Check that each acknowledged record in the log at the end was delivered to a member of the share group. A
        record without an acknowledgement may have been stored after the last member had left."""
        acknowledged = {event.record for event in self._result.history if isinstance(event, Acked)}
        missing = acknowledged - self._shares.delivered
        for event in self._result.history:
            is_at_end = isinstance(event, Read) and event.client.startswith(f"{LAST_READER} uncommitted")
            if is_at_end and event.topic == self._logs[EVENTS].name and event.record in missing:
                self.violated(f"{event.record} at {event.offset} was handed to no member of the share group")

    # --- trouble

    def _begin_trouble(self) -> None:
        scenario, cluster = self._scenario, self.cluster
        cluster.plan = scenario.plan
        for store in cluster.stores:
            store.plan, store.unforeseen = scenario.plan, scenario.unforeseen
        for weather in (cluster.network.weather, *cluster.weathers.values()):
            weather.loss, weather.repetition = scenario.loss, scenario.repetition
            weather.max_delay_s = scenario.max_delay_s
        cluster.network.peer_weather.max_delay_s = scenario.peer_delay_s
        cluster.network.kafka.cut, cluster.network.kafka.full = scenario.cut, scenario.full
        cluster.network.kafka.max_delay_s = scenario.max_delay_s
        cluster.rows.failing = scenario.failing_writes
        cluster.rows.slow_reads = scenario.slow_reads
        cluster.rows.slow_writes = scenario.slow_writes
        cluster.rows.unforeseen = scenario.unforeseen
        cluster.rows.max_load_s = max(0.01, scenario.slow_loads_s)
        cluster.begin_stutter(scenario.stutter)

    async def _have_bad_luck(self) -> None:
        begin = self._loop.time()
        troubles: list[asyncio.Task[None]] = []
        for at, kind in self._scenario.misfortunes:
            await self.clock.sleep(max(0.0, begin + at - self._loop.time()))
            self.note(f"misfortune: {kind}")
            troubles.append(asyncio.create_task(self._strike(kind)))
        await self.clock.sleep(max(0.0, begin + self._scenario.trouble_s - self._loop.time()))
        for task in troubles:
            await task

    async def _strike(self, kind: str) -> None:
        luck, loop = self.luck, self._loop
        agent = self.cluster.agents[self._some(list(self.cluster.agents))]
        match kind:
            case "an agent crashes" | "an agent's machine is gone":
                self.cluster.crash(agent.process, is_seen=kind == "an agent crashes")
                await self.clock.sleep(3.0 * luck.fraction())
                host = agent.host if luck.below(2) else f"agent-{len(self.cluster.agents) + 1}"
                await self._start_agent(host)
            case "an agent stops for a while":
                await self._stop_for_a_while(agent.process, 8.0)
            case "an agent stops for long":
                await self._stop_for_a_while(agent.process, 5.0, 11.0)
            case "an agent is cut off" | "an agent is cut off for long":
                weather = self.cluster.weathers[agent.process.name]
                weather.loss = 1.0
                least_s = 7.0 if kind == "an agent is cut off for long" else 0.5
                await self.clock.sleep(least_s + 5.0 * luck.fraction())
                weather.loss = self._scenario.loss
            case "an agent restarts":
                if not agent.process.is_dead:
                    drained = agent.process.spawn(agent.drain())
                    await asyncio.wait({drained}, timeout=10.0)
                    self.cluster.crash(agent.process, is_seen=True)
                    await self._start_agent(agent.host)
            case "the committer crashes" | "the committer's machine is gone":
                address = self.cluster.committer()
                if address is not None:
                    process, _ = self.cluster.nodes[address]
                    self.cluster.crash(process, is_seen=kind == "the committer crashes")
                    await self.clock.sleep(2.0 * luck.fraction())
                    await self.cluster.start_node(address)
            case "the committer stops for a while" | "the committer stops for long":
                address = self.cluster.committer()
                if address is not None:
                    least_s = 2.0 if kind == "the committer stops for long" else 0.2
                    await self._stop_for_a_while(self.cluster.nodes[address][0], 4.0, least_s)
            case "the committer restarts":
                address = self.cluster.committer()
                if address is not None:
                    process, node = self.cluster.nodes[address]
                    drained = process.spawn(node.close())
                    await asyncio.wait({drained}, timeout=10.0)
                    self.cluster.crash(process, is_seen=True)
                    await self.clock.sleep(0.5 * luck.fraction())
                    await self.cluster.start_node(address)
            case "the committer can't reach the database":
                address = self.cluster.committer()
                if address is not None:
                    process, _ = self.cluster.nodes[address]
                    self.cluster.rows.cut_off.append(process)
                    await self.clock.sleep(0.5 + 6.0 * luck.fraction())
                    self.cluster.rows.cut_off.remove(process)
            case "a compactor crashes" | "a compactor stops for long" | "a compactor is cut off":
                if self.cluster.workers:
                    await self._strike_worker(
                        self.cluster.workers[luck.below(len(self.cluster.workers))], kind
                    )
            case "a follower stops for a while":
                followers = self.cluster.followers()
                if followers:
                    await self._stop_for_a_while(self.cluster.nodes[self._some(followers)][0], 6.0)
            case "an agent can't reach the committer":
                address = self.cluster.committer()
                if address is not None:
                    self.cluster.network.block(agent.process.name, address)
                    await self.clock.sleep(0.5 + 5.0 * luck.fraction())
                    self.cluster.network.unblock(agent.process.name, address)
            case "the database is slow":
                await self._slow_database_down()
            case "the database is lost":
                await self._lose_database()
            case "bytes rot in the store":
                await self._let_rot(0.3 + 3.0 * luck.fraction())
            case "a clock jumps":
                processes = [agent.process, *(process for process, _ in self.cluster.nodes.values())]
                process = processes[luck.below(len(processes))]
                process.wall_offset_ms += luck.below(20_000) - 10_000
            case "the database's clock jumps":
                self.is_time_kept = self._shares.is_time_kept = self._resets.is_time_kept = False
                self._database.wall_offset_ms += luck.below(20_000) - 10_000
            case "the store is away":
                for store in self.cluster.stores:
                    store.outage.begin(*([Operation.PUT] if luck.below(2) else []))
                await self.clock.sleep(2.0 * luck.fraction())
                for store in self.cluster.stores:
                    store.outage.end()
            case "the database fails":
                self.cluster.rows.failing = 0.7
                await self.clock.sleep(1.5 * luck.fraction())
                self.cluster.rows.failing = self._scenario.failing_writes
            case "a client crashes" | "a client stops for a while" | "a client stops for long":
                clients = [client for client, task in self._clients.items() if not task.done()]
                if not clients:
                    return
                client = clients[luck.below(len(clients))]
                if kind == "a client crashes":
                    self.note(f"{client.name} crashes")
                    client.process.crash()
                else:
                    least_s = 3.5 if kind == "a client stops for long" else 0.2
                    await self._stop_for_a_while(client.process, 4.0, least_s)
            case "records are deleted":
                log = self._logs[EVENTS]
                partition = luck.below(log.partitions)
                await self._run_as(self._admin, self._delete_records(log, partition))
            case "a topic is made again":
                await self._run_as(self._admin, self._admin.drop_topic(self._logs[REMADE]))
                await self.clock.sleep(0.5 * luck.fraction())
                await self._make_topic(REMADE, 1)
            case "a topic keeps everything for a while":
                await self._turn_retention_off(1.0 + 3.0 * luck.fraction())
            case _:
                raise AssertionError(kind)
        self.note(f"over: {kind} after {loop.time():.3f}")

    async def _strike_worker(self, process: SimulatedProcess, kind: str) -> None:
        """Strike a worker in the middle of a round, if it begins one soon, and at most once. Another takes its place,
        or it resumes itself.

        A stop outlasts the lease, and some outlast two sweeps of the session's prefix.
        """
        if process in self._struck:
            return
        self._struck.append(process)
        give_up = self._loop.time() + 2.0
        while process not in self.cluster.at_work and self._loop.time() < give_up:
            await self.clock.sleep(0.01)
        await self.clock.sleep(0.2 * self.luck.fraction())
        self.note(f"{process.name}: {kind}")
        if kind == "a compactor crashes":
            self.cluster.crash(process, is_seen=True)
        elif kind == "a compactor stops for long":
            await self._stop_for_a_while(process, 10.0, 3.2)
        else:
            weather = self.cluster.weathers[process.name]
            weather.loss = 1.0
            await self.clock.sleep(0.5 + 6.0 * self.luck.fraction())
            weather.loss = self._scenario.loss

    async def _delete_records(self, log: Log, partition: int) -> None:
        reader = Reader(self, "sizer", "uncommitted")
        end = await reader.offset_of(log, partition, -1)
        if end > 1:
            await self._admin.delete_records(log, partition, 1 + self.luck.below(end))

    async def _turn_retention_off(self, seconds: float) -> None:
        """Lift the limit, check that no record expires, whatever was planned before, and restore it."""
        log, name = self._logs[EXPIRING], "retention.bytes"
        await self._run_as(self._admin, self._admin.set_config(log, name, "-1"))
        start = await self._run_as(self._admin, self._first_offset(log))
        await self.clock.sleep(seconds)
        later = await self._run_as(self._admin, self._first_offset(log))
        if later > start:
            self.violated(f"{log.name}: records from {start} to {later} expired without a limit")
        await self._run_as(self._admin, self._admin.set_config(log, name, RETENTION_BYTES))

    async def _first_offset(self, log: Log) -> int:
        return await Reader(self, "keeper", "uncommitted").offset_of(log, 0, -2)

    async def _slow_database_down(self) -> None:
        """Slow the database down, and check that the cluster serves slowly, under leases that grow."""
        scenario, rows = self._scenario, self.cluster.rows
        terms, rows.answers_s = rows.terms, scenario.slow_answers_s
        await self.clock.sleep(scenario.slow_for_s / 2)  # enough for three renewals and a write
        writes = rows.writes
        await self.clock.sleep(scenario.slow_for_s / 2)
        rows.answers_s = 0.0
        begun = rows.terms - terms
        if scenario.keeps_its_committer and begun > TERMS_BEFORE_A_SLOW_DATABASE:
            self.violated(f"{begun} committers began while the database was slow")
        if scenario.keeps_its_committer and not begun and rows.writes == writes:
            self.violated(f"the committer wrote nothing for {scenario.slow_for_s / 2:.1f} s")

    async def _lose_database(self) -> None:
        """Lose the database together with all sequencers; an operator recovers another from the bucket and restarts
        them."""
        for process, _ in self.cluster.nodes.values():
            self.cluster.crash(process, is_seen=True)
        self.cluster.rows.watch = lambda changes: None
        await self.clock.sleep(2.0 * self.luck.fraction())
        report = await self.cluster.recover(self._open_rows, self.note)
        self.rows = self.cluster.rows.inner
        self.note(f"recovered: {report}")
        self._watch = await self._watch.after_recovery(self.rows)
        self._window_watch = await self._window_watch.after_recovery(self.rows)
        self.cluster.rows.watch = self._see
        for address in self.cluster.addresses:
            await self.cluster.start_node(address)

    async def _restart_lost_agents(self) -> None:
        """Restart lost agents, as a supervisor does. Also check servers that end for good: without a recovery their
        database is still the same."""
        while True:
            await self.clock.sleep(0.2)
            self._check_servers()
            for host, agent in list(self.cluster.agents.items()):
                if agent.is_lost and not agent.process.is_dead:
                    self.note(f"{host} is lost and started anew")
                    if not self.may_refuse:
                        self.violated(f"{host} gave up, and nothing goes wrong")
                    await self._start_agent(host)

    def _check_servers(self) -> None:
        for process, node in self.cluster.nodes.values():
            is_wrong = node.lost is not None and not self._scenario.loses_database
            if is_wrong and process not in self._lost_servers:
                self._lost_servers.append(process)
                self.violated(f"{process.name} takes its database for another or an older one: {node.lost}")

    async def _let_rot(self, seconds: float) -> None:
        """Flip a bit of some objects for a while; then restore them (from a second region, for example)."""
        objects, sound = self.objects._objects, self._sound
        keys = [key for key in objects if not any(part in key for part in NAMED_BY_NO_ROW)]
        mine: list[str] = []
        for _ in range(min(len(keys), 1 + self.luck.below(8))):
            key = self._some(keys)
            if key in sound:
                continue
            data, modified_ms = sound[key] = objects[key]
            mine.append(key)
            # Mostly in the first batch's header, of which the CRC covers only a part.
            near = min(len(data), OBJECT_HEADER_BYTES + HEADER_BYTES) if self.luck.below(4) else len(data)
            at, bit = self.luck.below(near), 1 << self.luck.below(8)
            objects[key] = (data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :], modified_ms)
            self.note(f"{key} rots at {at}")
        await self.clock.sleep(seconds)
        for key in mine:
            was = sound.pop(key)
            if key in objects:
                objects[key] = was

    async def _stop_for_a_while(self, process: SimulatedProcess, most_s: float, least_s: float = 0.2) -> None:
        self.note(f"{process.name} stops")
        process.stop()
        await self.clock.sleep(least_s + most_s * self.luck.fraction() ** 2)
        process.go_on()
        self.note(f"{process.name} goes on")

    def _some(self, items: list[str]) -> str:
        return items[self.luck.below(len(items))]

    async def _end_trouble(self) -> None:
        self.note("the faults end")
        self.cluster.calm(CALM)
        self.is_calm = True
        self._done_in_trouble = Counter(self.cluster.done)

    # --- the end

    async def _close_cluster(self) -> None:
        for agent in self.cluster.agents.values():
            if not agent.process.is_dead:
                await agent.process.run(agent.drain())
        self.note("agents are drained")
        self.cluster.is_compacting = False

    async def _wait_for_collector(self) -> None:
        grace_s = GRACE_SECONDS + more_seconds(self._scenario)
        give_up = self._loop.time() + grace_s
        left = await self._left()
        while left and self._loop.time() < give_up:
            await self.clock.sleep(1.0)
            left = await self._left()
        for what in left[:5]:
            self.violated(f"{grace_s} s after the end: {what}")
        for fault in (await faults_in_rows(self.rows, self.objects, crc32c))[:5]:
            self.violated(fault)
        await self._compare_copies()
        self.note("everything is clean" if not left else "garbage is left")

    async def _left(self) -> list[str]:
        garbage = await garbage_left(self.rows, self.objects, may_leave_orphans=not self.is_time_kept)
        return [*garbage, *self._age_watch.left]

    async def _compare_copies(self) -> None:
        for address, (process, node) in self.cluster.nodes.items():
            if node._follower is not None and not process.is_dead:
                with suppress(SequencerUnavailable):  # it became the committer meanwhile
                    for fault in (await process.run(faults_in_copy(node._follower, self.rows)))[:5]:
                        self.violated(f"{address}: {fault}")


__all__ = ["Result", "Scenario", "World", "replace", "simulate"]
