"""The elements of a Produce request are counted in its bytes as they are decoded."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kafka import ApiKey, MalformedRequest, decode_request, encode_request, parse_request_header
from tailrace.kafka.apis import MAX_ITEMS_BY_PARTITION
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.kafka.produce_elements import elements_of
from tailrace.kafka.source_writer import STEP
from tailrace.turns import at_once

VERSIONS = range(3, 14)
RECORDS = st.none() | st.binary(max_size=200).map(memoryview)
REQUESTS = st.builds(
    ProduceRequest,
    st.none() | st.text(max_size=3),
    st.integers(-1, 1),
    st.just(30_000),
    st.lists(
        st.builds(
            TopicProduceData,
            st.text(max_size=200),
            st.just(UUID(int=1)),
            st.lists(st.builds(PartitionProduceData, st.integers(0, 9), RECORDS), max_size=4),
        ),
        max_size=4,
    ),
)


def encoded(request: ProduceRequest, version: int, client: str | None = "c") -> bytes:
    return b"".join(encode_request(7, ApiKey.PRODUCE, version, request, client))[4:]


def count(request: ProduceRequest) -> int:
    return len(request.topic_data) + sum(len(topic.partition_data) for topic in request.topic_data)


@given(REQUESTS, st.sampled_from(VERSIONS), st.none() | st.text(max_size=3))
def test_a_requests_elements_are_those_that_are_decoded(
    request: ProduceRequest, version: int, client: str | None
) -> None:
    assert at_once(elements_of(memoryview(encoded(request, version, client)))) == count(request)


@given(REQUESTS, st.sampled_from(VERSIONS), st.data())
def test_no_more_is_decoded_of_any_bytes_than_was_counted(
    request: ProduceRequest, version: int, data: st.DataObject
) -> None:
    frame = bytearray(encoded(request, version))
    for at in data.draw(st.lists(st.integers(4, len(frame) - 1), max_size=3)):
        frame[at] = data.draw(st.integers(0, 255))
    frame = frame[: data.draw(st.integers(1, len(frame)))]
    counted = at_once(elements_of(memoryview(frame)))
    try:
        header = parse_request_header(frame)
        decoded = decode_request(ApiKey.PRODUCE, header.api_version, frame, header.body_offset)
    except MalformedRequest:
        return
    assert counted == count(decoded)


@pytest.mark.parametrize("version", [8, 13])
def test_counting_is_done_in_steps_and_ends_above_what_is_decoded(version: int) -> None:
    nulls = [PartitionProduceData(0, None)] * (2 * MAX_ITEMS_BY_PARTITION)
    request = ProduceRequest(None, -1, 30_000, [TopicProduceData("t", partition_data=nulls)])
    steps = list(elements_of(memoryview(encoded(request, version))))
    assert sum(steps) <= MAX_ITEMS_BY_PARTITION and max(steps) <= STEP + 1
    empty = ProduceRequest(None, -1, 30_000, [TopicProduceData("t")] * (2 * MAX_ITEMS_BY_PARTITION))
    assert sum(elements_of(memoryview(encoded(empty, version)))) <= MAX_ITEMS_BY_PARTITION
