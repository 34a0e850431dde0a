"""Values with a registry's schema: Confluent's wire format, and the registry's schemas.

A value begins with a zero byte and the schema's id (uint32, big-endian). Only the driver queries the registry. Tasks
get the schemas that they need with their order, and report missing ones.
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
from tailrace.configs.columns import TypedColumn

HEADER = Struct(">BI")
MAX_SCHEMAS = 100
"""The most schemas of one topic's values. A value with a further schema does not fit."""


MAX_EXPANDED_TYPES = 10_000
"""The most types of an expanded schema. A table has at most 1,000 columns, but a union can have several types for
one."""

SchemaKey = tuple[int, ...]
"""A schema's id; for Protobuf, also the path to the message's type in it."""


class RegistryUnavailable(Exception):
    """The registry did not answer, or refused. The table is not updated until it does. The message says what to do."""


class SchemaRefused(ValueError):
    """The schema can't become columns; the message says why."""


class Expansion:
    """Limits the types of a schema in which every named type is expanded at each use. Some lines of schema can expand
    to more types than there is time to process."""

    def __init__(self) -> None:
        self._left = MAX_EXPANDED_TYPES

    def step(self) -> None:
        """Count one more type. Raises SchemaRefused if there are too many."""
        self._left -= 1
        if self._left < 0:
            raise SchemaRefused(f"with its named types expanded, it has more than {MAX_EXPANDED_TYPES} types")


class RegisteredSchema(msgspec.Struct, frozen=True, array_like=True):
    """A schema with its id. `references`: (name, text) of each schema that it needs, after those that this one needs.

    `refusal`: why values with it have no columns; "" if they have. `path`, `compiled`: for Protobuf, the indexes of the
    message's type, and the descriptors.
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
        """The key that values with this schema have."""
        return (self.schema_id, *self.path)

    @property
    def held_bytes(self) -> int:
        """The characters and bytes that it holds."""
        texts = (self.text, self.compiled, self.refusal, *(part for pair in self.references for part in pair))
        return sum(map(len, texts))


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """A schema that is prepared for decoding. `decode`: decodes the bytes after the header and the path.

    `byte_cells`: the most cells per byte of a value. `element_cells`: the cells of an element in its lists and maps.
    `count`: counts the elements, up to some number above a given limit.
    """

    decode: Callable[[bytes], Any]
    byte_cells: float
    element_cells: int
    count: Callable[[bytes, int], int]

    def decoded(self, body: bytes) -> Any:
        """Decode a value for `field_of`. Raises ValueUnfit for too many cells, and the errors of `decode`."""
        if len(body) * self.byte_cells > MOST_CELLS and self.element_cells:
            check_cells(self.count(body, MOST_CELLS // self.element_cells) * self.element_cells)
        return self.decode(body)


class RegisteredValues:
    """Decodes each value to a row with the schema that it refers to. `prepare`: prepares a schema for decoding."""

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
        """Return the prepared schema for this key. Raises ValueUnfit."""
        schema = self._prepared.get(key)
        if schema is None:
            raise ValueUnfit(self._refusals.get(key, f"schema {key[0]} is one too many for a topic"))
        return schema

    @staticmethod
    def plain(values: Any, most_bytes: int) -> None:
        """Return None: these values are not decoded all at once."""

    def cells_in_lists(self, values: pa.Array | pa.ChunkedArray) -> Any:
        """See ValueDecoder. Estimates from the values' lengths, because counting takes longer than decoding."""
        lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy()
        return (lengths * self._byte_cells).astype(np.int64)

    @staticmethod
    def field_of(number: int, column: TypedColumn) -> Callable[[Any], Any]:
        """See arrays.FieldOf."""
        name = column.name
        return lambda row: row.get(name)


class Registry(Protocol):
    """A schema registry."""

    async def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema. A missing schema has a refusal. Raises RegistryUnavailable."""


def schema_id_of(value: Buffer) -> int:
    """Return the schema id of a value. Raises ValueUnfit."""
    if len(value) < HEADER.size or value[0] != 0:
        raise ValueUnfit("the value has no schema id: it does not begin with a zero byte and four more")
    return int(HEADER.unpack_from(value)[1])
