"""Old runs are sent out of their chunk's own memory: the heads of their batches are written where they stand.

A reader of old records wants most runs once. To lay a run out and to copy it (`cache.layout`, `cache.framed`) takes
more than that saves. So its batches are checked, and get their offsets and leader epoch, within the chunk that brought
them. The chunk remembers it, and whoever reads the run next gets a view and looks at no batch.

What is written is outside the CRCs of the batches, and whoever else has the chunk (a peer, a reader of the tail) writes
it anew. A chunk that was sent to a peer is not written to any more: a MAC covers it on its way. A run gets the offsets
and the epoch of one row: an answer may still be on its way when another asks.
"""

from __future__ import annotations

from cache.chunk import ChunkBytes
from sequencer.api import ObjectKind, Run
from tailrace.buffers import Buffer
from tailrace.record_batch import patched_if_sound

LEAST_SHARE = 64
"""A view keeps its chunk in memory until the answer has left. So less than one byte in so many of a chunk is copied."""

FEW_RUNS = 16
RUN_SHARE = 1024
"""What a chunk remembers of a run takes some 200 bytes, which nobody counts. So it remembers one for so many of its own
bytes, and a few more; shorter runs are framed, which is counted."""


def chunk_of(run: Run, chunk_bytes: int) -> int:
    """The number of the chunk that all of the run lies in; -1 where there is none."""
    if run.kind is not ObjectKind.MIXED:
        return -1
    number, first = divmod(run.start, chunk_bytes)
    return number if first + run.length <= chunk_bytes else -1


def part_of(chunk: ChunkBytes, start: int, length: int) -> Buffer:
    """So many bytes of the chunk, to be sent."""
    data = chunk.own_view(start, length)
    return data if LEAST_SHARE * length >= chunk.size else bytes(data)


def may_be_own(run: Run, chunk: ChunkBytes, chunk_bytes: int) -> bool:
    """Whether the run may be sent out of its chunk: it is ready there, or could be made ready."""
    return _has_room(chunk) or run.start % chunk_bytes in chunk.ready


def _has_room(chunk: ChunkBytes) -> bool:
    """Whether another run can be made ready there."""
    return chunk.memory is not None and len(chunk.ready) < FEW_RUNS + chunk.size // RUN_SHARE


def is_ready(run: Run, at: int, leader_epoch: int, chunk: ChunkBytes) -> bool:
    """Whether the run, `at` bytes into the chunk, can be sent under this epoch as it stands."""
    return chunk.ready.get(at) == (run.base_offset, run.length, leader_epoch)


def made_ready(run: Run, at: int, leader_epoch: int, chunk: ChunkBytes) -> bool:
    """Check each batch of the run, and write offset and epoch into it. False where the run can't be sent as it stands:
    not all its batches are sound, or were stored, or it is ready for another epoch, or the memory is another's, or has
    too many runs."""
    batches = run.batches
    if chunk.memory is None or not _has_room(chunk) or at in chunk.ready or not batches:
        return False
    lengths, offsets = [batch.length for batch in batches], [batch.base_offset for batch in batches]
    last = batches[-1]
    is_whole = offsets[0] == run.base_offset and last.base_offset + last.record_count == run.end_offset
    if not is_whole or -1 in offsets or sum(lengths) != run.length:
        return False
    if not patched_if_sound(chunk.memory, at, lengths, offsets, leader_epoch=leader_epoch):
        return False
    chunk.ready[at] = run.base_offset, run.length, leader_epoch
    return True
