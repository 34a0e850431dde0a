"""Replaces the names in messages. The declarations of the messages say where names are.

A message is not changed: the result is a new message that shares the parts without names. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec

from tailrace.kafka.schema import Entity, Wire, fields_of
from tailrace.turns import Steps, at_once


class _Foreign(Enum):
    FOREIGN = "foreign"


FOREIGN = _Foreign.FOREIGN
"""Replaces a value that its reader may not see. An element of a list that has such a value is left out of the list."""

Replace = Callable[[Any, Any], Any]
"""Takes (value, message that has it); returns the new value, or FOREIGN."""


class _NameField(NamedTuple):
    """A field with names, or with structures that have names."""

    name: str
    entity: Entity | None
    is_array: bool


@cache
def _name_fields(kind: Any) -> tuple[_NameField, ...]:
    return tuple(
        _NameField(field.name, field.entity, field.is_array)
        for field in fields_of(kind)
        if field.entity is not None or (not isinstance(field.kind, Wire) and _name_fields(field.kind))
    )


def translated(message: Any, replacements: Mapping[Entity, Replace]) -> Any:
    """Return the message with its names replaced; FOREIGN if a name outside of a list is foreign.

    Args:
        replacements: by entity; other values stay.
    """
    return at_once(translating(message, replacements))


def translating(message: Any, replacements: Mapping[Entity, Replace]) -> Steps[Any]:
    """As `translated`, in steps of one structure or one list of names."""
    yield 1
    changes: dict[str, Any] = {}
    changed: Any
    for name, entity, is_array in _name_fields(message.__class__):
        value = getattr(message, name)
        if value is None:
            continue
        if entity is None and is_array:
            parts = []
            for part in value:
                parts.append((yield from translating(part, replacements)))
            changed = _all(parts)
        elif entity is None:
            changed = yield from translating(value, replacements)
        else:
            replace = replacements.get(entity)
            if replace is None:
                continue
            yield len(value) if is_array else 1
            changed = (
                _all([replace(name, message) for name in value]) if is_array else replace(value, message)
            )
        if changed is FOREIGN:
            return FOREIGN
        if changed is not value:
            changes[name] = changed
    return msgspec.structs.replace(message, **changes) if changes else message


def _all(values: list[Any]) -> list[Any]:
    """Return the values that may be seen."""
    return [value for value in values if value is not FOREIGN]
