"""Random messages: values for every field that a version has, defaults for those that it does not have."""

from __future__ import annotations

import random
import string
from typing import Any
from uuid import UUID

from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.schema import Field, MessageType, Wire, fields_of

CODES = [int(code) for code in ErrorCode]
BITS = {Wire.INT8: 8, Wire.INT16: 16, Wire.INT32: 32, Wire.INT64: 64}
LETTERS = string.ascii_letters + "äß語😀"


def sample(message: MessageType, version: int, rng: random.Random, large: bool = False) -> Any:
    """A message; `large` makes strings and arrays whose lengths take two varint bytes."""
    values = {
        field.name: _value(field, version, rng, large)
        for field in fields_of(message)
        if version in field.versions and not (field.tag is not None and rng.random() < 0.3)
    }
    return message(**values)


def declared() -> list[tuple[int, int]]:
    """Every (API key, version) that can be decoded."""
    return [
        (spec.key, version)
        for spec in APIS.values()
        for version in range(spec.listed.first, spec.listed.last + 1)
    ]


def _value(field: Field, version: int, rng: random.Random, large: bool) -> Any:
    if version in field.nullable and rng.random() < 0.25:
        return None
    if not field.is_array:
        return _single(field, version, rng, large)
    count = 130 if large and isinstance(field.kind, Wire) else rng.randrange(0, 4)
    return [_single(field, version, rng, large) for _ in range(count)]


def _single(field: Field, version: int, rng: random.Random, large: bool) -> Any:
    kind = field.kind
    if not isinstance(kind, Wire):
        return sample(kind, version, rng, large)
    if kind is Wire.BOOL:
        return rng.random() < 0.5
    if kind is Wire.FLOAT64:
        return rng.choice((0.0, -1.5, 1e300, rng.random()))
    if kind is Wire.UUID:
        return UUID(int=rng.getrandbits(128))
    if kind is Wire.STRING:
        return "".join(rng.choices(LETTERS, k=140 if large else rng.randrange(0, 9)))
    if kind is Wire.BYTES:
        return rng.randbytes(rng.randrange(0, 200))
    if kind is Wire.RECORDS:
        return memoryview(rng.randbytes(rng.choice((0, 3, 700, 1024, 1025, 5000))))
    if field.name.endswith("error_code"):
        return rng.choice(CODES)
    if field.name.endswith(("_ms", "timestamp")):
        return rng.randrange(2**31 if kind is Wire.INT32 else 4 * 10**12)
    half = 1 << (BITS[kind] - 1)
    return rng.choice((rng.randrange(-half, half), rng.randrange(0, 100), half - 1, -half, -1))
