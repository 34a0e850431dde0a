"""Jobs that write without an agent, like Spark's sink: tasks upload objects, and the driver commits an epoch at once.

Now and then a driver dies before its commit, or after it and before it could note the commit. Then the epoch runs
again: other tasks, other objects, the same records.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from compactor.spark_sink.options import SinkOptions
from compactor.spark_sink.task import UploadFailed, WriteTask
from sequencer.api.commits import WriteRequest, WrittenObject
from sequencer.api.errors import SequencerError
from sequencer.client import SequencerClient
from tailrace.object_store.api import StoreError
from tests.simulation.clients import Client, Log, Stage
from tests.simulation.cluster import Unforeseen
from tests.support.history.events import Acked, Sent, identity

PUT_SECONDS = 1.0
KEY = b"k"
Row = tuple[int, bytes]
"""A record's partition and value."""


class WritingJob(Client):
    """A stream that writes epoch after epoch. All its records are stored once."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(stage, name)
        self._write_id = self.luck.uuid()
        self._numbers: dict[int, int] = {}

    async def run(self, topic: str, epochs: int) -> None:
        log = await self.surely_look_up(topic)
        for epoch in range(epochs):
            rows = self._rows(log)
            while not await self._attempt(log, epoch, rows):
                await self.pause(0.05, 0.5)
            for _, value in rows:
                self.stage.record(Acked(at=self.stage.now(), client=self.name, record=identity(KEY, value)))
            await self.pause(0.0, 0.5)

    def _rows(self, log: Log) -> list[Row]:
        """Make new records, and record them as sent in the history."""
        rows: list[Row] = []
        for _ in range(1 + self.luck.below(6)):
            partition = self.luck.below(log.partitions)
            number = self._numbers[partition] = self._numbers.get(partition, -1) + 1
            value = f"{self.name}/{log.name}/{partition}/{number}".encode()
            rows.append((partition, value))
            self.stage.record(
                Sent(
                    at=self.stage.now(), client=self.name, topic=log.name, partition=partition,
                    record=identity(KEY, value), number=number,
                )
            )  # fmt: skip
        return rows

    async def _attempt(self, log: Log, epoch: int, rows: Sequence[Row]) -> bool:
        """Run the epoch once; returns whether the driver knows that it is done."""
        death = self.luck.below(6)
        cut = self.luck.below(len(rows) + 1)
        remote = self.stage.cluster.sequencer_of(self.process)
        try:
            objects: list[WrittenObject] = []
            for part in (rows[:cut], rows[cut:]):
                objects += await self._uploaded(remote, log, part) if part else []
            if death == 0:
                return False
            await remote.commit_write(WriteRequest(self._write_id, epoch, True, objects))
            return death != 1
        except (
            SequencerError,
            StoreError,
            UploadFailed,
            Unforeseen,
        ) as error:  # Spark reruns what failed
            self.stage.note(f"{self.name}: {type(error).__name__}")
            return False
        finally:
            with suppress(SequencerError):
                await remote.close()

    async def _uploaded(self, remote: SequencerClient, log: Log, rows: Sequence[Row]) -> list[WrittenObject]:
        options = SinkOptions.of({"store": "memory:", "sequencer": "127.0.0.1:1", "topic": log.topic})
        store: Any = self.stage.cluster.store_of(self.process)
        task = WriteTask(
            remote, store, options, self._write_id, self.clock, self.luck, put_seconds=PUT_SECONDS
        )
        columns = {
            "key": pa.array([KEY] * len(rows), pa.binary()),
            "value": pa.array([value for _, value in rows], pa.binary()),
            "partition": pa.array([partition for partition, _ in rows], pa.int32()),
        }
        await task.write(pa.table(columns).to_batches())
        return task.objects
