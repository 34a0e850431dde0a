"""The rules for keys. They are the same for every store, so a folder refuses keys that S3 would change."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.object_store.api import StoreRefused

MAX_KEY_LENGTH = 1024
"""S3's limit, in bytes: https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html"""


def check_key(key: str) -> None:
    """Raise StoreRefused unless `key` is a `/`-separated path of printable ASCII parts, none of which is empty, `.` or
    `..`."""
    if not key or len(key) > MAX_KEY_LENGTH:
        raise StoreRefused(f"key of {len(key)} characters: allowed are 1 to {MAX_KEY_LENGTH}")
    if not (key.isascii() and key.isprintable()) or "\\" in key:
        raise StoreRefused(f"key {key!r}: allowed are printable ASCII characters without a backslash")
    for part in key.split("/"):
        if part in ("", ".", ".."):
            raise StoreRefused(f"key {key!r}: its parts must not be empty, '.' or '..'")


def is_key(name: str) -> bool:
    """Whether an object may have this key. Other programs' objects in a bucket may have other ones."""
    try:
        check_key(name)
    except StoreRefused:
        return False
    return True


def check_prefix(prefix: str) -> None:
    """Raise StoreRefused unless `prefix` is empty or could be the start of a key."""
    if prefix:
        check_key(prefix + "x")


def check_range(start: int, length: int) -> None:
    """Raise ValueError for a byte range with a negative start or length."""
    if start < 0 or length < 0:
        raise ValueError(f"range of {length} bytes from {start}: neither may be negative")


def next_part(key: str, prefix: str) -> str | None:
    """Return the path part of `key` directly below `prefix`, with its slash; None if no slash follows."""
    end = key.find("/", len(prefix))
    return None if end < 0 else key[len(prefix) : end + 1]


def distinct_next_parts(keys: Iterable[str], prefix: str) -> list[str]:
    """Return the distinct next parts of `keys` below `prefix`, in ascending order."""
    return sorted({part for key in keys if (part := next_part(key, prefix)) is not None})
