"""Codecs raise only their own errors, bound counts, and do not copy records."""

from __future__ import annotations

import contextlib
import random
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.kafka import (
    ApiKey,
    MalformedRequest,
    UnencodableMessage,
    UnsupportedVersion,
    decode_request,
    decode_request_in_steps,
    decode_response,
    decode_response_in_steps,
    encode_request,
    encode_request_in_steps,
    encode_response,
    encode_response_in_steps,
    request_codec,
    response_codec,
)
from tailrace.kafka.apis import APIS, MAX_ITEMS, MAX_ITEMS_BY_PARTITION, listed_versions
from tailrace.kafka.compiler import Codec, codec
from tailrace.kafka.encoder_source import MAX_MESSAGE_BYTES, Parts
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.api_versions import ApiVersion, ApiVersionsResponse
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolSubscription
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from tailrace.kafka.messages.find_coordinator import FindCoordinatorResponse
from tailrace.kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tailrace.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tailrace.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.kafka.schema import Int32, Message, On, String, fields_of
from tailrace.kafka.source_writer import STEP
from tailrace.turns import at_once
from tests.tailrace.kafka.message_samples import declared, sample


def encoded(body: Codec, message: Any) -> bytes:
    parts: Parts = []
    parts.append(body.encode(message, bytearray(), parts))
    return b"".join(parts)


def codecs() -> list[tuple[int, int, type, Codec]]:
    found: list[tuple[int, int, type, Codec]] = []
    for key, version in declared():
        found.append((key, version, APIS[key].request, request_codec(key, version)))
        found.append((key, version, APIS[key].response, response_codec(key, version)))
    return found


CODECS = codecs()


def test_in_steps_every_message_is_read_and_written_as_at_once() -> None:
    rng = random.Random(8)
    for key, version in declared():
        request, response = (
            sample(message, version, rng) for message in (APIS[key].request, APIS[key].response)
        )
        sent = memoryview(encoded(request_codec(key, version), request))
        assert at_once(decode_request_in_steps(key, version, sent)) == decode_request(key, version, sent)
        written = at_once(encode_response_in_steps(7, key, version, response))
        frame = b"".join(written)
        assert frame == b"".join(encode_response(7, key, version, response))
        answer = memoryview(frame)[4:]
        assert (
            at_once(decode_response_in_steps(key, version, answer))
            == decode_response(key, version, answer)[1]
        )
        written = at_once(encode_request_in_steps(7, key, version, request, "c"))
        assert b"".join(written) == b"".join(encode_request(7, key, version, request, "c"))
        if sent:
            with pytest.raises(MalformedRequest):
                at_once(decode_request_in_steps(key, version, sent[:-1]))


def test_a_long_message_pauses_after_each_step() -> None:
    names = [f"t{number}" for number in range(3 * STEP + 1)]
    request = MetadataRequest([MetadataRequestTopic(name=name) for name in names])
    sent = memoryview(encoded(request_codec(ApiKey.METADATA, 9), request))
    assert list(decode_request_in_steps(ApiKey.METADATA, 9, sent)) == [STEP] * 3
    response = MetadataResponse(topics=[MetadataResponseTopic(name=name) for name in names])
    assert list(encode_response_in_steps(7, ApiKey.METADATA, 9, response)) == [STEP] * 3


def test_every_prefix_of_every_message_is_malformed() -> None:
    rng = random.Random(1)
    for _, version, message, body in CODECS:
        whole = encoded(body, sample(message, version, rng))
        cuts = range(len(whole)) if len(whole) < 200 else rng.sample(range(len(whole)), 60)
        for cut in cuts:
            with pytest.raises(MalformedRequest):
                body.decode(memoryview(whole)[:cut], 0)


def test_flipped_bytes_raise_nothing_but_malformed_request() -> None:
    rng = random.Random(2)
    for _, version, message, body in CODECS:
        whole = bytearray(encoded(body, sample(message, version, rng)))
        for _ in range(25 if whole else 0):
            changed = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(len(changed))] = rng.choice(
                    (0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256))
                )
            with contextlib.suppress(MalformedRequest):
                body.decode(memoryview(changed), 0)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(CODECS), st.binary(max_size=120))
def test_arbitrary_bytes_raise_nothing_but_malformed_request(
    which: tuple[int, int, type, Codec], data: bytes
) -> None:
    with contextlib.suppress(MalformedRequest):
        which[3].decode(memoryview(data), 0)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (8, b"\x7f\xff\xff\xff"),
        (8, b"\x00\xff\xff\xff"),
        (9, b"\xff\xff\xff\xff\x07"),
        (12, b"\xff\xff\xff\xff\x7f"),
    ],
)
def test_a_huge_count_is_refused_before_anything_is_allocated(version: int, data: bytes) -> None:
    with pytest.raises(MalformedRequest, match="topics are declared"):
        decode_request(ApiKey.METADATA, version, data + bytes(100))


def test_a_huge_count_of_integers_is_refused() -> None:
    # SyncGroup has none; OffsetFetch v1 has partition indexes.
    data = b"\x00\x01g" + b"\x00\x00\x00\x01" + b"\x00\x01t" + b"\x7f\xff\xff\xff" + bytes(40)
    with pytest.raises(MalformedRequest, match="partition_indexes are declared"):
        decode_request(ApiKey.OFFSET_FETCH, 1, data)


def test_a_length_below_null_is_malformed() -> None:
    with pytest.raises(MalformedRequest):
        decode_request(ApiKey.METADATA, 1, b"\xff\xff\xff\xfe")
    with pytest.raises(MalformedRequest):
        decode_request(ApiKey.FIND_COORDINATOR, 0, b"\xff\xff")


def test_null_metadata_topics_are_not_an_empty_list() -> None:
    assert decode_request(ApiKey.METADATA, 1, b"\xff\xff\xff\xff").topics is None
    assert decode_request(ApiKey.METADATA, 1, b"\x00\x00\x00\x00").topics == []


def test_bytes_behind_a_request_are_ignored_as_librdkafka_leaves_some_behind_metadata_for_all_topics() -> (
    None
):
    whole = encoded(request_codec(ApiKey.METADATA, 13), MetadataRequest(topics=None))
    assert decode_request(ApiKey.METADATA, 13, whole + bytes(3)).topics is None


def test_bytes_behind_a_response_are_malformed() -> None:
    whole = encoded(response_codec(ApiKey.HEARTBEAT, 3), HeartbeatResponse())
    with pytest.raises(MalformedRequest, match="1 bytes follow"):
        decode_response(ApiKey.HEARTBEAT, 3, bytes(4) + whole + b"\x00")


def test_text_that_is_not_utf8_is_malformed() -> None:
    with pytest.raises(MalformedRequest):
        decode_request(ApiKey.FIND_COORDINATOR, 0, b"\x00\x02\xff\xfe")


def test_a_varint_of_six_bytes_is_malformed() -> None:
    with pytest.raises(MalformedRequest, match="varint"):
        decode_request(ApiKey.METADATA, 12, b"\xff\xff\xff\xff\xff\x01" + bytes(20))


def test_unknown_tagged_fields_are_skipped_on_every_level() -> None:
    body = request_codec(ApiKey.HEARTBEAT, 4)
    whole = encoded(body, HeartbeatRequest(group_id="g", member_id="m", generation_id=7))
    assert whole[-1] == 0
    tagged = whole[:-1] + b"\x02" + b"\x05\x03abc" + b"\xc8\x01\x00"
    assert decode_request(ApiKey.HEARTBEAT, 4, tagged) == decode_request(ApiKey.HEARTBEAT, 4, whole)


def test_unknown_tags_beside_known_ones_are_skipped() -> None:
    body = response_codec(ApiKey.API_VERSIONS, 3)
    response = ApiVersionsResponse(finalized_features_epoch=9)
    whole = encoded(body, response)
    start = whole.index(b"\x01\x01\x08" + (9).to_bytes(8, "big"))
    changed = whole[:start] + b"\x02" + whole[start + 1 :] + b"\x63\x02hi"
    assert body.decode(memoryview(changed), 0) == (response, len(changed))


def test_a_tagged_field_that_does_not_fill_its_size_is_malformed() -> None:
    body = response_codec(ApiKey.API_VERSIONS, 3)
    whole = encoded(body, ApiVersionsResponse(finalized_features_epoch=9))
    start = whole.index(b"\x01\x01\x08")
    changed = whole[: start + 2] + b"\x09" + whole[start + 3 :] + b"\x00"
    with pytest.raises(MalformedRequest, match="does not fill"):
        body.decode(memoryview(changed), 0)


def test_records_are_views_into_the_frame() -> None:
    records = bytes(range(256)) * 8
    request = ProduceRequest(
        acks=-1,
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(0, memoryview(records))])
        ],
    )
    frame = bytearray(encoded(request_codec(ApiKey.PRODUCE, 9), request))
    decoded = decode_request(ApiKey.PRODUCE, 9, frame)
    view = decoded.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view.obj is frame
    assert view == records


def fetch_response(records: Any) -> FetchResponse:
    partition = PartitionData(partition_index=3, high_watermark=10, records=records)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])


def test_large_records_leave_uncopied_and_in_order() -> None:
    first, second = memoryview(b"a" * 3000), b"b" * 2000
    parts = encode_response(1, ApiKey.FETCH, 11, fetch_response([first, second]))
    assert any(part is first for part in parts)
    assert any(part is second for part in parts)
    frame = b"".join(parts)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    _, decoded = decode_response(ApiKey.FETCH, 11, frame[4:])
    assert decoded.responses[0].partitions[0].records == first.tobytes() + second


def test_small_records_join_their_neighbours() -> None:
    assert len(encode_response(1, ApiKey.FETCH, 12, fetch_response([b"ab", memoryview(b"cd")]))) == 1


@pytest.mark.parametrize("version", [4, 12, 17])
def test_null_and_empty_records_stay_apart(version: int) -> None:
    for records in (None, b"", []):
        frame = b"".join(encode_response(1, ApiKey.FETCH, version, fetch_response(records)))
        _, decoded = decode_response(ApiKey.FETCH, version, frame[4:])
        found = decoded.responses[0].partitions[0].records
        assert found is None if records is None else found == b""


def test_a_tagged_structure_is_written_only_when_it_is_not_the_default() -> None:
    plain = encoded(response_codec(ApiKey.FETCH, 12), fetch_response(None))
    response = fetch_response(None)
    response.responses[0].partitions[0].current_leader = LeaderIdAndEpoch(-1, -1)
    assert encoded(response_codec(ApiKey.FETCH, 12), response) == plain
    response.responses[0].partitions[0].current_leader = LeaderIdAndEpoch(4, 2)
    assert len(encoded(response_codec(ApiKey.FETCH, 12), response)) == len(plain) + 2 + 8 + 1


def test_a_value_that_its_version_cannot_carry_is_an_error() -> None:
    with pytest.raises(UnencodableMessage, match="node_id is not in version 4"):
        encode_response(1, ApiKey.FIND_COORDINATOR, 4, FindCoordinatorResponse(node_id=3))


@pytest.mark.parametrize("version", [1, 3])
def test_values_that_do_not_fit_are_unencodable(version: int) -> None:
    broken = [
        FindCoordinatorResponse(node_id=2**31),
        FindCoordinatorResponse(host="h" * 32768),
        FindCoordinatorResponse(host=None),  # type: ignore[arg-type]
        FindCoordinatorResponse(host="\ud800"),
        MetadataRequest(),
    ]
    for message in broken:
        with pytest.raises(UnencodableMessage):
            encode_response(1, ApiKey.FIND_COORDINATOR, version, message)
    longest = FindCoordinatorResponse(host="h" * 32767)
    frame = b"".join(encode_response(1, ApiKey.FIND_COORDINATOR, version, longest))
    assert decode_response(ApiKey.FIND_COORDINATOR, version, frame[4:]) == (1, longest)


def test_an_error_message_is_cut_to_what_fits() -> None:
    asked = FindCoordinatorResponse(error_message="é" * 16384)
    frame = b"".join(encode_response(1, ApiKey.FIND_COORDINATOR, 3, asked))
    _, read = decode_response(ApiKey.FIND_COORDINATOR, 3, frame[4:])
    assert read.error_message == "é" * (MAX_MESSAGE_BYTES // 2)


def test_elements_of_a_request_are_bounded_together() -> None:
    def asked(count: int) -> bytes:
        groups = [OffsetFetchRequestGroup(topics=[OffsetFetchRequestTopics(partition_indexes=[0] * count)])]
        return encoded(request_codec(ApiKey.OFFSET_FETCH, 8), OffsetFetchRequest(groups=groups))

    body = request_codec(ApiKey.OFFSET_FETCH, 8)
    read, _ = body.decode(memoryview(asked(MAX_ITEMS_BY_PARTITION - 2)), 0)
    assert len(read.groups[0].topics[0].partition_indexes) == MAX_ITEMS_BY_PARTITION - 2
    with pytest.raises(MalformedRequest, match="elements"):
        body.decode(memoryview(asked(MAX_ITEMS_BY_PARTITION - 1)), 0)


def test_requests_that_name_no_partitions_have_fewer_elements() -> None:
    names = DescribeGroupsRequest(groups=["g"] * MAX_ITEMS)
    body = request_codec(ApiKey.DESCRIBE_GROUPS, 5)
    assert body.decode(memoryview(encoded(body, names)), 0)[0] == names
    names.groups.append("g")
    with pytest.raises(MalformedRequest, match="elements"):
        body.decode(memoryview(encoded(body, names)), 0)


def test_a_null_where_the_version_has_none_is_unencodable() -> None:
    # All topics are an empty list in version 0 and null from 1 on.
    with pytest.raises(UnencodableMessage):
        encode_request(1, ApiKey.METADATA, 0, MetadataRequest(topics=None))


def test_undeclared_apis_and_versions_are_named() -> None:
    for key, version in ((7, 0), (9999, 0), (ApiKey.FETCH, 3), (ApiKey.FETCH, 19), (ApiKey.API_VERSIONS, 99)):
        with pytest.raises(UnsupportedVersion) as caught:
            decode_request(key, version, b"")
        assert (caught.value.api_key, caught.value.api_version) == (key, version)


def test_produce_versions_that_are_only_listed_decode_too() -> None:
    request = decode_request(ApiKey.PRODUCE, 0, b"\x00\x01\x00\x00\x03\xe8\x00\x00\x00\x00")
    assert request == ProduceRequest(acks=1, timeout_ms=1000)
    assert APIS[ApiKey.PRODUCE].served.first == 3


def test_the_answer_to_a_version_to_come_is_a_v0_body() -> None:
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(*row) for row in listed_versions() if row[0] == 18],
    )
    frame = b"".join(encode_response(77, ApiKey.API_VERSIONS, 0, response))
    assert frame == bytes.fromhex("00000010 0000004d 0023 00000001 0012 0000 0004")


def test_listed_versions_are_those_of_all_apis_by_key() -> None:
    assert listed_versions()[:2] == [(0, 0, 13), (1, 4, 18)]
    assert [key for key, _, _ in listed_versions()] == sorted(ApiKey)


def test_the_consumer_protocol_is_a_message_like_any() -> None:
    body = codec(ConsumerProtocolSubscription, 0, False)
    data = bytes.fromhex("00000002 0001 61 0001 62 ffffffff")
    subscription, end = body.decode(memoryview(data), 0)
    assert end == len(data)
    assert subscription.topics == ["a", "b"]
    assert subscription.user_data is None


def test_two_messages_do_not_share_their_default_lists() -> None:
    one, other = FetchResponse(), FetchResponse()
    one.responses.append(FetchableTopicResponse())
    assert other.responses == []


def test_annotations_become_fields() -> None:
    class Inner(Message):
        number: Int32 = 7

    class Outer(Message):
        text: Annotated[String | None, On("1-2", nullable="2", ignorable=True)] = None
        inner: Annotated[list[int] | None, On("3+", nullable="3+")] = None

    (number,) = fields_of(Inner)
    assert (number.name, number.default, number.is_array) == ("number", 7, False)
    with pytest.raises(TypeError, match="names no wire type"):
        fields_of(Outer)
