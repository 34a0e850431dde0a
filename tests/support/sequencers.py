"""Sequencers for the contract suite: each factory opens one over its own empty database."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from sequencer.api.interface import Sequencer
from sequencer.client import SequencerClient
from sequencer.engine.committer import Committer
from sequencer.rpc_handler import RpcHandler
from sequencer.settings import SequencerSettings
from sequencer.store.sql.store import SqlRowStore
from tailrace.clock import SystemClock
from tailrace.rpc import RpcSecurity, RpcServer
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.hooked_rows import HookedRowStore
from tests.support.servers import PostgresServer


@dataclass(slots=True)
class Opened:
    """A running sequencer. `clock` also moves its database's clock. `store` is set only if writes can be made to
    fail."""

    sequencer: Sequencer
    clock: ManualClock
    store: HookedRowStore | None = None


Factory = Callable[[SequencerSettings], AbstractAsyncContextManager[Opened]]


@asynccontextmanager
async def memory(settings: SequencerSettings) -> AsyncIterator[Opened]:
    clock = ManualClock()
    store = HookedRowStore(clock)
    sequencer = Committer(store, clock, SeededEntropy(1), settings)
    await sequencer.start()
    try:
        yield Opened(sequencer, clock, store)
    finally:
        await sequencer.close()


@asynccontextmanager
async def sqlite(settings: SequencerSettings) -> AsyncIterator[Opened]:
    with tempfile.TemporaryDirectory(prefix="tailrace-sqlite-") as folder:
        async with _over_sql(f"sqlite:///{folder}/rows.db", settings) as opened:
            yield opened


class _WithItsServer(SequencerClient):
    """A client that, when closed, also ends the sequencer that it serves, as the contract's take-over test expects."""

    served: Sequencer

    async def close(self) -> None:
        await super().close()
        await self.served.close()


@asynccontextmanager
async def rpc(settings: SequencerSettings) -> AsyncIterator[Opened]:
    """Open the memory sequencer through frames on a socket; the frames' time-outs use the machine's clock."""
    async with memory(settings) as opened:
        clock, entropy = SystemClock(), SeededEntropy(4)
        assert isinstance(opened.sequencer, Committer)
        service = RpcHandler(opened.sequencer.call)
        server = RpcServer(service.handle, clock=clock, entropy=entropy, security=RpcSecurity((b"shared",)))
        await server.listen("127.0.0.1", 0)
        address = f"127.0.0.1:{server.port}"
        # No retries: the contract checks each refusal, and retries itself.
        remote = _WithItsServer(
            [address], clock=clock, entropy=entropy, security=RpcSecurity((b"shared",)), patience_s=0
        )
        remote.served = opened.sequencer
        try:
            yield Opened(remote, opened.clock, opened.store)
        finally:
            await remote.close()
            await server.close(grace_s=0)


def postgresql(server: PostgresServer) -> Factory:
    """Return a factory of sequencers on databases of this server."""

    @asynccontextmanager
    async def opened_on_server(settings: SequencerSettings) -> AsyncIterator[Opened]:
        url = await asyncio.to_thread(server.create_database, await _migrated(server))
        async with _over_sql(url, settings) as opened:
            yield opened
        await asyncio.to_thread(server.drop_database, url)

    return opened_on_server


FACTORIES: dict[str, Factory] = {"memory": memory, "sqlite": sqlite, "rpc": rpc}
"""Add an implementation here, and the whole contract runs over it."""

POSTGRES_FACTORIES: dict[str, Callable[[PostgresServer], Factory]] = {"postgresql": postgresql}
"""Implementations that need a server."""


@asynccontextmanager
async def _over_sql(url: str, settings: SequencerSettings) -> AsyncIterator[Opened]:
    clock = ManualClock()
    store = SqlRowStore(url, clock=clock, entropy=SeededEntropy(2), postgres_clock=clock)
    sequencer = Committer(store, clock, SeededEntropy(1), settings)
    try:
        await sequencer.start()
        try:
            yield Opened(sequencer, clock)
        finally:
            await sequencer.close()
    finally:
        await store.close()


_templates: dict[int, str] = {}


async def _migrated(server: PostgresServer) -> str:
    """Create a template database with the tables: copying it is faster than migrating each database."""
    if server.pid not in _templates:
        url = await asyncio.to_thread(server.create_database)
        store = SqlRowStore(url, clock=ManualClock(), entropy=SeededEntropy(3))
        await store.open()
        await store.close()
        _templates[server.pid] = url.rpartition("/")[2]
    return _templates[server.pid]
