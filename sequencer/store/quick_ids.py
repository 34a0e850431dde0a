"""Ids that are hashed and compared by C code.

A topic's id is part of the keys of partitions, runs and producers, and a commit hashes it several times per run. The
hash and the comparison of Python's UUID are Python code: 150 and 70 nanoseconds. asyncpg's subclass has them in C and
keeps the hash: 30 and 20. PostgreSQL's rows have such ids anyway. An id of one class equals the same id of the other.
"""

from __future__ import annotations

from uuid import UUID

from asyncpg.pgproto import pgproto


def quick_id(an_id: UUID) -> UUID:
    """Return the same id as a quick one."""
    return quick_id_of(an_id.bytes)


def quick_id_of(value: bytes) -> UUID:
    """Return the id of these 16 bytes."""
    quick: UUID = pgproto.UUID(value)
    return quick
