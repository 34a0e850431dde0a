"""Bytes of real clients: what they sent is read and written again the same, what they got is what kio reads too."""

from __future__ import annotations

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from tailrace.kafka import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_request_header,
    request_codec,
)
from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.apis import APIS
from tests.tailrace.kafka.recordings import RecordedFrame, parse, recorded, written

CLIENTS = ("aiokafka", "confluent-kafka", "kafka-java", "kafka-python", "kcat")
FOLLOWING_BYTES = {("confluent-kafka", ApiKey.METADATA): 3, ("kcat", ApiKey.METADATA): 3}
"""librdkafka writes bytes behind a Metadata request for all topics (see `decode_request`)."""


KIO_CANNOT_READ = {ApiKey.DESCRIBE_TRANSACTIONS}
"""kio takes no negative time; Kafka says -1 where no transaction is open."""


def of(client: str, *, requests: bool) -> list[RecordedFrame]:
    return [frame for frame in recorded() if frame.client == client and frame.is_request is requests]


def named(frame: RecordedFrame) -> str:
    return f"{frame.client}: {ApiKey(frame.api_key).name} v{frame.api_version}"


@pytest.mark.parametrize("client", CLIENTS)
def test_requests_of_real_clients_are_written_again_to_the_same_bytes(client: str) -> None:
    frames = of(client, requests=True)
    assert len({frame.api_key for frame in frames}) >= 8, "a client's recording has its main requests"
    for frame in frames:
        if frame.api_version > APIS[frame.api_key].listed.last:
            assert frame.api_key == ApiKey.API_VERSIONS
            continue
        header = parse_request_header(frame.data)
        request = decode_request(header.api_key, header.api_version, frame.data, header.body_offset)
        again = b"".join(
            encode_request(
                header.correlation_id, header.api_key, header.api_version, request, header.client_id
            )
        )[4:]
        assert (header.api_key, header.api_version) == (frame.api_key, frame.api_version)
        more = len(frame.data) - len(again)
        assert 0 <= more <= FOLLOWING_BYTES.get((client, ApiKey(frame.api_key)), 0), named(frame)
        assert again == frame.data[: len(again)], named(frame)
        _, end = request_codec(frame.api_key, frame.api_version).decode(
            memoryview(frame.data), header.body_offset
        )
        assert end == len(again), f"{named(frame)}: nothing was skipped within"


@pytest.mark.parametrize("client", CLIENTS)
def test_responses_that_real_clients_took_are_read_by_us_and_by_kio(client: str) -> None:
    frames = of(client, requests=False)
    assert frames
    for frame in frames:
        version = frame.api_version
        if version > APIS[frame.api_key].listed.last:
            version = 0  # ApiVersions of a version to come is answered in version 0 (KIP-511)
        correlation_id, response = decode_response(frame.api_key, version, frame.data)
        again = b"".join(encode_response(correlation_id, frame.api_key, version, response))[4:]
        assert again == frame.data, named(frame)
        if frame.api_key in KIO_CANNOT_READ:
            continue
        flexible = APIS[frame.api_key].is_flexible(version) and frame.api_key != ApiKey.API_VERSIONS
        start = 5 if flexible else 4
        _, size = entity_reader(load_response_schema(frame.api_key, version))(frame.data, start)
        assert start + size == len(frame.data), named(frame)


def test_a_recording_is_read_as_it_was_written() -> None:
    frames = [RecordedFrame("c", True, 3, 12, b"asked"), RecordedFrame("c", False, 3, 12, b"")]

    assert list(parse("c", written(frames))) == frames
