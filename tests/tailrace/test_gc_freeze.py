"""Rows loaded in bulk are never scanned by the garbage collector again."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from sequencer.store.rows import Changes, GroupRow, LogEpoch, PartitionRow, Row
from sequencer.store.sql.store import SqlRowStore
from sequencer.store.state import HotState
from tailrace import gc_freeze
from tailrace.gc_freeze import GcFreezer
from tests.support.clocks import ManualClock, SeededEntropy

ROWS = 5_000


@pytest.fixture(autouse=True)
def small_loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gc_freeze, "LEFT_ALONE_AT_ONCE", 1_000)
    yield
    gc.unfreeze()


def left_alone_before() -> int:
    """How many objects the collector leaves alone before a load."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return gc.get_freeze_count()


def partitions() -> list[Row]:
    """Return rows that share nothing: each has epochs of its own."""
    return [PartitionRow(UUID(int=1), number, 0, 0, -1, [LogEpoch(number, 0)]) for number in range(ROWS)]


def test_the_rows_of_a_state_are_left_alone_as_it_is_built() -> None:
    rows, before = partitions(), left_alone_before()
    state = asyncio.run(HotState.built({PartitionRow: rows}, ManualClock()))
    assert state.count(PartitionRow) == ROWS
    assert gc.get_freeze_count() - before >= ROWS, "each row has a key at least"


def test_a_state_that_is_left_alone_is_freed_with_its_last_reference() -> None:
    rows: dict[type[Row], list[Row]] = {
        PartitionRow: partitions(),
        GroupRow: [GroupRow("group", 1, 1, 1, "Stable", "consumer", [], b"", 0)],
    }
    state = asyncio.run(HotState.built(rows, ManualClock()))
    state.watch_new(GroupRow, [].append)
    gc.collect()
    gc.freeze()
    dropped = weakref.ref(state)
    del state
    assert dropped() is None, "nothing else would ever free it"


def test_garbage_is_freed_before_a_load_is_frozen() -> None:
    cycle = HotState({})
    cycle.watch_new(PartitionRow, cycle.rows_after)  # type: ignore[arg-type]
    gc.collect()
    dropped = weakref.ref(cycle)
    del cycle
    assert dropped() is not None
    GcFreezer().add(1_000)
    assert dropped() is None


async def test_the_rows_of_a_database_are_left_alone_as_they_are_loaded(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/rows.db"
    store = SqlRowStore(url, clock=ManualClock(), entropy=SeededEntropy(1))
    await store.open()
    epoch = await store.take_committer_lease("test", "", 60_000)
    assert epoch is not None
    changes = Changes()
    for row in partitions():
        changes.put(row)
    await store.write(changes, epoch)
    before = left_alone_before()
    rows = await store.load()
    assert len(rows[PartitionRow]) == ROWS
    assert gc.get_freeze_count() - before >= ROWS, "each row has a list at least"
    await store.close()


def test_a_small_load_is_left_to_the_collector() -> None:
    before = left_alone_before()
    made = [[] for _ in range(999)]  # type: ignore[var-annotated]
    GcFreezer().add(len(made))
    assert gc.get_freeze_count() < before + len(made), "of what was there some may have ended"
