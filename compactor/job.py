"""The Spark job: items rewritten by tasks, swapped by the driver.

Runs on `local[*]` and on any cluster by its master URL. Executors need this package and reach the store by the
same URL; nothing else is shared with the driver.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from compactor.cycle import CompactionSettings, CompactionSummary, OutputLocation, run_cycle
from compactor.java import find_java
from compactor.plan import WorkItem
from compactor.rewrite import RewriteFailure, RewriteResult, try_rewrite
from sequencer.api import Sequencer
from sequencer.client import SequencerClient
from tailrace.clock import Clock, Entropy, SystemClock, SystemEntropy
from tailrace.object_store.open import open_store
from tailrace.rpc import RpcSecurity

SLICES_PER_CORE = 3
"""Items are packed by bytes into this many tasks a core: a task of its own costs an item 25 ms."""

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.log.level": "ERROR",
}
_CLUSTER_SETTINGS = ("spark.driver.host", "spark.driver.bindAddress")


class TaskOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What a task sends back for one item: one of the two."""

    result: RewriteResult | None
    failure: RewriteFailure | None


_items = msgspec.msgpack.Decoder(WorkItem)
_outcomes = msgspec.msgpack.Decoder(TaskOutcome)
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")


def spark_session(
    master: str = "local[*]", *, name: str = "tailrace compact", settings: dict[str, str] | None = None
) -> Any:
    """A Spark session with what Tailrace needs; `settings` are added, and win. Blocks for some seconds."""
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        if is_local or key not in _CLUSTER_SETTINGS or (settings and key in settings):
            builder = builder.config(key, value)
    return builder.getOrCreate()


def pack(items: Sequence[WorkItem], slices: int) -> list[list[WorkItem]]:
    """At most `slices` groups of about the same bytes: each item, largest first, to the smallest group."""
    groups: list[list[WorkItem]] = [[] for _ in range(max(1, min(slices, len(items))))]
    sizes = [0] * len(groups)
    for item in sorted(items, key=lambda item: -item.stored_bytes):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(item)
        sizes[smallest] += item.stored_bytes
    return [group for group in groups if group]


class SparkRunner:
    """Runs items as Spark tasks. `executor`: one thread, which waits for Spark."""

    def __init__(self, spark: Any, store_url: str, executor: ThreadPoolExecutor) -> None:
        self._spark = spark
        self._store_url = absolute_url(store_url)
        self._executor = executor

    async def run(
        self, items: Sequence[WorkItem], output: OutputLocation
    ) -> list[RewriteResult | RewriteFailure]:
        """Each item's outcome."""
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, self._run, list(items), output
        )

    def _run(self, items: list[WorkItem], output: OutputLocation) -> list[RewriteResult | RewriteFailure]:
        context = self._spark.sparkContext
        groups = pack(items, SLICES_PER_CORE * context.defaultParallelism)
        payloads = [[_encoder.encode(item) for item in group] for group in groups]
        store_url, prefix, cluster_id = self._store_url, output.prefix, output.cluster_id

        def task(groups_of_slice: Iterable[list[bytes]]) -> Iterator[bytes]:
            for group in groups_of_slice:
                yield from run_task(group, store_url, prefix, cluster_id)

        encoded = context.parallelize(payloads, len(payloads)).mapPartitions(task).collect()
        outcomes = [_outcomes.decode(each) for each in encoded]
        found: list[RewriteResult | RewriteFailure] = []
        for outcome in outcomes:
            one = outcome.result or outcome.failure
            assert one is not None, "a task's outcome is a result or a failure"
            found.append(one)
        return found


def run_task(payloads: Sequence[bytes], store_url: str, prefix: str, cluster_id: str) -> list[bytes]:
    """What a Spark task does: encoded items in, encoded outcomes out. A process's edge: it makes its own clock."""
    clock, entropy = SystemClock(), SystemEntropy()

    async def run_all() -> list[bytes]:
        store = open_store(store_url, clock=clock)
        try:
            outcomes: list[bytes] = []
            for payload in payloads:
                outcome = await try_rewrite(
                    _items.decode(payload),
                    store,
                    prefix=prefix,
                    cluster_id=cluster_id,
                    clock=clock,
                    entropy=entropy,
                )
                outcomes.append(_encoder.encode(_outcome_of(outcome)))
            return outcomes
        finally:
            await store.close()

    return asyncio.run(run_all())


def _outcome_of(found: RewriteResult | RewriteFailure) -> TaskOutcome:
    return TaskOutcome(None, found) if isinstance(found, RewriteFailure) else TaskOutcome(found, None)


def absolute_url(store_url: str) -> str:
    """The store's URL for other processes: a relative folder made absolute. Raises ValueError for memory."""
    if store_url.startswith("memory:"):
        raise ValueError("store 'memory:' is this process's own; Spark's tasks can't reach it")
    return store_url if "://" in store_url else str(Path(store_url).expanduser().absolute())


async def compact(
    sequencer: Sequencer,
    store_url: str,
    *,
    spark: Any,
    settings: CompactionSettings | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    holder: str | None = None,
) -> CompactionSummary:
    """Compact what qualifies, with the tasks on `spark`. Raises as `run_cycle`."""
    with ThreadPoolExecutor(1, thread_name_prefix="spark-driver") as executor:
        return await run_cycle(
            sequencer,
            SparkRunner(spark, store_url, executor),
            clock=clock or SystemClock(),
            entropy=entropy or SystemEntropy(),
            settings=settings,
            holder=holder,
        )


async def run_compaction(
    store_url: str,
    sequencer: Sequencer | None = None,
    *,
    sequencers: Sequence[str] = (),
    security: RpcSecurity | None = None,
    master: str = "local[*]",
    min_age_ms: int | None = None,
    settings: CompactionSettings | None = None,
    spark_settings: dict[str, str] | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> CompactionSummary:
    """`tailrace compact`: a Spark session of its own, started, used and stopped off the loop.

    Args:
        sequencer: to be asked; or else `sequencers`, the addresses ('host:port') of one behind RPC.
        min_age_ms: in place of that of `settings`; 0 compacts whatever there is.

    Raises as `run_cycle`, NoJava, and ValueError for a store that tasks can't reach.
    """
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    settings = settings or CompactionSettings()
    if min_age_ms is not None:
        settings = replace(settings, min_age_ms=min_age_ms)
    absolute_url(store_url)
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        if sequencer is None:
            remote = SequencerClient(sequencers, clock=clock, entropy=entropy, security=security)
            stack.push_async_callback(remote.close)
            sequencer = remote.sequencer
        executor = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="spark-session"))
        spark = await loop.run_in_executor(executor, lambda: spark_session(master, settings=spark_settings))
        try:
            return await compact(
                sequencer, store_url, spark=spark, settings=settings, clock=clock, entropy=entropy
            )
        finally:
            await loop.run_in_executor(executor, spark.stop)
