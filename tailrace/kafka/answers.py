"""Fast paths for frequent responses, which are not encoded field by field.

The response to a successful produce request of one batch always has the same bytes, except for five numbers. A template
gives the same bytes as the codec. The codec encodes responses of any other shape.

A large response that is the same for many clients is encoded once (`encoded_once`) and sent with each client's
correlation id (`sent_again`).
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
from tailrace.kafka.encoder_source import Parts
from tailrace.kafka.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tailrace.kafka.schema import fields_of
from tailrace.turns import Steps

TEMPLATES = 4_096
"""The most templates that are kept: topics times versions in use."""
FIRST_VERSION = 5
"""From this version on, a response has all five numbers."""
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
    """The template of the response to a successful produce request of one batch."""

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
        """Return the whole frame with these numbers."""
        frame = bytearray(self.frame)
        _CORRELATION.pack_into(frame, _CORRELATION_AT, correlation_id)
        _ROW.pack_into(frame, self.row_at, index, 0, base_offset, log_append_time_ms, log_start_offset)
        return frame


def encoded_once(api_key: int, version: int, response: Any) -> Steps[bytes]:
    """Encode the response's frame after its correlation id."""
    parts = yield from encode_response_in_steps(0, api_key, version, response)
    return b"".join(parts)[_REST_AT:]


def sent_again(correlation_id: int, encoded: bytes) -> Parts:
    """Return the whole frame for a result of `encoded_once`, which is not copied."""
    return [_HEAD.pack(_REST_AT - _CORRELATION_AT + len(encoded), correlation_id), encoded]


def with_throttle_time(parts: Sequence[Buffer], api_key: int, version: int, ms: int) -> Parts:
    """Return the response with its throttle time set to `ms`. A response that does not begin with a throttle time is
    returned unchanged."""
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
    """Do the same as `encode_response` for Produce, with a template if possible."""
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
    """Return the template of responses in this version (FIRST_VERSION or later) for this topic."""
    topic = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[_MARK])
    frame = b"".join(encode_response(0, ApiKey.PRODUCE, version, ProduceResponse(responses=[topic])))
    marked = (_MARK.index, 0, _MARK.base_offset, _MARK.log_append_time_ms, _MARK.log_start_offset)
    return StoredAnswer(frame, frame.rindex(_ROW.pack(*marked)))
