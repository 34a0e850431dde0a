from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.gateway.json_objects import JsonObjects, NotAnObject, ObjectTooLarge

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    objects=st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=5),
    space=st.sampled_from(["", "\n", " \r\n\t"]),
    is_ascii=st.booleans(),
    size=st.integers(1, 40),
)
def test_objects_are_cut_apart_however_the_stream_is_divided(
    objects: list[object], space: str, is_ascii: bool, size: int
) -> None:
    texts = [json.dumps(each, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass") for each in objects]
    stream = space.encode() + space.encode().join(texts) + space.encode()
    cutter = JsonObjects(1_000_000)
    found = [each for at in range(0, len(stream), size) for each in cutter.feed(stream[at : at + size])]
    cutter.finish()
    assert found == texts


@pytest.mark.parametrize("stream", [b"[]", b"1", b'{"a": 1} 2', b"{} }", b"{},{}", b'"{}"'])
def test_bytes_that_are_not_an_object_are_refused(stream: bytes) -> None:
    with pytest.raises(NotAnObject):
        JsonObjects(100).feed(stream)


@pytest.mark.parametrize("stream", [b"{", b'{} {"a": "}', b'{"a": "\\'])
def test_a_stream_that_ends_within_an_object_is_refused(stream: bytes) -> None:
    cutter = JsonObjects(100)
    cutter.feed(stream)
    with pytest.raises(NotAnObject):
        cutter.finish()


@pytest.mark.parametrize("stream", [b'{"a": "' + b"x" * 100, b'{"a": "' + b"x" * 100 + b'"}'])
def test_an_object_has_a_bound(stream: bytes) -> None:
    with pytest.raises(ObjectTooLarge):
        JsonObjects(100).feed(stream)


def test_a_long_object_that_comes_byte_by_byte_is_looked_at_once() -> None:
    cutter = JsonObjects(1 << 20)
    text = b'{"a": "' + b"x" * 5_000 + b'"}'
    assert [cutter.feed(text[at : at + 1]) for at in range(len(text))][-1] == [text]
    assert cutter.held_bytes == 0
