"""Parses JSON values from bytes into the slots of columns, compiled by numba, without a Python object per value.

It accepts only plain values: one object each, whose fields have the columns' types, with no duplicate field and no
nesting deeper than DEPTH. It leaves all others, without a reason, to a decoder of single values
(compactor.columns.json_values). So it may leave more values than necessary, but must not accept a value that msgspec
would refuse or read differently.

The columns are nodes of a tree. A node has a slot for each of its entries. The root has one entry per row, and a field
of a struct has one per entry of the struct. `counts` has the number of entries of each list's elements.
"""

# mypy: ignore-errors
# ruff: noqa: SIM109
# numba compiles these functions from their bytecode; its decorators carry no types, and `in` is slow.

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from tailrace.parquet_object.kernels import copy_bytes

IGNORED, BOOLEAN, INT, LONG, FLOAT, DOUBLE, STRING, LIST, STRUCT, DATE, TIMESTAMP = range(11)
"""Kinds of nodes. A field that is not a column is parsed as IGNORED."""

DEPTH = 32
"""The deepest nesting of objects and arrays, also in fields that are not columns."""

_VALUE, _FIRST_ELEMENT, _ELEMENT, _FIRST_KEY, _KEY, _AFTER = range(6)
"""What may come next. For a first element or key, the end of the array or object may come too."""
_QUOTE, _COMMA, _COLON, _BACKSLASH, _MINUS, _POINT, _ZERO, _NINE, _F = map(ord, '",:\\-.09f')
_PLUS, _TIME, _ZULU = map(ord, "+TZ")
_BRACE, _BRACE_END, _BRACKET, _BRACKET_END = map(ord, "{}[]")
_ONES, _QUOTE_64, _BACKSLASH_64, _SPACE_64 = map(np.uint64, (0x0101010101010101, ord('"'), ord("\\"), 32))
"""They are unsigned, because numba converts an operation on a signed and an unsigned number to double."""
_NULL, _TRUE, _ALSE = (int.from_bytes(word, "little") for word in (b"null", b"true", b"alse"))

_MOST_DIGITS = 18
_EXACT = 1 << 53
_POWERS = 10.0 ** np.arange(23)
"""The quotient or product of two exact doubles is the double nearest to the number (Clinger, "How to read floating
point numbers accurately"). All other numbers are left as texts for Arrow, which is exact."""
_LEAST_POWER, _MOST_POWER, _MOST_FLOAT_POWER = -290, 300, 38
"""Approximate limits on powers of ten. Numbers within them are far from overflow and from denormal numbers."""

_FIRST_YEAR, _LAST_YEAR = 2, 9998
"""One year less than Python's range at each end, so that no time zone leaves Python's range."""
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_NO_DAY = 1 << 40

_START, _ESCAPED, SIZE = 32, 1 << 31, (1 << 31) - 1
"""The parts of a text's word: its start, whether it has escapes, and its bytes between the quotation marks."""


class ParseInput(NamedTuple):
    """The input. Value i is source[offsets[i]:offsets[i + 1]] if is_null[i] is 0."""

    source: np.ndarray
    offsets: np.ndarray
    is_null: np.ndarray


class ColumnTree(NamedTuple):
    """The tree of nodes. Node 0 is the root; the children of a node are adjacent. `bases`: the first slot of each
    node."""

    kinds: np.ndarray
    first_children: np.ndarray
    child_counts: np.ndarray
    name_offsets: np.ndarray
    names: np.ndarray
    bases: np.ndarray
    is_strict: bool
    most_bytes: int


class Slots(NamedTuple):
    """The output. All zeros at the start.

    `words`: per slot, a number, days or microseconds since 1970, a text's word, or the end of a list's elements.
    `floats`: the same memory as doubles. `valid`: 1 for a slot with a value. `counts`: the elements of each list.
    `hard_words`, `hard_slots`: the texts of numbers that are not in `floats` yet, and their slots. `is_plain`: per
    row.
    """

    words: np.ndarray
    floats: np.ndarray
    valid: np.ndarray
    counts: np.ndarray
    hard_words: np.ndarray
    hard_slots: np.ndarray
    is_plain: np.ndarray


class ParseStack(NamedTuple):
    """The stack of open objects and arrays: per level, its node (-1: ignored), its entry, whether it is an object, the
    child that probably comes next, and a unique number. `seen`: per node, the number of the object that had it last."""

    nodes: np.ndarray
    entries: np.ndarray
    is_object: np.ndarray
    next_children: np.ndarray
    stamps: np.ndarray
    seen: np.ndarray


@njit(cache=True, nogil=True)
def most_elements(source):
    """Return an upper bound on the elements of all lists together."""
    count = np.int64(0)
    for byte in source:
        count += (byte == ord(",")) | (byte == ord("["))
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def parse(given, plan, slots, opened):
    """Parse the values into the slots. Return how many numbers are left as texts.

    It is one long function with a local name for each array: taking an array out of a tuple counts a reference, which
    costs as much as ten bytes of JSON.
    """
    source, offsets, is_null = given.source, given.offsets, given.is_null
    kinds, first_children, child_counts = plan.kinds, plan.first_children, plan.child_counts
    name_offsets, names, bases = plan.name_offsets, plan.names, plan.bases
    words, floats, valid, counts = slots.words, slots.floats, slots.valid, slots.counts
    hard_words, hard_slots, is_plain = slots.hard_words, slots.hard_slots, slots.is_plain
    nodes, entries, is_object = opened.nodes, opened.entries, opened.is_object
    next_children, stamps, seen = opened.next_children, opened.stamps, opened.seen
    is_strict, most_bytes = plan.is_strict, plan.most_bytes
    stamp = np.int64(0)
    hard = np.int64(0)
    for row in range(is_null.shape[0]):
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if is_null[row]:
            is_plain[row] = 1
            continue
        if end - at > most_bytes:
            continue
        node, entry, depth, state = np.int64(0), np.int64(row), np.int64(0), _VALUE
        while True:
            at = _blank(source, at, end)
            if at >= end:
                is_plain[row] = depth == 0 and state == _AFTER
                break
            byte = source[at]
            top = depth - 1

            if state == _AFTER:
                if depth == 0:
                    break
                if byte == (_BRACE_END if is_object[top] else _BRACKET_END):
                    depth -= 1
                    at += 1
                    continue
                if byte != _COMMA:
                    break
                at = _blank(source, at + 1, end)
                if at >= end:
                    break
                byte = source[at]
                state = _KEY if is_object[top] else _ELEMENT
            elif (state == _FIRST_KEY and byte == _BRACE_END) or (
                state == _FIRST_ELEMENT and byte == _BRACKET_END
            ):
                depth -= 1
                at += 1
                state = _AFTER
                continue

            if state == _FIRST_KEY or state == _KEY:
                node, entry, of, index = np.int64(-1), entries[top], nodes[top], np.int64(0)
                if of >= 0 and child_counts[of]:
                    # Fields mostly come in the same order.
                    index = next_children[top] if next_children[top] < child_counts[of] else np.int64(0)
                    node = first_children[of] + index
                    stop = at + 1 + name_offsets[node + 1] - name_offsets[node]
                    if not _is_key(source, at, stop, end, names, name_offsets[node]):
                        node = np.int64(-1)
                if node < 0:
                    stop, is_escaped = _text_end(source, at, end)
                    if stop < 0:
                        break
                    for _ in range(child_counts[of] if of >= 0 else 0):
                        index = index + 1 if index + 1 < child_counts[of] else np.int64(0)
                        child = first_children[of] + index
                        if name_offsets[child + 1] - name_offsets[child] == stop - at - 1 and _is_key(
                            source, at, stop, end, names, name_offsets[child]
                        ):
                            node = child
                            break
                    if node < 0 and of >= 0 and (is_strict or is_escaped):
                        break
                if node >= 0:
                    if seen[node] == stamps[top]:
                        break
                    seen[node] = stamps[top]
                    next_children[top] = index + 1
                at = _blank(source, stop + 1, end)
                if at >= end or source[at] != _COLON:
                    break
                at = _blank(source, at + 1, end)
                if at >= end:
                    break
                byte = source[at]
            elif state == _FIRST_ELEMENT or state == _ELEMENT:
                node = nodes[top]
                if node >= 0:
                    entry = counts[node]
                    counts[node] = entry + 1
                    words[bases[node] + entries[top]] = entry + 1
                    node = np.int64(first_children[node])

            kind, slot = IGNORED, np.int64(0)
            if node >= 0:
                kind, slot = kinds[node], bases[node] + entry
            state = _AFTER
            if byte == _QUOTE:
                stop, is_escaped = _text_end(source, at, end)
                if stop < 0:
                    break
                if kind == STRING:
                    valid[slot] = 1
                    words[slot] = _word(at + 1, stop, is_escaped)
                elif kind == DATE or kind == TIMESTAMP:
                    is_moment, whole = _moment(source, at + 1, stop, kind)
                    if not is_moment:
                        break
                    valid[slot] = 1
                    words[slot] = whole
                elif kind != IGNORED:
                    break
                at = stop + 1
            elif byte == _BRACE or byte == _BRACKET:
                begins_object = byte == _BRACE
                if depth == DEPTH or not (kind == IGNORED or kind == (STRUCT if begins_object else LIST)):
                    break
                if kind != IGNORED:
                    valid[slot] = 1
                if kind == LIST:
                    words[slot] = counts[node]
                stamp += 1
                nodes[depth] = node
                entries[depth] = entry
                is_object[depth] = begins_object
                next_children[depth] = 0
                stamps[depth] = stamp
                depth += 1
                at += 1
                state = _FIRST_KEY if begins_object else _FIRST_ELEMENT
            elif byte == _MINUS or _ZERO <= byte <= _NINE:
                start = at
                at, whole, number, is_near = _number(source, at, end, LONG if kind == TIMESTAMP else kind)
                if at < 0:
                    break
                if kind == TIMESTAMP:
                    if not _FIRST_MS <= whole <= _LAST_MS:
                        break
                    words[slot] = whole * 1000
                    valid[slot] = 1
                elif kind == INT or kind == LONG:
                    words[slot] = whole
                    valid[slot] = 1
                elif kind == FLOAT or kind == DOUBLE:
                    floats[slot] = number
                    valid[slot] = 1
                    if is_near:
                        if hard == hard_words.shape[0]:
                            break
                        hard_words[hard] = _word(start, at, False)
                        hard_slots[hard] = slot
                        hard += 1
                elif kind != IGNORED:
                    break
            elif _uint32(source, at, end) == _NULL:
                if depth == 0:
                    break
                at += 4
            elif kind != BOOLEAN and kind != IGNORED:
                break
            else:
                is_true = _uint32(source, at, end) == _TRUE
                if not is_true and (byte != _F or _uint32(source, at + 1, end) != _ALSE):
                    break
                if kind == BOOLEAN:
                    valid[slot] = 1
                    words[slot] = is_true
                at += 4 if is_true else 5
    return hard


@njit(cache=True, nogil=True, forceinline=True)
def _blank(source, at, end):
    """Return the offset after white space."""
    while at < end and source[at] <= 32:
        byte = source[at]
        if not (byte == 32 or byte == 10 or byte == 13 or byte == 9):
            break
        at += 1
    return at


@njit(cache=True, nogil=True, forceinline=True)
def _uint32(source, at, end):
    """Return four bytes as a number; 0 if there are fewer."""
    if at + 4 > end:
        return np.int64(0)
    return (
        np.int64(source[at]) | np.int64(source[at + 1]) << 8
        | np.int64(source[at + 2]) << 16 | np.int64(source[at + 3]) << 24
    )  # fmt: skip


@njit(cache=True, nogil=True, forceinline=True)
def _word(start, stop, is_escaped):
    return (np.int64(start) << _START) | (np.int64(stop - start) + (_ESCAPED if is_escaped else 0))


@njit(cache=True, nogil=True, forceinline=True)
def _is_key(source, at, stop, end, names, start):
    """Whether the text between the quotation marks at `at` and `stop` is the name that starts at names[start].

    `names` has eight bytes after the last name.
    """
    if stop >= end or source[stop] != _QUOTE or source[at] != _QUOTE:
        return False
    at += 1
    while at + 8 <= end and at < stop:
        differ = _uint64(source, at) ^ _uint64(names, start)
        if differ != 0 and _zeros_below(differ) >> 3 < stop - at:
            return False
        at += 8
        start += 8
    while at < stop:
        if source[at] != names[start]:
            return False
        at += 1
        start += 1
    return True


@intrinsic
def _uint64(typingctx, source, at):
    """Return eight bytes as one little-endian number."""

    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(source, types.int64), codegen


@intrinsic
def _zeros_below(typingctx, number):
    """Return the number of trailing zero bits."""

    def codegen(context, builder, sig, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


@njit(cache=True, nogil=True, forceinline=True)
def _text_end(source, at, end):
    """Return where the text that starts at `at` ends (-1 if it does not end or is invalid), and whether it has escapes.

    It tests eight bytes at a time: a byte that is zero after an exclusive or, or below 32, borrows from its highest bit
    (Mycroft's test). The lowest match is exact.
    """
    if source[at] != _QUOTE:
        return np.int64(-1), False
    at += 1
    is_escaped = False
    while at < end:
        if at + 8 <= end:
            word = _uint64(source, at)
            quotes, escapes = word ^ (_ONES * _QUOTE_64), word ^ (_ONES * _BACKSLASH_64)
            stops = (quotes - _ONES) & ~quotes | (escapes - _ONES) & ~escapes
            stops = (stops | (word - _ONES * _SPACE_64) & ~word) & (_ONES << np.uint64(7))
            if stops == 0:
                at += 8
                continue
            at += _zeros_below(stops) >> 3
        byte = source[at]
        if byte == _QUOTE:
            return np.int64(at), is_escaped
        if byte == _BACKSLASH:
            is_escaped = True
            at = _escape_end(source, at + 1, end)
            if at < 0:
                break
        elif byte < 32:
            break
        else:
            at += 1
    return np.int64(-1), False


@njit(cache=True, nogil=True)
def _escape_end(source, at, end):
    """Return the offset after the escape whose letter is at `at`; -1 if it is invalid."""
    if at < end and source[at] == ord("u"):
        return np.int64(at + 5) if _code(source, at + 1, end) >= 0 else np.int64(-1)
    return np.int64(at + 1) if at < end and _short_escape(source[at]) else np.int64(-1)


@njit(cache=True, nogil=True)
def _short_escape(byte):
    """Return the character that a letter after a backslash means; 0 if the escape is invalid."""
    if byte == ord('"') or byte == ord("\\") or byte == ord("/"):
        return byte
    if byte == ord("n"):
        return np.uint8(10)
    if byte == ord("t"):
        return np.uint8(9)
    if byte == ord("r"):
        return np.uint8(13)
    if byte == ord("b"):
        return np.uint8(8)
    if byte == ord("f"):
        return np.uint8(12)
    return np.uint8(0)


@njit(cache=True, nogil=True)
def _code(source, at, end):
    """Return the value of four hexadecimal digits; -1 if they are missing or half of a surrogate pair."""
    if at + 4 > end:
        return np.int64(-1)
    code = np.int64(0)
    for index in range(at, at + 4):
        byte = np.int64(source[index])
        if ord("0") <= byte <= ord("9"):
            code = code * 16 + byte - ord("0")
        elif ord("a") <= byte | 32 <= ord("f"):
            code = code * 16 + (byte | 32) - ord("a") + 10
        else:
            return np.int64(-1)
    return np.int64(-1) if 0xD800 <= code <= 0xDFFF else code


@njit(cache=True, nogil=True, forceinline=True)
def _digits(source, at, end, value, count):
    """Read digits. Return the offset after them, the number that they form with earlier digits, and the count of all
    these digits without leading zeros."""
    while at < end and _ZERO <= source[at] <= _NINE:
        if count < _MOST_DIGITS:
            value = value * 10 + np.int64(source[at]) - _ZERO
        count += value != 0
        at += 1
    return at, value, count


@njit(cache=True, nogil=True, error_model="numpy")
def _number(source, start, end, kind):
    """Read a number. Return the offset after it (-1 if it is not a plain number of this kind), its value if it is
    whole, its value as a double, and whether the double may be inexact."""
    none = np.int64(-1), np.int64(0), 0.0, False
    is_negative = source[start] == _MINUS
    first = start + is_negative
    at, value, count = _digits(source, first, end, np.int64(0), np.int64(0))
    if at == first or (source[first] == _ZERO and at > first + 1):
        return none
    is_whole, power = True, np.int64(0)
    if at < end and source[at] == _POINT:
        is_whole, point = False, at
        at, value, count = _digits(source, at + 1, end, value, count)
        power = point + 1 - at
        if power == 0:
            return none
    if at < end and (source[at] | 32) == ord("e"):
        is_whole = False
        at += 1
        is_less = at < end and source[at] == _MINUS
        at += at < end and (is_less or source[at] == ord("+"))
        begin = at
        at, exponent, _ = _digits(source, at, end, np.int64(0), np.int64(0))
        if at == begin or at > begin + 4:
            return none
        power += -exponent if is_less else exponent
    signed = -value if is_negative else value
    if kind == INT or kind == LONG:
        if not is_whole or count > _MOST_DIGITS or (kind == INT and not -(1 << 31) <= signed < 1 << 31):
            return none
        return at, signed, 0.0, False
    most = _MOST_FLOAT_POWER if kind == FLOAT else _MOST_POWER
    if not _LEAST_POWER < power + count < most or (is_negative and value == 0):
        return none
    if count > _MOST_DIGITS or value > _EXACT or not -22 <= power <= 22:
        return at, np.int64(0), 0.0, True
    number = np.float64(signed)
    return at, np.int64(0), number / _POWERS[-power] if power < 0 else number * _POWERS[power], False


@njit(cache=True, nogil=True)
def _moment(source, at, stop, kind):
    """Read a date or a time. Return whether it is valid, and the days or microseconds since 1970.

    A time is in RFC 3339's format, or without a zone (UTC), with at most six digits of fraction.
    """
    none = False, np.int64(0)
    days = _days(source, at, stop)
    if kind == DATE:
        return stop == at + 10 and days != _NO_DAY, days
    hour, minute, second = (
        _fixed(source, at + 11, stop, 2), _fixed(source, at + 14, stop, 2), _fixed(source, at + 17, stop, 2)
    )  # fmt: skip
    if days == _NO_DAY or not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60):
        return none
    if source[at + 10] != _TIME or source[at + 13] != _COLON or source[at + 16] != _COLON:
        return none
    index, micros = at + 19, np.int64(0)
    if index < stop and source[index] == _POINT:
        point = index
        index, micros, _ = _digits(source, point + 1, stop, np.int64(0), np.int64(0))
        digits = index - point - 1
        if not 1 <= digits <= 6:
            return none
        micros *= 10 ** (6 - digits)
    if index == stop - 1 and source[index] == _ZULU:
        index = stop
    elif (
        index == stop - 6
        and source[index + 3] == _COLON
        and (source[index] == _PLUS or source[index] == _MINUS)
    ):
        ahead, ahead_minutes = _fixed(source, index + 1, stop, 2), _fixed(source, index + 4, stop, 2)
        if not (0 <= ahead < 24 and 0 <= ahead_minutes < 60):
            return none
        minute += (ahead * 60 + ahead_minutes) * (1 if source[index] == _MINUS else -1)
        index = stop
    return index == stop, (((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + micros


@njit(cache=True, nogil=True)
def _days(source, at, stop):
    """Return the days since 1970 of a date of ten characters; _NO_DAY if it is invalid. From Howard Hinnant's
    "chrono-Compatible Low-Level Date Algorithms"."""
    year, month, day = (
        _fixed(source, at, stop, 4),
        _fixed(source, at + 5, stop, 2),
        _fixed(source, at + 8, stop, 2),
    )
    if not (_FIRST_YEAR <= year <= _LAST_YEAR and 1 <= month <= 12 and day >= 1):
        return np.int64(_NO_DAY)
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    last = 28 + is_leap if month == 2 else 30 + ((month + (month >> 3)) & 1)
    if day > last or source[at + 4] != _MINUS or source[at + 7] != _MINUS:
        return np.int64(_NO_DAY)
    year -= month <= 2
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + of_year - 719_468


@njit(cache=True, nogil=True, forceinline=True)
def _fixed(source, at, stop, digits):
    """Return the number of exactly `digits` digits; -1 if they are missing."""
    if at + digits > stop:
        return np.int64(-1)
    value = np.int64(0)
    for index in range(at, at + digits):
        digit = np.int64(source[index]) - _ZERO
        if not 0 <= digit <= 9:
            return np.int64(-1)
        value = value * 10 + digit
    return value


@njit(cache=True, nogil=True)
def texts(source, words, target, ends):
    """Concatenate the texts of the words in `target`. `ends[i + 1]` is the end of text i. A missing text has word 0."""
    at = np.int64(0)
    for number in range(words.shape[0]):
        start = words[number] >> _START
        size = words[number] & SIZE
        if words[number] & _ESCAPED:
            at = _unescaped(source, start, start + size, target, at)
        else:
            copy_bytes(target, at, source, start, size)
            at += size
        ends[number + 1] = at


@njit(cache=True, nogil=True)
def _unescaped(source, at, end, target, to):
    """Write a text with escapes as UTF-8 to target[to:]. Return the offset after it."""
    while at < end:
        byte = source[at]
        if byte != _BACKSLASH:
            target[to] = byte
            to += 1
        elif source[at + 1] != ord("u"):
            at += 1
            target[to] = _short_escape(source[at])
            to += 1
        else:
            code = _code(source, at + 2, end)
            at += 5
            if code < 0x80:
                target[to] = code
                to += 1
            elif code < 0x800:
                target[to] = 0xC0 | code >> 6
                target[to + 1] = 0x80 | code & 0x3F
                to += 2
            else:
                target[to] = 0xE0 | code >> 12
                target[to + 1] = 0x80 | code >> 6 & 0x3F
                target[to + 2] = 0x80 | code & 0x3F
                to += 3
        at += 1
    return to
