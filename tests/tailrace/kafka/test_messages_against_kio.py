"""Every declared message in every version, held against kio's own classes."""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import sys
from typing import Any, get_args, get_type_hints
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from tailrace.kafka import request_codec, response_codec
from tailrace.kafka.apis import APIS
from tailrace.kafka.compiler import Codec
from tailrace.kafka.encoder_source import Parts
from tailrace.kafka.schema import Entity, MessageType, Wire, fields_of
from tests.tailrace.kafka.message_samples import sample

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def encoded(codec: Codec, message: Any) -> bytes:
    parts: Parts = []
    parts.append(codec.encode(message, bytearray(), parts))
    return b"".join(parts)


def kio_written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def plain(value: Any) -> Any:
    """kio's values in the terms of the wire: milliseconds, and numbers instead of absence."""
    if isinstance(value, datetime.timedelta):
        return round(value / datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        return round((value - EPOCH) / datetime.timedelta(milliseconds=1))
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def kio_name(name: str, names: set[str]) -> str:
    for candidate in (name, name.removesuffix("_ms"), f"{name}_"):
        if candidate in names:
            return candidate
    raise AssertionError(f"kio has no field {name} among {sorted(names)}")


def assert_same_fields(ours: Any, theirs: Any, version: int, path: str) -> None:
    names = {field.name for field in dataclasses.fields(theirs)}
    present = [field for field in fields_of(type(ours)) if version in field.versions]
    assert len(present) == len(names), path
    for field in present:
        mine = getattr(ours, field.name)
        other = getattr(theirs, kio_name(field.name, names))
        where = f"{path}.{field.name}"
        if dataclasses.is_dataclass(other):
            assert_same_fields(mine, other, version, where)
        elif isinstance(other, tuple) and other and dataclasses.is_dataclass(other[0]):
            assert len(mine) == len(other), where
            for one, another in zip(mine, other, strict=True):
                assert_same_fields(one, another, version, where)
        elif other is None:
            assert mine is None or mine == -1 or mine == UUID(int=0), where
        elif isinstance(mine, memoryview):
            assert mine == other, where
        else:
            assert mine == plain(other), where


@pytest.mark.parametrize("key", [spec.key for spec in APIS.values()], ids=lambda key: key.name)
@pytest.mark.parametrize("kind", ["request", "response"])
def test_bytes_and_fields_are_those_of_kio(key: int, kind: str) -> None:
    spec = APIS[key]
    rng = random.Random(f"{key} {kind}")
    for version in range(spec.served.first, spec.served.last + 1):
        if kind == "request":
            message, codec, theirs = (
                spec.request,
                request_codec(key, version),
                load_request_schema(key, version),
            )
        else:
            message, codec, theirs = (
                spec.response,
                response_codec(key, version),
                load_response_schema(key, version),
            )
        samples = [message(), *(sample(message, version, rng) for _ in range(5))]
        samples.append(sample(message, version, rng, large=True))
        for ours in samples:
            data = encoded(codec, ours)
            entity, size = entity_reader(theirs)(data, 0)
            assert size == len(data)
            assert kio_written(entity) == data
            decoded, end = codec.decode(memoryview(kio_written(entity)), 0)
            assert end == len(data)
            assert decoded == ours
            assert_same_fields(decoded, entity, version, f"{message.__name__} v{version}")


ENTITIES = {
    "TopicName": Entity.TOPIC_NAME,
    "GroupId": Entity.GROUP_ID,
    "TransactionalId": Entity.TRANSACTIONAL_ID,
}
"""kio's types of strings that Kafka's schemas give an `entityType`."""


def parts_of(hint: Any) -> list[Any]:
    """An annotation and everything in it."""
    return [hint, *(part for argument in get_args(hint) for part in parts_of(argument))]


def assert_same_entities(ours: MessageType, theirs: type[Any], version: int) -> None:
    hints = get_type_hints(theirs, vars(sys.modules[theirs.__module__]))
    for field in fields_of(ours):
        if version not in field.versions:
            continue
        hint = hints[kio_name(field.name, set(hints))]
        if isinstance(field.kind, Wire):
            named = [
                ENTITIES[part.__name__]
                for part in parts_of(hint)
                if getattr(part, "__name__", "") in ENTITIES
            ]
            assert named in ([], [field.entity]), f"{ours.__name__}.{field.name} names {named}"
        else:
            nested = [part for part in parts_of(hint) if dataclasses.is_dataclass(part)]
            assert_same_entities(field.kind, nested[0], version)


@pytest.mark.parametrize("key", [spec.key for spec in APIS.values()], ids=lambda key: key.name)
def test_every_entity_of_kafkas_schemas_is_declared_as_one(key: int) -> None:
    spec = APIS[key]
    for version in range(spec.served.first, spec.served.last + 1):
        assert_same_entities(spec.request, load_request_schema(key, version), version)
        assert_same_entities(spec.response, load_response_schema(key, version), version)
