"""Bounds on numbers and names from outside, no matter who sent them.

A value is checked where it enters. The type of its field checks a number (in Kafka's messages, and `Int64` in RPC). If
the type is wider than the column that stores the value, the sequencer's rules check it. `is_name` checks names. Limits
on how many of something may exist are settings.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

INT64_MAX = 2**63 - 1
Int64 = Annotated[int, Meta(ge=-(2**63), le=INT64_MAX)]
"""The type of every whole number in a request. Decoding refuses any other number."""

INT16 = range(-(2**15), 2**15)
INT32 = range(-(2**31), 2**31)
PORTS = range(2**16)
"""The valid ports. A value that only looks something up, such as a partition, needs no check of its range."""

LAST_MS = 2**63 - 1
"""The last representable time in ms. An event after it never happens."""

MAX_NAME_BYTES = 1_024
"""The longest name of a group, a member, a transactional id or a lease, in bytes of UTF-8.

PostgreSQL refuses an index row above 2,704 bytes. An index row has a name with a topic's id, a partition and a producer
id. Escaping NULs and backslashes can double a name's bytes: 2,048 + 28, and some for the row itself.
"""

MAX_KEY_BYTES = 1_024
"""The longest key of an object, which is S3's limit. Keys are indexed too."""


def is_name(text: str) -> bool:
    """Whether something can be stored under this name: it is neither empty nor too long."""
    return 0 < len(text) <= MAX_NAME_BYTES and len(text.encode()) <= MAX_NAME_BYTES


def later(now_ms: int, wait_ms: int) -> int:
    """Return the time `wait_ms` after now, or the last representable time."""
    return min(now_ms + wait_ms, LAST_MS)


def cut(text: str, most_bytes: int) -> str:
    """Return the text, or its longest prefix that fits into `most_bytes` bytes of UTF-8."""
    if len(text) * 4 <= most_bytes:
        return text
    return text.encode()[:most_bytes].decode(errors="ignore")
