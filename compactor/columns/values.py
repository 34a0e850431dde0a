"""Decodes values to columns, with the reason for each value that does not fit.

A value that does not fit does not affect others. A decoder's refusal is known at once. A value that Arrow refuses (a
number with too many digits, half of a surrogate pair) is found by halving the rows.

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
from tailrace.configs.columns import Columns, TypedColumn

MAX_VALUE_BYTES = 16 << 20
"""A longer value does not fit."""
MAX_REASON_CHARACTERS = 300
REFUSED = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""Arrow's errors for a value that does not fit its type."""


class ValueDecoder(Protocol):
    """Decodes values, one after another or all at once."""

    @property
    def decode(self) -> Callable[[Buffer], Any]:
        """A function that decodes a value for `field_of`. It raises one of `refused` for a value that does not fit."""

    @property
    def refused(self) -> tuple[type[Exception], ...]:
        """The errors that `decode` raises for a value that does not fit."""

    def field_of(self, number: int, column: TypedColumn) -> Callable[[Any], Any]:
        """See arrays.FieldOf."""

    def plain(self, values: pa.Array, most_bytes: int) -> PlainValues | None:
        """Decode values all at once, as far as possible; None if it is not possible."""

    def cells_in_lists(self, values: pa.ChunkedArray) -> Any:
        """Return the most cells that each value needs for columns in lists and maps; 0 means few."""


@dataclass(frozen=True, slots=True)
class FittedValues:
    """Decoded values. `arrays`: one per column, for the rows that fit. `reasons`: why each row does not fit; None if it
    does."""

    arrays: list[pa.Array]
    reasons: list[str | None]


def fit(columns: Columns, decoder: ValueDecoder, values: pa.Array) -> FittedValues:
    """Decode binary values. A null value (a tombstone) has nulls in all columns."""
    plain = decoder.plain(values, MAX_VALUE_BYTES)
    with gc_disabled():
        if plain is None:
            return one_by_one(columns, decoder, values.to_pylist())
        left = np.flatnonzero(plain.is_plain == 0)
        if not len(left):
            return FittedValues(plain.arrays, [None] * len(values))
        return _completed(plain, left, one_by_one(columns, decoder, values.take(pa.array(left)).to_pylist()))


def _completed(plain: PlainValues, left: Any, others: FittedValues) -> FittedValues:
    """Add the rows whose numbers are `left`, some of which fit."""
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
def gc_disabled() -> Iterator[None]:
    """Disable the garbage collector inside the block. Decoded values have no cycles, and the collector would scan all
    their lists and dictionaries again and again, which takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def one_by_one(columns: Columns, decoder: ValueDecoder, values: Sequence[Buffer | None]) -> FittedValues:
    """Decode values one by one. This is the reference for values that `fit` decodes all at once."""
    rows, reasons = _decoded(decoder, values)
    numbers = [number for number, reason in enumerate(reasons) if reason is None]
    parts = _arrays(columns, decoder, rows, numbers=numbers, reasons=reasons)
    arrays = [pa.concat_arrays(list(pieces)) for pieces in zip(*parts, strict=True)]
    return FittedValues(arrays, reasons)


def _decoded(decoder: ValueDecoder, values: Sequence[Buffer | None]) -> tuple[list[Any], list[str | None]]:
    """Decode each value. Return the rows, and the reasons for values that can't be decoded."""
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
    """Return a decoder that also handles null and too long values; the decoder's own function if there are none."""
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
    """Convert the rows of these numbers to arrays, in parts. If Arrow refuses a row, add its reason."""
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
