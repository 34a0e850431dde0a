"""The process of `sequencer`, and the sequencer inside other processes: opened from settings, and closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from agent.options import package_version
from agent.telemetry_observers import StoreMetrics
from sequencer.api.errors import InvalidConfig
from sequencer.http import SequencerPages
from sequencer.metrics import SequencerMetrics
from sequencer.observer import SequencerObserver
from sequencer.server import SequencerServer
from sequencer.settings import ServerSettings
from sequencer.store.row_store import RowStore
from sequencer.store.sql.store import SqlRowStore
from sequencer.store_check import WrongStore, check_store
from tailrace.clock import Clock, SystemClock, SystemEntropy
from tailrace.configs.broker_config import check_broker_configs
from tailrace.configs.topic_config import InvalidConfigValue, check_topic_configs
from tailrace.http.http_server import HttpServer
from tailrace.object_store.api import ObjectStore
from tailrace.rpc import RpcSecurity
from tailrace.rpc.link import split_address
from tailrace.telemetry.logs import name_process
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.checks import RPC_OF_SEQUENCER
from tailrace_cli.running.loop import collect_rarely
from tailrace_cli.running.loop_watch import watched_loop
from tailrace_cli.running.process_metrics import add_process_metrics
from tailrace_cli.running.runtime import Runtime, opened_store
from tailrace_cli.running.security import database_password, kept_current, open_http_tls, open_security
from tailrace_cli.running.service_manager import service_manager_notified
from tailrace_cli.running.shutdown import ShutdownSignals
from tailrace_cli.settings import Settings

log = structlog.get_logger("tailrace.process")

_COMMITTER_PATIENCE_SECONDS = 15.0


async def run_sequencer(settings: Settings) -> None:
    """Run a sequencer server, with metrics and health at `http`."""
    assert settings.database is not None, "sequencer_mistakes tells"
    shutdown = ShutdownSignals(ServerSettings().drain_s)
    runtime = Runtime(SystemClock(), SystemEntropy())
    rpc = settings.rpc or RPC_OF_SEQUENCER
    security, http_tls = open_security(settings), open_http_tls(settings)
    name_process(lambda: f"sequencer {settings.rpc_advertise or rpc}")
    async with AsyncExitStack() as stack:
        pages = SequencerPages()
        http = HttpServer(pages, runtime.clock, bounds=settings.http_bounds)
        add_process_metrics(pages.registry, version=package_version(), kind="sequencer")
        stack.enter_context(watched_loop(runtime.clock, pages.registry))
        notify_ready = await stack.enter_async_context(service_manager_notified(runtime.clock))
        stack.push_async_callback(http.close)
        await stack.enter_async_context(kept_current(runtime.clock, pages.registry, security, http_tls))
        await http.start(*split_address(settings.http), http_tls)
        store = None
        if settings.store is not None:
            store = await stack.enter_async_context(
                opened_store(settings.store, runtime, StoreMetrics(pages.registry))
            )
        collect_rarely()  # before the rows are loaded
        server = await stack.enter_async_context(
            sequencer_server(
                settings=settings,
                database=settings.database,
                runtime=runtime,
                store=store,
                security=security.rpc,
                listen=rpc,
                on_lost=shutdown.fail,
                observer=SequencerMetrics(pages.registry),
            )
        )
        pages.server = server
        notify_ready()
        log.info("ready", rpc=server.address, http_port=http.port, collects_garbage=store is not None)
        await shutdown.wait()
    shutdown.check()


@asynccontextmanager
async def sequencer_server(
    settings: Settings,
    database: str,
    runtime: Runtime,
    store: ObjectStore | None,
    security: RpcSecurity,
    *,
    listen: str | None,
    on_lost: Callable[[str], None] | None = None,
    observer: SequencerObserver | None = None,
) -> AsyncIterator[SequencerServer]:
    """Run a sequencer on a database, with its housekeeping. It serves other processes at `listen`, if given."""
    rows = SqlRowStore(
        database, clock=runtime.clock, entropy=runtime.entropy, password=database_password(settings)
    )
    host, port = split_address(listen) if listen else ("127.0.0.1", 0)
    server = SequencerServer(
        rows,
        runtime.clock,
        runtime.entropy,
        settings=ServerSettings(
            host=host,
            port=port,
            advertise=(settings.rpc_advertise or "") if listen else "",
            retention_interval_s=settings.maintenance_seconds,
            collection_interval_s=settings.maintenance_seconds,
            max_rpc_connections=settings.max_rpc_connections,
            keeps_journal=not database.startswith("sqlite"),
            follows=listen is not None,
        ),
        sequencer_settings=settings.sequencer.on_store(settings.store),
        validate_config=check_configs,
        object_store=store,
        reads=rows.reads(),
        observer=observer,
        security=security,
        on_lost=on_lost,
    )
    try:
        if store is not None:
            await _check_store(rows, store, runtime.clock)
        await server.start(listen=listen is not None)
        yield server
    finally:
        await server.close()
        await rows.close()


def check_configs(scope: str, configs: Mapping[str, str]) -> None:
    """Check topic or broker configs for the sequencer. Raises InvalidConfig."""
    try:
        if scope == "topic":
            check_topic_configs(configs)
        else:
            check_broker_configs(configs)
    except InvalidConfigValue as error:
        raise InvalidConfig(str(error)) from error


async def _check_store(rows: RowStore, store: ObjectStore, clock: Clock) -> None:
    """Check that the store is the database's, before anything of this cluster is written to it. Raises CommandFailed
    and SequencerError."""

    async def has_objects() -> bool:
        return bool(await rows.objects_after("", 1))

    try:
        await check_store(store, (await rows.open()).cluster_id, has_objects, clock)
    except WrongStore as error:
        raise CommandFailed(str(error)) from None


async def wait_for_committer(server: SequencerServer, clock: Clock) -> None:
    """Wait until this process is the committer. A killed committer leaves a lease that lasts some seconds.

    Raises CommandFailed after 15 seconds, or if the server is lost.
    """
    if not server.is_committer:
        log.warning("another process uses this database as its sequencer; waiting for it to stop",
                    address=server.committer_address, patience_seconds=_COMMITTER_PATIENCE_SECONDS)  # fmt: skip
    give_up = clock.monotonic() + _COMMITTER_PATIENCE_SECONDS
    while not server.is_committer:
        if server.lost is not None:
            raise CommandFailed(str(server.lost))
        if clock.monotonic() > give_up:
            raise CommandFailed(
                f"another process{_at(server.committer_address)} uses this database as its sequencer; stop it, or "
                "start agents with --sequencer HOST:PORT"
            )
        await clock.sleep(0.1)


def _at(address: str) -> str:
    return f" at {address}" if address else ""
