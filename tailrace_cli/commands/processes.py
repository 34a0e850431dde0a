"""The commands `serve`, `agent`, `sequencer`, `compact`, `bundle`, `demo` and `version`, with their flags."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace_cli.errors import CommandFailed, WrongUsage
from tailrace_cli.flags import flag, switch, with_flags
from tailrace_cli.output import JsonFlag, print_json, print_table

if TYPE_CHECKING:
    from tailrace_cli.commands.compact import CompactOptions
    from tailrace_cli.settings import Settings


@dataclass(frozen=True, slots=True)
class ProcessFlags:
    """Flags that every process has. All other settings come from the file and the environment."""

    store: Annotated[str | None, flag("--store", "URL", "s3://bucket/prefix or a folder.")] = None
    database: Annotated[
        str | None, flag("--database", "URL", "sqlite:///PATH or postgresql://USER@HOST/NAME.")
    ] = None
    database_password_file: Annotated[
        str | None,
        flag(
            "--database-password-file",
            "FILE",
            "A file with the database's password. Or set PGPASSWORD or PGPASSFILE.",
        ),
    ] = None
    rpc_secret_file: Annotated[
        str | None,
        flag("--rpc-secret-file", "FILE", "A file with the secret that all processes of a cluster share."),
    ] = None
    config: Annotated[
        Path | None, flag("--config", "FILE", "A TOML file of settings; flags and TAILRACE_* override it.")
    ] = None
    log_level: Annotated[str | None, flag("--log-level", "LEVEL", "debug, info, warning or error.")] = None
    log_format: Annotated[str | None, flag("--log-format", "FORMAT", "auto, json or console.")] = None

    def load(
        self, *, mistakes_of: Callable[[Settings], Iterable[str]] | None = None, **given: Any
    ) -> Settings:
        """Return the settings merged from these flags, `given`, the environment and the file. Configure logging.

        `mistakes_of`: see load_settings. Raises CommandFailed and BadSettings.
        """
        from tailrace.settings import load_settings
        from tailrace.telemetry.logs import configure_logging
        from tailrace_cli.running.security import refuse_password_in_command
        from tailrace_cli.settings import Settings

        refuse_password_in_command(self.database)
        flags = {**asdict(self), **given}
        file = flags.pop("config")
        settings = load_settings(Settings, flags=flags, file=file, mistakes_of=mistakes_of)
        configure_logging(settings.log_level, settings.log_format)
        return settings


Sequencers = Annotated[
    str | None, flag("--sequencer", "HOST:PORT[,...]", "Addresses of the sequencer servers.")
]
Listen = Annotated[
    str | None, flag("--listen", "HOST:PORT", "Address for Kafka clients. Default: 127.0.0.1:9092")
]
Advertise = Annotated[str | None, flag("--advertise", "HOST:PORT", "The address that clients connect to.")]
Http = Annotated[
    str | None,
    flag("--http", "HOST:PORT", "Address for metrics, health and the overview. Default: 127.0.0.1:9644"),
]
Rpc = Annotated[str | None, flag("--rpc", "HOST:PORT", "Address for other Tailrace processes.")]
RpcAdvertise = Annotated[
    str | None, flag("--rpc-advertise", "HOST:PORT", "The address that other processes connect to for --rpc.")
]
Gateway = Annotated[
    str | None, flag("--gateway", "HOST:PORT", "Address of the HTTP gateway to topics. Default: none")
]
Zone = Annotated[str | None, flag("--zone", "ZONE", "The zone that this agent runs in.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands to `app`."""
    for command in (serve, agent, sequencer, compact, bundle, demo, version):
        app.command()(command)


@with_flags
def serve(
    flags: ProcessFlags,
    data: Annotated[str | None, flag("--data", "DIR", "Folder for all data. Default: ./data")] = None,
    listen: Listen = None,
    http: Http = None,
    advertise: Advertise = None,
    rpc: Rpc = None,
    gateway: Gateway = None,
    zone: Zone = None,
    secure: Annotated[
        bool,
        switch("--secure", "Require TLS and logins; create a certificate and an admin user in DATA/secure."),
    ] = False,
) -> None:
    """Run everything in one process, on SQLite and a folder."""
    from tailrace_cli.running.checks import serve_mistakes

    settings = flags.load(data=data, listen=listen, http=http, advertise=advertise, rpc=rpc, zone=zone,
                          mistakes_of=serve_mistakes, gateway=_gateway(gateway))  # fmt: skip
    from tailrace_cli.running.agent_process import run_serve

    _run(run_serve(settings, is_secure=secure), settings.store)


@with_flags
def agent(
    flags: ProcessFlags,
    sequencer: Sequencers = None,
    listen: Listen = None,
    advertise: Advertise = None,
    rpc: Rpc = None,
    rpc_advertise: RpcAdvertise = None,
    http: Http = None,
    gateway: Gateway = None,
    zone: Zone = None,
    processes: Annotated[
        int | None, flag("--processes", "N", "How many processes to run (one per core), on ports P, P+1, ...")
    ] = None,
) -> None:
    """Run one agent of a cluster, or several with --processes."""
    from tailrace_cli.running.checks import agent_mistakes

    settings = flags.load(sequencers=sequencer, listen=listen, advertise=advertise, rpc=rpc,
                          rpc_advertise=rpc_advertise, http=http, zone=zone, processes=processes,
                          mistakes_of=agent_mistakes, gateway=_gateway(gateway))  # fmt: skip
    if settings.processes > 1:
        from tailrace_cli.running.supervisor import run_supervisor

        _run(run_supervisor(settings, flags.config), None)
        return
    from tailrace_cli.running.agent_process import run_agent

    _run(run_agent(settings), settings.store)


@with_flags
def sequencer(
    flags: ProcessFlags, rpc: Rpc = None, rpc_advertise: RpcAdvertise = None, http: Http = None
) -> None:
    """Run a sequencer server on PostgreSQL.

    Several servers can share one database. Without --store, the server deletes no unused objects.
    """
    from tailrace_cli.running.checks import sequencer_mistakes

    settings = flags.load(rpc=rpc, rpc_advertise=rpc_advertise, http=http, mistakes_of=sequencer_mistakes)
    from tailrace_cli.running.sequencer_process import run_sequencer

    _run(run_sequencer(settings), settings.store)


@dataclass(frozen=True, slots=True)
class RoundFlags:
    """Flags for what `compact` rewrites, how often, and on which Spark."""

    every: Annotated[
        str | None, flag("--every", "TIME", "Run until stopped, with a round every TIME: 60s, 5m or 1h.")
    ] = None
    topic: Annotated[
        list[str] | None, flag("--topic", "TOPIC", "Compact only this topic. Can be repeated.")
    ] = None
    master: Annotated[
        str | None, flag("--master", "URL", "The Spark master. Default: spark-submit's, else local[*]")
    ] = None
    conf: Annotated[
        list[str] | None,
        flag("--conf", "NAME=VALUE", "A Spark property. Can be repeated."),
    ] = None
    min_bytes: Annotated[
        int | None,
        flag("--min-bytes", "N", "Compact partitions with at least this many uncompacted bytes.", min=1),
    ] = None
    min_age_ms: Annotated[
        int | None, flag("--min-age-ms", "MS", "Compact any data older than this many milliseconds.", min=0)
    ] = None

    def options(self) -> CompactOptions:
        """Parse the flags. Raises CommandFailed."""
        from tailrace_cli.commands.compact import CompactOptions
        from tailrace_cli.connections.connecting import parse_pairs
        from tailrace_cli.record_text import parse_duration_ms

        return CompactOptions(
            master=self.master,
            every_s=None if self.every is None else parse_duration_ms(self.every, "--every") / 1000,
            topics=frozenset(self.topic or ()),
            spark=parse_pairs(self.conf or (), "--conf"),
            min_bytes=self.min_bytes,
            min_age_ms=self.min_age_ms,
        )


@with_flags
def compact(
    rounds: RoundFlags,
    flags: ProcessFlags,
    data: Annotated[
        str | None, flag("--data", "DIR", "The folder of `tailrace serve`, running or not.")
    ] = None,
    sequencer: Sequencers = None,
    http: Annotated[
        str | None, flag("--http", "HOST:PORT", "Address for metrics and health, with --every.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Rewrite mixed objects as Parquet, with Spark."""
    from tailrace_cli.running.checks import compact_mistakes

    settings = flags.load(data=data, sequencers=sequencer, http=http, mistakes_of=compact_mistakes)
    from tailrace_cli.commands.compact import cancelled_by_signals, describe_failures, run_compact
    from tailrace_cli.running.loop import run

    options = rounds.options()

    async def compacted() -> dict[str, Any]:
        cancelled_by_signals()
        return await run_compact(settings, options)

    try:
        figures = run(compacted())
    except asyncio.CancelledError:
        raise typer.Exit(0 if rounds.every else 130) from None
    if as_json:
        print_json(figures)
    else:
        print_table(
            ("figure", "value"),
            [
                (name.replace("_", " "), len(value) if isinstance(value, list) else value)
                for name, value in figures.items()
            ],
        )
    if failed := describe_failures(figures):
        raise CommandFailed(failed)


def bundle(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder to write to.")] = ".",
) -> None:
    """Write the files that spark-submit needs for the compactor."""
    from compactor.on_spark.bundle import write_bundle

    if not folder:
        raise WrongUsage("DIR is empty; give a folder, or no DIR for the current one")
    for path in write_bundle(Path(folder)):
        print(path)


def demo(
    data: Annotated[
        Path | None, flag("--data", "DIR", "Keep the data in this folder. Default: a temporary one.")
    ] = None,
) -> None:
    """Produce, consume, compact and query real data; check results."""
    try:
        from tailrace_cli.demo.embedded_cluster import main as run_demo
    except ModuleNotFoundError as error:
        raise CommandFailed(
            f"the demo needs {error.name!r}, which is not installed; run it as `make demo` from a clone"
        ) from error
    code = run_demo(data)
    if code:
        raise typer.Exit(code)


def version(as_json: JsonFlag = False) -> None:
    """Print Tailrace's version."""
    try:
        installed = installed_version("tailrace")
    except PackageNotFoundError:
        installed = "0"
    if as_json:
        print_json({"version": installed})
    else:
        print(installed)


def _gateway(listen: str | None) -> dict[str, str] | None:
    """Return the gateway's section of the settings, None if the flag was not given."""
    return None if listen is None else {"listen": listen}


def _run(process: Coroutine[Any, Any, None], store: str | None) -> None:
    from tailrace.object_store.open import load_backend
    from tailrace_cli.running.loop import allow_open_files, keep_freed_memory, run

    load_backend(store)
    keep_freed_memory()
    allow_open_files()
    try:
        run(process)
    except asyncio.CancelledError:
        raise typer.Exit(130) from None
