"""`tailrace compact`: open the store and the sequencer, then run the Spark job, which only this module imports."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from sequencer.api import Sequencer
from sequencer.client import SequencerClient
from tailrace.clock import SystemClock, SystemEntropy
from tailrace_cli.data_folder import DATABASE, OBJECTS, SECRET, FolderInUse, find_serving, held_folder
from tailrace_cli.errors import CommandFailed
from tailrace_cli.process import Runtime, sequencer_server, wait_for_committer
from tailrace_cli.security import check_rpc_is_closed, open_security
from tailrace_cli.settings import Settings


async def run_compact(settings: Settings, master: str, thresholds: dict[str, int]) -> dict[str, Any]:
    """Compact until nothing qualifies, and return the figures by name. Raises CommandFailed.

    Without a store, a database and a sequencer, it compacts the data folder of `serve`, which may be running.

    `thresholds`: `min_bytes` and `min_age_ms` of `compactor.cycle.CompactionSettings`, where given.
    """
    if settings.store or settings.database or settings.sequencers:
        return await _compact(settings, master, thresholds)
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
            return await _compact(settings.model_copy(update=urls), master, thresholds)
    except FolderInUse:
        serving = find_serving(data)
    addresses = {"store": serving.store, "sequencers": (serving.rpc,)}
    return await _compact(settings.model_copy(update=addresses), master, thresholds)


def _with_secret_of(data: Path, settings: Settings) -> Settings:
    is_given = settings.rpc_secret.get_secret_value() or settings.rpc_secret_file is not None
    if is_given or not (data / SECRET).exists():
        return settings
    return settings.model_copy(update={"rpc_secret_file": data / SECRET})


async def _compact(settings: Settings, master: str, thresholds: dict[str, int]) -> dict[str, Any]:
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
    try:
        from compactor.cycle import CompactionSettings
        from compactor.job import run_compaction
    except ImportError as error:
        raise CommandFailed(
            f"the compactor needs {error.name or error}; install it with `pip install 'tailrace[compactor]'`"
        ) from error
    plain = CompactionSettings()
    chosen = replace(
        plain,
        min_bytes=thresholds.get("min_bytes", plain.min_bytes),
        min_age_ms=thresholds.get("min_age_ms", plain.min_age_ms),
    )
    runtime = Runtime(SystemClock(), SystemEntropy())
    async with AsyncExitStack() as stack:
        if settings.database:
            server = await stack.enter_async_context(
                sequencer_server(settings, settings.database, runtime, None, security, listen=None)
            )
            await wait_for_committer(server, runtime.clock)
            sequencer: Sequencer = server.sequencer
        else:
            remote = SequencerClient(
                settings.sequencers,
                clock=runtime.clock,
                entropy=runtime.entropy,
                security=security,
            )
            stack.push_async_callback(remote.close)
            sequencer = remote.sequencer
        try:
            summary = await run_compaction(settings.store, sequencer, master=master, settings=chosen)
        except ImportError as error:
            raise CommandFailed(
                f"the compactor needs {error.name or error}; install it with `pip install 'tailrace[compactor]'`"
            ) from error
    figures = msgspec.to_builtins(summary)
    assert isinstance(figures, dict), "a summary has fields"
    return figures
