"""`tailrace compact`: open the store and the sequencer, then run the Spark job. Only this module imports that job."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry

from agent.options import package_version
from sequencer.api.interface import Sequencer
from sequencer.api.topics import MetadataRequest
from sequencer.metrics import SequencerMetrics
from tailrace.background_tasks import cancel_and_wait
from tailrace.clock import SystemClock
from tailrace.http.http_server import HttpServer
from tailrace.rpc.link import split_address
from tailrace_cli.connections.opened_log import OpenLog, opened_log
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.loop_watch import watched_loop
from tailrace_cli.running.process_metrics import add_process_metrics
from tailrace_cli.running.security import kept_current, open_http_tls
from tailrace_cli.settings import Settings

if TYPE_CHECKING:
    from compactor.cycle import CompactionSettings, CompactionSummary
    from compactor.on_spark.job import SparkRunner
    from compactor.rounds import Rounds
    from compactor.tables.schedule import TableSchedule

    StartedRunner = AbstractAsyncContextManager[SparkRunner]

PROGRESS_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """Options of `tailrace compact`; None stands for the default.

    `every_s`: run until stopped, with a round every so many seconds. `spark`: Spark properties by name.
    """

    master: str | None = None
    every_s: float | None = None
    topics: frozenset[str] = frozenset()
    spark: Mapping[str, str] = field(default_factory=dict)
    min_bytes: int | None = None
    min_age_ms: int | None = None


async def run_compact(settings: Settings, options: CompactOptions) -> dict[str, Any]:
    """Compact until no data qualifies, or until stopped with `every_s`. Return the figures by name.

    If the settings name no store, database or sequencer, this compacts the data folder of `serve`, which may be
    running. Raises CommandFailed.
    """
    registry = CollectorRegistry()
    with _extra_explained():
        from compactor.on_spark.java import JavaNotFound
        from compactor.on_spark.job import ExecutorsUnfit, spark_runner

        async with opened_log(settings, SequencerMetrics(registry)) as log, tables_of(log) as tables:
            await _check_topics(log.sequencer, options.topics)
            started = spark_runner(log.store_url, master=options.master, spark_settings=options.spark)
            try:
                if options.every_s is None:
                    return await _compact_once(log, tables, started, options)
                await _compact_until_stopped(log, tables, started, options=options, registry=registry)
            except (JavaNotFound, ExecutorsUnfit) as error:
                raise CommandFailed(str(error)) from error
    raise CommandFailed("the Spark driver has ended; restart the compactor (a supervisor does this)")


@contextmanager
def _extra_explained() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise CommandFailed(
            f"the compactor needs {error.name or error}; install it with `pip install 'tailrace[compactor]'`"
        ) from error


@asynccontextmanager
async def tables_of(log: OpenLog) -> AsyncIterator[TableSchedule]:
    from compactor.tables.opening import opened_tables
    from compactor.tables.schedule import TableSchedule

    async with opened_tables(
        log.sequencer, log.store, log.store_url, address=log.catalog, settings=log.settings.tables
    ) as (_, syncing):
        yield TableSchedule(log.sequencer, syncing, log.runtime.clock)


async def _check_topics(sequencer: Sequencer, topics: frozenset[str]) -> None:
    """Raise CommandFailed for a topic that doesn't exist: a misspelt name would silently compact nothing."""
    if topics:
        names = {topic.name for topic in (await sequencer.metadata(MetadataRequest())).topics or []}
        if missing := sorted(topics - names):
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
    log: OpenLog, tables: TableSchedule, started: StartedRunner, options: CompactOptions
) -> dict[str, Any]:
    from compactor.cycle import CompactionSummary

    summary = CompactionSummary()
    async with started as runner, _progress_shown(summary):
        await _run_round(log, tables, runner, options=options, summary=summary)
    figures = msgspec.to_builtins(summary)
    assert isinstance(figures, dict), "a summary has fields"
    return figures | {f"keyed_{name}": value for name, value in figures.pop("keyed").items()}


def describe_failures(figures: Mapping[str, Any]) -> str:
    """Describe a round's failures in one line; empty if there were none."""
    items, tables = figures["failures"], figures["table_failures"]
    failures = []
    if items:
        topic, partitions, reason, *_ = items[0]
        failures.append(
            f"{len(items)} items could not be rewritten; the first: {topic} {partitions[:10]}: {reason}"
        )
    if tables:
        failures.append(
            f"{len(tables)} table updates failed and will be retried in the next round; the first: {tables[0]}"
        )
    return "; ".join(failures)


async def _compact_until_stopped(
    log: OpenLog,
    tables: TableSchedule,
    started: StartedRunner,
    *,
    options: CompactOptions,
    registry: CollectorRegistry,
) -> None:
    """Run rounds until a signal arrives (CancelledError) or the Spark driver has ended."""
    from compactor.on_spark.job import ExecutorsUnfit
    from compactor.rounds import Rounds

    async def run_round(summary: CompactionSummary) -> None:
        await _run_round(log, tables, runner, options=options, summary=summary)

    assert options.every_s is not None, "asked by the caller"
    rounds = Rounds(run_round, log.runtime.clock, expected_errors=(ExecutorsUnfit,))
    async with watched(log, rounds, registry), started as runner:
        await rounds.keep_on(options.every_s, until=lambda: runner.has_stopped)


@asynccontextmanager
async def watched(log: OpenLog, rounds: Rounds, registry: CollectorRegistry) -> AsyncIterator[HttpServer]:
    """Run what every long-lived process has inside the block: it reloads replaced files, watches the event loop, and
    serves metrics and health if `http` is set."""
    from compactor.metrics import CompactorPages

    clock, http_tls = log.runtime.clock, open_http_tls(log.settings)
    add_process_metrics(registry, version=package_version(), kind="compact")
    pages = CompactorPages(rounds, log.sequencer, clock, registry)
    http = HttpServer(pages, clock, bounds=log.settings.http_bounds)
    with watched_loop(clock, registry):
        async with kept_current(clock, registry, log.security, http_tls):
            try:
                if "http" in log.settings.model_fields_set:
                    await http.start(*split_address(log.settings.http), http_tls)
                yield http
            finally:
                await http.close()


async def _run_round(
    log: OpenLog,
    tables: TableSchedule,
    runner: SparkRunner,
    *,
    options: CompactOptions,
    summary: CompactionSummary,
) -> None:
    from compactor.cycle import run_cycle

    tables.derive_by(runner.deriver)
    await run_cycle(
        log.sequencer,
        runner,
        clock=log.runtime.clock,
        entropy=log.runtime.entropy,
        settings=_cycle_settings(options),
        summary=summary,
        tables=tables,
        keyed=runner,
    )


def cancelled_by_signals() -> None:
    """Make SIGTERM and SIGINT cancel this task. It finishes its current swap and releases its lease."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


@asynccontextmanager
async def _progress_shown(summary: CompactionSummary) -> AsyncIterator[None]:
    """Show a progress bar if stderr is a terminal. Its total is the bytes planned so far."""
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
            await cancel_and_wait(showing)
