"""A template encodes the same bytes as the codec."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tailrace.kafka import ApiKey, encode_response
from tailrace.kafka.answers import encoded_once, produce_answer, sent_again, with_throttle_time
from tailrace.kafka.apis import APIS
from tailrace.kafka.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tailrace.kafka.schema import fields_of
from tailrace.turns import at_once

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SPEC = APIS[ApiKey.PRODUCE]
STORED = st.builds(
    PartitionProduceResponse,
    index=INT32, base_offset=INT64, log_append_time_ms=INT64, log_start_offset=INT64,
)  # fmt: skip
REFUSED = st.builds(
    PartitionProduceResponse,
    index=INT32,
    error_code=st.integers(1, 100),
    error_message=st.none() | st.text(max_size=20),
    record_errors=st.just([]) | st.just([BatchIndexAndErrorMessage(0, "why")]),
)
NAMES = st.text(st.characters(codec="ascii"), min_size=1, max_size=249)


@given(
    correlation_id=INT32,
    version=st.integers(SPEC.listed.first, SPEC.listed.last),
    name=NAMES,
    topic_id=st.uuids() | st.just(UUID(int=0)),
    rows=st.lists(STORED, min_size=1, max_size=1) | st.lists(STORED | REFUSED, max_size=3),
)
def test_a_produce_answer_is_what_the_codec_gives(
    correlation_id: int, version: int, name: str, topic_id: UUID, rows: list[PartitionProduceResponse]
) -> None:
    topic = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=rows)
    response = ProduceResponse(responses=[topic])

    written = b"".join(produce_answer(correlation_id, version, response))

    assert written == b"".join(encode_response(correlation_id, ApiKey.PRODUCE, version, response))


def test_an_answer_for_no_topic_or_for_several_is_what_the_codec_gives() -> None:
    for topics in (0, 2):
        row = PartitionProduceResponse(index=1, base_offset=2)
        response = ProduceResponse(
            responses=[TopicProduceResponse(name=f"t{n}", partition_responses=[row]) for n in range(topics)]
        )
        written = b"".join(produce_answer(1, 9, response))
        assert written == b"".join(encode_response(1, ApiKey.PRODUCE, 9, response))


def test_a_wait_is_written_into_every_answer_that_begins_with_it_and_into_no_other() -> None:
    for spec in APIS.values():
        for version in range(spec.served.first, spec.served.last + 1):
            response = spec.response()
            plain = encode_response(7, spec.key, version, response)
            again = sent_again(7, at_once(encoded_once(spec.key, version, response)))
            first = fields_of(spec.response)[0]
            begins_with_it = first.name == "throttle_time_ms" and version in first.versions
            if begins_with_it:
                response.throttle_time_ms = 77
            expected = b"".join(encode_response(7, spec.key, version, response))
            for parts in (plain, again):
                assert b"".join(with_throttle_time(parts, spec.key, version, 77)) == expected
                assert list(with_throttle_time(parts, spec.key, version, 0)) == list(parts)
