"""Bounds of values from outside: what a number or a name may be, whoever sent it.

A value is checked where it enters: numbers by the type of their field (in Kafka's messages, and `Int64` in RPC), or, if
the type is wider than the column that stores the value, by the sequencer's rules; names by `is_name`. How many of
something there may be is a setting.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

INT64_MAX = 2**63 - 1
Int64 = Annotated[int, Meta(ge=-(2**63), le=INT64_MAX)]
"""What every whole number of a request may be; decoding refuses the rest."""

INT16 = range(-(2**15), 2**15)
INT32 = range(-(2**31), 2**31)
PORTS = range(2**16)
"""What some may be. A value that only finds something (a partition, say) need not be held against its width."""

LAST_MS = 2**63 - 1
"""The last time there is, in ms: what is to happen later never does."""

MAX_NAME_BYTES = 1_024
"""The longest name of a group, a member, a transactional id or a lease, in bytes of UTF-8.

PostgreSQL refuses an index row above 2,704 bytes. A name stands in one beside a topic's id, a partition and a producer
id, and takes up to twice its bytes where NULs and backslashes are escaped: 2,048 + 28, and some for the row itself.
"""

MAX_KEY_BYTES = 1_024
"""The longest key of an object: S3's bound. It is indexed, too."""


def is_name(text: str) -> bool:
    """Whether this can name something that is stored: neither empty nor too long."""
    return 0 < len(text) <= MAX_NAME_BYTES and len(text.encode()) <= MAX_NAME_BYTES


def later(now_ms: int, wait_ms: int) -> int:
    """The time that is this much after now, or the last representable one."""
    return min(now_ms + wait_ms, LAST_MS)


def cut(text: str, most_bytes: int) -> str:
    """The text, or the longest beginning of it that fits into this many bytes of UTF-8."""
    if len(text) * 4 <= most_bytes:
        return text
    return text.encode()[:most_bytes].decode(errors="ignore")
