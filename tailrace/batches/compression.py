"""Kafka's five codecs, compatible with its clients, with a bound on the size of decompressed data.

Two codecs have variants. Java's snappy uses xerial's framing (a magic, two ints, then length-prefixed raw blocks),
librdkafka's is one raw block. This module reads both and writes the framing, which all clients read. Java's LZ4 reader
refuses linked blocks, so this module does not write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct

import cramjam

from tailrace.batches.record_batch import Compression
from tailrace.buffers import Buffer

MAX_UNPACKED_BYTES = 512 << 20
"""Default bound on the decompressed records of one batch. Kafka has no such bound."""

MAX_LOOKED_INTO_BYTES = 64 << 20
"""The most bytes to which a batch may decompress for an agent to look into it."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 << 10
_LENGTH = Struct(">i")
_FIRST_GUESS = 4
_SNAPPY_GROWS_BY = 22
"""The most bytes that snappy expands one byte to: a copy of 64 bytes takes three (format_description.txt, 2.2)."""
_GROWS_BY = {Compression.GZIP: 1032, Compression.LZ4: 255, Compression.ZSTD: 1 << 17}
"""The most bytes that a stream expands one byte to (zlib's documentation; LZ4's length bytes; a zstd block has up to
128 KiB). No output buffer is larger than the input can fill."""
_STREAMS = {
    Compression.GZIP: cramjam.gzip,
    Compression.LZ4: cramjam.lz4,
    Compression.ZSTD: cramjam.zstd,
}


class CannotUnpack(Exception):
    """The bytes are not valid data of the codec."""


class UnpackedTooLarge(CannotUnpack):
    """The bytes decompress to more than the bound. Nothing beyond the bound was allocated."""


def compress(codec: Compression, data: Buffer) -> bytes:
    """Compress `data` so that every Kafka client can read it."""
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.SNAPPY:
        return _xerial(memoryview(data))
    if codec is Compression.LZ4:
        compressor = cramjam.lz4.Compressor(block_linked=False, content_checksum=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    if codec is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3))
    return bytes(cramjam.gzip.compress(data, level=6))


def decompress(codec: Compression, data: Buffer, *, max_bytes: int = MAX_UNPACKED_BYTES) -> Buffer:
    """Decompress `data`. Raises CannotUnpack, UnpackedTooLarge (more than `max_bytes`)."""
    if codec is Compression.NONE:
        if len(data) > max_bytes:
            raise UnpackedTooLarge(f"{len(data)} bytes; at most {max_bytes} are taken")
        return data
    view = memoryview(data)
    if codec is Compression.SNAPPY:
        return _from_snappy(view, max_bytes)
    return _from_stream(codec, view, max_bytes)


def _from_stream(codec: Compression, view: memoryview, max_bytes: int) -> memoryview:
    """Decompress into a buffer that grows until the data fits or the bound is reached.

    cramjam distinguishes a full output from bad input only by its message; a test checks the message.
    """
    if codec is Compression.ZSTD and view[:4] == _ZSTD_MAGIC and _zstd_content_size(view) > max_bytes:
        raise UnpackedTooLarge(
            f"zstd: says it unpacks to {_zstd_content_size(view)} bytes; at most {max_bytes} are taken"
        )
    most = min(max_bytes, _GROWS_BY[codec] * len(view))
    size = min(most, _size_hint(codec, view))
    while True:
        output = bytearray(size)
        try:
            written = _STREAMS[codec].decompress_into(view, output)
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise CannotUnpack(f"{codec.name.lower()}: {error}") from error
            if size == most:
                raise UnpackedTooLarge(
                    f"{codec.name.lower()}: {len(view)} bytes unpack to more than {most}"
                ) from error
            size = min(most, max(size * 4, 4096))
            del output  # before the larger one is allocated
        else:
            return memoryview(output)[:written]


def _size_hint(codec: Compression, view: memoryview) -> int:
    """Guess the decompressed size: what the stream declares if that is plausible, else four times the input."""
    guess = _FIRST_GUESS * len(view) + 256
    if codec is Compression.GZIP and len(view) >= 18:
        claimed = int.from_bytes(view[-4:], "little")
    elif codec is Compression.ZSTD and view[:4] == _ZSTD_MAGIC:
        claimed = _zstd_content_size(view)
    else:
        return guess
    return claimed if 0 < claimed <= 64 * len(view) + 4096 else guess


def _zstd_content_size(view: memoryview) -> int:
    """Return the frame's content size, 0 if it has none (RFC 8878, 3.1.1.1)."""
    if len(view) < 14:
        return 0
    descriptor = view[4]
    single_segment = bool(descriptor & 0x20)
    size_flag = descriptor >> 6
    if not size_flag and not single_segment:
        return 0
    start = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    width = (1, 2, 4, 8)[size_flag]
    claimed = int.from_bytes(view[start : start + width], "little")
    return claimed + 256 if width == 2 else claimed


def _from_snappy(view: memoryview, max_bytes: int) -> memoryview:
    if view[:8] != _XERIAL_MAGIC:
        return _raw_snappy(lambda: (view,), max_bytes)
    return _raw_snappy(lambda: _xerial_blocks(view), max_bytes)


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    position = 16
    while position < len(view):
        if position + 4 > len(view):
            raise CannotUnpack(
                f"snappy: {len(view) - position} bytes at {position}, expected a block's length"
            )
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if length < 0 or position + length > len(view):
            raise CannotUnpack(f"snappy: a block of {length} bytes, {len(view) - position} are left")
        yield view[position : position + length]
        position += length


def _raw_snappy(blocks: Callable[[], Iterable[memoryview]], max_bytes: int) -> memoryview:
    """Decompress blocks. They are iterated over twice, because there may be very many that are empty."""
    try:
        total = 0
        for block in blocks():
            size = cramjam.snappy.decompress_raw_len(block)
            if size > _SNAPPY_GROWS_BY * len(block):
                raise CannotUnpack(f"snappy: {len(block)} bytes say that they unpack to {size}")
            total += size
        if total > max_bytes:
            raise UnpackedTooLarge(f"snappy: unpacks to {total} bytes; at most {max_bytes} are taken")
        output = memoryview(bytearray(total))
        position = 0
        for block in blocks():
            size = cramjam.snappy.decompress_raw_len(block)
            if size:
                cramjam.snappy.decompress_raw_into(block, output[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        raise CannotUnpack(f"snappy: {error}") from error
    return output


def _xerial(view: memoryview) -> bytes:
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)
