"""The types that requests of the sequencer's interface may contain."""

from __future__ import annotations

import typing
from types import UnionType
from typing import Annotated, Any

import msgspec
import pytest

from sequencer.methods import METHODS


def unbounded(kind: Any, where: str, seen: set[type]) -> list[str]:
    """Where a whole number without bounds may stand in a value of this type."""
    if typing.get_origin(kind) is Annotated:
        [bounds] = [each for each in kind.__metadata__ if isinstance(each, msgspec.Meta)]
        is_bounded = (bounds.ge or 0) >= -(2**63) and bounds.le is not None and bounds.le < 2**63
        return [] if is_bounded else [where]
    if kind is int:
        return [where]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind in seen:
            return []
        seen.add(kind)
        hints = typing.get_type_hints(kind, include_extras=True)
        return [found for name, hint in hints.items() if name in kind.__struct_fields__
                for found in unbounded(hint, f"{kind.__name__}.{name}", seen)]  # fmt: skip
    if typing.get_origin(kind) in (list, tuple, dict, typing.Union, UnionType):
        return [found for part in typing.get_args(kind) for found in unbounded(part, where, seen)]
    return []


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_whole_number_of_a_request_is_bounded(method: str) -> None:
    assert unbounded(METHODS[method].request, method, set()) == []
