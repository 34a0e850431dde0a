"""The log that a command reads without a broker: a cluster's store and sequencer, or the folder of `serve`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from sequencer.api import MetadataRequest, Sequencer, Topic
from sequencer.client import SequencerClient
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.open import open_store
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.data_folder import DATABASE, OBJECTS, SECRET, FolderInUse, find_serving, held_folder
from tailrace_cli.running.process import Runtime, check_one_sequencer, sequencer_server, wait_for_committer
from tailrace_cli.running.security import check_rpc_is_closed, database_password, open_security
from tailrace_cli.settings import Settings


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """`settings` are those given, with the addresses that were found."""

    settings: Settings
    store: ObjectStore
    sequencer: Sequencer
    runtime: Runtime
    catalog: str
    """The address of the tables' catalog: the one that is set, or the sequencer's database where it is known."""

    @property
    def store_url(self) -> str:
        """Where the objects are."""
        assert self.settings.store is not None, "an opened log has a store"
        return self.settings.store

    async def topic(self, name: str) -> Topic:
        """Raises CommandFailed where there is no such topic."""
        for topic in (await self.sequencer.metadata(MetadataRequest())).topics or []:
            if topic.name == name:
                return topic
        raise CommandFailed(f"there is no topic {name!r}; `tailrace topic list` shows the topics")


@asynccontextmanager
async def opened_log(settings: Settings) -> AsyncIterator[OpenedLog]:
    """Open the store and the sequencer that the settings name, or else those of the data folder, which `serve` may be
    using. Raises CommandFailed."""
    if settings.store or settings.database or settings.sequencers:
        async with _opened(settings, _with_password(settings)) as log:
            yield log
        return
    data = settings.data.expanduser().absolute()
    if not data.is_dir():
        raise CommandFailed(
            f"data folder {str(data)!r} does not exist; give the --data folder of `tailrace serve`, or --store and "
            "--sequencer of a cluster"
        )
    is_given = settings.rpc_secret.get_secret_value() or settings.rpc_secret_file is not None
    if not is_given and (data / SECRET).exists():
        settings = settings.model_copy(update={"rpc_secret_file": data / SECRET})
    database = f"sqlite:///{data / DATABASE}"
    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(held_folder(data))
            found: dict[str, Any] = {"store": str(data / OBJECTS), "database": database}
        except FolderInUse:
            serving = find_serving(data)
            found = {"store": serving.store, "sequencers": (serving.rpc,)}
        yield await stack.enter_async_context(_opened(settings.model_copy(update=found), database))


@asynccontextmanager
async def _opened(settings: Settings, database: str) -> AsyncIterator[OpenedLog]:
    if settings.store is None:
        raise CommandFailed("no object store; give --store URL, the one that the agents use")
    check_one_sequencer(
        settings, "--sequencer HOST:PORT of a running sequencer, or --database URL where none runs"
    )
    security = open_security(settings).rpc
    check_rpc_is_closed(listen=None, sequencers=settings.sequencers, is_closed=security.is_closed)
    runtime = Runtime(SystemClock(), SystemEntropy())
    catalog = settings.tables.catalog or database
    async with AsyncExitStack() as stack:
        store = open_store(settings.store, clock=runtime.clock)
        stack.push_async_callback(store.close)
        if settings.database:
            server = await stack.enter_async_context(
                sequencer_server(
                    settings=settings,
                    database=settings.database,
                    runtime=runtime,
                    store=None,
                    security=security,
                    listen=None,
                )
            )
            await wait_for_committer(server, runtime.clock)
            yield OpenedLog(
                settings=settings, store=store, sequencer=server.sequencer, runtime=runtime, catalog=catalog
            )
            return
        remote = SequencerClient(
            settings.sequencers, clock=runtime.clock, entropy=runtime.entropy, security=security
        )
        stack.push_async_callback(remote.close)
        yield OpenedLog(
            settings=settings, store=store, sequencer=remote.sequencer, runtime=runtime, catalog=catalog
        )


def _with_password(settings: Settings) -> str:
    """The database's URL with the password that a file has; empty where only sequencers are known."""
    password = database_password(settings)
    if settings.database is None or password is None:
        return settings.database or ""
    url = sa.make_url(settings.database).set(password=password())
    return url.render_as_string(hide_password=False)
