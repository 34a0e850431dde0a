"""Values with a schema of a registry: Confluent's wire format, and what the registry says of a schema.

A value begins with a zero byte and the schema's id (uint32, big-endian). Only the driver asks the registry; tasks get
the texts that they need with their order, and say which ones they miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.columns.json_values import MOST_CELLS, ValueUnfit, check_cells
from tailrace.buffers import Buffer
from tailrace.columns import TypedColumn

HEADER = Struct(">BI")
MAX_SCHEMAS = 100
"""Schemas that the values of one topic have. A value with one more does not fit."""


MAX_EXPANDED_TYPES = 10_000
"""Of a schema that is written out. Unions can have several for one of the columns, of which a table has 1,000."""

SchemaKey = tuple[int, ...]
"""A schema's id, and for Protobuf the path to the message's type in it."""


class RegistryUnavailable(Exception):
    """The registry did not answer, or refused: the table waits. The message says what to do."""


class SchemaRefused(ValueError):
    """No columns can be made of the schema; the message says why."""


class Expansion:
    """Counts the types of a schema as it is written out, where each use of a named type counts anew: some lines of
    schema can stand for more than there is time for."""

    def __init__(self) -> None:
        self._left = MAX_EXPANDED_TYPES

    def step(self) -> None:
        """One more type. Raises SchemaRefused."""
        self._left -= 1
        if self._left < 0:
            raise SchemaRefused(
                f"written out, it has more than {MAX_EXPANDED_TYPES} types, as types are used in others again and again"
            )


class RegisteredSchema(msgspec.Struct, frozen=True, array_like=True):
    """A schema by its id. `references`: (name, text) of what it needs, each after what it needs itself.

    `refusal`: why values with it have no columns; "" where they have. `path`, `compiled`: of Protobuf, the indexes of
    the message's type and the descriptors.
    """

    schema_id: int
    kind: str = ""
    text: str = ""
    references: list[tuple[str, str]] = []
    refusal: str = ""
    path: tuple[int, ...] = ()
    compiled: bytes = b""

    @property
    def key(self) -> SchemaKey:
        """What values with it carry."""
        return (self.schema_id, *self.path)


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """What decodes the values of a schema. `decode`: of the bytes after the header and the path.

    `byte_cells`: cells that a byte of a value leads to, at most; `element_cells`: those of an element in its lists and
    maps, which `count` counts, up to some number beyond a given one.
    """

    decode: Callable[[bytes], Any]
    byte_cells: float
    element_cells: int
    count: Callable[[bytes, int], int]

    def decoded(self, body: bytes) -> Any:
        """What `field_of` reads. Raises ValueUnfit for a value of too many cells, and whatever `decode` does."""
        if len(body) * self.byte_cells > MOST_CELLS and self.element_cells:
            check_cells(self.count(body, MOST_CELLS // self.element_cells) * self.element_cells)
        return self.decode(body)


class RegisteredValues:
    """Values that are decoded to rows with the schema that each carries. `prepare`: what is made of a schema to decode
    with."""

    refused = (ValueUnfit,)

    def __init__(
        self, schemas: Iterable[RegisteredSchema], prepare: Callable[[RegisteredSchema], PreparedSchema]
    ) -> None:
        self._refusals: dict[SchemaKey, str] = {}
        self._prepared: dict[SchemaKey, PreparedSchema] = {}
        for schema in schemas:
            if schema.refusal:
                self._refusals[schema.key] = schema.refusal
            else:
                self._prepared[schema.key] = prepare(schema)
        self._byte_cells = max((schema.byte_cells for schema in self._prepared.values()), default=0.0)

    def prepared(self, key: SchemaKey) -> PreparedSchema:
        """What decodes a value that carries this. Raises ValueUnfit."""
        schema = self._prepared.get(key)
        if schema is None:
            raise ValueUnfit(self._refusals.get(key, f"schema {key[0]} is one too many for a topic"))
        return schema

    @staticmethod
    def plain(values: Any, most_bytes: int) -> None:
        """Nothing is decoded all at once."""

    def cells_in_lists(self, values: pa.Array | pa.ChunkedArray) -> Any:
        """See ValueDecoder. By the values' lengths: to count what each has takes longer than to decode it."""
        lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy()
        return (lengths * self._byte_cells).astype(np.int64)

    @staticmethod
    def field_of(number: int, column: TypedColumn) -> Callable[[Any], Any]:
        """See arrays.FieldOf."""
        name = column.name
        return lambda row: row.get(name)


class Registry(Protocol):
    """Where schemas are."""

    async def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema; one that is not there has a refusal. Raises RegistryUnavailable."""
        ...


def schema_id_of(value: Buffer) -> int:
    """The id that a value carries. Raises ValueUnfit."""
    if len(value) < HEADER.size or value[0] != 0:
        raise ValueUnfit("the value has no schema id: it does not begin with a zero byte and four more")
    return int(HEADER.unpack_from(value)[1])
