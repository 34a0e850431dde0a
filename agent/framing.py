"""Request frames: what the first bytes of one say, and what the memory budget is charged for it. Pure.

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
"""What must have come of a frame (all of a shorter one) before it is charged and gets its buffer."""
REQUEST_BYTES = 6 * 1024
"""What a request costs beside its frame: tasks, futures and rows, as measured for a produce request of one batch."""
DECODED_FACTOR = 16
"""What a byte of a request other than Produce costs: such requests are decoded into objects. Records are not."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The largest frames that are read: of Produce requests, and of all others."""

    produce_bytes: int
    decoded_bytes: int

    @classmethod
    def of(cls, max_frame_bytes: int, largest_charge: int) -> FrameLimits:
        """Frames of at most `max_frame_bytes` whose charge the memory budget can ever grant."""
        room = largest_charge - REQUEST_BYTES
        return cls(min(max_frame_bytes, room), min(max_frame_bytes, room // DECODED_FACTOR))


class FrameHead(msgspec.Struct, frozen=True, gc=False):
    """A frame that may be read: `size` bytes after the size itself, charged with `charge` bytes of memory."""

    size: int
    charge: int


class FrameRefused(msgspec.Struct, frozen=True, gc=False):
    """A frame whose size is not positive, or above what is `allowed`."""

    size: int
    allowed: int


def read_head(data: memoryview, position: int, limits: FrameLimits) -> FrameHead | FrameRefused | None:
    """The frame that begins at `position`; None while too little of it has come."""
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
