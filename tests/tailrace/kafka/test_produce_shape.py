"""A shape decodes any bytes as the codec does."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kafka import ApiKey, MalformedRequest, decode_request, encode_request, parse_request_header
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.kafka.produce_shape import MAX_SAME_BYTES, MAX_SHAPES, ProduceShape, ProduceShapes, shape_of

VERSIONS = [3, 5, 7, 8, 9, 10, 12, 13]
SIZES = [0, 1, 61, 126, 127, 128, 16_381, 16_382, 16_383, 16_384, 70_000, 2_097_150, 2_097_151, 2_097_152]
"""Where the length takes a byte more, and around it."""


def produce(
    version: int, records: bytes, *, index: int = 3, topic: str = "orders", client: str | None = "client"
) -> memoryview:
    topics = [
        TopicProduceData(
            topic if version < 13 else "",
            UUID(int=7) if version >= 13 else UUID(int=0),
            [PartitionProduceData(index, memoryview(records))],
        )
    ]
    request = ProduceRequest(None, -1, 30_000, topics)
    return memoryview(b"".join(encode_request(77 + index, ApiKey.PRODUCE, version, request, client)))[4:]


def decoded(frame: memoryview) -> tuple[object, ProduceRequest]:
    header = parse_request_header(frame)
    return header, decode_request(header.api_key, header.api_version, frame, header.body_offset)


def learned(frame: memoryview) -> ProduceShape | None:
    return shape_of(frame, *decoded(frame))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shape_reads_requests_of_its_client_and_topic_as_the_codec_does(version: int) -> None:
    shape = learned(produce(version, b"x" * 100))
    assert shape is not None
    for number, size in enumerate(SIZES):
        frame = produce(version, b"y" * size, index=number)
        assert shape.read(frame) == decoded(frame), size


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shape_does_not_read_one_byte_more_than_the_length_says(version: int) -> None:
    shape = learned(produce(version, b"x" * 100))
    assert shape is not None
    for size in SIZES:
        frame = bytes(produce(version, b"y" * size))
        end = len(frame) - (3 if version >= 9 else 0)
        assert shape.read(memoryview(frame[:end] + b"y" + frame[end:])) is None, size


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shape_does_not_read_a_request_that_ends_before_its_records(version: int) -> None:
    shape = learned(produce(version, b"x" * 100))
    assert shape is not None
    frame = bytes(produce(version, b"", index=0))[:-4] + bytes(3)
    for end in range(len(frame) + 1):
        assert shape.read(memoryview(frame)[:end]) is None, end


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_views_and_what_was_learned_keeps_no_frame(version: int) -> None:
    frame = produce(version, b"x" * 100)
    shape = learned(frame)
    assert shape is not None
    read = shape.read(frame)
    assert read is not None
    records = read[1].topic_data[0].partition_data[0].records
    assert records is not None and records.obj is frame.obj
    assert not shape.request.topic_data[0].partition_data


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shape_is_learned_without_a_look_at_the_records(version: int) -> None:
    """Comparing two views takes 10 ms a MiB."""
    assert shape_of(produce(version, b"x" * 100), *decoded(produce(version, b"y" * 100))) is not None  # type: ignore[arg-type]


def test_no_shape_is_learned_where_the_codec_finds_the_records_elsewhere() -> None:
    records = b"\0\0\0\3e" + b"\0" * 100
    tagged = bytes(produce(9, records))[:-1] + b"\x01\x00\x64" + b"\0" * 100
    _, request = decoded(memoryview(tagged))
    found = request.topic_data[0].partition_data[0].records
    assert found is not None and len(found) == len(records)
    assert learned(memoryview(tagged)) is None


def test_shapes_are_found_by_topic_and_most_of_them_stay_if_there_are_too_many() -> None:
    shapes = ProduceShapes()
    frames = [produce(9, b"x" * 100, topic=f"t{number}") for number in range(MAX_SHAPES + 3)]
    for frame in frames:
        shape = learned(frame)
        assert shape is not None
        shapes.add(shape)
    found = [shapes.of(memoryview(b"ahead" + frame), 5) for frame in frames]
    assert [
        shape is not None and shape.read(frame) == decoded(frame)
        for shape, frame in zip(found, frames, strict=True)
    ] == ([True] * (MAX_SHAPES - 1) + [False] * 3 + [True])
    assert shapes.of(produce(9, b"x", topic="other"), 0) is None
    assert len(list(shapes)) == MAX_SHAPES
    again = learned(frames[0])
    assert again is not None
    shapes.add(again)
    assert shapes.of(frames[0], 0) is again and shapes.of(frames[-1], 0) is found[-1]


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_whatever_the_bytes_a_shape_reads_what_the_codec_reads_or_nothing(
    version: int, data: st.DataObject
) -> None:
    shape = learned(produce(version, b"x" * 100))
    assert shape is not None
    frame = bytearray(
        produce(version, b"y" * data.draw(st.sampled_from([0, 100, 126, 127, 16_383])), index=5)
    )
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] = data.draw(st.integers(0, 255))
    end = len(frame) - 3
    frame[end:end] = bytes(data.draw(st.integers(0, 2)))
    cut = data.draw(st.integers(0, 12))
    sent = memoryview(bytes(frame[: len(frame) - cut]) + data.draw(st.binary(max_size=4)))
    read = shape.read(sent)
    if read is None:
        return
    assert read == decoded(sent)


@pytest.mark.parametrize("version", VERSIONS)
def test_another_client_topic_version_or_api_is_not_read(version: int) -> None:
    shape = learned(produce(version, b"x" * 100))
    assert shape is not None
    assert shape.read(produce(version, b"x" * 100, client="other!")) is None
    assert shape.read(produce(version, b"x" * 100, client=None)) is None
    if version < 13:
        assert shape.read(produce(version, b"x" * 100, topic="refund")) is None
    frame = bytearray(produce(version, b"x" * 100))
    frame[1] = ApiKey.FETCH
    assert shape.read(memoryview(frame)) is None
    assert shape.read(produce(11 if version != 11 else 10, b"x" * 100)) is None


def test_no_shape_is_learned_of_many_partitions_of_none_or_of_odd_bytes() -> None:
    two = [PartitionProduceData(1, memoryview(b"a")), PartitionProduceData(2, memoryview(b"b"))]
    for topics in (
        [],
        [TopicProduceData("t")],
        [TopicProduceData("t", partition_data=two)],
        [TopicProduceData("t", partition_data=[PartitionProduceData(1, None)])],
    ):
        request = ProduceRequest(None, 1, 5, topics)
        assert learned(memoryview(b"".join(encode_request(1, ApiKey.PRODUCE, 9, request, "c")))[4:]) is None
    assert learned(produce(9, b"x", client="c" * MAX_SAME_BYTES)) is None
    assert learned(memoryview(bytes(produce(9, b"x")) + b"more")) is None
    tagged = bytes(produce(9, b"x"))[:-1] + b"\x01\x05\x01z"
    assert learned(memoryview(tagged)) is None
    with pytest.raises(MalformedRequest):
        decoded(produce(9, b"x" * 100)[:-50])
