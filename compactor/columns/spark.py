"""Derives typed columns in Spark tasks. Each task is a separate Spark job for some objects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from compactor.columns.derive import DeriveItem, DeriveOutcome, derive
from compactor.on_spark.spark_failures import cause_of_death
from compactor.on_spark.worker_process import settled
from tailrace.clock import SystemClock
from tailrace.object_store.open import open_store

TASK_BYTES = 64 << 20
"""The most bytes of objects of one task, unless one object is larger."""
GROUP = "tailrace columns"

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_items = msgspec.msgpack.Decoder(DeriveItem)
_outcomes = msgspec.msgpack.Decoder(DeriveOutcome)


class DeriveFailed(Exception):
    """A task died; the message has the cause in one line. The table is not updated until the next round."""


def packed(items: Sequence[DeriveItem]) -> list[list[DeriveItem]]:
    """Group the items, one group per task."""
    groups: list[list[DeriveItem]] = []
    size = TASK_BYTES
    for item in items:
        size += item.object.size
        if size > TASK_BYTES:
            groups.append([])
            size = item.object.size
        groups[-1].append(item)
    return groups


class SparkDeriver:
    """See compactor.tables.values.Deriver. `executor`: its threads wait for Spark."""

    def __init__(self, spark: Any, store_url: str, executor: ThreadPoolExecutor) -> None:
        self._spark = spark
        self._store_url = store_url
        self._executor = executor

    async def derive(self, items: Sequence[DeriveItem]) -> list[DeriveOutcome]:
        """Return each item's outcome. Raises DeriveFailed."""
        loop = asyncio.get_running_loop()
        waiting = [loop.run_in_executor(self._executor, self._collect, group) for group in packed(items)]
        try:
            return [outcome for outcomes in await asyncio.gather(*waiting) for outcome in outcomes]
        finally:
            if not all(future.done() for future in waiting):
                for future in waiting:
                    future.cancel()
                await loop.run_in_executor(None, self._spark.sparkContext.cancelJobGroup, GROUP)

    def _collect(self, items: Sequence[DeriveItem]) -> list[DeriveOutcome]:
        """Run a separate task on the items and return the outcomes."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        context = self._spark.sparkContext
        context.setJobGroup(GROUP, "typed columns", interruptOnCancel=False)
        store_url = self._store_url

        def task(given: Iterable[list[bytes]]) -> Iterator[bytes]:
            for row in given:
                yield from derive_in_task(row, store_url)

        payload = [_encoder.encode(item) for item in items]
        try:
            encoded = context.parallelize([payload], 1).mapPartitions(task).collect()
        except (Py4JError, PySparkException) as error:
            raise DeriveFailed(f"typed columns: {cause_of_death(str(error))}") from error
        return [_outcomes.decode(data) for data in encoded]


def derive_in_task(payloads: Sequence[bytes], store_url: str) -> list[bytes]:
    """Derive encoded items in a Spark task. Return encoded outcomes. The edge of a process: it creates its own
    clock."""

    async def derive_all() -> list[bytes]:
        store = open_store(store_url, clock=SystemClock())
        try:
            return [_encoder.encode(await derive(_items.decode(payload), store)) for payload in payloads]
        finally:
            await store.close()

    with settled():
        return asyncio.run(derive_all())
