"""The agent: wires its parts together, keeps its lease, opens its listeners and drains them.

Start: register with the sequencer (a broker id by lease), open the lanes' sessions, listen. Drain: give up leadership,
stop reading, answer every request that was read, flush, give back sessions and lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from agent.answer_memory import AnswerMemory
from agent.catalog import Catalog
from agent.client_access import ClientAccess
from agent.client_connections import ClientConnections
from agent.connection import MemoryPressure
from agent.decoding_threads import DecodingThreads
from agent.fetch.dead_letter_queue import DeadLetterQueue
from agent.fetch.fetch_memory import FetchMemory
from agent.fetch.fetch_sessions import FetchSessions
from agent.fetch.share_releases import ShareReleases
from agent.fetch.share_sessions import ShareSessions
from agent.fetch.tail import Tail
from agent.gateway.context import GatewayContext
from agent.groups.coordinator import GroupCoordinator
from agent.handlers.dead_letters import write_dead_letters
from agent.identity import AgentIdentity
from agent.internal_topics.copier import Copier
from agent.internal_topics.copy_queue import CopyQueue
from agent.lease import LeaseKeeper
from agent.long_work import LongWork
from agent.memory_budget import MemoryBudget
from agent.neighbour import METHOD as PING
from agent.neighbour import NeighbourWatch
from agent.options import AgentOptions, package_version
from agent.produce.current_transactions import CurrentTransactions
from agent.produce.lane import CLOSE_SESSION_SECONDS, Lane
from agent.produce.lanes import Lanes
from agent.produce.receipts import Receipts
from agent.produce.request_memory import RequestMemory
from agent.produce.transactional_producers import TransactionalProducers
from agent.quotas.precedence import book_of
from agent.quotas.quotas import Quotas
from agent.security.http_login import HttpLogin
from agent.security.listener_contexts import ClientSecurity
from agent.services import Services
from agent.settings import AgentSettings
from agent.telemetry import AgentTelemetry
from cache.chunk_cache import ChunkCache
from cache.disk import DiskTier
from cache.observer import CacheObserver
from cache.peer import ChunkRequest, PeerClients, PeerServer
from cache.reader import BatchReader
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import AgentInfo, AgentRef, Member, RenewAgent
from sequencer.api.interface import Sequencer
from sequencer.api.values import Empty
from sequencer.store_check import check_store, has_objects
from tailrace.background_tasks import cancel_and_wait
from tailrace.buffers import Buffer
from tailrace.clock import Clock, Entropy, wait_for
from tailrace.object_store.api import ObjectStore
from tailrace.rpc import (
    CallFailed,
    ClusterIdentity,
    KnownCluster,
    RpcClient,
    RpcServer,
    TcpLink,
    decode_body,
    encode_body,
)
from tailrace.rpc.telemetry import count_refused
from tailrace.security.handshakes import Handshakes

log = structlog.get_logger("agent.server")

DECODING_THREADS = 2
LOGIN_THREADS = 2
"""Apart from those that decode, because clients can make decoding take long."""
LISTEN_BACKLOG = 1024
DRAIN_PART_SECONDS = 2.0
"""How long each part of a drain may take. Only answering the requests that were read has its own limit, `drain_ms`."""
NOTICE_SECONDS = 1.5
QUIET_SECONDS = 0.6
"""A drain gives clients at most NOTICE_SECONDS to find another agent. It stops waiting earlier once every connection
has been silent for QUIET_SECONDS, which is longer than a consumer usually waits for records."""
DRAIN_CUT_SECONDS = 0.2
"""How long a part of the drain may take to stop once it is cancelled."""
DRAIN_MARGIN_SECONDS = 20.0
"""A drain ends within `drain_ms` plus this margin: eight more parts, each cancelled if it takes too long."""
PEER_GRACE_SECONDS = 1.0


class Agent:
    """One agent in one event loop. `start`, then `drain` or `abort`, once each.

    `on_lost` is called when the agent can't continue: another process has taken its lease, or the cluster's database is
    not the one it knew. The caller should end the process.
    """

    def __init__(
        self,
        options: AgentOptions,
        settings: AgentSettings,
        *,
        sequencer: Sequencer,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        cache_settings: CacheSettings | None = None,
        cache_observer: CacheObserver | None = None,
        cache_disk: DiskTier | None = None,
        telemetry: AgentTelemetry | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._options = options
        self._settings = settings
        self._sequencer = sequencer
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._on_lost = on_lost
        self._instance = entropy.uuid()
        self._executor = DecodingThreads(DECODING_THREADS)
        self._login_threads = ThreadPoolExecutor(LOGIN_THREADS, thread_name_prefix="login")
        self._budget = MemoryBudget(settings.memory_budget_bytes)
        self._fetch_memory = FetchMemory(settings.fetch_memory_bytes, clock)
        self._answer_memory = AnswerMemory(settings.memory_budget_bytes, clock)
        self._request_memory = RequestMemory(settings.memory_budget_bytes, clock)
        self._listeners: list[asyncio.Server] = []
        self._handshakes: list[Handshakes] = []
        self._peer_server: RpcServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._neighbour: NeighbourWatch | None = None
        self._draining = False
        self._known = KnownCluster()
        self.telemetry = telemetry or AgentTelemetry()
        self.catalog = Catalog(sequencer)
        self._quotas = Quotas(clock, self.telemetry.throttled)
        self.catalog.on_client_configs = lambda known: self._quotas.take(book_of(known.configs))
        self._connections = ClientConnections(
            settings,
            clock=clock,
            telemetry=self.telemetry,
            quotas=self._quotas,
            budget=self._budget,
            pressure=self._pressure,
        )
        self.catalog.on_removed_users = self._connections.close_removed
        cache_settings = cache_settings or CacheSettings()
        self._peers = PeerClients(self._peer_link, clock, cache_settings, cache_observer)
        self.cache = ChunkCache(
            store=store,
            settings=cache_settings,
            ring=self._zone_ring,
            peers=self._peers,
            observer=cache_observer,
            disk=cache_disk,
        )
        self._reader = BatchReader(
            cache=self.cache,
            clock=clock,
            executor=self._executor,
            observer=cache_observer,
            find=sequencer.find_batches,
        )
        self._ring_seen: ZoneRing | None = None
        self._services: Services | None = None
        self._client_access: ClientAccess | None = None
        self._share_releases: ShareReleases | None = None
        self.kafka_ports: dict[str, int] = {}
        """Bound ports by listener name."""
        self.peer_port = 0
        self._show_gauges()

    def _pressure(self) -> MemoryPressure:
        """Return the memory that others wait for."""
        return MemoryPressure(
            requests=self._budget.is_contended,
            records=self._fetch_memory.is_contended,
            answers=self._answer_memory.is_contended,
        )

    def _show_gauges(self) -> None:
        """Set the gauges that read the agent's state at each scrape."""
        shown = self.telemetry
        shown.connections.set_function(lambda: len(self._connections))
        shown.buffered_bytes.set_function(lambda: self._budget.used)
        shown.answer_bytes.set_function(lambda: self._answer_memory.used)
        shown.request_object_bytes.set_function(lambda: self._request_memory.used)
        shown.unsent_bytes.set_function(lambda: self._fetch_memory.used)
        shown.kept_bytes.set_function(lambda: self._fetch_memory.pinned)
        shown.unanswered_commits.set_function(
            lambda: self._services.lanes.unanswered_commits if self._services is not None else 0
        )
        shown.topics.forget_deleted_of(lambda: self.catalog.snapshot.by_name)
        count_refused(lambda: self._peer_server, shown.registry)

    # --- start ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the ring and listen.

        Raises OSError (address in use), WrongStore and the sequencer's errors.
        """
        if self._options.peer_port is not None:
            self._peer_server = RpcServer(
                self._serve_peer,
                clock=self._clock,
                entropy=self._entropy,
                known=self._known,
                security=self._options.rpc,
                max_connections=self._options.max_rpc_connections,
            )
            await self._peer_server.listen(self._options.peer_host, self._options.peer_port)
            self.peer_port = self._peer_server.port
        await self._bind()
        try:
            cluster_id = (await self.catalog.refresh()).cluster_id
            await check_store(self._store, cluster_id, partial(has_objects, self._sequencer), self._clock)
            await self._join()
            for server in self._listeners:
                await server.start_serving()
        except BaseException:
            for server in self._listeners:
                server.close()
            raise
        log.info(
            "serving Kafka clients",
            listen=[
                f"{listener.protocol.value}://{listener.host}:{self.kafka_ports[listener.name]}"
                for listener in self._options.listeners
            ],
            broker_id=self.services.identity.broker_id,
            zone=self._options.zone,
        )

    async def _bind(self) -> None:
        """Bind the listeners' addresses without accepting connections yet."""
        for listener in self._options.listeners:
            arrival: Callable[[], asyncio.BaseProtocol] = self._connections.accepting(listener.name)
            if (tls := self._options.clients.tls_of(listener)) is not None:
                ended = partial(self._connections.handshake_ended, listener.name)
                handshakes = Handshakes(arrival, tls, self._options.clients.settings.handshakes, ended)
                self._handshakes.append(handshakes)
                arrival = handshakes.arrival
            server = await asyncio.get_running_loop().create_server(
                arrival, listener.host, listener.port, backlog=LISTEN_BACKLOG, start_serving=False
            )
            self._listeners.append(server)
            self.kafka_ports[listener.name] = server.sockets[0].getsockname()[1]

    @property
    def kafka_port(self) -> int:
        """The port of the first listener."""
        return next(iter(self.kafka_ports.values()), 0)

    async def _join(self) -> None:
        info = self._info()
        asked_at = self._clock.monotonic()
        lease = await self._sequencer.register_agent(info)
        identity = AgentIdentity.of(lease, info, asked_at)
        self._services = services = self._wired(identity)
        self._client_access = access = ClientAccess(
            services,
            self._options.clients,
            rpc_secrets=self._options.rpc.secrets,
            login_threads=self._login_threads,
        )
        self._connections.serve_with(access.dispatcher, access.contexts, services.long_work.passes)
        self.lease = LeaseKeeper(
            services,
            known=self._known,
            is_draining=lambda: self._draining,
            on_renewed=lambda: self._peers.retain(self.catalog.snapshot.ring),
            on_lost=self._on_lost,
        )
        self._tasks.append(asyncio.create_task(self.lease.run(lease), name="agent: lease"))
        self._tasks.append(asyncio.create_task(self._connections.sweep(), name="agent: connections"))
        self._neighbour = NeighbourWatch(
            ring=lambda: self.catalog.snapshot.ring,
            broker_id=lambda: identity.broker_id,
            connect=self._peer_link,
            sequencer=self._sequencer,
            refresh=self.catalog.refresh,
            clock=self._clock,
        )
        self._tasks.append(asyncio.create_task(self._neighbour.run(), name="agent: neighbour"))
        await services.lanes.start()
        await services.groups.start()
        services.tail.start()
        self._share_releases = ShareReleases(
            self._sequencer, services.share_sessions, services.groups.configs.share_limits
        )
        self._share_releases.start()
        self._connections.on_closed = self._share_releases.connection_ended
        services.dead_letters.start(partial(write_dead_letters, services))
        services.copy_queue.start(Copier(services).copy, services.groups.used_groups)
        snapshot = await self.catalog.refresh()
        self._known.learn(ClusterIdentity(snapshot.cluster_id, snapshot.incarnation))

    def _info(self) -> AgentInfo:
        """Return the addresses at which clients and other agents reach this agent."""
        advertised = {
            listener.name: (
                listener.advertise_host or listener.host,
                listener.advertise_port or self.kafka_ports[listener.name],
            )
            for listener in self._options.listeners
        }
        host, port = next(iter(advertised.values()))
        return AgentInfo(
            host=host,
            port=port,
            peer_host=self._options.peer_advertise_host or self._options.peer_host,
            peer_port=self.peer_port,
            http_port=self._options.http_port,
            zone=self._options.zone,
            version=package_version(),
            instance=self._instance,
            listeners=advertised if self._options.clients.listeners else {},
        )

    def _bound_clients(self) -> ClientSecurity:
        listeners = [replace(own, port=self.kafka_ports[own.name]) for own in self._options.listeners]
        return replace(self._options.clients, listeners=tuple(listeners))

    def _wired(self, identity: AgentIdentity) -> Services:
        """Build the parts that handlers use, without starting them."""
        groups = GroupCoordinator(
            sequencer=self._sequencer,
            clock=self._clock,
            entropy=self._entropy,
            settings=self._settings,
            identity=lambda: identity,
            catalog=self.catalog,
        )
        self.telemetry.group_bytes.set_function(lambda: groups.bytes.total)
        copy_queue = CopyQueue(
            self.catalog, self._clock, self.telemetry.internal_topic_copies.labels("dropped").inc
        )
        groups.on_stored, groups.on_taken_up = copy_queue.group_state, copy_queue.whole_group
        lanes = self._lanes(identity)
        tail = Tail(self._sequencer, self._clock, self._entropy, self.telemetry)
        lanes.report_stored(tail.note_stored)
        return Services(
            settings=self._settings,
            clients=self._bound_clients(),
            clock=self._clock,
            entropy=self._entropy,
            identity=identity,
            sequencer=self._sequencer,
            catalog=self.catalog,
            lanes=lanes,
            current_transactions=CurrentTransactions(self._sequencer),
            transactional_producers=TransactionalProducers(self._sequencer),
            reader=self._reader,
            tail=tail,
            sessions=FetchSessions(self._settings.fetch_sessions, self._clock, self._entropy),
            share_sessions=ShareSessions(self._settings.fetch_sessions, self._entropy),
            dead_letters=DeadLetterQueue(),
            fetch_memory=self._fetch_memory,
            answer_memory=self._answer_memory,
            request_memory=self._request_memory,
            groups=groups,
            copy_queue=copy_queue,
            decoding=self._executor,
            telemetry=self.telemetry,
            quotas=self._quotas,
            long_work=LongWork(self._clock.monotonic, lambda: lanes.unanswered_commits > 0),
        )

    def _lanes(self, identity: AgentIdentity) -> Lanes:
        receipts = Receipts(self._budget, self.telemetry, self._clock)
        return Lanes(
            [
                Lane(
                    number,
                    settings=self._settings,
                    clock=self._clock,
                    entropy=self._entropy,
                    store=self._store,
                    sequencer=self._sequencer,
                    cache=self.cache,
                    telemetry=self.telemetry,
                    broker_identity=lambda: (identity.broker_id, identity.lease_epoch),
                    receipts=receipts,
                )
                for number in range(self._settings.flush_lanes)
            ]
        )

    def gateway_context(self, listener: str) -> GatewayContext:
        """Return what the gateway needs: its clients log in as clients of the listener of this name, or of the first
        listener. Call it after the agent has started."""
        assert self._client_access is not None, "the agent was not started"
        first = self._options.listeners[0].name
        return self._client_access.gateway_context(listener or first, self._budget)

    @property
    def http_login(self) -> HttpLogin | None:
        """The login of HTTP pages if clients must log in; None before the start."""
        return None if self._client_access is None else self._client_access.http_login

    @property
    def services(self) -> Services:
        """The agent's parts; only after the start."""
        assert self._services is not None, "the agent was not started"
        return self._services

    @property
    def broker_id(self) -> int | None:
        """The broker id that clients see; None before the agent has joined."""
        return None if self._services is None else self._services.identity.broker_id

    @property
    def is_ready(self) -> bool:
        """Whether the lease is live and the agent is not draining."""
        return (
            self._services is not None
            and not self._draining
            and self._clock.monotonic() < self._services.identity.valid_until
        )

    @property
    def may_coordinate(self) -> bool:
        """Whether the lease is so fresh that no other agent can have taken over this agent's groups."""
        return (
            self._services is not None and self._clock.monotonic() < self._services.identity.coordinates_until
        )

    # --- the ring and peers -------------------------------------------------------------------------------

    def _zone_ring(self) -> ZoneRing:
        ring = self.catalog.snapshot.ring
        seen = self._ring_seen
        if seen is None or seen.generation != ring.generation:
            broker_id = self._services.identity.broker_id if self._services is not None else -1
            seen = self._ring_seen = ZoneRing(ring, self._options.zone, broker_id)
        return seen

    def _peer_link(self, member: Member) -> RpcClient:
        security = self._options.rpc
        link = TcpLink(f"{member.info.peer_host}:{member.info.peer_port}", security.tls)
        return RpcClient(link, clock=self._clock, entropy=self._entropy, known=self._known, security=security)

    async def _serve_peer(self, method: str, body: Buffer) -> tuple[bytes, list[Buffer]]:
        if method == PING:
            return encode_body(Empty()), []
        if method != "chunk":
            raise CallFailed(
                "bad_request", f"{method!r} was called; agents serve 'chunk' and 'ping' to their peers"
            )
        answer, tail = await PeerServer(self.cache).chunk(decode_body(body, ChunkRequest))
        return encode_body(answer), list(tail)

    # --- the end ------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Stop in order: leave groups and leadership, stop reading, answer, flush, give back the lease, close.

        Ends within `drain_ms` plus DRAIN_MARGIN_SECONDS, whatever the sequencer, the store and the clients do. A part
        that takes longer is cancelled, and clients must retry the requests that were not answered by then.
        """
        if self._draining or self._services is None:
            return
        self._draining = True
        services = self._services
        identity = services.identity
        # First, while this agent still owns the groups: once it drains, others may take them over.
        await self._part("let groups go", services.groups.close())
        leaving = RenewAgent(identity.broker_id, identity.lease_epoch, True)
        await self._part("leave leadership", self._sequencer.renew_agent(leaving))
        await self._part("send clients elsewhere", self._send_clients_elsewhere(identity))
        for server in self._listeners:
            server.close()
        for handshakes in self._handshakes:
            await handshakes.close()
        for connection in self._connections:
            connection.drain()
        drain_seconds = self._settings.drain_ms / 1000
        await self._part("answer what was read", self._answer_what_was_read(drain_seconds), drain_seconds)
        await self._part("dead letters", services.dead_letters.close())
        await self._part("internal topics", services.copy_queue.close())
        await self._part("flush", services.lanes.close(0), CLOSE_SESSION_SECONDS + DRAIN_PART_SECONDS)
        await self._part("close", self._stop())
        release = AgentRef(identity.broker_id, identity.lease_epoch)
        await self._part("give the lease back", self._sequencer.release_agent(release))
        log.info("drained", broker_id=identity.broker_id)

    async def _send_clients_elsewhere(self, identity: AgentIdentity) -> None:
        """Refuse produce and fetch for a moment, while clients can still ask this agent for the new leaders (decision
        16).

        A client that loses its only connection has to find the other agents first, and some clients hang.
        """
        ring = (await self.catalog.refresh()).ring
        if all(member.draining for member in ring.members):
            return  # there is no other agent
        identity.is_leaving = True
        now = self._clock.monotonic()
        until = now + NOTICE_SECONDS
        while now < until and any(
            connection.last_active > now - QUIET_SECONDS for connection in self._connections
        ):
            await self._clock.sleep(0.02)
            now = self._clock.monotonic()

    async def _answer_what_was_read(self, seconds: float) -> None:
        assert self._services is not None
        await self._services.lanes.flush(seconds)
        while self._connections:
            await self._clock.sleep(0.02)

    async def _part(
        self, name: str, work: Coroutine[Any, Any, object], seconds: float = DRAIN_PART_SECONDS
    ) -> None:
        """Run one part of the drain. If it takes too long or fails, log that and go on with the drain."""
        task = asyncio.create_task(work, name=f"drain: {name}")
        if not await wait_for(self._clock, task, seconds):
            log.warning(
                "a part of the drain took too long and is cancelled",
                part=name, seconds=seconds, connections=len(self._connections),
            )  # fmt: skip
            task.cancel()
            await wait_for(self._clock, task, DRAIN_CUT_SECONDS)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a part of the drain failed", part=name, error=repr(error))

    async def _stop(self) -> None:
        for handshakes in self._handshakes:
            await handshakes.close()
        for task in self._tasks:
            await cancel_and_wait(task)
        if self._neighbour is not None:
            await self._neighbour.close()
        if self._services is not None:
            await self._services.tail.close()
            await self._services.dead_letters.close()
            await self._services.copy_queue.stop()
        if self._share_releases is not None:
            await self._share_releases.close()
        if self._client_access is not None:
            await self._client_access.close()
        for connection in self._connections:
            connection.abort()
        if self._peer_server is not None:
            await self._peer_server.close(grace_s=PEER_GRACE_SECONDS)
        await self._peers.close()
        await self.cache.close()
        for threads in (self._executor, self._login_threads):
            threads.shutdown(wait=False, cancel_futures=True)
