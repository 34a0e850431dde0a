"""Recorded traffic between real clients and Tailrace: frames in `recorded/`, one file a client.

A file is a sequence of frames, each: a byte ('>' request, '<' response), API key int16, version int16, length uint32,
and the frame without its own size; all big-endian.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from struct import Struct

FOLDER = Path(__file__).parent / "recorded"
_HEAD = Struct(">chhI")


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """A frame (without its size) of a client whose name is its file's."""

    client: str
    is_request: bool
    api_key: int
    api_version: int
    data: bytes


@cache
def recorded() -> tuple[RecordedFrame, ...]:
    """All frames of all clients."""
    return tuple(
        frame for path in sorted(FOLDER.glob("*.frames")) for frame in parse(path.stem, path.read_bytes())
    )


def parse(client: str, data: bytes) -> Iterable[RecordedFrame]:
    """The frames of a file."""
    at = 0
    while at < len(data):
        way, api_key, api_version, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield RecordedFrame(client, way == b">", api_key, api_version, data[at : at + length])
        at += length


def written(frames: Iterable[RecordedFrame]) -> bytes:
    """The bytes of a file."""
    return b"".join(
        _HEAD.pack(b">" if frame.is_request else b"<", frame.api_key, frame.api_version, len(frame.data))
        + frame.data
        for frame in frames
    )
