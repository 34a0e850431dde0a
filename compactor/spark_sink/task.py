"""A task of a write: uploads rows as objects under the job's session. The driver commits them.

Invariants:
- the objects that a task reports are durable, and not visible before the driver's commit;
- no PUT starts so late that it could end after the session's lease;
- each attempt of a task has its own objects, and those of a failed attempt are never committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID, uuid5

import pyarrow as pa

from compactor.spark_sink.encode import encode_rows
from compactor.spark_sink.options import SinkOptions
from compactor.spark_sink.rows import Target, rows_of
from sequencer.api.commits import ObjectDescription, OpenSession, RunProposal, SessionGrant, WrittenObject
from sequencer.api.interface import Sequencer
from sequencer.api.topics import BrokerConfigsRequest, MetadataRequest
from sequencer.rules.upload_sessions import WRITER_BROKER_ID
from sequencer.store_check import check_store, has_objects
from tailrace.batches.mixed_object import SealedObject, seal
from tailrace.clock import Clock, Entropy
from tailrace.configs.topic_config import topic_settings
from tailrace.object_store.api import ObjectStore, StoreError, StoreFull, StoreRefused

PUT_SECONDS = 60.0
"""How long the upload of one object may take, including retries."""
_DAY_MS = 86_400_000
_SESSIONS = UUID("6f1a1d0e-5d0f-4f0e-9d53-0d1b6a1c7a11")
"""The UUID namespace of writers' sessions."""


class UploadFailed(Exception):
    """An object could not be uploaded in time. The task fails, and Spark retries it."""


@dataclass(slots=True)
class WriteTask:
    """Uploads a task's rows. `write_id`: the stream's or the job's, the same in all tasks."""

    sequencer: Sequencer
    store: ObjectStore
    options: SinkOptions
    write_id: UUID
    clock: Clock
    entropy: Entropy
    put_seconds: float = PUT_SECONDS
    objects: list[WrittenObject] = field(default_factory=list)
    _targets: dict[str, Target] | None = None
    _rows: int = 0
    _sticky: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1 << 31)))

    async def write(self, batches: Iterable[Any]) -> None:
        """Write some rows as one object.

        Raises InvalidRow, UploadFailed, SequencerError, StoreError; WrongStore if the store is not the cluster's.
        """
        table = pa.Table.from_batches(batches)
        if not table.num_rows:
            return
        if self._targets is None:
            self._targets = await self._topics()
            self._sticky = self.entropy.uuid().int % (1 << 31)
        rows, self._sticky = rows_of(
            table, self._targets, topic=self.options.topic, first=self._rows, sticky=self._sticky
        )
        now_ms = self.clock.wall_ms()
        runs = encode_rows(rows, self.options.compression, now_ms)
        self._rows += table.num_rows
        asked_at = self.clock.monotonic()
        session = await self._session()
        object_id = self.entropy.uuid()
        sealed = seal(
            runs,
            object_id=object_id,
            session_id=session.session_id,
            number=next(self._numbers),
            created_ms=now_ms,
        )
        key = f"{session.prefix}{object_id}"
        await self._upload(key, sealed, no_put_after=asked_at + session.lease_ms / 1000 - self.put_seconds)
        self.objects.append(_written(session.session_id, key, sealed))

    async def _topics(self) -> dict[str, Target]:
        known = await self.sequencer.metadata(MetadataRequest())
        await check_store(self.store, known.cluster_id, partial(has_objects, self.sequencer), self.clock)
        defaults = (await self.sequencer.broker_configs(BrokerConfigsRequest(""))).configs
        topic_name = self.options.topic
        return {
            topic.name: Target(topic, topic_settings(topic.configs, defaults))
            for topic in known.topics or []
            if not topic_name or topic.name == topic_name
        }

    async def _session(self) -> SessionGrant:
        """Open or renew the job's session of today. The collector finds the orphans of a session that has ended."""
        name = uuid5(_SESSIONS, f"{self.write_id}/{self.clock.wall_ms() // _DAY_MS}")
        return await self.sequencer.open_session(OpenSession(WRITER_BROKER_ID, 0, name=name))

    async def _upload(self, key: str, sealed: SealedObject, *, no_put_after: float) -> None:
        """Put the object, with retries until it succeeds or the time is over."""
        deadline = self.clock.monotonic() + self.put_seconds
        attempt, last = 0, "no try was made"
        while (now := self.clock.monotonic()) < min(deadline, no_put_after):
            try:
                async with asyncio.timeout(deadline - now):
                    await self.store.put(key, sealed.parts)
                return
            except TimeoutError:
                break
            except (StoreFull, StoreRefused):
                raise
            except StoreError as error:
                last = str(error)
            attempt += 1
            await self.clock.sleep(min(0.1 * 2**attempt, 2.0) * (0.5 + self.entropy.fraction()))
        raise UploadFailed(
            f"object {key} of {sealed.size} bytes was not stored in {self.put_seconds:.0f} s: {last}"
        )


def _written(session_id: UUID, key: str, sealed: SealedObject) -> WrittenObject:
    runs = [
        RunProposal(
            topic_id=run.topic_id,
            partition=run.partition,
            start=run.start,
            length=run.length,
            batches=run.batches,
        )
        for run in sealed.footer.runs
    ]
    return WrittenObject(session_id, ObjectDescription.of_mixed(key, sealed), runs)


def chunks(batches: Iterable[Any], most_bytes: int) -> Iterator[list[Any]]:
    """Group the rows into chunks of about `most_bytes`, each of which becomes an object. Splits a larger batch."""
    group: list[Any] = []
    size = 0
    for batch in batches:
        for part in _parts(batch, most_bytes):
            group.append(part)
            size += part.nbytes
            if size >= most_bytes:
                yield group
                group, size = [], 0
    if group:
        yield group


def _parts(batch: Any, most_bytes: int) -> Iterator[Any]:
    if batch.nbytes <= most_bytes or batch.num_rows < 2:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _parts(batch.slice(0, middle), most_bytes)
    yield from _parts(batch.slice(middle), most_bytes)
