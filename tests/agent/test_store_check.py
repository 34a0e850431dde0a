import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from agent.store_check import CHECK_SECONDS, WrongStore, check_store
from tailrace.object_store.api import ObjectInfo, StoreRefused
from tailrace.object_store.memory import MemoryStore
from tests.agent.test_server import Hosts, run
from tests.support.agents import settle
from tests.support.clocks import ManualClock

CLUSTER = "a-cluster"


def sequencer_that_knows(objects: int) -> Any:
    async def statistics(_: object) -> SimpleNamespace:
        return SimpleNamespace(objects=objects)

    return SimpleNamespace(statistics=statistics)


async def check(store: Any, objects: int, clock: ManualClock) -> None:
    await check_store(store, sequencer_that_knows(objects), CLUSTER, clock)


@pytest.mark.parametrize(("key", "objects", "is_refused"), [
    (f"{CLUSTER}/mixed/1", 3, False),
    (f"{CLUSTER}/cluster.json", 3, False),
    ("another-cluster/mixed/1", 3, True),
    (f"{CLUSTER}-2/mixed/1", 3, True),
    ("another-cluster/mixed/1", 0, False),
])  # fmt: skip
def test_a_store_without_keys_of_a_cluster_that_has_objects_is_refused(
    key: str, objects: int, is_refused: bool
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = MemoryStore(clock)
        await store.put(key, [b"x"])
        if is_refused:
            with pytest.raises(WrongStore, match=f"nothing of cluster {CLUSTER}, which has 3 objects"):
                await check(store, objects, clock)
        else:
            await check(store, objects, clock)

    asyncio.run(scenario())


def test_a_store_that_gives_no_list_is_not_checked() -> None:
    async def scenario() -> None:
        clock = ManualClock()

        async def refuses(prefix: str) -> AsyncIterator[ObjectInfo]:
            raise StoreRefused("no right to list")
            yield

        async def hangs(prefix: str) -> AsyncIterator[ObjectInfo]:
            await asyncio.Event().wait()
            yield

        await check(SimpleNamespace(list=refuses), 3, clock)
        checking = asyncio.ensure_future(check(SimpleNamespace(list=hangs), 3, clock))
        await settle()
        assert not checking.done()
        clock.advance(CHECK_SECONDS)
        await checking

    asyncio.run(scenario())


def test_an_agent_with_another_store_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(hosts: Hosts) -> None:
        monkeypatch.setattr(hosts.sequencer, "statistics", sequencer_that_knows(3).statistics)
        with pytest.raises(WrongStore):
            await hosts.start(2)
        assert await hosts.epochs() == []

    run(scenario)
