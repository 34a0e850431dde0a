"""Splits a stream of bytes into Kafka's frames."""

from __future__ import annotations

from collections.abc import Iterator

SIZE_BYTES = 4


def frames_of(data: bytes) -> Iterator[bytes]:
    """Yield each complete frame, with its size."""
    position = 0
    while position < len(data):
        end = position + SIZE_BYTES + int.from_bytes(data[position : position + SIZE_BYTES], "big")
        assert end <= len(data), "the last frame is not whole"
        yield data[position:end]
        position = end
