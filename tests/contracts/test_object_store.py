"""The contract of every object store."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.clock import SystemClock
from tailrace.object_store.api import ObjectExists, ObjectMissing, ObjectStore, StoreRefused
from tailrace.object_store.folder import FolderStore
from tailrace.object_store.hedged import HedgedStore
from tailrace.object_store.memory import MemoryStore
from tailrace.object_store.metered import MeteredStore
from tailrace.object_store.s3_aioboto3 import Aioboto3Store
from tailrace.object_store.s3_obstore import ObstoreStore
from tests.support.clocks import SeededEntropy
from tests.support.faulty_store import FaultyStore
from tests.support.servers import NO_MINIO, S3Server, minio_server

Open = Callable[[], ObjectStore]


CLOCK = SystemClock()
IN_MEMORY = ("memory", "faulty", "metered", "hedged")
SERVERS = ("moto", "minio")
KINDS = (
    *IN_MEMORY,
    "folder",
    *(f"{backend}-{server}" for server in SERVERS for backend in ("obstore", "aioboto3")),
)
LIST_PAGE = 20

_numbers = itertools.count()


@pytest.fixture(scope="session")
def minio() -> Iterator[S3Server]:
    with minio_server() as server:
        if server is None:
            pytest.skip(NO_MINIO)
        yield server


@pytest.fixture(scope="session")
def buckets() -> dict[str, str]:
    """Create one bucket on each server; returns the bucket by the server's address."""
    return {}


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path, buckets: dict[str, str]) -> Open:
    """Return a function that opens the store under test, empty at first; opened again, it is the same store."""
    kind, _, server_name = request.param.partition("-")
    if server_name:
        server: S3Server = request.getfixturevalue(server_name)
        if server.endpoint not in buckets:
            buckets[server.endpoint] = server.create_bucket()
        place = server.place(buckets[server.endpoint], f"tests/{os.getpid()}-{next(_numbers)}/")
        place = dataclasses.replace(place, list_page=LIST_PAGE)
        return (lambda: ObstoreStore(place)) if kind == "obstore" else (lambda: Aioboto3Store(place))
    if kind == "folder":
        path = tmp_path / "store"
        return lambda: FolderStore(path, CLOCK, ThreadPoolExecutor(4), list_page=LIST_PAGE)
    memory = MemoryStore(CLOCK)
    if kind == "faulty":
        return lambda: FaultyStore(memory, CLOCK, SeededEntropy(1))
    if kind == "metered":
        return lambda: MeteredStore(memory, CLOCK)
    if kind == "hedged":
        return lambda: HedgedStore(memory, CLOCK, SeededEntropy(1))
    return lambda: memory


@asynccontextmanager
async def opened_store(opened: Open) -> AsyncIterator[ObjectStore]:
    store = opened()
    try:
        yield store
    finally:
        await store.close()


async def keys_of(store: ObjectStore, prefix: str, **more: Any) -> list[str]:
    return [info.key async for info in store.list(prefix, **more)]


async def test_get_returns_what_was_put(opened: Open) -> None:
    async with opened_store(opened) as store:
        await store.put("a/b/c", [b"one ", bytearray(b"two "), memoryview(b"xthreex")[1:6]])

        assert await store.get("a/b/c") == b"one two three"


async def test_buffers_of_other_items_than_bytes_are_put_whole(opened: Open) -> None:
    numbers = array("i", [1, -2, 3])

    async with opened_store(opened) as store:
        await store.put("a/arrow", [pa.py_buffer(b"arrow"), memoryview(b" signed").cast("b")])
        await store.put("a/wide", [memoryview(numbers), memoryview(numbers)[1:]], if_absent=True)

        assert await store.get("a/arrow") == b"arrow signed"
        assert await store.get("a/wide") == numbers.tobytes() + numbers[1:].tobytes()


async def test_an_object_may_be_empty(opened: Open) -> None:
    async with opened_store(opened) as store:
        await store.put("empty/none", [])
        await store.put("empty/blank", [b"", b""])

        assert await store.get("empty/none") == b""
        assert await store.get_range("empty/blank", 0, 10) == b""
        assert (await store.head("empty/none")).size == 0


async def test_thousands_of_parts_make_one_object(opened: Open) -> None:
    parts = [bytes([i % 251]) * (i % 50) for i in range(5000)]

    async with opened_store(opened) as store:
        await store.put("many/parts", parts)

        assert await store.get("many/parts") == b"".join(parts)


async def test_a_large_object_comes_back_whole(opened: Open) -> None:
    parts = [bytes(range(256)) * 4096 for _ in range(9)]

    async with opened_store(opened) as store:
        await store.put("large/object", parts)

        assert await store.get("large/object") == b"".join(parts)
        assert (
            await store.get_range("large/object", 5 * 1024 * 1024 + 7, 300) == (bytes(range(256)) * 3)[7:307]
        )


async def test_a_range_ends_where_the_object_ends(opened: Open) -> None:
    async with opened_store(opened) as store:
        await store.put("digits", [b"0123456789"])

        assert await store.get_range("digits", 0, 10) == b"0123456789"
        assert await store.get_range("digits", 3, 4) == b"3456"
        assert await store.get_range("digits", 8, 100) == b"89"
        assert await store.get_range("digits", 10, 5) == b""
        assert await store.get_range("digits", 99, 5) == b""
        assert await store.get_range("digits", 4, 0) == b""


async def test_a_negative_range_is_a_mistake_of_the_caller(opened: Open) -> None:
    async with opened_store(opened) as store:
        await store.put("digits", [b"0123456789"])

        with pytest.raises(ValueError):
            await store.get_range("digits", -1, 5)


async def test_a_missing_object_is_missing_to_every_read(opened: Open) -> None:
    async with opened_store(opened) as store:
        await store.put("there/object", [b"x"])

        for read in (
            lambda: store.get("there/none"),
            lambda: store.get_range("there/none", 0, 1),
            lambda: store.get_range("there/none", 0, 0),
            lambda: store.head("there/none"),
            lambda: store.get("there"),
            lambda: store.head("there"),
        ):
            with pytest.raises(ObjectMissing):
                await read()


async def test_a_second_put_replaces_the_first(opened: Open) -> None:
    async with opened_store(opened) as store:
        await store.put("k/v", [b"first"])
        await store.put("k/v", [b"2nd"])

        assert await store.get("k/v") == b"2nd"


async def test_put_if_absent_keeps_what_is_there(opened: Open) -> None:
    async with opened_store(opened) as store:
        await store.put("once/only", [b"first"], if_absent=True)

        with pytest.raises(ObjectExists):
            await store.put("once/only", [b"second"], if_absent=True)

        assert await store.get("once/only") == b"first"


async def test_head_describes_the_object(opened: Open) -> None:
    async with opened_store(opened) as store:
        before_ms = SystemClock().wall_ms()
        await store.put("h/o", [b"12345"])
        after_ms = SystemClock().wall_ms()

        info = await store.head("h/o")

        assert (info.key, info.size) == ("h/o", 5)
        assert before_ms - 2000 <= info.modified_ms <= after_ms + 2000  # S3 returns whole seconds


async def test_a_listing_is_ascending_by_whole_key(opened: Open) -> None:
    # '-' sorts before '/', '0' after it: a directory sorts by its name with the slash.
    keys = ["l/a-b", "l/a/z", "l/a/b/c", "l/a0", "l/b", "l/B", "other/x"]

    async with opened_store(opened) as store:
        for key in keys:
            await store.put(key, [key.encode()])

        infos = [info async for info in store.list("l/")]

        assert [info.key for info in infos] == sorted(key for key in keys if key.startswith("l/"))
        assert all(info.size == len(info.key) for info in infos)
        assert await keys_of(store, "") == sorted(keys)


async def test_a_listing_takes_half_a_name_as_its_prefix(opened: Open) -> None:
    async with opened_store(opened) as store:
        for key in ("p/ab/1", "p/abc/2", "p/abd", "p/b/3"):
            await store.put(key, [b""])

        assert await keys_of(store, "p/ab") == ["p/ab/1", "p/abc/2", "p/abd"]
        assert await keys_of(store, "p/ab/") == ["p/ab/1"]
        assert await keys_of(store, "nothing/here") == []


async def test_a_listing_continues_after_a_key(opened: Open) -> None:
    keys = ["s/a/1", "s/a/2", "s/b", "s/c/3"]

    async with opened_store(opened) as store:
        for key in keys:
            await store.put(key, [b""])

        for after in ("", "r", "s", "s/a", "s/a/1", "s/a/1x", "s/a/2", "s/b", "s/b0", "s/c/3", "t"):
            assert await keys_of(store, "s/", start_after=after) == [key for key in keys if key > after], (
                after
            )


async def test_a_listing_longer_than_a_page_misses_nothing(opened: Open) -> None:
    keys = [f"page/{i % 7}/{i:04}" for i in range(2 * LIST_PAGE + 5)]

    async with opened_store(opened) as store:
        for first in range(0, len(keys), 16):
            await asyncio.gather(*(store.put(key, [b"x"]) for key in keys[first : first + 16]))

        assert await keys_of(store, "page/") == sorted(keys)
        await store.delete(keys)
        assert await keys_of(store, "page/") == []


async def test_prefixes_are_the_next_path_parts(opened: Open) -> None:
    async with opened_store(opened) as store:
        for key in ("x/a/1", "x/a/2", "x/b/c/3", "x/file", "y/1", "top"):
            await store.put(key, [b""])

        assert list(await store.list_prefixes("x/")) == ["a/", "b/"]
        assert list(await store.list_prefixes("")) == ["x/", "y/"]
        assert list(await store.list_prefixes("none/")) == []


async def test_a_deleted_object_is_gone(opened: Open) -> None:
    async with opened_store(opened) as store:
        for key in ("d/a/1", "d/a/2", "d/b"):
            await store.put(key, [b"x"])

        await store.delete(["d/a/1", "d/b", "d/never"])

        assert await keys_of(store, "d/") == ["d/a/2"]
        with pytest.raises(ObjectMissing):
            await store.get("d/b")


async def test_deleting_nothing_or_what_is_gone_is_fine(opened: Open) -> None:
    async with opened_store(opened) as store:
        await store.delete([])
        await store.delete(["never/was"])
        await store.put("g/o", [b"x"])
        await store.delete(["g/o"])
        await store.delete(["g/o"])


async def test_a_key_can_be_put_again_after_its_deletion(opened: Open) -> None:
    async with opened_store(opened) as store:
        await store.put("again/x", [b"1"])
        await store.delete(["again/x"])
        await store.put("again/x", [b"2"], if_absent=True)

        assert await store.get("again/x") == b"2"


BAD_KEYS = ("", "/", "/etc/x", "a//b", "a/", "../x", "a/../../x", "a/./b", "a\\b", "a\0b", "ä", "k" * 1025)


async def test_a_key_that_no_store_should_see_is_refused(opened: Open) -> None:
    async with opened_store(opened) as store:
        for key in BAD_KEYS:
            for refuses in (
                lambda key=key: store.put(key, [b"x"]),
                lambda key=key: store.get(key),
                lambda key=key: store.get_range(key, 0, 1),
                lambda key=key: store.head(key),
                lambda key=key: store.delete([key]),
            ):
                with pytest.raises(StoreRefused):
                    await refuses()


async def test_keys_with_signs_that_addresses_escape_are_kept(opened: Open) -> None:
    keys = sorted(
        ["esc/a b", "esc/a+b", "esc/a%20b", "esc/topic=x/day=1", "esc/é".replace("é", "e'&?#~(*)!")]
    )

    async with opened_store(opened) as store:
        for key in keys:
            await store.put(key, [key.encode()])

        assert await keys_of(store, "esc/") == keys
        for key in keys:
            assert await store.get(key) == key.encode()
            assert (await store.head(key)).key == key
        await store.delete(keys)
        assert await keys_of(store, "esc/") == []


async def test_calls_side_by_side_do_not_mix(opened: Open) -> None:
    async with opened_store(opened) as store:

        async def there_and_back(i: int) -> None:
            await store.put(f"side/{i}", [str(i).encode()] * 100)
            assert await store.get(f"side/{i}") == str(i).encode() * 100
            await store.delete([f"side/{i}"])

        await asyncio.gather(*(there_and_back(i) for i in range(40)))

        assert await keys_of(store, "side/") == []


async def test_a_stored_object_outlives_the_store_that_put_it(opened: Open) -> None:
    async with opened_store(opened) as store:
        await store.put("outlive/x", [b"still here"])
    async with opened_store(opened) as store:
        assert await store.get("outlive/x") == b"still here"


async def test_one_of_many_puts_if_absent_wins(opened: Open, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["opened"].endswith("-moto"):
        pytest.skip("moto lets several conditional PUTs win")

    async with opened_store(opened) as store:

        async def attempt(i: int) -> int | None:
            try:
                await store.put("race/x", [str(i).encode()], if_absent=True)
            except ObjectExists:
                return None
            return i

        winners = [i for i in await asyncio.gather(*map(attempt, range(10))) if i is not None]

        assert len(winners) == 1
        assert await store.get("race/x") == str(winners[0]).encode()
