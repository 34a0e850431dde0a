"""Records that the agent itself writes, through the same lanes as producers' batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agent.catalog import KnownTopic
from agent.produce.active_buffer import BatchResult, BufferedBatch, Submission
from agent.services import Services
from sequencer.api.commits import BatchError
from tailrace.batches.mixed_object import coordinates
from tailrace.batches.record_batch import read_header
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.configs.topic_config import Latency
from tailrace.grouping import in_groups
from tailrace.ids import TopicPartition


async def is_written(
    services: Services,
    topic: KnownTopic,
    partition: int,
    records: Sequence[NewRecord],
    latency: Latency = Latency.BALANCED,
) -> bool:
    """Write records to a partition, in order, in batches up to the topic's `max.message.bytes`. Return whether all are
    stored. A larger record gets its own batch."""
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
    """Return an upper bound of the record's bytes in a batch."""
    headers = sum(len(name) + len(value or b"") + 10 for name, value in record.headers)
    return 100 + headers + len(record.key or b"") + len(record.value or b"")
