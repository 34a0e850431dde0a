"""`tailrace compact`: open the store and the sequencer, then run the Spark job, which only this module imports."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sequencer.api import MetadataRequest, Sequencer
from sequencer.client import SequencerClient
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.http_server import HttpServer
from tailrace.rpc import RpcSecurity
from tailrace.rpc.link import split_address
from tailrace.telemetry import name_process
from tailrace_cli.data_folder import DATABASE, OBJECTS, SECRET, FolderInUse, find_serving, held_folder
from tailrace_cli.errors import CommandFailed
from tailrace_cli.process import Runtime, sequencer_server, wait_for_committer
from tailrace_cli.security import check_rpc_is_closed, open_http_tls, open_security
from tailrace_cli.settings import Settings

if TYPE_CHECKING:
    from compactor.cycle import CompactionSettings, CompactionSummary
    from compactor.job import SparkRunner

    StartedRunner = AbstractAsyncContextManager[SparkRunner]

PROGRESS_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """What `tailrace compact` was told; where a value is None, the default holds.

    `every_s`: run until stopped, a round so often. `spark`: Spark's settings by their names.
    """

    master: str | None = None
    every_s: float | None = None
    topics: frozenset[str] = frozenset()
    spark: Mapping[str, str] = field(default_factory=dict)
    min_bytes: int | None = None
    min_age_ms: int | None = None


async def run_compact(settings: Settings, options: CompactOptions) -> dict[str, Any]:
    """Compact until nothing qualifies, or for ever, and return the figures by name. Raises CommandFailed.

    Without a store, a database and a sequencer, it compacts the data folder of `serve`, which may be running.
    """
    name_process(lambda: "compact")
    if settings.store or settings.database or settings.sequencers:
        return await _compact(settings, options)
    data = settings.data.expanduser().absolute()
    if not data.is_dir():
        raise CommandFailed(
            f"data folder {str(data)!r} does not exist; give the --data folder of `tailrace serve`, or --store and "
            "--sequencer of a cluster"
        )
    settings = _with_secret_of(data, settings)
    try:
        with held_folder(data):
            urls = {"store": str(data / OBJECTS), "database": f"sqlite:///{data / DATABASE}"}
            return await _compact(settings.model_copy(update=urls), options)
    except FolderInUse:
        serving = find_serving(data)
    addresses = {"store": serving.store, "sequencers": (serving.rpc,)}
    return await _compact(settings.model_copy(update=addresses), options)


def _with_secret_of(data: Path, settings: Settings) -> Settings:
    is_given = settings.rpc_secret.get_secret_value() or settings.rpc_secret_file is not None
    if is_given or not (data / SECRET).exists():
        return settings
    return settings.model_copy(update={"rpc_secret_file": data / SECRET})


async def _compact(settings: Settings, options: CompactOptions) -> dict[str, Any]:
    if settings.store is None:
        raise CommandFailed("no object store; give --store URL, the one that the agents use")
    if bool(settings.database) == bool(settings.sequencers):
        raise CommandFailed(
            f"{'both --database and' if settings.database else 'neither --database nor'} --sequencer "
            f"{'were' if settings.database else 'was'} given; give --sequencer HOST:PORT of a running sequencer, or "
            "--database URL where none runs"
        )
    security = open_security(settings).rpc
    check_rpc_is_closed(listen=None, sequencers=settings.sequencers, is_closed=security.is_closed)
    runtime = Runtime(SystemClock(), SystemEntropy())
    with _extra_explained():
        from compactor.java import NoJava
        from compactor.job import ExecutorsUnfit, spark_runner

        async with AsyncExitStack() as stack:
            sequencer = await stack.enter_async_context(_opened_sequencer(settings, security, runtime))
            await _check_topics(sequencer, options.topics)
            started = spark_runner(settings.store, master=options.master, spark_settings=options.spark)
            try:
                if options.every_s is None:
                    return await _compact_once(sequencer, started, runtime, options)
                await _compact_until_stopped(settings, sequencer, started, runtime, options)
            except (NoJava, ExecutorsUnfit) as error:
                raise CommandFailed(str(error)) from error
    raise CommandFailed("Spark's driver has ended; start the compactor again (a supervisor does)")


@contextmanager
def _extra_explained() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise CommandFailed(
            f"the compactor needs {error.name or error}; install it with `pip install 'tailrace[compactor]'`"
        ) from error


@asynccontextmanager
async def _opened_sequencer(
    settings: Settings, security: RpcSecurity, runtime: Runtime
) -> AsyncIterator[Sequencer]:
    async with AsyncExitStack() as stack:
        if settings.database:
            server = await stack.enter_async_context(
                sequencer_server(settings, settings.database, runtime, None, security, listen=None)
            )
            await wait_for_committer(server, runtime.clock)
            yield server.sequencer
            return
        remote = SequencerClient(
            settings.sequencers, clock=runtime.clock, entropy=runtime.entropy, security=security
        )
        stack.push_async_callback(remote.close)
        yield remote.sequencer


async def _check_topics(sequencer: Sequencer, topics: frozenset[str]) -> None:
    """Raise CommandFailed for a topic that doesn't exist: a misspelt name would compact nothing, without a word."""
    if topics:
        known = {topic.name for topic in (await sequencer.metadata(MetadataRequest())).topics or []}
        if missing := sorted(topics - known):
            raise CommandFailed(
                f"--topic {missing[0]!r}: there is no such topic; `tailrace topic list` shows them"
            )


def _cycle_settings(options: CompactOptions) -> CompactionSettings:
    from compactor.cycle import CompactionSettings

    plain = CompactionSettings(topics=options.topics)
    return replace(
        plain,
        min_bytes=plain.min_bytes if options.min_bytes is None else options.min_bytes,
        min_age_ms=plain.min_age_ms if options.min_age_ms is None else options.min_age_ms,
    )


async def _compact_once(
    sequencer: Sequencer, started: StartedRunner, runtime: Runtime, options: CompactOptions
) -> dict[str, Any]:
    from compactor.cycle import CompactionSummary

    summary = CompactionSummary()
    async with started as runner, _progress_shown(summary):
        await _run_round(sequencer, runner, runtime, options=options, summary=summary)
    figures = msgspec.to_builtins(summary)
    assert isinstance(figures, dict), "a summary has fields"
    return figures


async def _compact_until_stopped(
    settings: Settings,
    sequencer: Sequencer,
    started: StartedRunner,
    runtime: Runtime,
    options: CompactOptions,
) -> None:
    """Rounds until a signal (CancelledError), or until Spark's driver has ended. Metrics where `http` is set."""
    from compactor.job import ExecutorsUnfit
    from compactor.metrics import CompactorPages
    from compactor.rounds import Rounds

    async def run_round(summary: CompactionSummary) -> None:
        await _run_round(sequencer, runner, runtime, options=options, summary=summary)

    assert options.every_s is not None, "asked by the caller"
    rounds = Rounds(run_round, runtime.clock, foreseen=(ExecutorsUnfit,))
    async with AsyncExitStack() as stack:
        if "http" in settings.model_fields_set:
            http = HttpServer(CompactorPages(rounds, sequencer, runtime.clock), runtime.clock)
            stack.push_async_callback(http.close)
            await http.start(*split_address(settings.http), open_http_tls(settings))
        runner = await stack.enter_async_context(started)
        await rounds.keep_on(options.every_s, until=lambda: runner.has_stopped)


async def _run_round(
    sequencer: Sequencer,
    runner: SparkRunner,
    runtime: Runtime,
    *,
    options: CompactOptions,
    summary: CompactionSummary,
) -> None:
    from compactor.cycle import run_cycle

    await run_cycle(
        sequencer,
        runner,
        clock=runtime.clock,
        entropy=runtime.entropy,
        settings=_cycle_settings(options),
        summary=summary,
    )


def cancelled_by_signals() -> None:
    """Have SIGTERM and SIGINT cancel this task: the swap in hand is finished, the lease given back."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


@asynccontextmanager
async def _progress_shown(summary: CompactionSummary) -> AsyncIterator[None]:
    """A bar on a terminal, of the bytes that were planned so far."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("compacting"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=None)

        async def keep_current() -> None:
            clock = SystemClock()
            while True:
                progress.update(bar, completed=summary.source_bytes, total=summary.planned_bytes or None)
                await clock.sleep(PROGRESS_EVERY_S)

        showing = asyncio.create_task(keep_current())
        try:
            yield
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
