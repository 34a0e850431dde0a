"""Server-sent events (the HTML standard's text/event-stream), and the event ids with which a reader resumes. Pure.

An event's id holds the next offset of every partition: `0-17.3-5` is offset 17 in partition 0 and offset 5 in partition
3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_PARTITIONS = 64
"""The most partitions of one stream: each event names all of them."""
_ONE = r"[0-9]{1,10}-[0-9]{1,19}"
_ID = re.compile(rf"{_ONE}(\.{_ONE}){{0,{MAX_PARTITIONS - 1}}}")
_INT64 = 2**63
RETRY_MS = 2_000
"""How long a reader waits before it reconnects."""
HEARTBEAT = b": nothing new\n\n"


def beginning(offsets: Mapping[int, int]) -> bytes:
    """Encode the start of a stream: a reader that gets no event resumes at these offsets."""
    return b"retry: %d\nid: %s\n\n" % (RETRY_MS, event_id(offsets).encode())


def event(name: str, data: bytes, offsets: Mapping[int, int] | None = None) -> bytes:
    """Encode one event. `data` must be one line."""
    assert b"\n" not in data and b"\r" not in data, "JSON without white space is one line"
    id_line = b"" if offsets is None else b"id: %s\n" % event_id(offsets).encode()
    return b"%sevent: %s\ndata: %s\n\n" % (id_line, name.encode(), data)


def event_id(offsets: Mapping[int, int]) -> str:
    """Return the id after which reading resumes at these offsets."""
    return ".".join(f"{partition}-{offset}" for partition, offset in sorted(offsets.items()))


def parse_event_id(text: str) -> dict[int, int] | None:
    """Return the offsets of an id; None if the text is not an id."""
    if _ID.fullmatch(text) is None:
        return None
    offsets = {int(part): int(offset) for part, offset in (pair.split("-") for pair in text.split("."))}
    return offsets if all(offset < _INT64 for offset in offsets.values()) else None
