"""The process of `agent` and `serve`: built from its settings, run until a signal, drained, closed.

The part that is opened first is closed last.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from agent.gateway.settings import GatewaySettings
from agent.gateway.telemetry import GatewayTelemetry
from agent.http import AgentPages
from agent.options import AgentOptions, package_version
from agent.security.listener_contexts import ClientSecurity
from agent.server import Agent
from agent.settings import AgentSettings
from agent.telemetry import AgentTelemetry
from agent.telemetry_observers import CacheMetrics, StoreMetrics
from cache.chunk_file import CacheFolderUnusable
from cache.disk import DiskTier, open_disk_tier
from sequencer.api.interface import Sequencer
from sequencer.client import SequencerClient
from sequencer.http import show_server
from sequencer.metrics import SequencerMetrics
from sequencer.store_check import WrongStore
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.cost import kind_of_database
from tailrace.http.http_server import HttpServer
from tailrace.object_store.api import ObjectStore
from tailrace.rpc import RpcSecurity
from tailrace.rpc.link import split_address
from tailrace.rpc.loaded_security import LoadedSecurity
from tailrace.security.tls import Tls
from tailrace.telemetry.logs import name_process
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.checks import open_prices
from tailrace_cli.running.data_folder import (
    ServedStores,
    ServerInfo,
    held_folder,
    open_data_folder,
    shown_as_serving,
)
from tailrace_cli.running.first_user import create_first_user
from tailrace_cli.running.loop import collect_rarely
from tailrace_cli.running.loop_watch import watched_loop
from tailrace_cli.running.process_metrics import add_process_metrics
from tailrace_cli.running.runtime import Runtime, opened_store
from tailrace_cli.running.security import (
    kept_current,
    open_client_security,
    open_gateway_tls,
    open_http_tls,
    open_security,
)
from tailrace_cli.running.sequencer_process import sequencer_server, wait_for_committer
from tailrace_cli.running.service_manager import service_manager_notified
from tailrace_cli.running.shutdown import ShutdownSignals
from tailrace_cli.settings import Settings

log = structlog.get_logger("tailrace.process")

KEPT_FILES = 512
"""Open files for everything but Kafka clients: `http`, the store, the database, peers."""


async def run_serve(settings: Settings, *, is_secure: bool = False) -> None:
    """Run an agent and its sequencer in one process, by default on SQLite and a folder.

    The sequencer serves compactors and commands at `rpc`.
    """
    data = settings.data.expanduser().absolute()
    open_data_folder(data, SystemEntropy())
    with held_folder(data):
        if not is_secure:
            await _run_in(data, settings, None)
            return
        from tailrace_cli.running.secure_serve import secured, write_client_files

        settings = secured(settings, data, SystemClock(), SystemEntropy())

        def tell(agent: Agent) -> None:
            print(write_client_files(settings, data, agent.kafka_port), flush=True)

        await _run_in(data, settings, tell)


async def _run_in(data: Path, settings: Settings, on_ready: Callable[[Agent], None] | None) -> None:
    used = _given(settings).within(data)
    rpc = settings.rpc or "127.0.0.1:0"  # a compactor finds the port in serve.json
    alone = settings.model_copy(update={"rpc": None})
    security = open_security(settings, data=data)
    process = _AgentProcess(alone, used.store, used.database, security, data=data, sequencer_listens=rpc)
    await process.run(on_ready)


def _given(settings: Settings) -> ServedStores:
    return ServedStores(settings.store or "", settings.database or "")


async def run_agent(settings: Settings) -> None:
    """Run one agent, with the sequencer in this process (`database`) or in other processes (`sequencers`)."""
    assert settings.store is not None, "agent_mistakes tells"
    await _AgentProcess(settings, settings.store, settings.database, open_security(settings)).run()


class _AgentProcess:
    """The process of `agent` or `serve`. The constructor reads all files; `run` opens the rest.

    `data`: the folder of `serve`. `sequencer_listens`: the address at which its sequencer serves other processes.
    """

    def __init__(
        self,
        settings: Settings,
        store_url: str,
        database: str | None,
        security: LoadedSecurity,
        *,
        data: Path | None = None,
        sequencer_listens: str | None = None,
    ) -> None:
        self._kind = "agent" if data is None else "serve"
        name_process(lambda: self._kind)
        self._settings = settings
        self._store_url = store_url
        self._database = database
        self._data = data
        self._sequencer_listens = sequencer_listens
        self._shutdown = ShutdownSignals(settings.agent.drain_ms / 1000)
        self._runtime = Runtime(SystemClock(), SystemEntropy())
        self._telemetry = AgentTelemetry()
        self._cache_metrics = CacheMetrics(self._telemetry.registry)
        self._prices = open_prices(settings, store_url, database)
        self._security = security
        self._http_tls = open_http_tls(settings)
        self._clients = open_client_security(settings)
        self._gateway_tls = open_gateway_tls(settings)

    async def run(self, on_ready: Callable[[Agent], None] | None = None) -> None:
        """Run until a signal, or until the agent or its sequencer is lost."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            notify_ready = await self._watch(stack)
            cache_disk = await self._open_cache_disk(stack)
            metrics = StoreMetrics(self._telemetry.registry)
            store = await stack.enter_async_context(opened_store(self._store_url, self._runtime, metrics))
            sequencer, rpc_address = await self._open_sequencer(stack, store)
            pages = AgentPages(self._telemetry, sequencer, self._prices, kind_of_database(self._database))
            http_port = await self._open_pages(stack, pages)
            agent = self._agent(sequencer, store, http_port, cache_disk)
            name_process(lambda: _agent_name(self._kind, agent))
            try:
                await agent.start()
            except WrongStore as error:
                raise CommandFailed(str(error)) from None
            stack.push_async_callback(agent.drain)
            if settings.security.first_user_file is not None:
                await create_first_user(sequencer, settings.security.first_user_file)
            pages.agent = agent
            if settings.gateway.listen:
                await _open_gateway(stack, agent, settings.gateway, self._gateway_tls)
            if self._data is not None:
                serving = ServerInfo(
                    pid=os.getpid(),
                    kafka_port=agent.kafka_port,
                    http_port=http_port,
                    rpc=rpc_address,
                    store=self._store_url,
                )
                stack.enter_context(shown_as_serving(self._data, serving, _given(settings)))
            collect_rarely()
            notify_ready()
            log.info("ready", kafka_port=agent.kafka_port, http_port=http_port, store=self._store_url)
            if on_ready is not None:
                on_ready(agent)
            await self._shutdown.wait()
        self._shutdown.check()

    async def _watch(self, stack: AsyncExitStack) -> Callable[[], None]:
        """Start what every process has: metrics, a watch on its loop, reloading of certificates.

        Return the function that tells the service manager that the process is ready.
        """
        clock, registry = self._runtime.clock, self._telemetry.registry
        add_process_metrics(registry, version=package_version(), kind=self._kind)
        stack.enter_context(watched_loop(clock, registry))
        notify_ready = await stack.enter_async_context(service_manager_notified(clock))
        tls = (self._http_tls, self._clients.tls, self._gateway_tls)
        await stack.enter_async_context(kept_current(clock, registry, self._security, *tls))
        return notify_ready

    async def _open_cache_disk(self, stack: AsyncExitStack) -> DiskTier | None:
        """Open the disk tier of the cache, if the settings name a folder."""
        clock, metrics = self._runtime.clock, self._cache_metrics
        try:
            disk = await asyncio.to_thread(open_disk_tier, self._settings.cache, clock, metrics)
        except CacheFolderUnusable as error:
            raise CommandFailed(str(error)) from None
        if disk is not None:
            stack.push_async_callback(disk.close)
            metrics.show_disk(disk)
        return disk

    async def _open_sequencer(self, stack: AsyncExitStack, store: ObjectStore) -> tuple[Sequencer, str]:
        """Open the sequencer: a client of other processes, or a server in this one once it is the committer.

        Return it with the address at which this process serves it.
        """
        observer = SequencerMetrics(self._telemetry.registry)
        if self._database is None:
            client = SequencerClient(
                self._settings.sequencers,
                clock=self._runtime.clock,
                entropy=self._runtime.entropy,
                security=self._security.rpc,
                observer=observer,
            )
            stack.push_async_callback(client.close)
            return client, ""
        server = await stack.enter_async_context(
            sequencer_server(
                settings=self._settings,
                database=self._database,
                runtime=self._runtime,
                store=store,
                security=self._security.rpc,
                listen=self._sequencer_listens,
                on_lost=self._shutdown.fail,
                observer=observer,
            )
        )
        show_server(lambda: server, self._telemetry.registry)
        await wait_for_committer(server, self._runtime.clock)
        return server.sequencer, server.address

    async def _open_pages(self, stack: AsyncExitStack, pages: AgentPages) -> int:
        """Serve the pages over HTTP. Return the port."""
        login = pages.login if self._clients.is_authenticating else None
        http = HttpServer(pages, self._runtime.clock, login, self._settings.http_bounds)
        stack.push_async_callback(http.close)
        await http.start(*split_address(self._settings.http), self._http_tls)
        return http.port

    def _agent(
        self, sequencer: Sequencer, store: ObjectStore, http_port: int, cache_disk: DiskTier | None
    ) -> Agent:
        return Agent(
            agent_options(self._settings, http_port, self._security.rpc, self._clients),
            within_open_files(
                self._settings.agent.on_store(self._store_url, self._prices.put_per_1000),
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            ),
            sequencer=sequencer,
            store=store,
            clock=self._runtime.clock,
            entropy=self._runtime.entropy,
            cache_settings=self._settings.cache,
            cache_observer=self._cache_metrics,
            cache_disk=cache_disk,
            telemetry=self._telemetry,
            on_lost=self._shutdown.fail,
        )


def within_open_files(settings: AgentSettings, files: int) -> AgentSettings:
    """Return the settings with at most as many client connections as this limit of open files leaves room for. Beyond
    the limit libuv closes new connections without a word, and stores and databases can't be opened."""
    most = files - min(KEPT_FILES, files // 2)
    if files == resource.RLIM_INFINITY or settings.max_connections <= most:
        return settings
    log.warning(
        "agent.max_connections is above the limit of open files (ulimit -n)",
        max_connections=settings.max_connections, open_files=files, used=most,
    )  # fmt: skip
    return settings.model_copy(update={"max_connections": most})


async def _open_gateway(
    stack: AsyncExitStack, agent: Agent, settings: GatewaySettings, tls: Tls | None
) -> None:
    """Serve topics over HTTP. The gateway closes before the agent drains."""
    from agent.gateway.server import Gateway

    gateway = Gateway(agent, settings, GatewayTelemetry(agent.telemetry.registry))
    stack.push_async_callback(gateway.close)
    await gateway.start(None if tls is None else tls.server_context)


def _agent_name(kind: str, agent: Agent) -> str:
    return kind if agent.broker_id is None else f"{kind} {agent.broker_id}"


def agent_options(
    settings: Settings, http_port: int, security: RpcSecurity, clients: ClientSecurity
) -> AgentOptions:
    """Return the agent's options: where it listens and where others reach it, from the settings."""
    host, port = split_address(settings.listen)
    advertise_host, advertise_port = split_address(settings.advertise) if settings.advertise else ("", 0)
    if clients.listeners:
        advertise_host = clients.listeners[0].advertise_host
    peer_host, peer_port = split_address(settings.rpc) if settings.rpc else ("127.0.0.1", None)
    peer_advertise = split_address(settings.rpc_advertise)[0] if settings.rpc_advertise else ""
    if not peer_advertise and peer_host in ("0.0.0.0", "::"):
        peer_advertise = advertise_host
    return AgentOptions(
        listen_host=host,
        listen_port=port,
        advertise_host=advertise_host,
        advertise_port=advertise_port,
        zone=settings.zone,
        peer_host=peer_host,
        peer_port=peer_port,
        peer_advertise_host=peer_advertise,
        max_rpc_connections=settings.max_rpc_connections,
        http_port=http_port,
        rpc=security,
        clients=clients,
    )
