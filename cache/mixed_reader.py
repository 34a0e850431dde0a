"""Read batches of mixed objects and transaction markers. The first read takes them from chunks; later reads take them
from the cache of framed runs.

Old runs are sent from the memory of their chunks (`cache.in_place`) if the chunk's memory may be patched.

A piece of small batches (`cache.layout`) is copied from its chunks, checked and framed on its first read. If one of its
batches is corrupt or its bytes can't be fetched, each batch is read separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from cache.chunk import ChunkBytes, ChunkId, ChunkRef, ObjectCorrupt, PatchedRun, chunk_at, chunks_of
from cache.chunk_cache import ChunkCache
from cache.framed import LEAST_VIEW_BYTES, FramedRun, FramedRuns, JoinedRun
from cache.in_place import chunk_of, is_ready, made_ready, may_be_own, part_of
from cache.layout import LARGE_BATCH_BYTES
from cache.observer import CacheObserver
from cache.read_batches import ReadBatches, ReadRequest
from cache.selection import RunSpan, Selection, select_spans
from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Marker, Run
from tailrace.batches.record_batch import (
    MARKER_BYTES,
    InvalidBatch,
    MarkerKind,
    check_crc,
    control_batch,
    framed_views,
    patch_base_offset_and_epoch,
)
from tailrace.buffers import Buffer
from tailrace.clock import Clock
from tailrace.object_store.api import StoreError
from tailrace.turns import Turns

BATCHES_IN_A_TURN = 1_000
"""Batches that are checked and framed in one turn of the event loop."""
RUN_AS_BATCHES = 10
"""Cost of a run, or of a piece of one, in batches, in addition to its batches."""
STEP_CHUNKS = 4
"""Limit of chunks that one read holds at a time: an answer may have runs in 2,000 objects, a few hundred bytes in
each."""

MAX_OFFSET = (1 << 63) - 1
_kind = attrgetter("kind")

_Chunks = dict[ChunkId, ChunkBytes | BaseException]


class MixedReader:
    """Reads runs of mixed objects and of markers. Owned by one event loop."""

    def __init__(self, cache: ChunkCache, clock: Clock, observer: CacheObserver) -> None:
        self._cache = cache
        self._clock = clock
        self._observer = observer
        self.framed = FramedRuns(cache.settings.framed_bytes, cache.settings.chunk_bytes)

    def read_held(self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches) -> bool:
        """Like `read`, but without waiting. Return False if it would have to wait; `out` is then unusable."""
        if not self._are_old(runs):
            return self._read_framed_held(runs, request, out)
        chunks: list[ChunkBytes | None] = []
        begun = self._add_reread(runs, request, out, chunks)
        left = runs[begun:] if begun else runs
        if left and out.is_complete and not self._read_old_held(left, request, out, chunks):
            return False
        self._cache.note_read(_distinct(chunks), is_catch_up=True)
        return True

    def _read_old_held(
        self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches, chunks: list[ChunkBytes | None]
    ) -> bool:
        """`read_held` for old runs; adds the chunks that contain them to `chunks`."""
        own, missing = self._own_chunks(runs, request, out, stops=True)
        if missing:
            return False
        number = 0
        while number < len(runs) and out.is_complete:
            before, number = number, self._add_own(runs, own, number, request=request, out=out)
            if number == before:
                number = _next_own(runs, own, before)
                if not self._read_framed_held(runs[before:number], request, out):
                    return False
            if number < len(runs) and out.is_complete and out.made >= BATCHES_IN_A_TURN:
                return False
        chunks += own
        return True

    def _read_framed_held(self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches) -> bool:
        if runs and self._waits_at_once(runs[0], request, out):
            return False
        begun = 1 if runs and runs[0].base_offset < out.end_offset else 0
        kept = self._add_held(runs[:begun], request, out) if begun else 0
        if kept is not None and out.is_complete:
            before = out.bytes
            begun += self._add_whole_runs(runs[begun:] if begun else runs, request, out)
            kept += out.bytes - before
            if begun < len(runs):
                begun += self._add_large_runs(runs[begun:], request, out)
            if begun < len(runs):
                more = self._add_held(runs[begun:], request, out)
                kept = None if more is None else kept + more
        if kept is None:
            return False
        self._observer.framed_read(kept)
        return True

    def _are_old(self, runs: Sequence[Run]) -> bool:
        """Whether the runs may be sent from their chunks: the first is old and this agent did not upload it recently.
        Looks at the first run only, because the following runs are newer."""
        if not runs or not self.is_catch_up(runs[0]):
            return False
        first = runs[0]
        return not self._cache.is_fresh(ChunkId(first.key, first.start // self._cache.settings.chunk_bytes))

    def _waits_at_once(self, run: Run, request: ReadRequest, out: ReadBatches) -> bool:
        """Whether a small batch of the first run is not in memory. It lets a reader of data that was never read before
        give up early, so that it does not look at all other runs twice."""
        if run.kind is ObjectKind.PARQUET:
            return True
        framed = self.framed.of(run)
        first = framed.first_from(out.end_offset)
        if first == framed.count or framed.is_large(first):
            return False
        is_kept = framed.framed(framed.piece_of(first), request.leader_epoch) is not None
        return not is_kept and bool(self._select((run,), request, out).spans)

    def _add_held(self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches) -> int | None:
        """Append the batches of the runs without waiting. Return the bytes that came from framed pieces; None if it
        would have to wait."""
        if ObjectKind.PARQUET in map(_kind, runs):
            return None
        kept = 0
        selection = self._select(runs, request, out)
        held: list[tuple[Sequence[Buffer], RunSpan]] = []
        chunks: list[ChunkRef] = []
        for span in selection.spans:
            for piece, part in span.by_piece():
                data = span.framed.framed(piece, request.leader_epoch)
                if data is not None:
                    held.append(((_part_of(data, piece, part),), part))
                    kept += part.size
                    continue
                if not span.framed.is_large(part.first):
                    return None
                refs = self._refs_of(part)
                batch = self._held_batch(part, refs, request.leader_epoch)
                if batch is None:
                    return None
                held.append((batch, part))
                chunks += refs
        for parts, part in held:
            out.add_framed(parts, part.framed, part.first, part.upto)
        is_catch_up = bool(chunks) and self.is_catch_up(runs[0])
        for chunk in chunks:
            self._cache.held(chunk, is_catch_up=is_catch_up)
        out.end_offset = selection.end_offset
        out.is_complete = not selection.is_full
        return kept

    async def read(self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches) -> None:
        """Append the batches of the runs, from the end of `out` on. Raises like `BatchReader.read`."""
        first = 0
        while first < len(runs) and out.is_complete:
            upto = self._step_from(runs, first)
            await self._read_step(runs if upto - first == len(runs) else runs[first:upto], request, out)
            first = upto

    def _step_from(self, runs: Sequence[Run], first: int) -> int:
        """Return the end of the runs from `first` on whose chunks may be held at the same time; at least one run,
        whatever its size."""
        chunk_bytes = self._cache.settings.chunk_bytes
        left, counted = STEP_CHUNKS * chunk_bytes, ("", -1)
        for number in range(first, len(runs)):
            run = runs[number]
            if not run.key:
                continue  # markers are in no object
            begin, last = run.start // chunk_bytes, (run.start + run.length - 1) // chunk_bytes
            if (run.key, begin) == counted:
                begin += 1
            if begin > last:
                continue
            counted = run.key, last
            left -= min((last + 1) * chunk_bytes, run.object_size) - begin * chunk_bytes
            if left < 0 and number > first:
                return number
        return len(runs)

    async def _read_step(self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches) -> None:
        if not self._are_old(runs):
            await self._read_framed(runs, request, out, {})
            return
        own, missing = self._own_chunks(runs, request, out)
        self._cache.note_read(_distinct(own), is_catch_up=True)
        chunks = await self._loaded(missing, own) if missing else {}
        turns, number = Turns(BATCHES_IN_A_TURN), 0
        while number < len(runs) and out.is_complete:
            before, number = number, self._add_own(runs, own, number, request=request, out=out)
            if number == before:
                number = _next_own(runs, own, before)
                await self._read_framed(runs[before:number], request, out, chunks)
            elif number < len(runs):
                await turns.did(BATCHES_IN_A_TURN)

    async def _read_framed(
        self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches, chunks: _Chunks
    ) -> None:
        """Append the batches of the runs from their framed pieces; frame those that are not kept. `chunks` are already
        fetched; the others are fetched and added to it."""
        selection = self._select(runs, request, out)
        await self._fetch_unframed(selection.spans, request.leader_epoch, chunks)
        turns = Turns(BATCHES_IN_A_TURN)
        kept = 0
        for span in selection.spans:
            for piece, part in span.by_piece():
                data = span.framed.framed(piece, request.leader_epoch)
                if data is not None:
                    kept += part.size
                elif not span.framed.is_large(part.first):
                    data = self._frame(part, piece, request.leader_epoch, chunks)
                    await turns.did(RUN_AS_BATCHES + part.upto - part.first)
                if data is not None:
                    out.add_framed((_part_of(data, piece, part),), part.framed, part.first, part.upto)
                elif not await self._add_each(part, request.leader_epoch, chunks, out):
                    return
        self._observer.framed_read(kept)
        out.end_offset = selection.end_offset
        out.is_complete = not selection.is_full

    async def batch_at(self, run: Run, start: int, length: int) -> memoryview:
        """Return one batch of the run, with its CRC checked. Raises like `BatchReader.read`."""
        return await self._sound_batch(run, start, length, {})

    def chunks_of(self, run: Run, start: int, length: int) -> list[ChunkRef]:
        """Return the chunks that contain these bytes of the run's object."""
        chunk_bytes = self._cache.settings.chunk_bytes
        return chunks_of(
            run.key, start=start, end=start + length, object_size=run.object_size, chunk_bytes=chunk_bytes
        )

    def is_catch_up(self, run: Run) -> bool:
        """Whether the run is old, so that its reader does not follow the tail."""
        age_ms = self._clock.wall_ms() - run.created_ms
        return run.kind == ObjectKind.PARQUET or age_ms > self._cache.settings.catch_up_age_ms

    def _own_chunks(
        self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches, *, stops: bool = False
    ) -> tuple[list[ChunkBytes | None], dict[int, ChunkRef]]:
        """Return, for each run that may be wanted, the chunk that it may be sent from, or None. Also return the chunks
        to fetch, by the numbers of their runs: only the first if `stops`."""
        limit = MAX_OFFSET if request.end_limit is None else request.end_limit
        chunk_bytes, room = self._cache.settings.chunk_bytes, request.max_bytes - out.bytes
        own: list[ChunkBytes | None] = []
        missing: dict[int, ChunkRef] = {}
        for run in runs:
            if run.base_offset >= limit or (room <= 0 and own) or run.kind is ObjectKind.PARQUET:
                break
            if run.base_offset >= out.end_offset:
                room -= run.length
            else:
                room -= self.framed.of(run).bytes_between(out.end_offset, run.end_offset)
            number = chunk_of(run, chunk_bytes)
            chunk = None if number < 0 else self._cache.peek(ChunkId(run.key, number), is_catch_up=True)
            if chunk is None and number >= 0 and not self.framed.is_kept(run, request.leader_epoch):
                missing[len(own)] = chunk_at(run.key, number, run.object_size, chunk_bytes)
                if stops:
                    break
            own.append(chunk if chunk is not None and may_be_own(run, chunk, chunk_bytes) else None)
        return own, missing

    async def _loaded(self, missing: dict[int, ChunkRef], own: list[ChunkBytes | None]) -> _Chunks:
        """Fetch chunks; return the error for each that can't be fetched. Put the chunks that may be patched into
        `own`."""
        wanted = list(dict.fromkeys(missing.values()))
        loaded = await self._cache.get_all([(ref, True) for ref in wanted])
        chunks: _Chunks = {ref.id: chunk for ref, chunk in zip(wanted, loaded, strict=True)}
        for number, ref in missing.items():
            chunk = chunks[ref.id]
            if isinstance(chunk, ChunkBytes) and chunk.memory is not None:
                own[number] = chunk
        return chunks

    def _add_own(
        self,
        runs: Sequence[Run],
        own: Sequence[ChunkBytes | None],
        first: int,
        *,
        request: ReadRequest,
        out: ReadBatches,
    ) -> int:
        """Append the runs from `first` on that can be sent from their own chunks; return the number of the next run.
        One call makes runs ready until they have BATCHES_IN_A_TURN batches; the last run may exceed it."""
        most, number = out.made + BATCHES_IN_A_TURN, first
        while number < len(own) and out.is_complete:
            run, chunk = runs[number], own[number]
            if chunk is None:
                break
            at = run.start % self._cache.settings.chunk_bytes
            if not is_ready(run, at, request.leader_epoch, chunk):
                if out.made >= most or not made_ready(run, at, request.leader_epoch, chunk):
                    break
                out.made += len(run.batches)
            self._add_ready(run, at, chunk, request=request, out=out)
            number += 1
        if number == len(own) < len(runs) and out.batch_count and out.bytes >= request.max_bytes:
            out.is_complete = False
        return number

    def _add_reread(
        self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches, chunks: list[ChunkBytes | None]
    ) -> int:
        """Append the leading old, short runs that were read before and are wanted whole (the first perhaps in part);
        return how many.

        They come as stretches or from their chunks; those chunks are added to `chunks`. Runs that come from chunks are
        joined for the next reader. If the first run was never read, the call ends after that one check.
        """
        limit = MAX_OFFSET if request.end_limit is None else request.end_limit
        leader_epoch = request.leader_epoch
        number = 1 if runs[0].base_offset < out.end_offset else 0
        if number == len(runs) or not self._was_read(runs[number], leader_epoch):
            return 0
        if number:
            ready = self._ready_chunk(runs[0], leader_epoch)
            if ready is None:
                return 0
            chunk, at = ready
            chunks.append(chunk)
            self._add_ready(runs[0], at, chunk, request=request, out=out)
        # The first run after the last joined run, and its part in `out`.
        alone, parts = number, len(out.parts)
        while number < len(runs) and out.is_complete:
            run, room = runs[number], request.max_bytes - out.bytes
            if run.base_offset < out.end_offset:
                break
            joined = self.framed.joined_at(run)
            if joined is not None and joined.is_wanted(
                runs, number, leader_epoch=leader_epoch, room=room, end_limit=limit
            ):
                self.framed.join_ready(runs[alone:number], out.parts[parts:], leader_epoch)
                _add_joined(out, joined)
                self._observer.framed_read(joined.size)
                number += len(joined.runs)
                alone, parts = number, len(out.parts)
                continue
            ready = self._ready_chunk(run, leader_epoch)
            if ready is None or run.end_offset > limit or run.length > room:
                break
            chunk, at = ready
            out.add_whole(part_of(chunk, at, run.length), run.base_offset, run.end_offset, len(run.batches))
            chunks.append(chunk)
            number += 1
        self.framed.join_ready(runs[alone:number], out.parts[parts:], leader_epoch)
        return number

    def _was_read(self, run: Run, leader_epoch: int) -> bool:
        """Whether the run is short, and is ready in its chunk or begins a joined run."""
        if run.length >= LEAST_VIEW_BYTES:
            return False
        return self.framed.joined_at(run) is not None or self._ready_chunk(run, leader_epoch) is not None

    def _ready_chunk(self, run: Run, leader_epoch: int) -> tuple[ChunkBytes, int] | None:
        """Return the chunk in which the run is ready and the run's place in it; None if it is not ready or not in
        memory."""
        chunk_bytes = self._cache.settings.chunk_bytes
        number = chunk_of(run, chunk_bytes)
        if number < 0:
            return None
        chunk, at = self._cache.peek(ChunkId(run.key, number), is_catch_up=True), run.start % chunk_bytes
        return (chunk, at) if chunk is not None and is_ready(run, at, leader_epoch, chunk) else None

    def _add_ready(
        self, run: Run, at: int, chunk: ChunkBytes, *, request: ReadRequest, out: ReadBatches
    ) -> None:
        """Append the wanted batches of a run that is ready, `at` bytes into its chunk."""
        is_within = request.end_limit is None or run.end_offset <= request.end_limit
        if is_within and run.base_offset >= out.end_offset and run.length <= request.max_bytes - out.bytes:
            data = part_of(chunk, at, run.length)
            out.add_whole(data, run.base_offset, run.end_offset, len(run.batches))
            return
        selection = self._select((run,), request, out)
        for span in selection.spans:
            data = part_of(chunk, at + span.framed.sizes[span.first], span.size)
            out.add_framed((data,), span.framed, span.first, span.upto)
        out.end_offset, out.is_complete = selection.end_offset, not selection.is_full

    def _add_whole_runs(self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches) -> int:
        """Append the leading runs that are kept in one piece and wanted whole; return how many.

        A tail reader gets almost only such runs, so a fetch of small batches spends most of its time in this loop.
        """
        limit = MAX_OFFSET if request.end_limit is None else request.end_limit
        leader_epoch, of = request.leader_epoch, self.framed.of
        number = 0
        alone: list[FramedRun] = []
        """The last runs before `number` that are in no joined run."""
        while number < len(runs):
            run, room = runs[number], request.max_bytes - out.bytes
            if run.base_offset < out.end_offset or run.end_offset > limit or run.kind is ObjectKind.PARQUET:
                break
            framed = of(run)
            joined = framed.joined
            if joined is not None and joined.is_wanted(
                runs, number, leader_epoch=leader_epoch, room=room, end_limit=limit
            ):
                self.framed.join(runs[number - len(alone) : number], alone, leader_epoch)
                alone.clear()
                _add_joined(out, joined)
                number += len(joined.runs)
                continue
            data = framed.whole(leader_epoch)
            if data is None or len(data) > room:
                break
            out.add_framed((data,), framed, 0, framed.count)
            out.end_offset = run.end_offset
            alone.append(framed)
            number += 1
        self.framed.join(runs[number - len(alone) : number], alone, leader_epoch)
        return number

    def _add_large_runs(self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches) -> int:
        """Append the leading runs that have large batches only, are wanted whole and lie in a chunk in memory; return
        how many. The parts to send are kept with the chunk and evicted with it."""
        limit = MAX_OFFSET if request.end_limit is None else request.end_limit
        chunks: dict[ChunkId, ChunkBytes] = {}
        number = 0
        while number < len(runs):
            run, room = runs[number], request.max_bytes - out.bytes
            if run.base_offset < out.end_offset or run.end_offset > limit or run.length > room:
                break
            parts = self._sent_parts(run, request.leader_epoch, chunks)
            if parts is None:
                break
            framed = self.framed.of(run)
            out.add_framed(parts, framed, 0, framed.count)
            out.end_offset = run.end_offset
            number += 1
        self._note_held(chunks)
        return number

    def _sent_parts(
        self, run: Run, leader_epoch: int, chunks: dict[ChunkId, ChunkBytes]
    ) -> list[Buffer] | None:
        """Return the parts to send of a run of large batches, and add its chunk to `chunks`. Return None if it is
        another kind of run, its chunk is not in memory, or one of its batches is unchecked."""
        chunk_bytes = self._cache.settings.chunk_bytes
        number = chunk_of(run, chunk_bytes)
        if number < 0 or not (framed := self.framed.of(run)).is_large_only:
            return None
        chunk_id = ChunkId(run.key, number)
        chunk = chunks.get(chunk_id) or self._cache.peek(chunk_id)
        if chunk is None:
            return None
        at = run.start - number * chunk_bytes
        sent = chunk.sent.get(at)
        if sent is None or sent[:3] != (run.base_offset, run.length, leader_epoch):
            if not (chunk.is_trusted or chunk.checked.issuperset(framed.starts)):
                return None
            sent = PatchedRun(
                run.base_offset, run.length, leader_epoch, _parts_of(framed, chunk, at, leader_epoch)
            )
            chunk.sent[at] = sent
        chunks[chunk_id] = chunk
        return sent.parts

    def _note_held(self, chunks: dict[ChunkId, ChunkBytes]) -> None:
        """Count each chunk as read once."""
        for chunk_id, chunk in chunks.items():
            start = chunk_id.number * self._cache.settings.chunk_bytes
            self._cache.held(ChunkRef(chunk_id, start, chunk.size))

    def _refs_of(self, part: RunSpan) -> list[ChunkRef]:
        """Return the chunks of a large batch; the part consists of that one batch."""
        return self.chunks_of(part.run, part.framed.starts[part.first], part.framed.length_of(part.first))

    def _held_batch(self, part: RunSpan, refs: Sequence[ChunkRef], leader_epoch: int) -> list[Buffer] | None:
        """Return a large batch as it is sent, if its chunks are in memory and its CRC was checked; else None."""
        run, batch = part.framed, part.first
        start, length = run.starts[batch], run.length_of(batch)
        held = [chunk for ref in refs if (chunk := self._cache.peek(ref.id)) is not None]
        if len(held) < len(refs) or not all(chunk.is_trusted or start in chunk.checked for chunk in held):
            return None
        return framed_views(
            _views_of(start, start + length, refs, held), length, run.base_offsets[batch], leader_epoch
        )

    def _select(self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches) -> Selection:
        return select_spans(
            runs,
            self.framed.of,
            out.end_offset,
            max(0, request.max_bytes - out.bytes),
            is_first_free=request.minimum_one and not out.batch_count,
            end_limit=request.end_limit,
        )

    async def _fetch_unframed(self, spans: Sequence[RunSpan], leader_epoch: int, chunks: _Chunks) -> None:
        """Fetch the chunks of all pieces that are not framed, and add them to `chunks`."""
        wanted: dict[ChunkRef, Run] = {}
        for span in spans:
            if span.run.kind == ObjectKind.MARKERS:
                continue
            for piece, part in span.by_piece():
                if span.framed.framed(piece, leader_epoch) is None:
                    start, end = span.framed.place_of(piece)
                    for chunk in self.chunks_of(part.run, start, end - start):
                        wanted.setdefault(chunk, part.run)
        await self._chunks(wanted, chunks)

    async def _chunks(self, wanted: dict[ChunkRef, Run], chunks: _Chunks) -> None:
        """Add the wanted chunks that are not in `chunks`, concurrently; add the error of each that can't be fetched."""
        missing: list[tuple[ChunkRef, bool]] = []
        for ref, run in wanted.items():
            if ref.id in chunks:
                continue
            is_catch_up = self.is_catch_up(run)
            held = self._cache.held(ref, is_catch_up=is_catch_up)
            if held is not None:
                chunks[ref.id] = held
            else:
                missing.append((ref, is_catch_up))
        if missing:
            loaded = await self._cache.get_all(missing)
            chunks.update((ref.id, chunk) for (ref, _), chunk in zip(missing, loaded, strict=True))

    def _frame(self, part: RunSpan, piece: int, leader_epoch: int, chunks: _Chunks) -> memoryview | None:
        """Frame the piece that contains `part`, and keep it. Return None if a chunk is missing or a batch is
        corrupt."""
        run = part.framed
        is_trusted = True
        if part.run.kind == ObjectKind.MARKERS:
            data = bytearray().join(map(_marker_batch, _markers_of(part.run, run, piece)))
        else:
            start, end = run.place_of(piece)
            refs = self.chunks_of(part.run, start, end - start)
            present = [chunk for ref in refs if isinstance(chunk := chunks.get(ref.id), ChunkBytes)]
            if len(present) < len(refs):
                return None
            data = bytearray().join(_views_of(start, end, refs, present))
            is_trusted = all(chunk.is_trusted for chunk in present)
        framed = memoryview(data)
        if not _are_made_ready(framed, run, piece, leader_epoch=leader_epoch, is_trusted=is_trusted):
            return None
        framed = framed.toreadonly()
        run.keep(piece, leader_epoch, framed)
        return framed

    async def _add_each(self, part: RunSpan, leader_epoch: int, chunks: _Chunks, out: ReadBatches) -> bool:
        """Append the batches one by one. Return False if one can't be read and the batches before it should be
        returned."""
        run = part.framed
        for batch in range(part.first, part.upto):
            try:
                data = await self._sound_batch(part.run, run.starts[batch], run.length_of(batch), chunks)
            except StoreError:
                if out.batch_count:
                    out.is_complete = False
                    return False
                raise
            out.add(
                data,
                base_offset=run.base_offsets[batch],
                end_offset=run.end_offsets[batch],
                record_count=run.records[batch + 1] - run.records[batch],
                leader_epoch=leader_epoch,
            )
        return True

    async def _sound_batch(self, run: Run, start: int, length: int, chunks: _Chunks) -> memoryview:
        """Return the batch's bytes with the CRC checked; if it is wrong, read them again from the store. The chunks may
        be missing from `chunks`: its piece was framed when they were fetched, but a reader with another epoch has
        replaced it since."""
        refs = self.chunks_of(run, start, length)
        if not all(ref.id in chunks for ref in refs):
            await self._chunks(dict.fromkeys(refs, run), chunks)
        its_chunks = [_present(chunks[ref.id]) for ref in refs]
        batch = _bytes_of(start, start + length, refs, its_chunks)
        if all(chunk.is_trusted or start in chunk.checked for chunk in its_chunks):
            return batch
        try:
            check_crc(batch)
        except InvalidBatch:
            its_chunks = [await self._cache.reread(ref) for ref in refs]
            chunks.update((ref.id, again) for ref, again in zip(refs, its_chunks, strict=True))
            batch = _bytes_of(start, start + length, refs, its_chunks)
            try:
                check_crc(batch)
            except InvalidBatch as still:
                self._observer.batch_corrupt(run.key, start, length, is_repaired=False)
                raise ObjectCorrupt(run.key, start, length, str(still)) from still
            self._observer.batch_corrupt(run.key, start, length, is_repaired=True)
        if length >= LARGE_BATCH_BYTES:
            for chunk in its_chunks:
                chunk.checked.add(start)
        return batch


def _distinct(own: Sequence[ChunkBytes | None]) -> list[ChunkBytes]:
    """Return the chunks, each once, however many runs are in it."""
    return [chunk for chunk in dict.fromkeys(own) if chunk is not None]


def _next_own(runs: Sequence[Run], own: Sequence[ChunkBytes | None], first: int) -> int:
    """Return the number of the next run after `first` that has a chunk of its own; the end of the runs if none has."""
    return next((number for number in range(first + 1, len(own)) if own[number] is not None), len(runs))


def _add_joined(out: ReadBatches, joined: JoinedRun) -> None:
    if not out.batch_count:
        out.first_offset = joined.first_offset
    out.parts += joined.parts
    out.bytes += joined.size
    out.batch_count += joined.batch_count
    out.record_count += joined.record_count
    out.end_offset, out.client_offset = joined.end_offset, joined.client_offset


def _parts_of(run: FramedRun, chunk: ChunkBytes, at: int, leader_epoch: int) -> list[Buffer]:
    """Return the batches of a run, `at` bytes into its chunk, each with a new header."""
    parts: list[Buffer] = []
    for batch, base_offset in enumerate(run.base_offsets):
        length, start = run.length_of(batch), at + run.sizes[batch]
        parts += framed_views(chunk.views(start, start + length), length, base_offset, leader_epoch)
    return parts


def _part_of(framed: memoryview, piece: int, part: RunSpan) -> memoryview:
    run = part.framed
    if part.first == run.pieces[piece] and part.upto == run.pieces[piece + 1]:
        return framed
    begin = run.sizes[run.pieces[piece]]
    return framed[run.sizes[part.first] - begin : run.sizes[part.upto] - begin]


def _are_made_ready(
    data: memoryview, run: FramedRun, piece: int, *, leader_epoch: int, is_trusted: bool
) -> bool:
    """Write offset and epoch into each batch of a piece. Return False if a batch fails its CRC check, which batches
    that are trusted do not need."""
    first, upto = run.pieces[piece], run.pieces[piece + 1]
    sizes, base_offsets = run.sizes, run.base_offsets
    begin = sizes[first]
    for batch in range(first, upto):
        view = data[sizes[batch] - begin : sizes[batch + 1] - begin]
        if not is_trusted and not _is_sound(view):
            return False
        patch_base_offset_and_epoch(view, base_offsets[batch], leader_epoch)
    return True


def _is_sound(batch: memoryview) -> bool:
    try:
        check_crc(batch)
    except InvalidBatch:
        return False
    return True


def _markers_of(run: Run, framed: FramedRun, piece: int) -> list[Marker]:
    first, upto = framed.pieces[piece], framed.pieces[piece + 1]
    markers = run.markers[framed.base_offsets[first] - run.base_offset :][: upto - first]
    offsets = [marker.offset for marker in markers]
    assert offsets == framed.base_offsets[first:upto].tolist(), (
        f"markers at {offsets[:1]} where batches at {framed.base_offsets[first]} are listed"
    )
    assert framed.sizes[upto] - framed.sizes[first] == MARKER_BYTES * len(markers), "markers of one size"
    return markers


def _marker_batch(marker: Marker) -> bytes:
    return bytes(
        control_batch(
            MarkerKind.COMMIT if marker.is_commit else MarkerKind.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=marker.timestamp,
        )
    )


def _present(chunk: ChunkBytes | BaseException) -> ChunkBytes:
    if isinstance(chunk, BaseException):
        raise chunk
    return chunk


def _bytes_of(start: int, end: int, refs: Sequence[ChunkRef], chunks: Sequence[ChunkBytes]) -> memoryview:
    """Return bytes [start, end) of an object as one buffer: a view, or a copy if they cross a chunk boundary."""
    views = _views_of(start, end, refs, chunks)
    return views[0] if len(views) == 1 else memoryview(b"".join(views))


def _views_of(
    start: int, end: int, refs: Sequence[ChunkRef], chunks: Sequence[ChunkBytes]
) -> list[memoryview]:
    views: list[memoryview] = []
    for ref, chunk in zip(refs, chunks, strict=True):
        first = max(start, ref.start) - ref.start
        last = min(end, ref.start + ref.length) - ref.start
        views.extend(chunk.views(first, last))
    return views
