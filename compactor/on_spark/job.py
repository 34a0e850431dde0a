"""The Spark job: tasks rewrite items, and the driver swaps them.

It runs on `local[*]` and on any cluster, by its master URL. Executors need this package and must reach the store by the
same URL. They share nothing else with the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from compactor.by_key.keyed_cycle import KeyedOutcomes
from compactor.by_key.keyed_rewrite import KeyedItem, KeyedResult, try_rewrite_keyed
from compactor.cycle import CompactionSettings, CompactionSummary, Outcomes, run_cycle
from compactor.on_spark.session import spark_session
from compactor.on_spark.spark_failures import cause_of_death
from compactor.on_spark.worker_process import settled
from compactor.plan import WorkItem
from compactor.rewrite import OutputLocation, RewriteFailure, RewriteResult, failure_of, try_rewrite
from sequencer.api.interface import Sequencer
from tailrace.clock import Clock, Entropy, SystemClock, SystemEntropy
from tailrace.object_store.api import ObjectMissing, StoreError
from tailrace.object_store.open import open_store

if TYPE_CHECKING:
    from compactor.columns.spark import SparkDeriver

SLICES_PER_CORE = 3
"""Items are packed by bytes into this many tasks per core, because each task costs 25 ms."""
MAX_SLICE_BYTES = 256 << 20
"""The most input of a task, unless one item has more. Results are swapped after their task has ended."""
MAX_JOBS_AT_ONCE = 256
"""The most tasks that are submitted to Spark at once. A thread waits for each."""

Task = Callable[[Sequence[bytes], str, OutputLocation], list[bytes]]
"""Takes encoded items, the store's URL and where to write. Returns encoded outcomes."""


class TaskOutcome(msgspec.Struct, frozen=True, array_like=True):
    """A task's outcome for one item: a result or a failure."""

    result: RewriteResult | None
    failure: RewriteFailure | None


class KeyedOutcome(msgspec.Struct, frozen=True, array_like=True):
    """A task's outcome for an item of passes over keys: a result or a failure."""

    result: KeyedResult | None
    failure: RewriteFailure | None


@dataclass(frozen=True, slots=True)
class TaskKind:
    """What a task does with each of its items, and how it encodes the outcome."""

    items: msgspec.msgpack.Decoder[Any]
    rewrite: Callable[..., Awaitable[Any]]
    outcome: type[TaskOutcome] | type[KeyedOutcome]


log = structlog.get_logger("tailrace.compactor")
_COMPACTION = TaskKind(msgspec.msgpack.Decoder(WorkItem), try_rewrite, TaskOutcome)
_PASSES_OVER_KEYS = TaskKind(msgspec.msgpack.Decoder(KeyedItem), try_rewrite_keyed, KeyedOutcome)
_outcomes = msgspec.msgpack.Decoder(TaskOutcome)
_keyed_outcomes = msgspec.msgpack.Decoder(KeyedOutcome)
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")


def pack(items: Sequence[WorkItem], slices: int) -> list[list[WorkItem]]:
    """Pack items into at most `slices` groups of about equal bytes: the largest item first, into the smallest group."""
    groups: list[list[WorkItem]] = [[] for _ in range(max(1, min(slices, len(items))))]
    sizes = [0] * len(groups)
    for item in sorted(items, key=lambda item: -item.stored_bytes):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(item)
        sizes[smallest] += item.stored_bytes
    return [group for group in groups if group]


class ExecutorsUnfit(Exception):
    """No task can run on these executors; the message says why in one line, and what to do."""


class SparkRunner:
    """Runs items as Spark tasks. Each task is a separate Spark job, so a task that dies does not end others.

    `executor`: its threads wait for Spark, and their number limits the concurrent jobs. `task`: what a task does.
    """

    def __init__(
        self, spark: Any, store_url: str, executor: ThreadPoolExecutor, *, task: Task | None = None
    ) -> None:
        self._spark = spark
        self._store_url = absolute_url(store_url)
        self._executor = executor
        self._task = task or run_task
        self._is_checked = task is not None

    @property
    def has_stopped(self) -> bool:
        """Whether Spark's driver has ended, so that no task will run any more."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        try:
            return bool(self._spark.sparkContext._jsc.sc().isStopped())
        except (Py4JError, AttributeError, OSError):
            return True

    @property
    def deriver(self) -> SparkDeriver:
        """Return a deriver that makes typed columns with tasks on the same Spark."""
        from compactor.columns.spark import SparkDeriver  # other tasks need no decoders

        return SparkDeriver(self._spark, self._store_url, self._executor)

    async def check(self, sample: WorkItem) -> None:
        """Let a task read a byte of the item's input. Raises ExecutorsUnfit if no task could do its work."""
        keys = [run.key for piece in sample.pieces for run in piece.runs if run.key]
        if self._is_checked:
            return
        loop = asyncio.get_running_loop()
        problem = await loop.run_in_executor(self._executor, self._run_check, keys[:1])
        if problem:
            raise ExecutorsUnfit(problem)
        self._is_checked = True

    def _run_check(self, keys: list[str]) -> str:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        store_url = self._store_url

        def task(given: Iterable[list[str]]) -> Iterator[str]:
            for row in given:
                yield run_check(row, store_url)

        try:
            (problem,) = self._spark.sparkContext.parallelize([keys], 1).mapPartitions(task).collect()
        except (Py4JError, PySparkException) as error:
            cause = cause_of_death(str(error))
            if "ModuleNotFoundError" not in cause and "ImportError" not in cause:
                return f"Spark ran no task: {cause}"
            return (
                f"the executors' Python lacks a package ({cause}); install tailrace[compactor] there, or give them the"
                " archive of `tailrace bundle` by --conf spark.archives=tailrace_env.tar.gz#tailrace_env"
            )
        return str(problem)

    async def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
        """Yield each item's outcome after its task has ended. Raises ExecutorsUnfit before the first."""
        if items:
            await self.check(items[0])
        loop = asyncio.get_running_loop()
        context = self._spark.sparkContext
        group = f"tailrace {output.prefix}"
        slices = max(
            SLICES_PER_CORE * context.defaultParallelism,
            sum(item.stored_bytes for item in items) // MAX_SLICE_BYTES,
        )
        waiting = [
            loop.run_in_executor(self._executor, self._run_slice, packed, output, group)
            for packed in pack(items, slices)
        ]
        try:
            for ended in asyncio.as_completed(waiting):
                for outcome in await ended:
                    yield outcome
        finally:
            if not all(future.done() for future in waiting):
                for future in waiting:
                    future.cancel()
                await loop.run_in_executor(None, context.cancelJobGroup, group)

    async def run_keyed(self, items: Sequence[KeyedItem], output: OutputLocation) -> KeyedOutcomes:
        """Yield each item's outcome after its task has ended. Each item is a task. Raises ExecutorsUnfit before the
        first."""
        if items:
            await self.check(items[0].as_work)
        loop = asyncio.get_running_loop()
        group = f"tailrace keys {output.prefix}"
        waiting = [
            loop.run_in_executor(self._executor, self._run_keyed, item, output, group) for item in items
        ]
        try:
            for ended in asyncio.as_completed(waiting):
                yield await ended
        finally:
            if not all(future.done() for future in waiting):
                for future in waiting:
                    future.cancel()
                await loop.run_in_executor(None, self._spark.sparkContext.cancelJobGroup, group)

    def _run_keyed(self, item: KeyedItem, output: OutputLocation, group: str) -> KeyedResult | RewriteFailure:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        for is_last in (False, True):
            try:
                (encoded,) = self._collect(
                    payload=[_encoder.encode(item)],
                    run=run_keyed_task,
                    output=output,
                    group=group,
                    topic_name=item.topic_name,
                )
                outcome: KeyedResult | RewriteFailure = _found_in(_keyed_outcomes.decode(encoded))
                return outcome
            except (Py4JError, PySparkException) as error:
                cause = cause_of_death(str(error))
                if is_last:
                    return failure_of(item.as_work, error, f"the task died: {cause}")
                log.warning("a task died; its item is tried again", cause=cause)
        raise AssertionError("the last attempt returns")

    def _run_slice(
        self, items: Sequence[WorkItem], output: OutputLocation, group: str
    ) -> list[RewriteResult | RewriteFailure]:
        """Return the outcomes of one task's items. If the task dies, retry each item once in a separate task."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return self._run_job(items, output, group)
        except (Py4JError, PySparkException) as error:
            if len(items) == 1:
                return [failure_of(items[0], error, f"the task died: {cause_of_death(str(error))}")]
            log.warning("a task died; its items are tried one by one", cause=cause_of_death(str(error)))
        return [outcome for item in items for outcome in self._run_slice([item], output, group)]

    def _run_job(
        self, items: Sequence[WorkItem], output: OutputLocation, group: str
    ) -> list[RewriteResult | RewriteFailure]:
        payload = [_encoder.encode(item) for item in items]
        encoded = self._collect(
            payload=payload, run=self._task, output=output, group=group, topic_name=items[0].topic_name
        )
        return [_found_in(_outcomes.decode(data)) for data in encoded]

    def _collect(
        self, payload: list[bytes], run: Task, output: OutputLocation, group: str, topic_name: str
    ) -> list[bytes]:
        """Run a separate task on the payload and return its output."""
        context = self._spark.sparkContext
        context.setJobGroup(group, f"compact {topic_name}", interruptOnCancel=False)
        store_url = self._store_url

        def task(payloads: Iterable[list[bytes]]) -> Iterator[bytes]:
            for encoded in payloads:
                yield from run(encoded, store_url, output)

        return list(context.parallelize([payload], 1).mapPartitions(task).collect())


def _found_in(outcome: TaskOutcome | KeyedOutcome) -> Any:
    result = outcome.result or outcome.failure
    assert result is not None, "a task's outcome is a result or a failure"
    return result


def run_task(payloads: Sequence[bytes], store_url: str, output: OutputLocation) -> list[bytes]:
    """Rewrite encoded items in a Spark task. Return encoded outcomes."""
    return _rewritten(_COMPACTION, payloads, store_url, output)


def run_keyed_task(payloads: Sequence[bytes], store_url: str, output: OutputLocation) -> list[bytes]:
    """Run encoded items of passes over keys in a Spark task. Return encoded outcomes."""
    return _rewritten(_PASSES_OVER_KEYS, payloads, store_url, output)


def _rewritten(
    kind: TaskKind, payloads: Sequence[bytes], store_url: str, output: OutputLocation
) -> list[bytes]:
    """Run the items of a task. This is the edge of a process, so it creates its own clock."""
    clock, entropy = SystemClock(), SystemEntropy()

    async def run_all() -> list[bytes]:
        store = open_store(store_url, clock=clock)
        try:
            outcomes: list[bytes] = []
            for payload in payloads:
                item = kind.items.decode(payload)
                result = await kind.rewrite(item, store, output, clock=clock, entropy=entropy)
                is_failure = isinstance(result, RewriteFailure)
                outcome = kind.outcome(None, result) if is_failure else kind.outcome(result, None)
                outcomes.append(_encoder.encode(outcome))
            return outcomes
        finally:
            await store.close()

    with settled():
        return asyncio.run(run_all())


def run_check(keys: Sequence[str], store_url: str) -> str:
    """Check in a Spark task whether this process could rewrite items. Return "", or the reason why not."""

    async def read() -> str:
        store = open_store(store_url, clock=SystemClock())
        try:
            for key in keys:
                await store.get_range(key, 0, 1)
        except ObjectMissing:
            return ""  # the object was collected after the plan, but the store works
        except StoreError as error:
            line = " ".join(f"{type(error).__name__}: {error}".split())
            return (
                f"the executors can't read the store ({line}); give them its credentials, such as"
                " --conf spark.executorEnv.AWS_ACCESS_KEY_ID=..., or a role"
            )
        finally:
            await store.close()
        return ""

    return asyncio.run(read())


def absolute_url(store_url: str) -> str:
    """Return the store's URL for other processes: a relative folder becomes absolute. Raises ValueError for memory."""
    if store_url.startswith("memory:"):
        raise ValueError("store 'memory:' exists only in this process; Spark's tasks can't reach it")
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
    """Run one round with the tasks on `spark`. Raises the same as `run_cycle`."""
    with ThreadPoolExecutor(MAX_JOBS_AT_ONCE, thread_name_prefix="spark-driver") as executor:
        runner = SparkRunner(spark, store_url, executor)
        return await run_cycle(
            sequencer,
            runner,
            clock=clock or SystemClock(),
            entropy=entropy or SystemEntropy(),
            settings=settings,
            holder=holder,
            keyed=runner,
        )


@asynccontextmanager
async def spark_runner(
    store_url: str, *, master: str | None = None, spark_settings: Mapping[str, str] | None = None
) -> AsyncIterator[SparkRunner]:
    """Start a Spark session and yield a runner on it. The session starts and stops outside the loop.

    Args:
        master: as for `spark_session`.
        spark_settings: the operator's settings, which override ours.

    Raises JavaNotFound, and ValueError for a store that tasks can't reach.
    """
    absolute_url(store_url)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(MAX_JOBS_AT_ONCE, thread_name_prefix="spark-driver") as executor:
        spark = await loop.run_in_executor(executor, lambda: spark_session(master, settings=spark_settings))
        try:
            yield SparkRunner(spark, store_url, executor)
        finally:
            await loop.run_in_executor(executor, _stop, spark)


def _stop(spark: Any) -> None:
    """Stop the session. Its JVM may have ended before: a supervisor that stops the compactor signals both."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        spark.stop()
