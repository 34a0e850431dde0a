"""The two loops that process every record, compiled by numba: records to columns, and columns to records.

They read and write raw bytes at computed positions, so every length is checked against the remaining bytes before it is
used. Integer arithmetic wraps at 64 bits, as in Java. Nothing here allocates memory.

Each loop is one long function. Its state is a position in every array, and a helper would have to take and return all
of them.
"""

# mypy: ignore-errors
# numba compiles these functions from their bytecode; its decorators carry no types.

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

OK = 0
BAD_LENGTH = 1
BAD_VARINT = 2
BAD_OFFSET = 3
BAD_FIELD = 4
BAD_HEADERS = 5
TRAILING = 6
TOO_FEW = 7
REASONS = {
    BAD_LENGTH: "a record's length does not fit in the remaining bytes",
    BAD_VARINT: "a varint does not end",
    BAD_OFFSET: "offset deltas do not rise, or pass the batch's last",
    BAD_FIELD: "a key or value is longer than its record",
    BAD_HEADERS: "a header is longer than its record, or has no key",
    TRAILING: "a record does not end where its length says, or bytes follow the last",
    TOO_FEW: "fewer records than the batch's header counts",
}

# Indexes in `totals`.
KEY_NULLS, VALUE_NULLS, HEADER_NULLS, HEADER_COUNT, NOT_ASCII, TOTALS = 0, 1, 2, 3, 4, 5


@intrinsic
def copy_bytes(typingctx, target, target_at, source, source_at, count):
    """Copy bytes between two byte arrays that do not overlap, with memcpy."""
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def codegen(context, builder, sig, args):
        target_data = context.make_array(sig.args[0])(context, builder, args[0]).data
        source_data = context.make_array(sig.args[2])(context, builder, args[2]).data
        cgutils.raw_memcpy(
            builder, builder.gep(target_data, [args[1]]), builder.gep(source_data, [args[3]]), args[4], 1
        )
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _copy16(typingctx, target, target_at, source, source_at):
    """Copy exactly 16 bytes without a call. For short keys, if both arrays are long enough."""
    signature = types.void(target, types.int64, source, types.int64)

    def codegen(context, builder, sig, args):
        target_data = context.make_array(sig.args[0])(context, builder, args[0]).data
        source_data = context.make_array(sig.args[2])(context, builder, args[2]).data
        count = context.get_constant(types.intp, 16)
        cgutils.raw_memcpy(
            builder, builder.gep(target_data, [args[1]]), builder.gep(source_data, [args[3]]), count, 1
        )
        return context.get_dummy_value()

    return signature, codegen


@njit(cache=True, nogil=True, forceinline=True)
def _varint(source, position, end):
    """Return the value, the position after it (-1 if it is invalid), and whether it has the fewest possible bytes."""
    if position < end:
        first = np.int64(source[position])
        if first < 128:
            return (first >> 1) ^ -(first & 1), position + 1, True
    return _long_varint(source, position, end)


@njit(cache=True, nogil=True)
def _long_varint(source, position, end):
    value = np.uint64(0)
    shift = np.uint64(0)
    while position < end:
        byte = np.uint64(source[position])
        position += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(128):
            if shift == np.uint64(63) and byte > np.uint64(1):
                return np.int64(0), np.int64(-1), False
            signed = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
            return signed, position, byte != np.uint64(0)
        shift += np.uint64(7)
        if shift > np.uint64(63):
            break
    return np.int64(0), np.int64(-1), False


@njit(cache=True, nogil=True, forceinline=True)
def _put_varint(target, position, value):
    rest = np.uint64((value << 1) ^ (value >> 63))
    while rest > np.uint64(0x7F):
        target[position] = np.uint8((rest & np.uint64(0x7F)) | np.uint64(0x80))
        rest >>= np.uint64(7)
        position += 1
    target[position] = np.uint8(rest)
    return position + 1


@njit(cache=True, nogil=True)
def _varint_size(value):
    rest = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while rest > np.uint64(0x7F):
        rest >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True, error_model="numpy")
def decode(
    source, starts, counts, base_offsets, last_deltas, base_timestamps, append_times, has_append_time,
    offsets, timestamps, created, types_out,
    key_offsets, key_data, key_valid, value_offsets, value_data, value_valid,
    header_offsets, name_offsets, name_data, header_value_offsets, header_value_data, header_nulls,
    exact, totals,
):  # fmt: skip
    """Decode the records of many batches (batch b: source[starts[b]:starts[b + 1]]) into Arrow's buffers.

    The caller fills `key_valid` and `value_valid` with ones and `header_nulls` (mostly unused) with zeros.

    Returns (reason, batch): OK, or the error and the number of the batch.
    """
    row = np.int64(0)
    key_at = np.int64(0)
    value_at = np.int64(0)
    header_at = np.int64(0)
    name_at = np.int64(0)
    header_value_at = np.int64(0)
    not_ascii = np.uint8(0)
    key_offsets[0] = 0
    value_offsets[0] = 0
    header_offsets[0] = 0
    name_offsets[0] = 0
    header_value_offsets[0] = 0
    for batch in range(counts.shape[0]):
        at = starts[batch]
        batch_end = starts[batch + 1]
        is_exact = True
        last = np.int64(-1)
        for _ in range(counts[batch]):
            if at >= batch_end:
                return TOO_FEW, batch
            length, at, minimal = _varint(source, at, batch_end)
            is_exact &= minimal
            if at < 0 or length < 6 or length > batch_end - at:
                return BAD_LENGTH, batch
            end = at + length
            is_exact &= source[at] == 0
            delta, at, minimal = _varint(source, at + 1, end)
            is_exact &= minimal
            if at < 0:
                return BAD_VARINT, batch
            offset_delta, at, minimal = _varint(source, at, end)
            is_exact &= minimal
            if at < 0 or offset_delta <= last or offset_delta > last_deltas[batch]:
                return BAD_OFFSET, batch
            last = offset_delta
            offsets[row] = base_offsets[batch] + offset_delta
            if has_append_time[batch]:
                timestamps[row] = append_times[batch]
                created[row] = base_timestamps[batch] + delta
                types_out[row] = 1
            else:
                timestamps[row] = base_timestamps[batch] + delta
                types_out[row] = 0

            size, at, minimal = _varint(source, at, end)
            is_exact &= minimal
            if at < 0 or size < -1 or size > end - at:
                return BAD_FIELD, batch
            if size >= 0:
                if size <= 16 and at + 16 <= source.shape[0] and key_at + 16 <= key_data.shape[0]:
                    _copy16(key_data, key_at, source, at)
                else:
                    copy_bytes(key_data, key_at, source, at, size)
                key_at += size
                at += size
            else:
                key_valid[row >> 3] &= np.uint8(~(1 << (row & 7)))
                totals[KEY_NULLS] += 1
            key_offsets[row + 1] = key_at

            size, at, minimal = _varint(source, at, end)
            is_exact &= minimal
            if at < 0 or size < -1 or size > end - at:
                return BAD_FIELD, batch
            if size >= 0:
                copy_bytes(value_data, value_at, source, at, size)
                value_at += size
                at += size
            else:
                value_valid[row >> 3] &= np.uint8(~(1 << (row & 7)))
                totals[VALUE_NULLS] += 1
            value_offsets[row + 1] = value_at

            headers, at, minimal = _varint(source, at, end)
            is_exact &= minimal
            if at < 0 or headers < 0 or headers > (end - at) // 2:
                return BAD_HEADERS, batch
            for _ in range(headers):
                size, at, minimal = _varint(source, at, end)
                is_exact &= minimal
                if at < 0 or size < 0 or size > end - at:
                    return BAD_HEADERS, batch
                for place in range(at, at + size):
                    not_ascii |= source[place]
                copy_bytes(name_data, name_at, source, at, size)
                name_at += size
                at += size
                name_offsets[header_at + 1] = name_at
                size, at, minimal = _varint(source, at, end)
                is_exact &= minimal
                if at < 0 or size < -1 or size > end - at:
                    return BAD_HEADERS, batch
                if size >= 0:
                    copy_bytes(header_value_data, header_value_at, source, at, size)
                    header_value_at += size
                    at += size
                else:
                    header_nulls[header_at >> 3] |= np.uint8(1 << (header_at & 7))
                    totals[HEADER_NULLS] += 1
                header_at += 1
                header_value_offsets[header_at] = header_value_at
            header_offsets[row + 1] = header_at
            if at != end:
                return TRAILING, batch
            row += 1
        if at != batch_end:
            return TRAILING, batch
        exact[batch] = 1 if is_exact else 0
    totals[HEADER_COUNT] = header_at
    totals[NOT_ASCII] = not_ascii >> 7
    return OK, -1


@njit(cache=True, nogil=True)
def _is_set(bitmap, at):
    return bitmap.shape[0] == 0 or (bitmap[at >> 3] >> (at & 7)) & 1 == 1


@njit(cache=True, nogil=True, error_model="numpy")
def encode(
    target, starts, first_rows, base_offsets, base_timestamps, has_append_time,
    offsets, timestamps, created, places,
    key_offsets, key_data, key_valid, value_offsets, value_data, value_valid,
    header_offsets, name_offsets, name_data, header_value_offsets, header_value_data, header_valid,
):  # fmt: skip
    """Encode rows as the canonical records of batch b at target[starts[b]:starts[b + 1]]. Fills `starts`.

    `places`: the row that has each record's key and value; empty if its own. An empty bitmap means that no value is
    null. `target` must have the size that `bound` returns.
    """
    at = np.int64(0)
    for batch in range(base_offsets.shape[0]):
        starts[batch] = at
        for row in range(first_rows[batch], first_rows[batch + 1]):
            stamp = created[row] if has_append_time[batch] else timestamps[row]
            delta = stamp - base_timestamps[batch]
            offset_delta = offsets[row] - base_offsets[batch]
            place = places[row] if places.shape[0] else row
            key = np.int64(key_offsets[place + 1]) - np.int64(key_offsets[place])
            if not _is_set(key_valid, place):
                key = np.int64(-1)
            value = np.int64(value_offsets[place + 1]) - np.int64(value_offsets[place])
            if not _is_set(value_valid, place):
                value = np.int64(-1)
            first_header = np.int64(header_offsets[row])
            headers = np.int64(header_offsets[row + 1]) - first_header
            length = 1 + _varint_size(delta) + _varint_size(offset_delta)
            length += _varint_size(key) + max(key, 0) + _varint_size(value) + max(value, 0)
            length += _varint_size(headers)
            for header in range(first_header, first_header + headers):
                size = np.int64(name_offsets[header + 1]) - np.int64(name_offsets[header])
                length += _varint_size(size) + size
                size = np.int64(header_value_offsets[header + 1]) - np.int64(header_value_offsets[header])
                if not _is_set(header_valid, header):
                    size = np.int64(-1)
                length += _varint_size(size) + max(size, 0)

            at = _put_varint(target, at, np.int64(length))
            target[at] = 0
            at = _put_varint(target, at + 1, delta)
            at = _put_varint(target, at, offset_delta)
            at = _put_varint(target, at, key)
            if key > 0:
                copy_bytes(target, at, key_data, np.int64(key_offsets[place]), key)
                at += key
            at = _put_varint(target, at, value)
            if value > 0:
                copy_bytes(target, at, value_data, np.int64(value_offsets[place]), value)
                at += value
            at = _put_varint(target, at, headers)
            for header in range(first_header, first_header + headers):
                size = np.int64(name_offsets[header + 1]) - np.int64(name_offsets[header])
                at = _put_varint(target, at, size)
                copy_bytes(target, at, name_data, np.int64(name_offsets[header]), size)
                at += size
                size = np.int64(header_value_offsets[header + 1]) - np.int64(header_value_offsets[header])
                if not _is_set(header_valid, header):
                    size = np.int64(-1)
                at = _put_varint(target, at, size)
                if size > 0:
                    copy_bytes(target, at, header_value_data, np.int64(header_value_offsets[header]), size)
                    at += size
    starts[base_offsets.shape[0]] = at


def bound(rows: int, headers: int, data_bytes: int) -> int:
    """Return the most bytes that `encode` writes: 36 per record and 10 per header for numbers, plus the data."""
    return 36 * rows + 10 * headers + data_bytes
