"""Pins of tables: which retired objects are kept for the snapshots that name them."""

from __future__ import annotations

import pytest

from sequencer.api.commits import ObjectKind
from sequencer.api.compaction import PinTable, ReleaseTable, TablePinsRequest
from sequencer.api.errors import InvalidRequest, UnknownTopic
from sequencer.api.objects import ObjectsRequest
from sequencer.api.retention import ForgetObjects, GarbageRequest
from sequencer.api.topics import DeleteTopic
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.recovery.audit import AuditSettings, audit
from sequencer.store.memory import MemoryRowStore
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import Log, batch_of, compacted_here


async def opened() -> tuple[Log, ManualClock, MemoryRowStore]:
    clock = ManualClock()
    rows = MemoryRowStore(clock)
    sequencer = Committer(rows, clock, SeededEntropy(1))
    await sequencer.start()
    return Log(sequencer, MemoryStore(clock), clock), clock, rows


async def kinds_of_garbage(log: Log) -> list[str]:
    garbage = await log.sequencer.garbage(GarbageRequest(100))
    return sorted("parquet" if key.endswith(".parquet") else "mixed" for _, key in garbage.objects)


async def retire_one_of_each(log: Log) -> None:
    """A mixed object that was compacted, and the Parquet object made of it, whose topic is deleted."""
    topic = await log.topic("gone")
    await log.produce(("gone", 0, batch_of([b"v"])))
    await compacted_here(log)
    await log.sequencer.delete_topic(DeleteTopic(topic.topic_id))
    await log.sequencer.apply_retention(Empty())


async def test_a_pin_keeps_parquet_objects_that_are_retired_after_it_and_no_mixed_ones() -> None:
    log, clock, _ = await opened()
    topic = await log.topic("a")
    pin = await log.sequencer.pin_table(PinTable(topic.topic_id))
    clock.advance(1)
    await retire_one_of_each(log)
    clock.advance(1_000)
    assert await kinds_of_garbage(log) == ["mixed"]
    again = await log.sequencer.pin_table(PinTable(topic.topic_id))
    assert (again.kept_from_ms, again.now_ms) == (pin.kept_from_ms, clock.wall_ms())
    await log.sequencer.pin_table(PinTable(topic.topic_id, again.now_ms))
    assert await kinds_of_garbage(log) == ["mixed", "parquet"]
    await log.sequencer.close()


async def test_a_kept_object_is_not_forgotten() -> None:
    log, clock, _ = await opened()
    topic = await log.topic("a")
    await log.sequencer.pin_table(PinTable(topic.topic_id))
    clock.advance(1)
    await retire_one_of_each(log)
    clock.advance(1_000)
    await log.sequencer.release_table(ReleaseTable(topic.topic_id))
    garbage = await log.sequencer.garbage(GarbageRequest(100))
    parquet = [object_id for object_id, key in garbage.objects if key.endswith(".parquet")]
    await log.sequencer.pin_table(PinTable(topic.topic_id))  # listed before this, so it may go
    await log.sequencer.forget_objects(ForgetObjects(parquet))
    clock.advance(1)
    await retire_one_of_each(log)
    clock.advance(1_000)
    page = await log.sequencer.objects(ObjectsRequest("", 100))
    kept = [
        each.description.object_id for each in page.objects if each.description.kind is ObjectKind.PARQUET
    ]
    with pytest.raises(InvalidRequest, match="kept for a table"):
        await log.sequencer.forget_objects(ForgetObjects(kept))
    await log.sequencer.close()


async def test_objects_pinned_by_a_table_are_no_overdue_garbage() -> None:
    log, clock, rows = await opened()
    topic = await log.topic("a")
    await log.sequencer.pin_table(PinTable(topic.topic_id))
    clock.advance(1)
    await retire_one_of_each(log)
    clock.advance(1_000)
    report = await audit(rows, log.store, clock, SeededEntropy(2), AuditSettings(overdue_ms=1_000))
    overdue = [found.subject for found in report.findings if found.kind == "overdue_garbage"]
    assert [key.endswith(".parquet") for key in overdue] == [False]
    await log.sequencer.close()


async def test_a_pin_outlives_its_topic_and_ends_when_it_is_released() -> None:
    log, _, _ = await opened()
    topic = await log.topic("a")
    with pytest.raises(UnknownTopic):
        await log.sequencer.pin_table(PinTable(log.entropy.uuid()))
    await log.sequencer.pin_table(PinTable(topic.topic_id))
    await log.sequencer.delete_topic(DeleteTopic(topic.topic_id))
    (pin,) = (await log.sequencer.table_pins(TablePinsRequest())).pins
    assert (pin.topic_id, pin.topic_name) == (topic.topic_id, "a")
    assert (await log.sequencer.table_pins(TablePinsRequest(topic.topic_id))).pins == []
    await log.sequencer.release_table(ReleaseTable(topic.topic_id))
    assert (await log.sequencer.table_pins(TablePinsRequest())).pins == []
    await log.sequencer.close()
