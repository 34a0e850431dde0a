"""Values into columns, row by row: what fits, and why the rest does not.

A value that does not fit costs itself alone. What a decoder refuses is known at once; what Arrow refuses (a number with
too many digits, half a surrogate pair) is found by halving the rows.

Pure.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from compactor.columns.arrays import arrays_of
from compactor.columns.json_values import ValueUnfit
from compactor.columns.plain_json import PlainValues
from tailrace.buffers import Buffer
from tailrace.columns import Columns, TypedColumn

MAX_VALUE_BYTES = 16 << 20
"""A longer value has no columns."""
MAX_REASON_CHARACTERS = 300
REFUSED = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What Arrow raises for a value that its type does not hold."""


class ValueDecoder(Protocol):
    """Decodes one value after the other."""

    @property
    def decode(self) -> Callable[[Buffer], Any]:
        """Makes of a value what `field_of` reads. Raises one of `refused` for one that does not fit."""
        ...

    @property
    def refused(self) -> tuple[type[Exception], ...]:
        """See `decode`."""
        ...

    def field_of(self, number: int, column: TypedColumn) -> Callable[[Any], Any]:
        """See arrays.FieldOf."""
        ...

    def plain(self, values: pa.Array, most_bytes: int) -> PlainValues | None:
        """What can be decoded all at once; None: nothing."""
        ...

    def cells_in_lists(self, values: pa.ChunkedArray) -> Any:
        """How many cells of columns inside of lists and maps each value takes room for, at most; 0: not many."""
        ...


@dataclass(frozen=True, slots=True)
class FittedValues:
    """`arrays`: of the rows that fit, a column each. `reasons`: why each row does not fit; None where it does."""

    arrays: list[pa.Array]
    reasons: list[str | None]


def fit(columns: Columns, decoder: ValueDecoder, values: pa.Array) -> FittedValues:
    """Decode binary values. One that is null (a tombstone) has nulls in all columns."""
    plain = decoder.plain(values, MAX_VALUE_BYTES)
    with garbage_kept():
        if plain is None:
            return one_by_one(columns, decoder, values.to_pylist())
        left = np.flatnonzero(plain.is_plain == 0)
        if not len(left):
            return FittedValues(plain.arrays, [None] * len(values))
        return _completed(plain, left, one_by_one(columns, decoder, values.take(pa.array(left)).to_pylist()))


def _completed(plain: PlainValues, left: Any, others: FittedValues) -> FittedValues:
    """With the rows whose numbers are `left`, of which some fit."""
    reasons: list[str | None] = [None] * len(plain.is_plain)
    source = np.arange(len(reasons))
    source[left] = -1
    for number, reason in zip(left, others.reasons, strict=True):
        reasons[number] = reason
    fit_after_all = [number for number in left if reasons[number] is None]
    source[fit_after_all] = len(reasons) + np.arange(len(fit_after_all))
    rows = pa.array(source[source >= 0])
    arrays = [
        pa.concat_arrays([column, other_column]).take(rows)
        for column, other_column in zip(plain.arrays, others.arrays, strict=True)
    ]
    return FittedValues(arrays, reasons)


@contextmanager
def garbage_kept() -> Iterator[None]:
    """No search for cycles meanwhile. Decoded values have none, and a search goes through all of their lists and
    dictionaries again and again: a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def one_by_one(columns: Columns, decoder: ValueDecoder, values: Sequence[Buffer | None]) -> FittedValues:
    """What `fit` does of values that are not decoded all at once, and the measure of those that are."""
    rows, reasons = _decoded(decoder, values)
    numbers = [number for number, reason in enumerate(reasons) if reason is None]
    parts = _arrays(columns, decoder, rows, numbers=numbers, reasons=reasons)
    arrays = [pa.concat_arrays(list(pieces)) for pieces in zip(*parts, strict=True)]
    return FittedValues(arrays, reasons)


def _decoded(decoder: ValueDecoder, values: Sequence[Buffer | None]) -> tuple[list[Any], list[str | None]]:
    """What each value is decoded to, and why it is not."""
    rows: list[Any] = []
    reasons: list[str | None] = [None] * len(values)
    decode = _bounded(decoder, values)
    refused: tuple[type[Exception], ...] = (*decoder.refused, ValueUnfit)
    add, left = rows.append, iter(values)
    while len(rows) < len(values):
        try:
            for value in left:
                add(decode(value))
        except refused as error:
            reasons[len(rows)] = _reason(error)[:MAX_REASON_CHARACTERS]
            add(None)
    return rows, reasons


def _bounded(decoder: ValueDecoder, values: Sequence[Buffer | None]) -> Callable[[Any], Any]:
    """The decoder's own function, where no value is null or too long."""
    decode = decoder.decode

    def decode_one(value: Buffer | None) -> Any:
        if value is None:
            return None
        if len(value) > MAX_VALUE_BYTES:
            raise ValueUnfit(f"the value has {len(value)} bytes; at most {MAX_VALUE_BYTES} become columns")
        return decode(value)

    is_plain = all(value is not None and len(value) <= MAX_VALUE_BYTES for value in values)
    return decode if is_plain else decode_one


def _reason(error: Exception) -> str:
    return "the value is nested too deep" if isinstance(error, RecursionError) else str(error)


def _arrays(
    columns: Columns, decoder: ValueDecoder, rows: list[Any], *, numbers: list[int], reasons: list[str | None]
) -> list[list[pa.Array]]:
    """The rows of these numbers as arrays, in parts; where Arrow refuses a row, its reason is noted."""
    chosen = rows if len(numbers) == len(rows) else [rows[number] for number in numbers]
    try:
        return [arrays_of(columns, chosen, decoder.field_of)]
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
