"""Server-sent events (the HTML standard's text/event-stream), and the id by which a reader goes on after any of them.

The id of an event is the offsets of all partitions that come after it: `0-17.3-5` is 17 in partition 0 and 5 in
partition 3. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_PARTITIONS = 64
"""Of one stream: each event names all of them."""
_ONE = r"[0-9]{1,10}-[0-9]{1,19}"
_ID = re.compile(rf"{_ONE}(\.{_ONE}){{0,{MAX_PARTITIONS - 1}}}")
_INT64 = 2**63
RETRY_MS = 2_000
BEGIN = b"retry: %d\n\n" % RETRY_MS
"""How long a reader waits before it connects again."""
HEARTBEAT = b": nothing new\n\n"


def event(name: str, data: bytes, offsets: Mapping[int, int] | None = None) -> bytes:
    """One event; `data` is one line."""
    assert b"\n" not in data and b"\r" not in data, "JSON without white space is one line"
    place = b"" if offsets is None else b"id: %s\n" % event_id(offsets).encode()
    return b"%sevent: %s\ndata: %s\n\n" % (place, name.encode(), data)


def event_id(offsets: Mapping[int, int]) -> str:
    """The id after which these offsets are read."""
    return ".".join(f"{partition}-{offset}" for partition, offset in sorted(offsets.items()))


def parse_event_id(text: str) -> dict[int, int] | None:
    """The offsets of an id; None for a text that is none."""
    if _ID.fullmatch(text) is None:
        return None
    offsets = {int(part): int(offset) for part, offset in (pair.split("-") for pair in text.split("."))}
    return offsets if all(offset < _INT64 for offset in offsets.values()) else None
