"""A fast path for Produce requests that look like their connection's last one: one batch, no transaction, known topic.

Such a request differs from the last one only in its correlation id, its partition and its records. The rest (the topic,
whether the client may write to it, the bytes of the answer) was decided when dispatcher, guard and handler took the
last one. `ProduceFastPath` keeps these decisions and everything that they depend on. It takes a request from its bytes
straight into the lane's buffer, and turns the batch's result into the bytes of the answer, without decoded messages in
between.

Anything else, in a request or in a result, goes through the ordinary path, and only that path refuses requests. So the
two agree: the ordinary path would take every request that is taken here, and answer it with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.catalog import KnownTopic
from agent.connection import Reply
from agent.handlers.produce import FIRST_TOPIC_ID_VERSION, FIRST_ZSTD_VERSION
from agent.produce.active_buffer import BatchResult, BufferedBatch
from agent.services import RequestContext, Services
from agent.telemetry import API_NAMES
from sequencer.api.commits import BatchError
from tailrace.batches.produced_batch import plain_batch
from tailrace.configs.topic_config import Flush
from tailrace.ids import TopicPartition
from tailrace.kafka import ApiKey
from tailrace.kafka.answers import stored_answer
from tailrace.kafka.messages.produce import TopicProduceData
from tailrace.kafka.produce_shape import ProduceShape

MAX_KNOWN_PARTITIONS = 64
"""The most partitions of its topic that a connection's requests keep."""
_STORED = BatchError.NONE


class FastPathReply(Reply, kw_only=True):
    """The reply to one request, completed by its batch's result. `started`: monotonic seconds."""

    requests: ProduceFastPath
    correlation_id: int
    index: int
    started: float

    def settle(self, index: int, result: BatchResult) -> None:
        """Answer with the batch's result. Only the first result counts."""
        if self.is_made:
            return
        requests = self.requests
        if result.error is _STORED and result.failure is None:
            requests.stored(self, result.base_offset, result.log_start_offset)
        else:
            requests.on_not_stored(self, result)


class ProduceFastPath:
    """The kept decisions for all requests of a connection that look like its last one.

    Args:
        on_not_stored: called to make the answer of a batch that was not simply stored.
    """

    __slots__ = (
        "_access", "_acls", "_answer", "_catalog", "_clock", "_cross_zone", "_identity", "_is_async", "_lanes",
        "_latency", "_leadership", "_max_message_bytes", "_newest", "_oldest", "_partitions", "_quotas", "_seconds",
        "_settings", "_snapshot", "_started", "_telemetry", "_topic", "on_not_stored", "shape",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        *,
        shape: ProduceShape,
        topic: KnownTopic,
        on_not_stored: Callable[[FastPathReply, BatchResult], None],
    ) -> None:
        self.shape = shape
        self.on_not_stored = on_not_stored
        self._topic = topic.topic
        self._settings = topic.settings
        self._max_message_bytes = topic.settings.max_message_bytes
        self._latency = topic.settings.latency
        self._is_async = topic.settings.flush is Flush.ASYNC
        self._clock = services.clock
        self._lanes = services.lanes
        self._catalog = services.catalog
        self._snapshot = services.catalog.snapshot
        self._quotas = services.quotas
        self._identity = services.identity
        self._access = context.access
        self._acls = None if context.access.acls is None else context.access.acls()
        self._leadership = context.leadership
        telemetry = self._telemetry = services.telemetry
        is_from_elsewhere = context.zone != services.identity.zone
        self._cross_zone = telemetry.topics.of(topic.topic.name) if is_from_elsewhere else None
        self._seconds = telemetry.request_seconds.series(API_NAMES[ApiKey.PRODUCE])
        named = shape.request.topic_data[0]
        self._answer = stored_answer(shape.header.api_version, named.name, named.topic_id)
        self._partitions: dict[int, TopicPartition] = {}
        self._started = 0.0
        self._oldest = self._newest = 0

    @classmethod
    def like(
        cls,
        services: Services,
        context: RequestContext,
        *,
        shape: ProduceShape,
        named: TopicProduceData,
        acks: int,
        on_not_stored: Callable[[FastPathReply, BatchResult], None],
    ) -> ProduceFastPath | None:
        """Build from a request that `handle_at_once` has just taken; None if each such request needs all checks."""
        known = services.catalog.snapshot
        by_id = context.api_version >= FIRST_TOPIC_ID_VERSION
        topic = known.by_id.get(named.topic_id) if by_id else known.by_name.get(named.name)
        if (
            topic is None
            or topic.is_internal
            or topic.settings.log_append_time
            or context.api_version < FIRST_ZSTD_VERSION
            or not acks
            or context.charge is not None
            or not context.leadership.knows(known.ring)
        ):
            return None
        return cls(services, context, shape=shape, topic=topic, on_not_stored=on_not_stored)

    def begin(self) -> bool:
        """Whether the kept decisions still hold."""
        acls = self._access.acls
        if (
            self._catalog.snapshot is not self._snapshot
            or self._quotas.is_on
            or self._identity.is_leaving
            or (acls is not None and acls() is not self._acls)
        ):
            return False
        now, settings = self._clock.wall_ms(), self._settings
        self._oldest = now - settings.timestamp_before_max_ms
        self._newest = now + settings.timestamp_after_max_ms
        self._started = self._clock.monotonic()
        return True

    def take(self, data: memoryview, start: int, end: int, *, is_kept: bool) -> Reply | None:
        """Return the reply to the request in `data[start:end]`. Return None, without side effects, if it does not look
        like the others. `is_kept`: the bytes do not change, so the batch can be a view."""
        fields = self.shape.find(data, start, end)
        if fields is None:
            return None
        correlation_id, index, records_start, records_end = fields
        partition = self._partitions.get(index) or self._partition(index)
        if partition is None:
            return None
        records = data[records_start:records_end]
        batch = plain_batch(
            records,
            max_message_bytes=self._max_message_bytes,
            oldest_timestamp=self._oldest,
            newest_timestamp=self._newest,
        )
        if batch is None:
            return None
        telemetry = self._telemetry
        telemetry.produced_bytes.inc(batch.length)
        telemetry.produced_records.inc(batch.record_count)
        if self._cross_zone is not None:
            self._cross_zone.cross_zone_bytes += batch.length
        reply = FastPathReply(
            is_made=False,
            requests=self,
            correlation_id=correlation_id,
            index=index,
            started=self._started,
        )
        kept = records if is_kept and 2 * batch.length >= end - start else bytes(records)
        # Positional arguments, because this runs for each request.
        buffered = BufferedBatch(batch, kept, reply, 0, 0, self._latency, self._is_async)
        self._lanes.add(partition, self._topic.name, buffered)
        return reply

    def stored(self, reply: FastPathReply, base_offset: int, log_start_offset: int) -> None:
        """Make the answer to a batch that was stored."""
        self._seconds.observe(self._clock.monotonic() - reply.started)
        reply.made([self._answer.of(reply.correlation_id, reply.index, base_offset, log_start_offset)])

    def _partition(self, index: int) -> TopicPartition | None:
        """Return a partition that is not kept yet; None if the topic has none with this number."""
        if not 0 <= index < self._topic.partitions:
            return None
        partition = TopicPartition(self._topic.topic_id, index)
        self._leadership.note(partition)
        if len(self._partitions) >= MAX_KNOWN_PARTITIONS:
            self._partitions.clear()
        self._partitions[index] = partition
        return partition
