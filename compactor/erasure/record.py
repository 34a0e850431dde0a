"""The log of erasures: two objects in the store per erasure, written before its first change and after its last.

They have a hash of each key, not the key. Anyone who knows a key can check that it was erased. If a key can be guessed
(a number, an address), its hash can be found too. The topic's id in the hash only defeats precomputed tables.
"""

from __future__ import annotations

import asyncio
import hashlib
from uuid import UUID

import msgspec

from tailrace.object_store.api import ObjectStore

MAX_RECORDS = 100
"""The most erasures of a topic that are listed, the newest ones."""
READ_AT_ONCE = 16


class ErasureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One erasure. `ended_ms` and the counts are 0 if it did not finish."""

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
    """Return the hash of a key in an erasure's record: SHA-256 of the topic's id (16 bytes) and the key."""
    return hashlib.sha256(topic_id.bytes + key).hexdigest()


async def write_record(store: ObjectStore, cluster_id: str, record: ErasureRecord) -> None:
    """Write the record of an erasure that begins or has ended. Raises StoreError."""
    state = "ended" if record.ended_ms else "begun"
    key = f"{_prefix(cluster_id)}{record.begun_ms:015}-{record.erasure_id}-{state}.json"
    await store.put(key, [msgspec.json.encode(record)])


async def read_records(store: ObjectStore, cluster_id: str, topic: str) -> list[ErasureRecord]:
    """Return the topic's newest erasures, oldest first. Raises StoreError, msgspec.ValidationError."""
    keys = [info.key async for info in store.list(_prefix(cluster_id))]
    # The record of the end has all that the record of the start has, and its key sorts after it.
    last_keys = {key.rpartition("-")[0]: key for key in sorted(keys)}
    newest_first = list(reversed(last_keys.values()))
    records: list[ErasureRecord] = []
    for first in range(0, len(newest_first), READ_AT_ONCE):
        part = await asyncio.gather(*map(store.get, newest_first[first : first + READ_AT_ONCE]))
        decoded = [msgspec.json.decode(data, type=ErasureRecord) for data in part]
        records += [record for record in decoded if record.topic == topic]
        if len(records) >= MAX_RECORDS:
            break
    return sorted(records[:MAX_RECORDS], key=lambda record: record.begun_ms)


def _prefix(cluster_id: str) -> str:
    return f"{cluster_id}/erasures/"
