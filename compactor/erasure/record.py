"""Who erased which keys when: two objects in the store for each erasure, before its first change and after its last.

They have a hash of each key, not the key: whoever knows the key can tell that it was erased. A hash of something that
can be guessed (a number, an address) can be guessed, too; the topic's id in it only spoils tables made in advance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from uuid import UUID

import msgspec

from tailrace.object_store.api import ObjectStore

MAX_RECORDS = 100
"""The newest erasures that are listed."""


class ErasureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One erasure. `ended_ms` and the counts are 0 in a record of one that did not come to its end."""

    erasure_id: UUID
    topic: str
    topic_id: UUID
    key_hashes: list[str]
    by: str
    reason: str
    begun_ms: int
    ended_ms: int = 0
    erased_records: int = 0
    rewritten_objects: int = 0


def hash_key(topic_id: UUID, key: bytes) -> str:
    """What an erasure's record says of a key: SHA-256 of the topic's id (16 bytes) and the key."""
    return hashlib.sha256(topic_id.bytes + key).hexdigest()


async def write_record(store: ObjectStore, cluster_id: str, record: ErasureRecord) -> None:
    """Raises StoreError."""
    state = "ended" if record.ended_ms else "begun"
    key = f"{_prefix(cluster_id)}{record.begun_ms:015}-{record.erasure_id}-{state}.json"
    await store.put(key, [msgspec.json.encode(record)])


async def read_records(store: ObjectStore, cluster_id: str, topic: str) -> list[ErasureRecord]:
    """The topic's newest erasures, oldest first. Raises StoreError, msgspec.ValidationError."""
    keys = [info.key async for info in store.list(_prefix(cluster_id))]
    records: dict[UUID, ErasureRecord] = {}
    for key in _newest(keys):
        record = msgspec.json.decode(await store.get(key), type=ErasureRecord)
        if record.topic == topic and (record.ended_ms or record.erasure_id not in records):
            records[record.erasure_id] = record
    return sorted(records.values(), key=lambda record: record.begun_ms)


def _prefix(cluster_id: str) -> str:
    return f"{cluster_id}/erasures/"


def _newest(keys: Iterable[str]) -> list[str]:
    return sorted(keys)[-2 * MAX_RECORDS :]
