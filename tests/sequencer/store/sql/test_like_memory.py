"""The SQL store and the reference in memory return the same for any writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sequencer.api.commits import ObjectKind
from sequencer.store.memory import MemoryRowStore
from sequencer.store.row_store import ObjectRowMissing, RowStore
from sequencer.store.rows import (
    LOOKED_UP,
    Changes,
    CounterRow,
    GroupOffsetRow,
    ObjectRow,
    ProducerRow,
    RememberedBatch,
    Row,
    RunRow,
    key_of,
)
from sequencer.store.sql.store import SqlRowStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.row_samples import changes, marker_row, object_row, run_row
from tests.support.servers import PostgresServer

CLOCK = ManualClock()
TOPICS = [UUID(int=1), UUID(int=2**127 + 1)]


@dataclass
class World:
    """What the writer would know: makes changes that keep the rows consistent."""

    objects: dict[UUID, ObjectRow] = field(default_factory=dict)
    runs: dict[tuple[UUID, int], list[RunRow]] = field(default_factory=dict)
    ends: dict[tuple[UUID, int], tuple[int, int]] = field(default_factory=dict)  # end offset, running maximum
    made: int = 0

    def new_object(self, changes: Changes) -> ObjectRow:
        self.made += 1
        stored = object_row(self.made, size=self.made * 1000)
        self.objects[stored.object_id] = stored
        changes.put(stored)
        return stored

    def append(self, changes: Changes, draw: st.DataObject) -> None:
        stored = self.new_object(changes)
        for place in draw.draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3, unique=True)):
            end, running = self.ends.get(place, (0, -1))
            count, timestamp, hole, length = draw.draw(RUN)
            running = max(running, timestamp)
            row = run_row(
                end + hole,
                end + hole + count,
                stored,
                max_timestamp=timestamp,
                running_max=running,
                topic_id=place[0],
                partition=place[1],
                length=length,
            )
            self.ends[place] = (row.end_offset, running)
            self.runs.setdefault(place, []).append(row)
            changes.put(row)

    def mark(self, changes: Changes, draw: st.DataObject) -> None:
        """A run of markers at a partition's end."""
        place = draw.draw(st.sampled_from(PLACES))
        end, running = self.ends.get(place, (0, -1))
        row = marker_row(
            end,
            running_max=running,
            topic_id=place[0],
            partition=place[1],
            count=draw.draw(st.integers(1, 2)),
        )
        self.ends[place] = (row.end_offset, running)
        self.runs.setdefault(place, []).append(row)
        changes.put(row)

    def trim(self, changes: Changes, draw: st.DataObject) -> None:
        for rows in self.runs.values():
            for row in rows[: draw.draw(st.integers(0, 2))]:
                rows.remove(row)
                changes.delete(RunRow, key_of(row))

    def swap(self, changes: Changes, draw: st.DataObject) -> None:
        """The first rows of a partition become one of another object."""
        place = draw.draw(st.sampled_from(PLACES))
        rows = self.runs.get(place, [])
        taken = rows[: draw.draw(st.integers(1, 3))]
        if not taken:
            return
        stored = self.new_object(changes)
        for row in taken:
            changes.delete(RunRow, key_of(row))
        merged = run_row(
            taken[0].base_offset,
            taken[-1].end_offset,
            stored,
            max_timestamp=max(row.max_timestamp for row in taken),
            running_max=taken[-1].running_max_timestamp,
            topic_id=place[0],
            partition=place[1],
            length=7,
        )
        merged = msgspec.structs.replace(
            merged, kind=ObjectKind.PARQUET
        )  # a mixed run is never put in a run's place
        self.runs[place] = [merged, *rows[len(taken) :]]
        changes.put(merged)

    def collect(self, changes: Changes, draw: st.DataObject) -> None:
        named = {row.object_id for rows in self.runs.values() for row in rows}
        for stored in [stored for stored in self.objects.values() if stored.object_id not in named]:
            if stored.retired_ms is None:
                retired = msgspec.structs.replace(
                    stored, retired_ms=draw.draw(st.integers(0, 5)), live_runs=0
                )
                self.objects[stored.object_id] = retired
                changes.put(retired)
            else:
                del self.objects[stored.object_id]
                changes.delete(ObjectRow, key_of(stored))

    def produce(self, changes: Changes, draw: st.DataObject) -> None:
        """Producers are written again and forgotten."""
        place = draw.draw(st.sampled_from(PLACES))
        for producer_id in draw.draw(st.lists(st.integers(0, 3) | st.just((1 << 63) - 1), max_size=3)):
            if draw.draw(st.booleans()):
                recent = [RememberedBatch(0, 1, draw.draw(st.integers(0, 9)))]
                changes.put(ProducerRow(*place, producer_id, 0, recent, -1, draw.draw(st.integers(0, 9))))
            else:
                changes.delete(ProducerRow, (*place, producer_id))

    def other(self, changes: Changes, draw: st.DataObject) -> None:
        name = draw.draw(st.text(max_size=3))
        if draw.draw(st.booleans()):
            changes.put(CounterRow(name, draw.draw(st.integers(-(2**63), 2**63 - 1))))
            changes.put(GroupOffsetRow(name, TOPICS[0], 1, 2, -1, name, 4, draw.draw(st.none() | st.just(3))))
        else:
            changes.delete(CounterRow, (name,))
            changes.delete(GroupOffsetRow, (name, TOPICS[0], 1))


PLACES = [(topic_id, partition) for topic_id in TOPICS for partition in (0, 1)]
RUN = st.tuples(st.integers(1, 9), st.integers(-1, 30), st.sampled_from([0, 0, 0, 4]), st.integers(1, 50))
STEPS = [
    World.append,
    World.append,
    World.append,
    World.mark,
    World.trim,
    World.swap,
    World.collect,
    World.produce,
    World.other,
]


async def everything(store: RowStore, world: World) -> dict[str, object]:
    """What every read says, over a grid of questions."""
    said: dict[str, object] = {}
    loaded = await store.load()
    unknown: dict[type[Row], tuple[object, ...]] = {
        ProducerRow: (UUID(int=0), 0, 0),
        GroupOffsetRow: ("", UUID(int=0), 0),
    }
    for kind in LOOKED_UP:
        rows = await store.rows_after(kind, None, 1_000)
        keys = [key_of(row) for row in rows]
        found = await store.rows_under(kind, [*keys[::2], unknown[kind]])
        said[f"{kind.__name__}s"] = rows
        said[f"{kind.__name__}s by key"] = {key_of(row): row for row in found}
        said[f"{kind.__name__}s after"] = [await store.rows_after(kind, key, 2) for key in keys]
    positions = await store.rows_after(GroupOffsetRow, None, 1_000)
    group_ids = list(dict.fromkeys(row.group_id for row in positions))
    for group_id in ("", *group_ids):
        said[f"positions of {group_id!r}"] = [
            await store.positions_of(group_id, after, 2)
            for after in (None, *(row.key[1:] for row in positions), (TOPICS[0], 0))
        ]
    for some in ([], group_ids, [*group_ids[::2], "unknown"]):
        of_groups = await store.positions_of_groups(some, 1_000)
        said[f"positions of groups {some}"] = {row.key: row for row in of_groups}
        said[f"a position of groups {some}"] = len(await store.positions_of_groups(some, 1))
    for topic_id in TOPICS:
        on_topic = await store.positions_on(topic_id, 1_000)
        said[f"positions on {topic_id}"] = {row.key: row for row in on_topic}
        said[f"a position on {topic_id}"] = len(await store.positions_on(topic_id, 1))
    said["load"] = {kind: {key_of(row): row for row in rows} for kind, rows in loaded.items()}
    for place in PLACES:
        end = world.ends.get(place, (0, 0))[0]
        for offset in sorted({0, 1, end // 3, end // 2, end - 1, end, end + 1}):
            asked = (*place, offset)
            said[f"from {asked}"] = [
                await store.runs_from(*asked, size, *most) for size in (0, 40, 10_000) for most in ((), (2,))
            ]
            said[f"reaching {asked}"] = [
                (found.run, found.next_offset)
                for timestamp in (-1, 0, 9, 20, 30, 31)
                for most in (1, 2, 100)
                for found in [await store.first_run_reaching(*place, timestamp, offset, most)]
            ]
            said[f"max {asked}"] = (await store.run_of_max_timestamp(*asked, 100)).run
            said[f"max {asked} below"] = [
                (await store.run_of_max_timestamp(*asked, 100, below)).run for below in (0, end // 2, end)
            ]
    queries = [(*place, world.ends.get(place, (0, 0))[0] // 2, size) for place in PLACES for size in (1, 60)]
    said["many"] = await store.runs_from_many(queries)
    said["many without batches"] = await store.runs_from_many(queries, with_batches=False)
    said["bytes"] = [await store.partition_bytes(topics) for topics in (None, [], TOPICS[1:], TOPICS)]
    within = ((0, 0), (0, 1), (1, 2), (0, 100))
    said["bytes within"] = [await store.partition_bytes_within(TOPICS[0], *bounds) for bounds in within]
    ids = [*world.objects, UUID(int=0)]
    said["objects"] = await store.object_rows(ids)
    said["runs of"] = [await store.runs_of_object(object_id) for object_id in ids]
    said["after"] = [await store.objects_after(key, most) for key in ("", "k/0003", "z") for most in (2, 100)]
    said["retired"] = [
        await store.retired_before(at, parquet, most)
        for at in (0, 3, 9)
        for parquet in (0, 3, 9)
        for most in (1, 100)
    ]
    said["keys"] = await store.keys_known(["k/0002", "no", "k/0001"])
    said["statistics"] = await store.statistics()
    return said


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/rows.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    made = server.create_database()
    yield made
    server.drop_database(made)


def test_any_sequence_of_writes_reads_as_in_memory(url: str) -> None:
    with asyncio.Runner() as runner:
        store: SqlRowStore = SqlRowStore(url, clock=CLOCK, entropy=SeededEntropy(1))

        async def take() -> int:
            await store.open()
            epoch = await store.take_committer_lease("test", "", 1_000)
            assert epoch is not None
            return epoch

        async def write_and_compare(draw: st.DataObject) -> None:
            world, memory = World(), MemoryRowStore(CLOCK)
            memory_epoch = await memory.take_committer_lease("test", "", 1_000)
            assert memory_epoch is not None
            for steps in draw.draw(
                st.lists(st.lists(st.sampled_from(STEPS), max_size=6), min_size=1, max_size=5)
            ):
                changes = Changes()
                for step in steps:
                    step(world, changes, draw)
                await memory.write(changes, memory_epoch)
                await store.write(changes, epoch)
            wanted, found = await everything(memory, world), await everything(store, world)
            for question, answer in wanted.items():
                assert found[question] == answer, question
            await forget_all(world)

        async def forget_all(world: World) -> None:
            changes = Changes()
            looked_up = [await store.rows_after(kind, None, 1_000) for kind in LOOKED_UP]
            for rows in (*(await store.load()).values(), *looked_up):
                for row in rows:
                    changes.delete(type(row), key_of(row))
            for row in (*world.objects.values(), *(row for rows in world.runs.values() for row in rows)):
                changes.delete(type(row), key_of(row))
            await store.write(changes, epoch)
            assert (await store.statistics()).objects == 0

        @settings(
            max_examples=15 if url.startswith("sqlite") else 5,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def check(draw: st.DataObject) -> None:
            # A failed example must not leave rows to the next.
            try:
                runner.run(write_and_compare(draw))
            except BaseException:
                runner.run(wipe(store))
                raise

        epoch = runner.run(take())
        try:
            check()
        finally:
            runner.run(store.close())


async def wipe(store: SqlRowStore) -> None:
    for table in ("counters", "group_offsets", "objects", "runs"):
        await store._database.execute(f"delete from {table}")


async def test_in_memory_a_run_whose_object_has_no_row_is_not_passed_on() -> None:
    store = MemoryRowStore(ManualClock())
    epoch = await store.take_committer_lease("test", "", 60_000)
    assert epoch is not None
    stored = object_row(1)
    stored_run = run_row(0, 1, stored)
    await store.write(changes(stored, stored_run), epoch)
    removal = Changes()
    removal.delete(ObjectRow, key_of(stored))
    await store.write(removal, epoch)
    with pytest.raises(ObjectRowMissing, match="has no row"):
        await store.runs_of_object(stored.object_id)
    assert [run.key for run in await store.runs_from(stored_run.topic_id, 0, 0, 1, with_batches=False)] == [
        ""
    ]
