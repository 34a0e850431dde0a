"""Read-ahead: fetch the chunks that a reader of old records will need before it requests them.

A *stream* is a reader that goes through a partition's old runs in order; it is identified by its partition and its next
offset. The window of a stream is what it reads in twice the time of a GET. While GETs hold the stream up, each window
lets the next one be twice as large; once they don't, the window stays. A fetch supplies the runs of one answer.
Read-ahead asks the sequencer for the runs after those, for all streams in one call. It uses them only to choose chunks
to fetch. A reader always finds its data through the runs of its own answer, so a run that is replaced meanwhile costs a
GET and nothing else.

Bounds: chunks read ahead take at most half of the catch-up share (`ChunkCache.read_ahead`), and one stream has at most
`read_ahead_chunks` of them. The GETs pass the gate of catch-up readers. A chunk that no reader requests within
UNREAD_SECONDS is dropped.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import structlog

from cache.chunk import ChunkId, ChunkRef
from cache.chunk_cache import ChunkCache
from cache.read_batches import ReadBatches
from sequencer.api.errors import SequencerError
from sequencer.api.reads import FindAnswer, FindPartition, FindRequest, Run
from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.clock import Clock

log = structlog.get_logger("cache.read_ahead")

LEAST_WINDOW_CHUNKS = 0.25
"""Least window of a stream, in chunks. It is small because each of many partitions has only a little data in a
chunk."""
FIRST_GET_SECONDS = 0.05
"""The assumed duration of a GET until one has been measured."""
UNREAD_SECONDS = 10.0
MAX_STREAMS = 4_096
MAX_PLANNED = 64
"""Limit of planned runs per stream."""
MAX_ASKED = 256
"""Limit of partitions in one call to the sequencer."""

Find = Callable[[FindRequest], Awaitable[FindAnswer]]
ChunksOf = Callable[[Run, int], Iterable[ChunkRef]]


class _PlannedRun(NamedTuple):
    """A run that a stream will read, and those of its chunks that are not being fetched yet."""

    end_offset: int
    length: int
    chunks: deque[ChunkRef]


@dataclass(slots=True)
class ReadAheadWindow:
    """How far a stream looks ahead, in bytes of its own runs: twice what it reads during one GET."""

    least_bytes: int
    most_bytes: int
    bytes: int = 0
    _taken: int = 0
    _since: float = -1.0

    def __post_init__(self) -> None:
        self.bytes = self.least_bytes

    def took(self, taken_bytes: int, now: float, get_seconds: float) -> None:
        """Count bytes that the stream has read. The window is computed again once per duration of a GET."""
        self._taken += taken_bytes
        if self._since < 0:
            self._since, self._taken = now, 0
            return
        if (seconds := now - self._since) < get_seconds:
            return
        wanted = int(2 * get_seconds * self._taken / seconds)
        self.bytes = max(self.least_bytes, min(wanted, self.most_bytes))
        self._since, self._taken = now, 0


@dataclass(slots=True)
class _Stream:
    """One stream. `known_end`: end of the runs that it knows; `is_at_end`: the sequencer knows no runs after it."""

    topic_id: UUID
    partition: int
    offset: int
    window: ReadAheadWindow
    known_end: int
    is_at_end: bool = False
    is_asking: bool = False
    run_bytes: int = 1
    planned: deque[_PlannedRun] = field(default_factory=deque)
    begun: dict[ChunkId, None] = field(default_factory=dict)

    def next_runs(self) -> FindPartition:
        """Return the request for the following runs: twice the window, but at most half of MAX_PLANNED runs of average
        size."""
        max_bytes = min(2 * self.window.bytes, MAX_PLANNED // 2 * self.run_bytes)
        return FindPartition(self.topic_id, self.partition, self.known_end, max_bytes)

    def move_to(self, offset: int) -> None:
        """Move the stream to this offset and drop the planned runs before it."""
        self.offset = offset
        while self.planned and self.planned[0].end_offset <= offset:
            self.planned.popleft()
        if self.known_end < offset:
            self.known_end, self.is_at_end = offset, False


class ReadAhead:
    """Follows the streams of one agent. Owned by one event loop; close it before the cache.

    Args:
        find: `find_batches` of the sequencer; if None, only the runs that readers supply are known.
        chunks_of: returns the chunks of a run from an offset on, in order; none for a run that is not old.
    """

    def __init__(self, cache: ChunkCache, clock: Clock, chunks_of: ChunksOf, find: Find | None) -> None:
        self._cache = cache
        self._clock = clock
        self._chunks_of = chunks_of
        self._find = find
        self._streams: OrderedDict[tuple[int, int, int], _Stream] = OrderedDict()
        self._begun: OrderedDict[ChunkId, float] = OrderedDict()
        self._get_seconds = FIRST_GET_SECONDS
        self._wanted: deque[_Stream] = deque()
        self._asking: asyncio.Task[None] | None = None

    def follow(self, runs: Sequence[Run], offset: int, read: ReadBatches, *, is_held: bool) -> None:
        """Note that a reader of old runs has read from `offset` on, and fetch what it will read next.

        If the whole answer was held in memory (`is_held`), another reader is ahead of this one, so it starts no new
        stream.
        """
        topic_id, partition = runs[0].topic_id, runs[0].partition
        stream = self._streams.pop((topic_id.int, partition, offset), None)
        if stream is None:
            settings = self._cache.settings
            if is_held or not settings.read_ahead_chunks:
                return
            least = int(LEAST_WINDOW_CHUNKS * settings.chunk_bytes)
            window = ReadAheadWindow(least, settings.read_ahead_chunks * settings.chunk_bytes)
            stream = _Stream(
                topic_id=topic_id, partition=partition, offset=offset, window=window, known_end=offset
            )
        stream.run_bytes = max(1, sum(run.length for run in runs) // len(runs))
        stream.window.took(read.bytes, self._clock.monotonic(), self._get_seconds)
        stream.move_to(read.end_offset)
        self._plan(stream, runs)
        self._streams[topic_id.int, partition, read.end_offset] = stream
        if len(self._streams) > MAX_STREAMS:
            self._streams.popitem(last=False)
        self._fetch(stream)

    def chunks(self, chunks: Iterable[ChunkRef]) -> None:
        """Fetch chunks that a reader will need next, as long as there is room."""
        for chunk in chunks:
            if not self._begin(chunk):
                return

    async def close(self) -> None:
        """Cancel and await the request to the sequencer."""
        await cancel_and_wait(self._asking)

    def _plan(self, stream: _Stream, runs: Sequence[Run]) -> None:
        """Plan the runs that follow those which the stream knows."""
        for run in runs:
            if run.end_offset <= stream.known_end:
                continue
            if len(stream.planned) >= MAX_PLANNED:
                return
            chunks = deque(self._chunks_of(run, max(run.base_offset, stream.offset)))
            stream.planned.append(_PlannedRun(run.end_offset, run.length, chunks))
            stream.known_end, stream.is_at_end = run.end_offset, False

    def _fetch(self, stream: _Stream) -> None:
        """Begin to fetch the chunks in the stream's window; if few runs are planned beyond it, ask for more."""
        most = self._cache.settings.read_ahead_chunks
        for begun in list(stream.begun):
            if not self._cache.is_unread(begun):
                del stream.begun[begun]
        room = stream.window.bytes
        for run in stream.planned:
            while run.chunks and len(stream.begun) < most:
                chunk = run.chunks[0]
                if not self._cache.has(chunk.id):
                    if not self._begin(chunk):
                        return
                    stream.begun[chunk.id] = None
                run.chunks.popleft()
            room -= run.length
            if room <= 0:
                return
        if len(stream.planned) < MAX_PLANNED // 2:
            self._ask_for_runs(stream)

    def _begin(self, chunk: ChunkRef) -> bool:
        """Begin to fetch the chunk unless it is cached or being fetched. Return False if there is no room for it."""
        if self._cache.has(chunk.id):
            return True
        self._give_up_unread()
        began = self._clock.monotonic()
        task = self._cache.read_ahead(chunk)
        if task is None:
            return False
        self._begun[chunk.id] = began
        task.add_done_callback(lambda done: self._arrived(began, done))
        return True

    def _arrived(self, began: float, task: asyncio.Task[object]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._get_seconds += (self._clock.monotonic() - began - self._get_seconds) / 8

    def _give_up_unread(self) -> None:
        """Forget chunks that were read, oldest first, and drop those that no reader requested in time."""
        stale = self._clock.monotonic() - UNREAD_SECONDS
        while self._begun:
            chunk, began = next(iter(self._begun.items()))
            if self._cache.is_unread(chunk):
                if began > stale:
                    return
                self._cache.give_up(chunk)
            del self._begun[chunk]

    def _ask_for_runs(self, stream: _Stream) -> None:
        if self._find is None or stream.is_at_end or stream.is_asking:
            return
        stream.is_asking = True
        self._wanted.append(stream)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(self._find), name="read ahead: runs")

    async def _ask(self, find: Find) -> None:
        while self._wanted:
            streams = [self._wanted.popleft() for _ in range(min(MAX_ASKED, len(self._wanted)))]
            wanted = [stream.next_runs() for stream in streams]
            answer = None  # if the call fails, the stream's next read asks again
            with log_and_continue(log, "runs to read ahead were not found"), suppress(SequencerError):
                answer = await find(FindRequest(wanted, sum(request.max_bytes for request in wanted)))
            for number, stream in enumerate(streams):
                stream.is_asking = False
                if answer is not None and stream.known_end == wanted[number].offset:
                    self._take(stream, answer.partitions[number].runs)

    def _take(self, stream: _Stream, runs: Sequence[Run]) -> None:
        known_end = stream.known_end
        self._plan(stream, runs)
        stream.is_at_end = stream.known_end == known_end
        self._fetch(stream)
