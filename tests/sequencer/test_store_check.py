import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from sequencer.store_check import CHECK_SECONDS, WrongStore, check_store
from tailrace.object_store.api import BucketMissing, ObjectInfo, StoreRefused
from tailrace.object_store.memory import MemoryStore
from tests.support.agents import settle
from tests.support.clocks import ManualClock

CLUSTER = "a-cluster"


async def check(store: Any, clock: ManualClock, *, has_objects: bool = True) -> None:
    async def answer() -> bool:
        return has_objects

    await check_store(store, CLUSTER, answer, clock)


@pytest.mark.parametrize(("key", "has_objects", "is_refused"), [
    (f"{CLUSTER}/mixed/1", True, False),
    (f"{CLUSTER}/cluster.json", True, False),
    ("another-cluster/mixed/1", True, True),
    (f"{CLUSTER}-2/mixed/1", True, True),
    ("another-cluster/mixed/1", False, False),
])  # fmt: skip
async def test_a_store_without_keys_of_a_cluster_that_has_objects_is_refused(
    key: str, has_objects: bool, is_refused: bool
) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put(key, [b"x"])
    if is_refused:
        with pytest.raises(WrongStore, match=f"nothing of cluster {CLUSTER}, whose database has objects"):
            await check(store, clock, has_objects=has_objects)
    else:
        await check(store, clock, has_objects=has_objects)


@pytest.mark.parametrize(("has_key", "warnings"), [(False, 1), (True, 0)])
async def test_a_new_database_beside_the_objects_of_another_cluster_is_told(
    has_key: bool, warnings: int
) -> None:
    """The other one may be the cluster whose database was lost: it was begun anew without a word."""
    clock = ManualClock()
    store = MemoryStore(clock)
    await store.put("lost-cluster/cluster.json", [b"x"])
    await store.put("no-cluster/mixed/1", [b"x"])
    if has_key:
        await store.put(f"{CLUSTER}/cluster.json", [b"x"])
    with structlog.testing.capture_logs() as logs:
        await check(store, clock, has_objects=False)
    told = [
        line for line in logs if line["log_level"] == "warning" and "the database is new" in line["event"]
    ]
    assert [line["others"] for line in told] == [["lost-cluster/"]] * warnings


async def test_an_empty_store_of_a_new_database_is_no_news() -> None:
    clock = ManualClock()
    with structlog.testing.capture_logs() as logs:
        await check(MemoryStore(clock), clock, has_objects=False)
    assert logs == []


async def test_a_bucket_that_does_not_exist_is_refused_also_for_a_new_cluster() -> None:
    async def missing(prefix: str) -> AsyncIterator[ObjectInfo]:
        raise BucketMissing("the store answered 404 NoSuchBucket")
        yield

    with pytest.raises(WrongStore, match=r"no such bucket .*NoSuchBucket.*; create it"):
        await check(SimpleNamespace(list=missing), ManualClock(), has_objects=False)


async def test_a_store_that_gives_no_list_is_not_checked() -> None:
    clock = ManualClock()

    async def refuses(prefix: str) -> AsyncIterator[ObjectInfo]:
        raise StoreRefused("no right to list")
        yield

    async def hangs(prefix: str) -> AsyncIterator[ObjectInfo]:
        await asyncio.Event().wait()
        yield

    await check(SimpleNamespace(list=refuses), clock)
    checking = asyncio.ensure_future(check(SimpleNamespace(list=hangs), clock))
    await settle()
    assert not checking.done()
    clock.advance(CHECK_SECONDS)
    await checking
