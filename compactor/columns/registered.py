"""Values with a schema of a registry: Confluent's wire format, and what the registry says of a schema.

A value begins with a zero byte and the schema's id (uint32, big-endian). Only the driver asks the registry; tasks get
the texts that they need with their order, and say which ones they miss.
"""

from __future__ import annotations

from struct import Struct
from typing import Protocol

import msgspec

from compactor.columns.json_values import ValueUnfit
from tailrace.buffers import Buffer

HEADER = Struct(">BI")
MAX_SCHEMAS = 100
"""Schemas that the values of one topic have. A value with one more does not fit."""


SchemaKey = tuple[int, ...]
"""A schema's id, and for Protobuf the path to the message's type in it."""


class RegistryUnavailable(Exception):
    """The registry did not answer, or refused: the table waits. The message says what to do."""


class SchemaRefused(ValueError):
    """No columns can be made of the schema; the message says why."""


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
