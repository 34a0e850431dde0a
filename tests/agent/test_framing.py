"""Frames: what their first bytes say, at the limits."""

from __future__ import annotations

from agent.framing import (
    DECODED_FACTOR,
    FIRST_BYTES,
    REQUEST_BYTES,
    FrameHead,
    FrameLimits,
    FrameRefused,
    read_head,
)

LIMITS = FrameLimits(produce_bytes=100_000, decoded_bytes=10_000)
PRODUCE, FETCH = b"\x00\x00", b"\x00\x01"


def head(size: int, body: bytes) -> FrameHead | FrameRefused | None:
    """Of a frame of this size of which the body has come so far, behind another frame's seven bytes."""
    data = b"seven.." + size.to_bytes(4, "big", signed=True) + body
    return read_head(memoryview(data), 7, LIMITS)


def test_a_frame_is_not_judged_before_its_size_has_arrived() -> None:
    assert read_head(memoryview(b"\x00\x00\x00"), 0, LIMITS) is None


def test_a_frame_is_charged_once_its_first_bytes_or_all_of_it_have_come() -> None:
    assert head(50_000, PRODUCE + b"x" * (FIRST_BYTES - 3)) is None
    assert head(50_000, PRODUCE + b"x" * (FIRST_BYTES - 2)) == FrameHead(50_000, 50_000 + REQUEST_BYTES)
    assert head(20, PRODUCE + b"x" * 17) is None
    assert head(20, PRODUCE + b"x" * 18) == FrameHead(20, 20 + REQUEST_BYTES)


def test_decoded_objects_are_charged_as_objects() -> None:
    assert head(20, FETCH + b"x" * 18) == FrameHead(20, 20 * DECODED_FACTOR + REQUEST_BYTES)
    assert head(1, b"\x00") == FrameHead(1, DECODED_FACTOR + REQUEST_BYTES), (
        "too short to be a produce request"
    )


def test_a_size_out_of_bounds_is_refused_before_anything_else_has_come() -> None:
    assert head(0, b"") == FrameRefused(0, 100_000)
    assert head(-1, b"") == FrameRefused(-1, 100_000)
    assert head(100_001, b"") == FrameRefused(100_001, 100_000)
    assert head(100_000, b"") is None


def test_a_request_that_is_decoded_has_a_bound_of_its_own() -> None:
    assert isinstance(head(10_000, FETCH + b"x" * 9_998), FrameHead)
    assert head(10_001, FETCH + b"x" * 9_999) == FrameRefused(10_001, 10_000)
    assert isinstance(head(10_001, PRODUCE + b"x" * 9_999), FrameHead)


def test_the_largest_frames_can_be_charged() -> None:
    limits = FrameLimits.of(1 << 30, largest_charge=1_000_000)
    assert limits.produce_bytes + REQUEST_BYTES == 1_000_000
    assert limits.decoded_bytes * DECODED_FACTOR + REQUEST_BYTES <= 1_000_000
    assert FrameLimits.of(1_000, largest_charge=1_000_000) == FrameLimits(1_000, 1_000)
