"""Values into columns, row by row: what fits, and why the rest does not.

A value that does not fit costs itself alone. What a decoder refuses is known at once; what Arrow refuses (a number with
too many digits, half a surrogate pair) is found by halving the rows.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from compactor.columns.arrays import arrays_of
from compactor.columns.json_values import ValueUnfit
from tailrace.buffers import Buffer
from tailrace.columns import Columns, TypedColumn

MAX_VALUE_BYTES = 16 << 20
"""A longer value has no columns."""
MAX_REASON_CHARACTERS = 300
REFUSED = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What Arrow raises for a value that its type does not hold."""


class ValueDecoder(Protocol):
    """Decodes one value after the other."""

    def decode(self, value: Buffer) -> Any:
        """What `field_of` reads. Raises ValueUnfit."""
        ...

    def field_of(self, number: int, column: TypedColumn) -> Callable[[Any], Any]:
        """See arrays.FieldOf."""
        ...


@dataclass(frozen=True, slots=True)
class FittedValues:
    """`arrays`: of the rows that fit, a column each. `reasons`: why each row does not fit; None where it does."""

    arrays: list[pa.Array]
    reasons: list[str | None]


def fit(columns: Columns, decoder: ValueDecoder, values: Sequence[Buffer | None]) -> FittedValues:
    """Decode the values. One that is null (a tombstone) has nulls in all columns."""
    rows: list[Any] = []
    reasons: list[str | None] = []
    for value in values:
        row, reason = None, None
        if value is not None:
            try:
                row = _decoded(decoder, value)
            except ValueUnfit as error:
                reason = str(error)[:MAX_REASON_CHARACTERS]
        rows.append(row)
        reasons.append(reason)
    numbers = [number for number, reason in enumerate(reasons) if reason is None]
    parts = _arrays(columns, decoder, rows, numbers=numbers, reasons=reasons)
    arrays = [pa.concat_arrays(list(pieces)) for pieces in zip(*parts, strict=True)]
    return FittedValues(arrays, reasons)


def _decoded(decoder: ValueDecoder, value: Buffer) -> Any:
    if len(value) > MAX_VALUE_BYTES:
        raise ValueUnfit(f"the value has {len(value)} bytes; at most {MAX_VALUE_BYTES} become columns")
    return decoder.decode(value)


def _arrays(
    columns: Columns, decoder: ValueDecoder, rows: list[Any], *, numbers: list[int], reasons: list[str | None]
) -> list[list[pa.Array]]:
    """The rows of these numbers as arrays, in parts; where Arrow refuses a row, its reason is noted."""
    try:
        return [arrays_of(columns, [rows[number] for number in numbers], decoder.field_of)]
    except REFUSED as error:
        if len(numbers) == 1:
            reasons[numbers[0]] = " ".join(str(error).split())[:MAX_REASON_CHARACTERS]
            return [arrays_of(columns, [], decoder.field_of)]
    middle = len(numbers) // 2
    return [
        part
        for half in (numbers[:middle], numbers[middle:])
        for part in _arrays(columns, decoder, rows, numbers=half, reasons=reasons)
    ]
