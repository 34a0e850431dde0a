"""Send old runs from the memory of their chunk: patch the batch headers in place.

A reader of old records wants most runs only once. Building a layout and copying the run (`cache.layout`,
`cache.framed`) would take longer than it saves. So each batch is checked and gets its offset and leader epoch within
the chunk that was fetched. The chunk remembers this, and the next reader of the run gets a view without looking at the
batches.

The patched bytes are outside the batches' CRCs. Every other holder of the chunk (a peer, a tail reader) patches its own
copy. A chunk that was sent to a peer is not patched any more, because a MAC covers it in transit. A run in a chunk is
patched once, with one offset and one epoch, because an answer may still be in transit when the next request comes.
"""

from __future__ import annotations

from cache.chunk import ChunkBytes
from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Run
from tailrace.batches.record_batch import patched_if_sound
from tailrace.buffers import Buffer

LEAST_SHARE = 64
"""A view keeps its chunk in memory until the answer has been sent. So a part smaller than 1/64 of its chunk is
copied."""

FEW_RUNS = 16
RUN_SHARE = 1024
"""A chunk's note of a ready run takes some 200 bytes, which no budget counts. So a chunk keeps one note per 1,024 bytes
of its size, and 16 more; runs beyond that are framed, which a budget counts."""


def chunk_of(run: Run, chunk_bytes: int) -> int:
    """Return the number of the chunk that contains the whole run; -1 if no single chunk does."""
    if run.kind is not ObjectKind.MIXED:
        return -1
    number, first = divmod(run.start, chunk_bytes)
    return number if first + run.length <= chunk_bytes else -1


def part_of(chunk: ChunkBytes, start: int, length: int) -> Buffer:
    """Return bytes of the chunk to send: a view, or a copy if they are a small part of the chunk."""
    data = chunk.own_view(start, length)
    return data if LEAST_SHARE * length >= chunk.size else bytes(data)


def may_be_own(run: Run, chunk: ChunkBytes, chunk_bytes: int) -> bool:
    """Whether the run may be sent from its chunk: it is ready there, or there is room to make it ready."""
    return _has_room(chunk) or run.start % chunk_bytes in chunk.ready


def _has_room(chunk: ChunkBytes) -> bool:
    """Whether another run can be made ready in the chunk."""
    return chunk.memory is not None and len(chunk.ready) < FEW_RUNS + chunk.size // RUN_SHARE


def is_ready(run: Run, at: int, leader_epoch: int, chunk: ChunkBytes) -> bool:
    """Whether the run, `at` bytes into the chunk, can be sent under this epoch as it stands."""
    return chunk.ready.get(at) == (run.base_offset, run.length, leader_epoch)


def made_ready(run: Run, at: int, leader_epoch: int, chunk: ChunkBytes) -> bool:
    """Check each batch of the run, and write its offset and the epoch into it.

    Return False if the run can't be sent from the chunk: a batch is corrupt or was not stored, the run is ready for
    another epoch, the memory must not be written to, or the chunk has too many ready runs.
    """
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
