"""An agent's parts without sockets, over the reference sequencer, the reference store and a clock that the test
moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any
from uuid import UUID

from agent.answer_memory import AnswerMemory
from agent.catalog import Catalog
from agent.connection import KafkaConnection
from agent.dispatch import Dispatcher
from agent.fetch.dead_letter_queue import DeadLetterQueue
from agent.fetch.fetch_memory import FetchMemory
from agent.fetch.fetch_sessions import FetchSessions
from agent.fetch.share_sessions import ShareSessions
from agent.fetch.tail import Tail
from agent.groups.coordinator import GroupCoordinator
from agent.handlers.dead_letters import write_dead_letters
from agent.identity import AgentIdentity
from agent.internal_topics.copier import Copier
from agent.internal_topics.copy_queue import CopyQueue
from agent.leadership import KnownLeadership
from agent.long_work import LongWork
from agent.memory_budget import MemoryBudget
from agent.produce.active_buffer import Submission
from agent.produce.current_transactions import CurrentTransactions
from agent.produce.lane import Lane
from agent.produce.lanes import Lanes
from agent.produce.receipts import Receipts
from agent.produce.request_memory import RequestMemory
from agent.produce.transactional_producers import TransactionalProducers
from agent.quotas.precedence import book_of
from agent.quotas.quotas import Quotas
from agent.replies import Reply
from agent.security.access import ANYBODY
from agent.security.delegation_tokens import fingerprint_of, hmac_of
from agent.security.listener_contexts import ClientSecurity
from agent.security.listeners import Listener, SecurityProtocol
from agent.services import RequestContext, Services
from agent.settings import AgentSettings
from agent.telemetry import AgentTelemetry
from cache.chunk_cache import ChunkCache
from cache.reader import BatchReader
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import AgentInfo, Ring
from sequencer.api.commits import CommitAnswer, CommitRequest
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.security import CreateToken
from sequencer.api.topics import CreateTopic, Topic
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.buffers import Buffer
from tailrace.kafka import decode_response, encode_request
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.faulty_store import FaultyStore
from tests.support.patience import opened

ALONE = ZoneRing(Ring(1, []), "az-a", 1)
PROMPT: dict[str, Any] = {
    "quiet_ms": 0,
    "max_puts_per_second": 10_000,
    "group_initial_rebalance_delay_ms": 0,
}
"""Settings that seal at once, and complete a group's rebalance with its first members."""

TOKEN_SECRET = "a secret of the cluster"
"""The secret with which the bench makes delegation tokens."""


class WatchedSequencer:
    """A sequencer that records its commits; a test can hold or refuse them, or lose their answers."""

    def __init__(self, inner: Committer) -> None:
        self.inner = inner
        self.commits: list[CommitRequest] = []
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.lose_answers = 0
        self.is_away = False
        self.failures: dict[str, int] = {}
        """How many of the next calls of each method fail."""
        self.before_commit: Callable[[], Awaitable[None]] | None = None

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        self.commits.append(request)
        await self.may_commit.wait()
        if self.before_commit is not None:
            await self.before_commit()
        if self.is_away:
            raise SequencerUnavailable("away (by the test)")
        answer = await self.inner.commit(request)
        if self.lose_answers:
            self.lose_answers -= 1
            raise SequencerUnavailable("the answer was lost (by the test)")
        return answer

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        async def asked(request: Any) -> Any:
            fails = self.failures.get(name, 0)
            self.failures[name] = max(fails - 1, 0)
            if self.is_away or fails:
                raise SequencerUnavailable("away (by the test)")
            return await method(request)

        return asked


class AgentBench:
    """One agent's services. Time moves only by `clock.advance` and `settle`."""

    clock: ManualClock
    store: FaultyStore
    objects: MemoryStore
    sequencer: WatchedSequencer
    services: Services
    lane: Lane
    memory: MemoryBudget

    def __init__(self, settings: dict[str, Any], sequencer_settings: SequencerSettings | None = None) -> None:
        self.settings = AgentSettings.model_validate(settings)
        self._sequencer_settings = sequencer_settings
        self._pool = ThreadPoolExecutor(1)

    async def open(self) -> None:
        self.clock = clock = ManualClock()
        self.objects = MemoryStore(clock)
        self.store = FaultyStore(self.objects, clock, SeededEntropy(2))
        local = Committer(MemoryRowStore(clock), clock, SeededEntropy(1), self._sequencer_settings)
        await local.start()
        self.sequencer = sequencer = WatchedSequencer(local)
        info = await self.join("az-a", 1)
        self.cache = ChunkCache(self.store, CacheSettings(memory_bytes=8 << 20), lambda: ALONE)
        telemetry = AgentTelemetry()
        self.memory = MemoryBudget(self.settings.memory_budget_bytes)
        identity = self.identity = info
        self.lane = Lane(
            0,
            settings=self.settings,
            clock=clock,
            entropy=SeededEntropy(3),
            store=self.store,
            sequencer=sequencer,
            cache=self.cache,
            telemetry=telemetry,
            broker_identity=lambda: (identity.broker_id, identity.lease_epoch),
            receipts=Receipts(self.memory, telemetry, clock),
        )
        catalog = Catalog(sequencer)
        quotas = Quotas(clock, telemetry.throttled)
        catalog.on_client_configs = lambda known: quotas.take(book_of(known.configs))
        groups = GroupCoordinator(
            sequencer, clock, SeededEntropy(6), self.settings, lambda: identity, catalog
        )
        copy_queue = CopyQueue(catalog, clock, telemetry.internal_topic_copies.labels("dropped").inc)
        groups.on_stored, groups.on_taken_up = copy_queue.group_state, copy_queue.whole_group
        self.services = Services(
            settings=self.settings,
            clients=ClientSecurity(
                (Listener("", SecurityProtocol.PLAINTEXT, "0.0.0.0", 9092),), token_secret=TOKEN_SECRET
            ),
            clock=clock,
            entropy=SeededEntropy(4),
            identity=identity,
            sequencer=sequencer,
            catalog=catalog,
            lanes=Lanes([self.lane]),
            current_transactions=CurrentTransactions(sequencer),
            transactional_producers=TransactionalProducers(sequencer),
            reader=BatchReader(self.cache, clock, self._pool, find=sequencer.find_batches),
            tail=Tail(sequencer, clock, SeededEntropy(7), telemetry),
            dead_letters=DeadLetterQueue(),
            fetch_memory=FetchMemory(256 << 20, clock),
            answer_memory=AnswerMemory(self.settings.memory_budget_bytes, clock),
            request_memory=RequestMemory(self.settings.memory_budget_bytes, clock),
            sessions=FetchSessions(self.settings.fetch_sessions, clock, SeededEntropy(5)),
            share_sessions=ShareSessions(self.settings.fetch_sessions, SeededEntropy(8)),
            groups=groups,
            copy_queue=copy_queue,
            decoding=self._pool,
            telemetry=telemetry,
            quotas=quotas,
            long_work=LongWork(clock.monotonic),
        )
        self.services.lanes.report_stored(self.services.tail.note_stored)
        await self.services.lanes.start()
        await self.services.groups.start()
        self.services.tail.start()
        self.services.dead_letters.start(partial(write_dead_letters, self.services))
        copy_queue.start(Copier(self.services).copy, groups.used_groups)
        await catalog.refresh()

    async def join(self, zone: str, number: int) -> AgentIdentity:
        """Register another agent without running it."""
        info = AgentInfo(f"host-{number}", 9092, f"host-{number}", 0, 0, zone, "0", UUID(int=number))
        lease = await self.sequencer.register_agent(info)
        return AgentIdentity.of(lease, info, self.clock.monotonic())

    async def close(self) -> None:
        self.sequencer.is_away = False
        self.sequencer.may_commit.set()
        self.store.outage.end()
        closing = asyncio.ensure_future(self._close())
        while not closing.done():
            self.clock.advance(0.5)
            await settle(20)
        await closing

    async def _close(self) -> None:
        await self.services.copy_queue.stop()
        await self.services.lanes.close(60)
        await self.services.tail.close()
        await self.services.dead_letters.close()
        await self.services.groups.close()
        await self.cache.close()
        await self.sequencer.inner.close()
        self._pool.shutdown()

    async def topic(self, name: str = "t", partitions: int = 2, **configs: str) -> Topic:
        """Create a topic. Config names are written with `_` in place of `.`."""
        spelled = {key.replace("_", "."): value for key, value in configs.items()}
        created = await self.sequencer.create_topic(CreateTopic(name, partitions, spelled))
        await self.services.catalog.refresh()
        assert isinstance(created, Topic)
        return created

    async def advance(self, seconds: float, step: float = 0.05) -> None:
        """Move time in steps, and run every woken task after each step."""
        for _ in range(max(round(seconds / step), 1)):
            self.clock.advance(step)
            await settle()

    async def until(self, awaited: asyncio.Future[Any], seconds: float = 60.0) -> Any:
        """Move time until `awaited` is done."""
        for _ in range(round(seconds / 0.05)):
            await settle()
            if awaited.done():
                break
            self.clock.advance(0.05)
        assert awaited.done(), f"not done after {seconds} s"
        return awaited.result()

    async def ask(
        self,
        api: int,
        version: int,
        request: Any,
        client_id: str | None = None,
        by: KafkaConnection | None = None,
    ) -> Any:
        """Send a request through dispatch and codecs, as a connection would; returns the decoded response."""
        sent = b"".join(encode_request(7, api, version, request, client_id))
        reply = await Dispatcher(self.services)(memoryview(sent)[4:], by or connection())
        parts = await made(reply)
        if reply.on_sent is not None:
            reply.on_sent()
        if parts is None:
            return None
        correlation_id, response = decode_response(api, version, memoryview(b"".join(parts))[4:])
        assert correlation_id == 7
        return response


class AwaitedSubmission(Submission):
    """A submission whose end a test can wait for."""

    def __init__(self, count: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        super().__init__(count, lambda results: self.done.set_result(None))


async def made(reply: Reply) -> Sequence[Buffer] | None:
    """Return the answer's bytes once they are made."""
    waiting = asyncio.get_running_loop().create_future()
    reply.on_made = waiting.set_result
    if not reply.is_made:
        await waiting
    return reply.parts


def connection() -> KafkaConnection:
    """A connection without a socket: the part that dispatch needs."""
    made = object.__new__(KafkaConnection)
    made.peer_host = "client-host"
    made.client_software = ""
    made.access = ANYBODY
    made.leadership = KnownLeadership()
    made.produce_shapes = made.fast_path = None
    made.deferred = 0
    made.muted_until = 0.0
    return made


def context(version: int, zone: str = "az-a") -> RequestContext:
    return RequestContext(version, "client", "client-host", zone)


async def settle(rounds: int = 60) -> None:
    """Let every ready task run."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def batch(
    *values: bytes, at: int = 1_700_000_000_000, producer: int = -1, epoch: int = -1, sequence: int = -1
) -> bytes:
    """Make one batch of the values, with timestamps a millisecond apart."""
    return encode_batch(
        [NewRecord(b"k", value) for value in values],
        timestamps=[at + number for number in range(len(values))],
        producer_id=producer,
        producer_epoch=0 if producer >= 0 and epoch < 0 else epoch,
        base_sequence=sequence,
    )


def agent_bench(
    sequencer_settings: SequencerSettings | None = None, **settings: Any
) -> AbstractAsyncContextManager[AgentBench]:
    """Open a fresh bench; the default settings seal promptly."""
    return opened(AgentBench({**PROMPT, **settings}, sequencer_settings))


def codes(rows: Sequence[Any]) -> list[int]:
    return [row.error_code for row in rows]


def token_of(owner: str, token_id: str, *renewers: str) -> CreateToken:
    """Make a delegation token with the bench's secret, valid for an hour, renewable for a day."""
    fingerprint = fingerprint_of(hmac_of(TOKEN_SECRET, token_id))
    return CreateToken(fingerprint, token_id, owner, owner, list(renewers), 24 * 3_600_000, 3_600_000)
