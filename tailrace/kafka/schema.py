"""The types with which messages are declared: wire types, and the versions that contain a field.

A message is a `Message` whose annotations are its schema. The order of the fields is their order on the wire:

    class FetchPartition(Message):
        partition: Int32 = 0
        current_leader_epoch: Annotated[Int32, On("9+", ignorable=True)] = -1

Version ranges are written as Kafka writes them: "3+", "0-12", "4".
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from tailrace.buffers import Buffer
from tailrace.kafka.api_keys import ApiKey

NIL_UUID = UUID(int=0)


class Wire(Enum):
    """How a single value is encoded on the wire."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT64 = "float64"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"


class Entity(Enum):
    """What a value names, if that belongs to clients (`entityType` in Kafka's schemas, and some that they omit)."""

    TOPIC_NAME = "topic name"
    TOPIC_ID = "topic id"
    GROUP_ID = "group id"
    TRANSACTIONAL_ID = "transactional id"
    COORDINATOR_KEY = "coordinator key"
    """A group or a transactional id."""
    USER_NAME = "user name"
    CONFIG_RESOURCE = "config resource"
    """A topic, a group or a broker: the structure's `resource_type` says which."""
    TOPIC_REGEX = "topic regex"
    SUBSCRIPTION = "subscription"
    """The bytes of a ConsumerProtocolSubscription, if the group is a consumer group."""
    ASSIGNMENT = "assignment"
    """The bytes of a ConsumerProtocolAssignment, if the group is a consumer group."""
    ERROR_MESSAGE = "error message"
    """A message that may contain a name."""
    CLUSTER_ID = "cluster id"


Bool = Annotated[bool, Wire.BOOL]
Int8 = Annotated[int, Wire.INT8]
Int16 = Annotated[int, Wire.INT16]
Int32 = Annotated[int, Wire.INT32]
Int64 = Annotated[int, Wire.INT64]
Float64 = Annotated[float, Wire.FLOAT64]
Uuid = Annotated[UUID, Wire.UUID]
String = Annotated[str, Wire.STRING]
Bytes = Annotated[bytes, Wire.BYTES]
TopicName = Annotated[str, Wire.STRING, Entity.TOPIC_NAME]
TopicId = Annotated[UUID, Wire.UUID, Entity.TOPIC_ID]
GroupId = Annotated[str, Wire.STRING, Entity.GROUP_ID]
TransactionalId = Annotated[str, Wire.STRING, Entity.TRANSACTIONAL_ID]
CoordinatorKey = Annotated[str, Wire.STRING, Entity.COORDINATOR_KEY]
ScramUser = Annotated[str, Wire.STRING, Entity.USER_NAME]
ConfigResourceName = Annotated[str, Wire.STRING, Entity.CONFIG_RESOURCE]
TopicRegex = Annotated[str, Wire.STRING, Entity.TOPIC_REGEX]
SubscriptionBytes = Annotated[bytes, Wire.BYTES, Entity.SUBSCRIPTION]
AssignmentBytes = Annotated[bytes, Wire.BYTES, Entity.ASSIGNMENT]
ErrorMessage = Annotated[str, Wire.STRING, Entity.ERROR_MESSAGE]
ClusterId = Annotated[str, Wire.STRING, Entity.CLUSTER_ID]
RecordsView = Annotated[memoryview, Wire.RECORDS]
"""Received records: a view of the frame, never copied."""
RecordsGather = Annotated[Buffer | Sequence[Buffer], Wire.RECORDS]
"""Records to send: one buffer, or several to concatenate. Only small ones are copied."""


@dataclass(frozen=True, slots=True)
class On:
    """The versions that contain a field, and how they encode it.

    Args:
        versions: the versions with the field.
        nullable: the versions in which it may be null; None for none.
        tag: its number if it is a tagged field (KIP-482).
        ignorable: whether its value is dropped in a version without the field. If not, encoding a value other than the
            default in such a version is an error.
    """

    versions: str = "0+"
    nullable: str | None = None
    tag: int | None = None
    ignorable: bool = False


@dataclass(frozen=True, slots=True)
class Api:
    """A request class's declaration of its API. The response has the same versions.

    Args:
        key: the API's number in requests.
        versions: the versions that are served.
        flexible: the versions with tagged fields and compact lengths (KIP-482); None for none.
        listed: the versions that ApiVersions lists, if they are more than the served ones.
    """

    key: ApiKey
    versions: str
    flexible: str | None = None
    listed: str | None = None


class Message(msgspec.Struct, gc=False):
    """A message, or a structure in one. Messages are trees, so the garbage collector need not scan them."""


class MessageValue(msgspec.Struct, gc=False, frozen=True):
    """A structure that is the default value of a field. It is shared, and therefore immutable."""


MessageType = type[Message] | type[MessageValue]


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, both ends included."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


MAX_VERSION = 32767
_NOWHERE = Versions(1, 0)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, from its annotation.

    `kind`: a wire type or the structure's class. `is_array`: whether the field is an array of that kind.
    """

    name: str
    kind: Wire | MessageType
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    ignorable: bool
    default: Any
    """The value in a message that does not set the field; an empty list for arrays."""
    entity: Entity | None = None


def parse_versions(text: str | None) -> Versions:
    """Parse a range of versions in Kafka's notation: "3+", "0-12" or "4". None is the empty range."""
    if text is None:
        return _NOWHERE
    if text.endswith("+"):
        return Versions(int(text[:-1]), MAX_VERSION)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


@cache
def fields_of(message: MessageType) -> tuple[Field, ...]:
    """Return the fields of a message in wire order."""
    hints = get_type_hints(message, include_extras=True)
    return tuple(_field(info.name, hints[info.name], info) for info in msgspec.structs.fields(message))


@dataclass(slots=True)
class _Annotation:
    """The parsed annotation of a field."""

    on: On = On()
    wire: Wire | None = None
    struct: MessageType | None = None
    is_array: bool = False
    entity: Entity | None = None


def _read_annotation(hint: Any) -> _Annotation:
    said = _Annotation()
    pending = [hint]
    while pending:
        current = pending.pop()
        origin = get_origin(current)
        if origin is Annotated:
            for extra in current.__metadata__:
                if isinstance(extra, On):
                    said.on = extra
                elif isinstance(extra, Wire):
                    said.wire = extra
                elif isinstance(extra, Entity):
                    said.entity = extra
            if said.wire is None:
                pending.append(current.__origin__)
        elif origin is Union or origin is types.UnionType:
            pending.extend(part for part in get_args(current) if part is not type(None))
        elif origin is list:
            said.is_array = True
            pending.extend(get_args(current))
        elif isinstance(current, type) and issubclass(current, (Message, MessageValue)):
            said.struct = current
    return said


def _field(name: str, hint: Any, info: msgspec.structs.FieldInfo) -> Field:
    said = _read_annotation(hint)
    kind = said.wire or said.struct
    if kind is None:
        raise TypeError(f"the annotation of {name} names no wire type: {hint}")
    default = info.default
    if default is msgspec.NODEFAULT:
        if info.default_factory is msgspec.NODEFAULT:
            raise TypeError(f"{name} has no default; every field of a message has one")
        default = info.default_factory()
    on = said.on
    return Field(
        name=name,
        kind=kind,
        is_array=said.is_array,
        versions=parse_versions(on.versions),
        nullable=parse_versions(on.nullable),
        tag=on.tag,
        ignorable=on.ignorable,
        default=default,
        entity=said.entity,
    )
