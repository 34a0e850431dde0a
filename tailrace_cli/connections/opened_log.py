"""The log that a command reads without a broker: a cluster's store and sequencer, or the data folder of `serve`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sequencer.api.interface import Sequencer
from sequencer.api.topics import MetadataRequest, Topic
from sequencer.client import SequencerClient
from sequencer.observer import SequencerObserver
from sequencer.store.sql.postgres_url import read_url
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.open import open_store
from tailrace.rpc import RpcSecurity
from tailrace.rpc.loaded_security import LoadedSecurity
from tailrace_cli.connections.connecting import check_exists
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.checks import check_log
from tailrace_cli.running.data_folder import SECRET, FolderInUse, find_serving, held_folder, last_served
from tailrace_cli.running.runtime import Runtime
from tailrace_cli.running.security import database_password, open_security
from tailrace_cli.running.sequencer_process import sequencer_server, wait_for_committer
from tailrace_cli.settings import Settings


@dataclass(frozen=True, slots=True)
class OpenLog:
    """An open store and sequencer.

    `settings`: as given, plus the addresses found in the data folder. `security`: the secrets and certificates that
    this process shows to the sequencer.
    """

    settings: Settings
    store: ObjectStore
    sequencer: Sequencer
    runtime: Runtime
    security: LoadedSecurity
    catalog: str
    """The address of the tables' catalog: `tables.catalog` if set, else the sequencer's database. Empty if unknown."""

    @property
    def store_url(self) -> str:
        assert self.settings.store is not None, "an opened log has a store"
        return self.settings.store

    async def topic(self, name: str) -> Topic:
        """Return the topic of this name. Raises CommandFailed if there is none."""
        for topic in (await self.sequencer.metadata(MetadataRequest())).topics or []:
            if topic.name == name:
                return topic
        raise CommandFailed(f"there is no topic {name!r}; `tailrace topic list` shows the topics")


@asynccontextmanager
async def opened_log(settings: Settings, observer: SequencerObserver | None = None) -> AsyncIterator[OpenLog]:
    """Open the store and the sequencer that the settings name, else those of the data folder.

    A `serve` may be running in the data folder. Raises CommandFailed, UnknownDatabase.
    """
    if settings.store or settings.database or settings.sequencers:
        async with _opened(settings, settings.database, observer) as log:
            yield log
        return
    data = settings.data.expanduser().absolute()
    if not data.is_dir():
        raise CommandFailed(
            f"data folder {str(data)!r} does not exist; give the --data folder of `tailrace serve`, or --store and "
            "--sequencer of a cluster"
        )
    served = last_served(data)
    check_exists(served.store, served.database)  # before the lock file is created there
    os.umask(0o077)  # as in `serve`: only the owner may read what is created in the folder
    is_given = settings.rpc_secret.get_secret_value() or settings.rpc_secret_file is not None
    if not is_given and (data / SECRET).exists():
        settings = settings.model_copy(update={"rpc_secret_file": data / SECRET})
    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(held_folder(data))
            addresses: dict[str, Any] = {"database": served.database}
        except FolderInUse:
            addresses = {"sequencers": (find_serving(data).rpc,)}
        addresses["store"] = served.store
        opened = _opened(settings.model_copy(update=addresses), served.database, observer)
        yield await stack.enter_async_context(opened)


@asynccontextmanager
async def _opened(
    settings: Settings, database: str | None, observer: SequencerObserver | None
) -> AsyncIterator[OpenLog]:
    check_log(settings)
    assert settings.store is not None, "checked"
    security = open_security(settings)
    runtime = Runtime(SystemClock(), SystemEntropy())
    if settings.database:
        check_exists(settings.store, settings.database)
    catalog = settings.tables.catalog or _as_catalog(database, settings)
    async with AsyncExitStack() as stack:
        store = open_store(settings.store, clock=runtime.clock)
        stack.push_async_callback(store.close)
        sequencer = await stack.enter_async_context(
            _sequencer(settings, runtime=runtime, security=security.rpc, observer=observer)
        )
        yield OpenLog(
            settings=settings,
            store=store,
            sequencer=sequencer,
            runtime=runtime,
            security=security,
            catalog=catalog,
        )


@asynccontextmanager
async def _sequencer(
    settings: Settings, *, runtime: Runtime, security: RpcSecurity, observer: SequencerObserver | None
) -> AsyncIterator[Sequencer]:
    """Run a sequencer on the database and wait until it is the committer; without a database, open a client of the
    running sequencers."""
    if settings.database:
        async with sequencer_server(
            settings=settings,
            database=settings.database,
            runtime=runtime,
            store=None,
            security=security,
            listen=None,
            observer=observer,
        ) as server:
            await wait_for_committer(server, runtime.clock)
            yield server.sequencer
        return
    remote = SequencerClient(
        settings.sequencers,
        clock=runtime.clock,
        entropy=runtime.entropy,
        security=security,
        observer=observer,
    )
    try:
        yield remote
    finally:
        await remote.close()


def _as_catalog(database: str | None, settings: Settings) -> str:
    """Return the URL of the database for pyiceberg, with the password from its file; empty without a database."""
    if not database:
        return ""
    url, password = read_url(database), database_password(settings)
    if password is not None:
        url = url.set(password=password())
    return url.render_as_string(hide_password=False)
