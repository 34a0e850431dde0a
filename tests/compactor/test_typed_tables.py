"""Tables with typed columns over a compacted log, as pyiceberg and DuckDB read them, and their quarantines."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest

from compactor.columns.derive import ValueFormat
from compactor.columns.registered import HEADER, MAX_SCHEMAS, RegistryUnavailable
from compactor.tables.iceberg import open_catalog
from compactor.tables.sync import DesiredTable, SyncResult
from tailrace.configs.columns import ColumnsConflict
from tests.compactor.test_iceberg import LIFE_MS, NAMESPACE, World, opened
from tests.support.compaction import batch_of, compacted_here

JSON = ValueFormat("json")


@dataclass(slots=True)
class Typed:
    """A world whose topic has typed columns."""

    world: World
    encoding: ValueFormat | None = JSON

    async def produce(self, *values: Any, partition: int = 0) -> None:
        """Values as JSON, or as the bytes that are given."""
        stored = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
        await self.world.log.produce(("a", partition, batch_of(stored)))

    async def sync(self, *, is_wanted: bool = True) -> SyncResult:
        self.world.clock.advance(1)
        topic_id = self.world.log.topics["a"].topic_id
        return await self.world.syncing.sync(
            DesiredTable(topic_id, "a", LIFE_MS, is_wanted, self.encoding if is_wanted else None)
        )

    async def round(self, *, merges: bool = False) -> SyncResult:
        await compacted_here(self.world.log, merges=merges)
        return await self.sync()

    def rows(self, *columns: str, table: str = "a") -> list[tuple[Any, ...]]:
        """The rows as pyiceberg scans them; DuckDB counts as many."""
        scanned = self.scan(table)
        [(count,)] = duckdb.sql('select count(distinct (partition, "offset")) from scanned').fetchall()
        assert count == len(scanned)
        chosen = [scanned[column].to_pylist() for column in columns]
        return sorted(zip(*chosen, strict=True), key=repr)

    def scan(self, table: str = "a") -> pa.Table:
        catalog = open_catalog(self.world.catalog, str(self.world.root))
        return catalog.load_table((NAMESPACE, table)).scan().to_arrow()


async def test_values_become_columns_that_the_first_ones_have(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        typed = Typed(world)
        await typed.produce({"id": 1, "offset": 7, "at": {"lat": 1.5}}, {"id": 2, "tags": ["x"]})
        await typed.round()
        await typed.produce({"id": 3}, {"id": "four"}, b"{", {"id": 5, "new": 1}, partition=1)
        done = await typed.round()
        assert done.quarantined == 1
        assert typed.rows("partition", "offset", "id", "value_offset", "at", "tags", "value") == [
            (0, 0, 1, 7, {"lat": 1.5}, None, None),
            (0, 1, 2, None, None, ["x"], None),
            (1, 0, 3, None, None, None, None),
        ]
        assert typed.rows("partition", "offset", "value", "reason", table="a__quarantine") == [
            (1, 1, b'{"id": "four"}', "Expected `int | null`, got `str` - at `$.id`"),
            (1, 2, b"{", "Input data was truncated"),
            (1, 3, b'{"id": 5, "new": 1}', "Object contains unknown field `new`"),
        ]
        assert not (await typed.sync()).change
        records = await world.log.records("a", 1)
        assert [record.value for record in records][1:3] == [b'{"id": "four"}', b"{"]


async def test_a_mended_schema_brings_the_quarantine_into_the_table(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as world:
        typed = Typed(world, ValueFormat("json", "id int"))
        await typed.produce({"id": 1, "left out": 1}, {"id": 3_000_000_000}, {"id": "x"})
        await typed.produce({"id": 4})
        await typed.round()
        before = {file.key async for file in world.log.store.list("") if "/values/" in file.key}
        typed.encoding = ValueFormat("json", "id long, name string")
        await typed.sync()
        assert typed.rows("offset", "id", "name") == [(0, 1, None), (1, 3_000_000_000, None), (3, 4, None)]
        assert typed.rows("offset", table="a__quarantine") == [(2,)]
        typed.encoding = ValueFormat("json", "name string")
        await typed.produce({"id": 5, "name": "five"})
        await typed.round()
        assert (4, None, "five") in typed.rows("offset", "id", "name")
        world.clock.advance(LIFE_MS / 1000)
        await typed.sync()
        world.clock.advance(LIFE_MS / 1000)
        await typed.sync()
        left = {file.key async for file in world.log.store.list("") if "/values/" in file.key}
        assert not before & left, "files that no snapshot names are deleted"

        typed.encoding = ValueFormat("json", "id string")
        with pytest.raises(ColumnsConflict, match="column id is long; it can't become string"):
            await typed.sync()


async def test_merges_and_deleted_records_are_seen_in_table_and_quarantine(tmp_path: Path) -> None:
    async with opened(tmp_path, 2) as world:
        typed = Typed(world)
        for number in range(3):
            await typed.produce({"id": number}, b"bad", {"id": number})
            await typed.produce(b"bad", b"", {"id": number}, partition=1)
            await typed.round()
        await world.delete_below(0, 2)
        await world.delete_below(1, 8)
        await typed.sync()
        kept = [(0, 2), (0, 3), (0, 5), (0, 6), (0, 8), (1, 8)]
        assert typed.rows("partition", "offset") == kept
        assert typed.rows("partition", "offset", table="a__quarantine") == [(0, 4), (0, 7)]
        done = await typed.round(merges=True)
        assert done.files < 3, "the objects were merged"
        assert typed.rows("partition", "offset") == kept
        assert typed.rows("partition", "offset", table="a__quarantine") == [(0, 4), (0, 7)]
        await world.delete_below(0, 4)
        await typed.sync()
        assert typed.rows("partition", "offset") == kept[2:]


async def test_a_table_changes_between_bytes_and_columns_and_ends_with_its_quarantine(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as world:
        typed = Typed(world, None)
        await typed.produce({"id": 1}, b"bad")
        await typed.round()
        assert typed.rows("offset", "value") == [(0, b'{"id": 1}'), (1, b"bad")]
        typed.encoding = JSON
        await typed.sync()
        assert typed.rows("offset", "value", "id") == [(0, None, 1)]
        assert typed.rows("offset", table="a__quarantine") == [(1,)]
        typed.encoding = None
        await typed.sync()
        assert typed.rows("offset", "value", "id") == [(0, b'{"id": 1}', None), (1, b"bad", None)]
        assert typed.rows("offset", table="a__quarantine") == []
        for _ in range(3):
            world.clock.advance(LIFE_MS / 1000)
            done = await typed.sync(is_wanted=False)
        assert done.is_dropped
        assert [file.key async for file in world.log.store.list("") if "/tables/" in file.key] == []


async def test_a_table_that_was_dropped_by_hand_has_each_value_in_its_column_again(tmp_path: Path) -> None:
    """The new table numbers its columns differently from the files that the old one left."""
    async with opened(tmp_path, 1) as world:
        typed = Typed(world)
        for columns in ("s struct<x long>", "s struct<x long>, b long", "s struct<x long, y long>, b long"):
            typed.encoding = ValueFormat("json", columns)
            await typed.sync()
        await typed.produce({"s": {"x": 1, "y": 2}, "b": 3})
        await typed.round()
        for _ in range(2):
            assert typed.rows("s", "b") == [({"x": 1, "y": 2}, 3)]
            open_catalog(world.catalog, str(world.root)).drop_table((NAMESPACE, "a"))
            await typed.sync()


async def test_no_rows_are_frozen_before_the_first_object(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as world:
        typed = Typed(world)
        await typed.produce(b"garbage", b"[1]")
        await typed.round()
        assert typed.rows("offset") == []
        assert typed.rows("offset", table="a__quarantine") == [(0,), (1,)]
        await typed.produce({"id": 1})
        await typed.round()
        assert typed.rows("offset", "id") == [(2, 1)]
        assert typed.rows("offset", table="a__quarantine") == [(0,), (1,)]


def record(*fields: tuple[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    )


def avro(schema_id: int, text: str, row: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(json.loads(text)), row)
    return HEADER.pack(0, schema_id) + written.getvalue()


async def test_avro_values_become_columns_that_grow_with_their_schemas(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as world:
        registry = world.registry
        typed = Typed(world, ValueFormat("avro"))
        old = record(("id", "int"), ("gone", "string"))
        new = record(("id", "long"), ("name", ["null", "string"]), ("offset", "long"))
        other = record(("id", "string"))
        registry.add(1, old)
        registry.add(2, new)
        registry.add(3, other)
        await typed.produce(avro(1, old, {"id": 1, "gone": "x"}))
        await typed.round()
        assert typed.rows("offset", "id", "gone") == [(0, 1, "x")]

        await typed.produce(
            avro(2, new, {"id": 2**40, "name": "n", "offset": 9}), avro(3, other, {"id": "s"}),
            avro(7, old, {"id": 3, "gone": ""}), b"no id", avro(1, old, {"id": 4, "gone": "y"})[:-1],
        )  # fmt: skip
        registry.is_away = True
        with pytest.raises(RegistryUnavailable):
            await typed.round()
        assert typed.rows("offset", "id") == [(0, 1)]
        registry.is_away = False
        await typed.sync()
        columns = ("offset", "id", "gone", "name", "value_offset")
        assert typed.rows(*columns) == [(0, 1, "x", None, None), (1, 2**40, None, "n", 9)]
        reasons = typed.rows("offset", "reason", table="a__quarantine")
        assert [offset for offset, _ in reasons] == [2, 3, 4, 5]
        assert [reason.partition(":")[0] for _, reason in reasons] == [
            "schema 3", "schema 7 is not in the registry", "the value has no schema id",
            "not a value of schema 1",
        ]  # fmt: skip
        asked = len(registry.asked)
        assert not (await typed.sync()).change
        assert len(registry.asked) == asked, "nothing was due"

        registry.add(7, old)
        await world.syncing.replay(
            DesiredTable(world.log.topics["a"].topic_id, "a", LIFE_MS, values=typed.encoding)
        )
        assert typed.rows("offset", "id")[2:] == [(3, 3)]
        assert typed.rows("offset", table="a__quarantine") == [(2,), (4,), (5,)]


async def test_schemas_of_many_tables_are_not_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compactor.tables.values.KEPT_SCHEMA_BYTES", 1)
    async with opened(tmp_path, 1) as world:
        schema = record(("id", "int"))
        world.registry.add(1, schema)
        await world.log.topic("b", 1)
        for name in "aaba":
            await world.log.produce((name, 0, batch_of([avro(1, schema, {"id": 1})])))
            await compacted_here(world.log)
            topic_id = world.log.topics[name].topic_id
            await world.syncing.sync(DesiredTable(topic_id, name, LIFE_MS, values=ValueFormat("avro")))
        assert len(world.registry.asked) == 3
        typed = Typed(world)
        assert [typed.rows("id", table=name) for name in "ab"] == [[(1,)] * 3, [(1,)]]


async def test_protobuf_values_become_columns(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as world:
        typed = Typed(world, ValueFormat("protobuf"))
        one = 'syntax = "proto3"; message One { int32 id = 1; } message Two { string name = 1; }'
        world.registry.add(5, one, "protobuf")
        world.registry.add(6, "nonsense", "protobuf")
        first, second, bad = (HEADER.pack(0, 5) + b"\x00", HEADER.pack(0, 5) + b"\x02\x02", HEADER.pack(0, 6))
        values = [first + b"\x08\x2a", second + b"\x0a\x01x", first + b"\x08", bad + b"\x00", b"{}"]
        await typed.produce(*values)
        await typed.round()
        assert typed.rows("offset", "id", "name") == [(0, 42, None), (1, None, "x")]
        reasons = [reason for _, reason in typed.rows("offset", "reason", table="a__quarantine")]
        assert [reason[:20] for reason in reasons] == [
            "not a value of schem", "schema 6: protoc: ta", "the value has no sch",
        ]  # fmt: skip
        assert [record.value for record in await world.log.records("a")] == values


async def test_values_with_any_number_of_schema_ids_cost_a_bounded_number_of_questions(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, 1) as world:
        typed = Typed(world, ValueFormat("avro"))
        known = record(("id", "int"))
        world.registry.add(1_000, known)
        row = avro(1_000, known, {"id": 1})
        for first in (0, 150):
            garbage = [HEADER.pack(0, first + number) for number in range(150)]
            await typed.produce(*garbage, row, row)
            await compacted_here(world.log)
        await typed.sync()
        assert len(world.registry.asked) == MAX_SCHEMAS
        assert typed.rows("id") == [(1,)] * 4, "the commonest ids are asked for first"
        reasons = [reason for _, reason in typed.rows("offset", "reason", table="a__quarantine")]
        assert sum(reason.endswith("is one too many for a topic") for reason in reasons) == 201
        assert sum(reason.endswith("is not in the registry") for reason in reasons) == 99
