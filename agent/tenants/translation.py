"""Messages with the names in them replaced, as the declarations of the messages say where names are.

A message is not changed: one with other names is made, which shares with the first what has no names. Pure.
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
"""Instead of a value that its reader may not see. The element of a list that has it is left out of the list."""

Replace = Callable[[Any, Any], Any]
"""(value, message that has it) to the value that stands there instead, or FOREIGN."""


class _Place(NamedTuple):
    """A field with names, or of structures that have some."""

    name: str
    entity: Entity | None
    is_array: bool


@cache
def _places(kind: Any) -> tuple[_Place, ...]:
    return tuple(
        _Place(field.name, field.entity, field.is_array)
        for field in fields_of(kind)
        if field.entity is not None or (not isinstance(field.kind, Wire) and _places(field.kind))
    )


def translated(message: Any, replacements: Mapping[Entity, Replace]) -> Any:
    """The message with its names replaced; FOREIGN if one that is in no list is foreign.

    Args:
        replacements: by what is named; other values stay.
    """
    return at_once(translating(message, replacements))


def translating(message: Any, replacements: Mapping[Entity, Replace]) -> Steps[Any]:
    """The same in steps, each of one structure or one list of names."""
    changes: dict[str, Any] = {}
    changed: Any
    for name, entity, is_array in _places(message.__class__):
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
    """Those that may be seen."""
    return [value for value in values if value is not FOREIGN]
