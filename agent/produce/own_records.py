"""Records that an agent writes itself, by the lanes that producers' batches take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agent.catalog import KnownTopic
from agent.produce.active_buffer import BatchResult, BufferedBatch, Submission
from agent.services import Services
from sequencer.api import BatchError
from tailrace.grouping import in_groups
from tailrace.ids import TopicPartition
from tailrace.mixed_object import coordinates
from tailrace.record_batch import read_header
from tailrace.records import NewRecord, encode_batch
from tailrace.topic_config import Latency


async def is_written(
    services: Services,
    topic: KnownTopic,
    partition: int,
    records: Sequence[NewRecord],
    latency: Latency = Latency.BALANCED,
) -> bool:
    """Write records to a partition of a topic, in their order, in batches as large as the topic takes; whether all of
    them are stored. A record that is larger is a batch of its own."""
    now = services.clock.wall_ms()
    batches = [
        encode_batch(some, timestamps=[now] * len(some))
        for some in in_groups(records, size_of, topic.settings.max_message_bytes)
    ]
    done: asyncio.Future[list[BatchResult | None]] = asyncio.get_running_loop().create_future()

    def settled(results: list[BatchResult | None]) -> None:
        if not done.cancelled():
            done.set_result(results)

    submission = Submission(len(batches), settled)
    topic_partition = TopicPartition(topic.topic.topic_id, partition)
    services.lanes.submit(
        [
            (
                topic_partition,
                topic.topic.name,
                BufferedBatch(coordinates(read_header(batch)), batch, submission, index, latency=latency),
            )
            for index, batch in enumerate(batches)
        ]
    )
    return all(
        result is not None and result.error is BatchError.NONE and result.failure is None
        for result in await done
    )


def size_of(record: NewRecord) -> int:
    """At least what the record takes in a batch, in bytes."""
    headers = sum(len(name) + len(value or b"") + 10 for name, value in record.headers)
    return 100 + headers + len(record.key or b"") + len(record.value or b"")
