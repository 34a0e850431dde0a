"""Request frames: reads a frame's first bytes and computes its charge to the memory budget. Pure.

    | size     | API key  | API version | correlation id | ...
    | 4 bytes  | 2 bytes  | 2 bytes     | 4 bytes        |
               |<------------------ size bytes --------------->|

All integers are signed and big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

SIZE_BYTES = 4
FIRST_BYTES = 4 * 1024
"""A frame is charged and gets its buffer once this many of its bytes have arrived, or all bytes of a shorter one."""
REQUEST_BYTES = 6 * 1024
"""The cost of a request besides its frame: tasks, futures and rows, as measured for a produce request of one batch."""
DECODED_FACTOR = 16
"""The cost of each byte of a request other than Produce: such requests are decoded into objects. Records are not."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The largest frames that are read: of Produce requests, and of all other requests."""

    produce_bytes: int
    decoded_bytes: int

    @classmethod
    def of(cls, max_frame_bytes: int, largest_charge: int) -> FrameLimits:
        """Limit frames to `max_frame_bytes`, and to sizes whose charge the memory budget can grant."""
        room = largest_charge - REQUEST_BYTES
        return cls(min(max_frame_bytes, room), min(max_frame_bytes, room // DECODED_FACTOR))


class FrameHead(msgspec.Struct, frozen=True, gc=False):
    """A frame that may be read: `size` bytes after the size field, charged `charge` bytes of memory."""

    size: int
    charge: int


class FrameRefused(msgspec.Struct, frozen=True, gc=False):
    """A frame whose size is not positive, or above `allowed`."""

    size: int
    allowed: int


def read_head(data: memoryview, position: int, limits: FrameLimits) -> FrameHead | FrameRefused | None:
    """Return the frame that begins at `position`; None if too few of its bytes have arrived."""
    available_bytes = len(data) - position - SIZE_BYTES
    if available_bytes < 0:
        return None
    start = position + SIZE_BYTES
    size = int.from_bytes(data[position:start], "big", signed=True)
    if not 0 < size <= limits.produce_bytes:
        return FrameRefused(size, limits.produce_bytes)
    if available_bytes < size and available_bytes < FIRST_BYTES:
        return None
    if available_bytes >= 2 and not data[start] and not data[start + 1]:  # API key 0: Produce
        return FrameHead(size, size + REQUEST_BYTES)
    if size > limits.decoded_bytes:
        return FrameRefused(size, limits.decoded_bytes)
    return FrameHead(size, size * DECODED_FACTOR + REQUEST_BYTES)
