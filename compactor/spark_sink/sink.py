"""`df.write.format("tailrace")` and `df.writeStream.format("tailrace")`: Spark's Kafka sink, without Kafka.

Tasks upload objects (`task.py`), and the driver commits all of them at once (sequencer.rules.writes). Spark's id of the
query and its epoch identify a stream's commit, so a restarted stream repeats its last epoch without effect.
`options.py` has the options; docs/compactor.md describes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from compactor.on_spark.worker_process import settled
from compactor.spark_sink.options import SinkOptions
from compactor.spark_sink.task import WriteTask, chunks
from sequencer.api.commits import SessionRef, WriteAnswer, WriteRequest, WrittenObject
from sequencer.api.errors import LimitReached, SequencerError
from sequencer.api.interface import Sequencer
from sequencer.client import SequencerClient
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.grouping import in_groups
from tailrace.object_store.open import open_store
from tailrace.rpc.loaded_security import LoadedSecurity

T = TypeVar("T")

QUERY_ID, EPOCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of a stream's tasks (Spark's StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY)."""
COMMIT_PATIENCE_S = 120.0
"""How long a commit is retried while no sequencer answers. After that, Spark fails the query."""
PART_RUNS, PART_BATCHES, PART_RECORDS = 5_000, 50_000, 8_000_000
"""The most runs, batches and records in one commit of a batch job that need not be atomic. An object with more is a
commit alone."""
_WHOLE_PART = 1_000_000

_objects = msgspec.msgpack.Decoder(list[WrittenObject])


class Uploaded(WriterCommitMessage):  # type: ignore[misc]
    """A task's message to the driver, with the encoded `objects` that it uploaded."""

    def __init__(self, write_id: UUID, epoch: int, objects: Sequence[WrittenObject]) -> None:
        self.write_id = write_id
        self.epoch = epoch
        self.encoded = msgspec.msgpack.encode(list(objects))

    @property
    def objects(self) -> list[WrittenObject]:
        """Decode the uploaded objects."""
        return _objects.decode(self.encoded)


@asynccontextmanager
async def _sequencer(options: SinkOptions, patience_s: float = 30.0) -> AsyncIterator[Sequencer]:
    """Open a client of the sequencers. The edge of a process: Spark starts the workers, so they create their own
    clock."""
    client = SequencerClient(
        options.sequencers,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        security=LoadedSecurity(options.security).rpc,
        patience_s=patience_s,
    )
    try:
        yield client
    finally:
        await client.close()


def upload(options: SinkOptions, write_id: UUID, epoch: int, batches: Iterator[Any]) -> Uploaded:
    """Upload a task's rows as they arrive. Spark's iterator waits while an object is written."""
    with settled(), asyncio.Runner() as runner:
        clock = SystemClock()
        store = open_store(options.store, clock=clock)
        opened = _sequencer(options)
        sequencer = runner.run(_entered(opened))
        try:
            task = WriteTask(
                sequencer=sequencer,
                store=store,
                options=options,
                write_id=write_id,
                clock=clock,
                entropy=SystemEntropy(),
            )
            for chunk in chunks(batches, options.object_bytes):
                runner.run(task.write(chunk))
            return Uploaded(write_id, epoch, task.objects)
        finally:
            runner.run(_left(opened))
            runner.run(store.close())


async def _entered(opened: Any) -> Sequencer:
    entered: Sequencer = await opened.__aenter__()
    return entered


async def _left(opened: Any) -> None:
    await opened.__aexit__(None, None, None)


def _ask_sequencer(options: SinkOptions, ask: Callable[[Sequencer], Awaitable[T]]) -> T:
    async def asked() -> T:
        async with _sequencer(options, COMMIT_PATIENCE_S) as sequencer:
            return await ask(sequencer)

    with settled():
        return asyncio.run(asked())


def _all_objects(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenObject]:
    return [written for message in messages if isinstance(message, Uploaded) for written in message.objects]


class BatchSink(DataSourceArrowWriter):  # type: ignore[misc]
    """The sink of one `df.write`. Spark creates it once, on the driver, and sends it to the tasks and to the commit."""

    def __init__(self, options: SinkOptions, write_id: UUID) -> None:
        self._options = options
        self._write_id = write_id

    def write(self, iterator: Iterator[Any]) -> Uploaded:
        return upload(self._options, self._write_id, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        objects = _all_objects(messages)
        parts = [objects] if self._options.is_atomic else list(parts_of(objects))

        async def commit(sequencer: Sequencer) -> None:
            for epoch, part in enumerate(part for part in parts if part):
                request = WriteRequest(self._write_id, epoch, is_stream=False, objects=part)
                await _commit(sequencer, request, "or give option atomic=false")
            await _close(sequencer, objects)

        _ask_sequencer(self._options, commit)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        objects = _all_objects(messages)
        if objects:
            _ask_sequencer(self._options, lambda sequencer: _close(sequencer, objects))


class StreamSink(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The sink of a stream. Spark creates one for the tasks of an epoch, and another for its commit."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Uploaded:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query_id, epoch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(EPOCH)
        if query_id is None or epoch is None:
            raise RuntimeError(
                f"Spark did not tell {QUERY_ID} and {EPOCH}; a stream can't be written without"
            )
        return upload(self._options, UUID(query_id), int(epoch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        objects = _all_objects(messages)
        if not objects:
            return
        named = {(message.write_id, message.epoch) for message in messages if isinstance(message, Uploaded)}
        assert len(named) == 1, f"tasks of one epoch name {named}"
        [(write_id, epoch)] = named
        assert epoch == batchId, f"tasks of epoch {epoch} in the commit of {batchId}"
        request = WriteRequest(write_id, epoch, is_stream=True, objects=objects)
        _ask_sequencer(
            self._options, lambda sequencer: _commit(sequencer, request, "or have smaller triggers")
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the uploaded objects are swept when the day's session has ended."""


def parts_of(objects: Sequence[WrittenObject]) -> Iterator[list[WrittenObject]]:
    """Group the objects into parts with at most `PART_RUNS`, `PART_BATCHES` and `PART_RECORDS`."""
    return in_groups(objects, _share_of_part, _WHOLE_PART)


def _share_of_part(written: WrittenObject) -> int:
    """Return how much of a part the object takes, in millionths, by the count that takes most."""
    batches = [batch for run in written.runs for batch in run.batches]
    records = sum(batch.record_count for batch in batches)
    counts = ((len(written.runs), PART_RUNS), (len(batches), PART_BATCHES), (records, PART_RECORDS))
    return max(-(-count * _WHOLE_PART // most) for count, most in counts)


async def _commit(sequencer: Sequencer, request: WriteRequest, advice: str) -> WriteAnswer:
    try:
        return await sequencer.commit_write(request)
    except LimitReached as error:
        raise LimitReached(
            f"{error}. Nothing was written. Partition the rows by topic partition, give larger objectBytes, {advice}"
        ) from error


async def _close(sequencer: Sequencer, objects: Sequence[WrittenObject]) -> None:
    """Close the job's sessions. A session that can't be closed now expires."""
    for session_id in dict.fromkeys(written.session_id for written in objects):
        with suppress(SequencerError):
            await sequencer.close_session(SessionRef(session_id))
