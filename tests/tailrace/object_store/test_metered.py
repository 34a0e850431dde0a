"""The counts of a metered store."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.object_store.api import ObjectMissing, StoreUnavailable
from tailrace.object_store.memory import MemoryStore
from tailrace.object_store.metered import MeteredStore, StoreCounts
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.faulty_store import FaultyStore, Operation


class Observed:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def observe(self, operation: str, **told: Any) -> None:
        self.calls.append((operation, told["error"]))


async def test_requests_bytes_and_failures_are_counted() -> None:
    clock, observed = ManualClock(), Observed()
    faulty = FaultyStore(MemoryStore(clock), clock, SeededEntropy(1))
    store = MeteredStore(faulty, clock, observed)
    await store.put("a/k", [b"1234", b"567"])
    await store.get_range("a/k", 1, 3)
    assert [info.key async for info in store.list("")] == ["a/k"]
    await store.list_prefixes("")
    await store.head("a/k")
    with pytest.raises(ObjectMissing):
        await store.get("none")
    await store.delete([f"k{i}" for i in range(1001)])
    faulty.outage.begin(Operation.PUT)
    with pytest.raises(StoreUnavailable):
        await store.put("a/k", [b"lost"])

    assert store.counts == StoreCounts(
        puts=2, gets=2, heads=1, lists=2, deletes=2, deleted_objects=1001, put_bytes=7, got_bytes=3, errors=1
    )
    assert observed.calls == [
        ("put", None),
        ("get", None),
        ("list", None),
        ("list", None),
        ("head", None),
        ("get", "ObjectMissing"),
        ("delete", None),
        ("put", "StoreUnavailable"),
    ]
