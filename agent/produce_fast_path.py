"""A fast path for Produce requests that look like earlier ones of their connection: one batch, no transaction, known
topic.

Such a request differs from the earlier ones to its topic only in its correlation id, its partition and its records. The
rest (the topic, whether the client may write to it, the bytes of the answer) was decided when dispatcher, guard and
handler took one of those. `ProduceFastPath` keeps these decisions, by topic, and everything that they depend on. It
takes a request from its bytes straight into the lane's buffer, and turns the batch's result into the bytes of the
answer, without decoded messages in between.

Anything else, in a request or in a result, goes through the ordinary path, and only that path refuses requests. So the
two agree: the ordinary path would take every request that is taken here, and answer it with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.catalog import KnownTopic
from agent.handlers.produce import FIRST_TOPIC_ID_VERSION, FIRST_ZSTD_VERSION
from agent.produce.active_buffer import BatchResult, BufferedBatch
from agent.replies import Reply
from agent.services import RequestContext, Services
from agent.telemetry import API_NAMES
from sequencer.api.commits import BatchError
from tailrace.batches.produced_batch import plain_batch
from tailrace.configs.topic_config import Flush
from tailrace.ids import TopicPartition
from tailrace.kafka import ApiKey
from tailrace.kafka.answers import stored_answer
from tailrace.kafka.messages.produce import TopicProduceData
from tailrace.kafka.produce_shape import ProduceShape, ProduceShapes

MAX_KNOWN_PARTITIONS = 256
"""The most partitions that a connection's requests keep, of all topics."""
_STORED = BatchError.NONE


class FastPathReply(Reply, kw_only=True):
    """The reply to one request, completed by its batch's result. `started`: monotonic seconds."""

    requests: TopicRequests
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


class TopicRequests:
    """The kept decisions for the requests of a connection to one topic.

    Args:
        on_not_stored: called to make the answer of a batch that was not simply stored.
    """

    __slots__ = (
        "_answer", "_clock", "_seconds", "after_ms", "before_ms", "cross_zone", "is_async", "latency",
        "max_message_bytes", "of", "on_not_stored", "partitions", "shape", "topic", "topic_name",
    )  # fmt: skip

    def __init__(
        self,
        of: ProduceFastPath,
        services: Services,
        context: RequestContext,
        *,
        shape: ProduceShape,
        topic: KnownTopic,
        on_not_stored: Callable[[FastPathReply, BatchResult], None],
    ) -> None:
        self.of = of
        self.shape = shape
        self.on_not_stored = on_not_stored
        self.topic = topic.topic
        self.topic_name = topic.topic.name
        settings = topic.settings
        self.max_message_bytes = settings.max_message_bytes
        self.latency = settings.latency
        self.is_async = settings.flush is Flush.ASYNC
        self.before_ms = settings.timestamp_before_max_ms
        self.after_ms = settings.timestamp_after_max_ms
        self.partitions: dict[int, TopicPartition] = {}
        self._clock = services.clock
        telemetry = services.telemetry
        is_from_elsewhere = context.zone != services.identity.zone
        self.cross_zone = telemetry.topics.of(self.topic_name) if is_from_elsewhere else None
        self._seconds = telemetry.request_seconds.series(API_NAMES[ApiKey.PRODUCE])
        named = shape.request.topic_data[0]
        self._answer = stored_answer(shape.header.api_version, named.name, named.topic_id)

    def stored(self, reply: FastPathReply, base_offset: int, log_start_offset: int) -> None:
        """Make the answer to a batch that was stored."""
        self._seconds.observe(self._clock.monotonic() - reply.started)
        reply.made([self._answer.of(reply.correlation_id, reply.index, base_offset, log_start_offset)])


class ProduceFastPath:
    """The kept decisions for all requests of a connection that look like earlier ones. Those for a topic are kept with
    its shape. It takes requests once it has learned of one."""

    __slots__ = (
        "_access", "_acls", "_catalog", "_identity", "_kept_partitions", "_lanes", "_last", "_leadership", "_now",
        "_quota_book", "_quotas", "_services", "_shapes", "_snapshot", "_started",
    )  # fmt: skip
    _last: TopicRequests

    def __init__(self, services: Services, context: RequestContext, shapes: ProduceShapes) -> None:
        self._services = services
        self._shapes = shapes
        self._lanes = services.lanes
        self._catalog = services.catalog
        self._snapshot = services.catalog.snapshot
        self._quotas = services.quotas
        self._quota_book = services.quotas.book
        self._identity = services.identity
        self._access = context.access
        self._acls = None if context.access.acls is None else context.access.acls()
        self._leadership = context.leadership
        self._kept_partitions = 0
        self._started = 0.0
        self._now = 0

    def learn(
        self,
        context: RequestContext,
        *,
        shape: ProduceShape,
        named: TopicProduceData,
        acks: int,
        on_not_stored: Callable[[FastPathReply, BatchResult], None],
    ) -> bool:
        """Keep what was decided of a request that `handle_at_once` has just taken. Return False if each request like it
        needs all checks."""
        known = self._snapshot
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
            return False
        self._last = shape.kept = TopicRequests(
            self, self._services, context, shape=shape, topic=topic, on_not_stored=on_not_stored
        )
        return True

    def begin(self) -> bool:
        """Whether the kept decisions still hold."""
        acls = self._access.acls
        if (
            self._catalog.snapshot is not self._snapshot
            or self._quotas.book is not self._quota_book
            or self._identity.is_leaving
            or (acls is not None and acls() is not self._acls)
        ):
            return False
        clock = self._services.clock
        self._now = clock.wall_ms()
        self._started = clock.monotonic()
        return True

    def take(self, data: memoryview, start: int, end: int, *, is_kept: bool) -> Reply | None:
        """Return the reply to the request in `data[start:end]`. Return None, without side effects, if it does not look
        like the others. `is_kept`: the bytes do not change, so the batch can be a view."""
        requests = self._last
        fields = requests.shape.find(data, start, end)
        if fields is None:
            shape = self._shapes.of(data, start)
            if shape is None or (requests := shape.kept) is None or requests.of is not self:
                return None
            if (fields := shape.find(data, start, end)) is None:
                return None
            self._last = requests
        correlation_id, index, records_start, records_end = fields
        partition = requests.partitions.get(index) or self._partition(requests, index)
        if partition is None:
            return None
        records = data[records_start:records_end]
        now = self._now
        batch = plain_batch(
            records,
            max_message_bytes=requests.max_message_bytes,
            oldest_timestamp=now - requests.before_ms,
            newest_timestamp=now + requests.after_ms,
        )
        if batch is None:
            return None
        telemetry = self._services.telemetry
        telemetry.produced_bytes.inc(batch.length)
        telemetry.produced_records.inc(batch.record_count)
        if requests.cross_zone is not None:
            requests.cross_zone.cross_zone_bytes += batch.length
        reply = FastPathReply(
            is_made=False,
            requests=requests,
            correlation_id=correlation_id,
            index=index,
            started=self._started,
        )
        kept = records if is_kept and 2 * batch.length >= end - start else bytes(records)
        # Positional arguments, because this runs for each request.
        buffered = BufferedBatch(batch, kept, reply, 0, 0, requests.latency, requests.is_async)
        self._lanes.add(partition, requests.topic_name, buffered)
        return reply

    def _partition(self, requests: TopicRequests, index: int) -> TopicPartition | None:
        """Return a partition that is not kept yet; None if the topic has none with this number."""
        if not 0 <= index < requests.topic.partitions:
            return None
        partition = TopicPartition(requests.topic.topic_id, index)
        self._leadership.note(partition)
        if self._kept_partitions >= MAX_KNOWN_PARTITIONS:
            self._forget_partitions()
        self._kept_partitions += 1
        requests.partitions[index] = partition
        return partition

    def _forget_partitions(self) -> None:
        self._kept_partitions = 0
        for shape in self._shapes:
            if shape.kept is not None:
                shape.kept.partitions.clear()
