"""Answers that are sent so often that they are not encoded field by field.

A produce request of one batch that was stored is answered by the same bytes each time, but for five numbers. What the
template gives is what the codec gives; where an answer is another shape, the codec makes it.

A large answer that many clients get alike is encoded once (`encoded_once`) and sent with each one's correlation id
(`sent_again`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Any
from uuid import UUID

from tailrace.buffers import Buffer
from tailrace.kafka import ApiKey, encode_response, encode_response_in_steps
from tailrace.kafka.apis import APIS
from tailrace.kafka.compiler import Parts
from tailrace.kafka.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tailrace.kafka.schema import fields_of
from tailrace.turns import Steps

TEMPLATES = 4_096
"""Topics, times versions in use, whose template is kept."""
FIRST_VERSION = 5
"""From this version on an answer has all five numbers."""
_CORRELATION_AT = 4
_REST_AT = 8
_CORRELATION = Struct(">i")
_INT32 = Struct(">i")
_HEAD = Struct(">ii")
_ROW = Struct(">ihqqq")
_MARK = PartitionProduceResponse(
    index=0x5EC0DE01, base_offset=0x5EC0DE02, log_append_time_ms=0x5EC0DE03, log_start_offset=0x5EC0DE04
)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The answer to a produce request of one batch that was stored: all but its numbers."""

    frame: bytes
    row_at: int

    def of(
        self,
        correlation_id: int,
        index: int,
        base_offset: int,
        log_start_offset: int,
        log_append_time_ms: int = -1,
    ) -> bytearray:
        """The whole frame with these numbers."""
        frame = bytearray(self.frame)
        _CORRELATION.pack_into(frame, _CORRELATION_AT, correlation_id)
        _ROW.pack_into(frame, self.row_at, index, 0, base_offset, log_append_time_ms, log_start_offset)
        return frame


def encoded_once(api_key: int, version: int, response: Any) -> Steps[bytes]:
    """The response's frame from behind its correlation id on."""
    parts = yield from encode_response_in_steps(0, api_key, version, response)
    return b"".join(parts)[_REST_AT:]


def sent_again(correlation_id: int, encoded: bytes) -> Parts:
    """The whole frame of what `encoded_once` gave, which is not copied."""
    return [_HEAD.pack(_REST_AT - _CORRELATION_AT + len(encoded), correlation_id), encoded]


def with_throttle_time(parts: Sequence[Buffer], api_key: int, version: int, ms: int) -> Parts:
    """The same answer saying that its client is to be silent for so long. Only for answers that begin with that; others
    are returned as they are."""
    spec = APIS[api_key]
    first = fields_of(spec.response)[0]
    if not ms or first.name != "throttle_time_ms" or version not in first.versions:
        return list(parts)
    at = _REST_AT + spec.is_flexible(version)
    number = int(len(parts[0]) <= at)
    changed = bytearray(parts[number])
    _INT32.pack_into(changed, at - number * len(parts[0]), ms)
    return [*parts[:number], changed, *parts[number + 1 :]]


def produce_answer(correlation_id: int, version: int, response: ProduceResponse) -> Parts:
    """As `encode_response`, for Produce."""
    if version < FIRST_VERSION or not _is_of_one_stored_batch(response):
        return encode_response(correlation_id, ApiKey.PRODUCE, version, response)
    topic = response.responses[0]
    row = topic.partition_responses[0]
    answer = stored_answer(version, topic.name, topic.topic_id)
    frame = answer.of(
        correlation_id,
        row.index,
        row.base_offset,
        row.log_start_offset,
        log_append_time_ms=row.log_append_time_ms,
    )
    return [frame]


def _is_of_one_stored_batch(response: ProduceResponse) -> bool:
    if len(response.responses) != 1 or response.throttle_time_ms or response.node_endpoints:
        return False
    rows = response.responses[0].partition_responses
    if len(rows) != 1:
        return False
    row = rows[0]
    return (
        not row.error_code
        and not row.record_errors
        and row.error_message is None
        and row.current_leader == _MARK.current_leader
    )


@lru_cache(TEMPLATES)
def stored_answer(version: int, name: str, topic_id: UUID) -> StoredAnswer:
    """What the answers of this version (FIRST_VERSION or later) for this topic have in common."""
    topic = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[_MARK])
    frame = b"".join(encode_response(0, ApiKey.PRODUCE, version, ProduceResponse(responses=[topic])))
    marked = (_MARK.index, 0, _MARK.base_offset, _MARK.log_append_time_ms, _MARK.log_start_offset)
    return StoredAnswer(frame, frame.rindex(_ROW.pack(*marked)))
