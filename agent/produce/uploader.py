"""Uploads sealed buffers: each becomes one mixed object, which is put within a deadline and enters the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from agent.produce.active_buffer import ActiveBuffer, FlushFailure, transactions_of
from agent.produce.upload_session import UploadSession
from agent.settings import AgentSettings
from agent.telemetry import AgentTelemetry
from sequencer.api.commits import ObjectDescription, RunProposal, uploaded_key
from tailrace.batches.mixed_object import SealedObject, seal
from tailrace.buffers import Buffer
from tailrace.clock import Clock, Entropy
from tailrace.ids import TopicPartition
from tailrace.object_store.api import ObjectStore, StoreError, StoreFull, StoreRefused
from tailrace.turns import Turns

log = structlog.get_logger("agent.flush")

RUNS_IN_A_TURN = 2_000
"""An object of more runs yields to the loop between sealing, upload and description."""
SMALL_PART_BYTES = 2048
"""An object whose average part is smaller goes into the cache as one copy: a view costs some 400 bytes."""

LEASE_ENDS = FlushFailure("storage", "the upload session's lease is running out")


class WriteThrough(Protocol):
    """Takes fresh objects into the cache, so their readers need no GET."""

    def write_through(self, key: str, parts: Sequence[Buffer]) -> None: ...


class Uploader:
    """Uploads one lane's buffers, at most `max_inflight_uploads` at a time."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        clock: Clock,
        entropy: Entropy,
        store: ObjectStore,
        cache: WriteThrough,
        telemetry: AgentTelemetry,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._store = store
        self._cache = cache
        self._telemetry = telemetry
        self._slots = asyncio.Semaphore(settings.max_inflight_uploads)

    async def store_buffer(
        self, session: UploadSession, number: int, buffer: ActiveBuffer
    ) -> tuple[ObjectDescription, list[RunProposal]] | None:
        """Upload the buffer as an object and return what to commit; None if that failed, and its batches with it."""
        turns = Turns(RUNS_IN_A_TURN)
        sealed, description = self._seal_object(session, number, buffer)
        await turns.did(len(sealed.footer.runs))
        failure = await self.upload(session, description.key, sealed)
        if failure is not None:
            self._telemetry.flush_failures.labels(failure.kind).inc()
            log.warning("a flush failed", key=description.key, bytes=sealed.size, error=failure.message)
            buffer.fail(failure)
            return None
        self._telemetry.flush_bytes.observe(sealed.size)
        self._telemetry.topics.stored(
            [
                (buffer.topic_names[TopicPartition(run.topic_id, run.partition)], run.length)
                for run in sealed.footer.runs
            ]
        )
        await turns.did(len(sealed.footer.runs))
        proposals = [
            RunProposal(
                topic_id=run.topic_id,
                partition=run.partition,
                start=run.start,
                length=run.length,
                batches=run.batches,
                transactions=transactions_of(buffer.batches[TopicPartition(run.topic_id, run.partition)]),
            )
            for run in sealed.footer.runs
        ]
        await turns.did(len(proposals))
        return description, proposals

    def _seal_object(
        self, session: UploadSession, number: int, buffer: ActiveBuffer
    ) -> tuple[SealedObject, ObjectDescription]:
        sealed = seal(
            [
                (
                    partition,
                    buffer.topic_names[partition],
                    [(batch.coordinates, [batch.data]) for batch in batches],
                )
                for partition, batches in buffer.batches.items()
            ],
            object_id=self._entropy.uuid(),
            session_id=session.session_id,
            number=number,
            created_ms=self._clock.wall_ms(),
        )
        return sealed, ObjectDescription.of_mixed(uploaded_key(session.prefix, number), sealed)

    async def upload(self, session: UploadSession, key: str, sealed: SealedObject) -> FlushFailure | None:
        """Put the object within the deadline; retry transient errors. Return why it failed, or None."""
        deadline = self._clock.monotonic() + self._settings.upload_deadline_ms / 1000
        attempt, last = 0, "no try was made before the deadline"
        async with self._slots:
            while (now := self._clock.monotonic()) < deadline:
                if now >= session.no_put_after:
                    return LEASE_ENDS
                try:
                    async with asyncio.timeout(deadline - now):
                        await self._store.put(key, sealed.parts)
                    self._telemetry.upload_seconds.observe(self._clock.monotonic() - now)
                    self._cache.write_through(key, _without_small_parts(sealed))
                    return None
                except TimeoutError:
                    before = f"; the try before: {last}" if attempt else ""
                    took = f"the store took longer than {self._settings.upload_deadline_ms} ms"
                    return FlushFailure("storage", took + before)
                except (StoreFull, StoreRefused) as error:
                    return FlushFailure("storage", str(error))
                except StoreError as error:
                    last = str(error)
                attempt += 1
                await self._clock.sleep(min(0.05 * 2**attempt, 1.0) * (0.5 + self._entropy.fraction()))
        return FlushFailure("storage", last)


def _without_small_parts(sealed: SealedObject) -> Sequence[Buffer]:
    """Return the object's parts for the cache, which counts only their bytes. Small parts are joined, because each
    costs more memory than its bytes."""
    if len(sealed.parts) * SMALL_PART_BYTES > sealed.size:
        return [b"".join(sealed.parts)]
    return sealed.parts
