"""Answers that an S3 server should not give, through both backends."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from botocore.loaders import JSONFileLoader

from tailrace.clock import SystemClock
from tailrace.object_store.api import (
    BucketMissing,
    NotDeleted,
    ObjectMissing,
    ObjectStore,
    StoreRefused,
    StoreUnavailable,
)
from tailrace.object_store.open import open_store

ENVIRON = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


def answer(status: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """Return an HTTP answer. `length`: the Content-Length that it states, if that is not the body's."""
    head = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(body) if length is None else length}",
        'ETag: "etag"',
        "Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


@asynccontextmanager
async def server_that_answers(data: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Start a server that answers each request with `data` and closes the connection; yield the URL of a bucket on it,
    and the heads of its requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        if length := re.search(rb"content-length: (\d+)", head.lower()):
            await reader.readexactly(int(length[1]))
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"s3://bucket?endpoint=http://127.0.0.1:{port}", heads
    finally:
        server.close()


@asynccontextmanager
async def store_that_answers(data: bytes, backend: str) -> AsyncIterator[ObjectStore]:
    """Open a store whose server answers each request with `data`."""
    async with server_that_answers(data) as (url, _):
        store = open_store(f"{url}&backend={backend}", clock=SystemClock(), environ=ENVIRON)
        try:
            yield store
        finally:
            await store.close()


@pytest.mark.parametrize("backend", ["obstore", "aioboto3"])
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            answer("206 Partial Content", b"abc", "Content-Range: bytes 10-14/100", length=5), id="cut"
        ),
        pytest.param(answer("200 OK", b"a" * 100), id="whole object"),
        pytest.param(
            answer("206 Partial Content", b"abcde", "Content-Range: bytes 0-4/100"), id="other range"
        ),
    ],
)
async def test_bytes_that_were_not_asked_for_are_never_returned(backend: str, data: bytes) -> None:
    async with store_that_answers(data, backend) as store:
        with pytest.raises(StoreUnavailable):
            await store.get_range("a/b", 10, 5)


@pytest.mark.parametrize("backend", ["obstore", "aioboto3"])
async def test_objects_that_cannot_be_deleted_are_named(backend: str) -> None:
    errors = "".join(
        f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>locked</Message></Error>"
        for key in ("a/1", "a/3")
    )
    body = f"<?xml version='1.0'?><DeleteResult>{errors}</DeleteResult>".encode()

    async with store_that_answers(answer("200 OK", body), backend) as store:
        with pytest.raises(NotDeleted, match="2 of 3 objects not deleted; a/1: AccessDenied") as caught:
            await store.delete(["a/1", "a/2", "a/3"])
        assert caught.value.keys == ["a/1", "a/3"]
        with pytest.raises(NotDeleted, match="2 of 2 objects not deleted"):
            await store.delete(["a/1", "a/3"])


@pytest.mark.parametrize("backend", ["obstore", "aioboto3"])
async def test_after_an_error_that_names_no_object_any_may_be_left(backend: str) -> None:
    body = b"<?xml version='1.0'?><DeleteResult><Error><Code>InternalError</Code></Error></DeleteResult>"

    async with store_that_answers(answer("200 OK", body), backend) as store:
        with pytest.raises(NotDeleted) as caught:
            await store.delete(["a/1", "a/2"])
        assert caught.value.keys == ["a/1", "a/2"]


@pytest.mark.parametrize("backend", ["obstore", "aioboto3"])
async def test_an_object_that_is_cut_is_not_returned(backend: str) -> None:
    async with store_that_answers(answer("200 OK", b"abc", length=5), backend) as store:
        with pytest.raises(StoreUnavailable):
            await store.get("a/b")


@pytest.mark.parametrize("backend", ["obstore", "aioboto3"])
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        ("403 Forbidden", "AccessDenied", "Access Denied"),
        ("404 Not Found", "NoSuchBucket", "The specified bucket does not exist"),
    ],
)
async def test_a_refusal_is_told_in_the_words_of_the_store(
    backend: str, status: str, code: str, words: str
) -> None:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{words}</Message></Error>'

    async with store_that_answers(answer(status, body.encode()), backend) as store:
        raised = BucketMissing if code == "NoSuchBucket" else StoreRefused
        with pytest.raises(raised, match=f"the store answered {status[:3]} {code}: {words}"):
            await store.get("a/b")


async def test_a_page_of_a_listing_is_small_enough_to_be_parsed_in_one_turn() -> None:
    nothing = answer("200 OK", b"<?xml version='1.0'?><ListBucketResult></ListBucketResult>")
    async with server_that_answers(nothing) as (url, heads):
        store = open_store(url, clock=SystemClock(), environ=ENVIRON)
        assert [info async for info in store.list("a/")] == []
        await store.close()
    assert b"max-keys=500&" in heads[0]


async def test_the_descriptions_of_s3_are_not_read_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    load_file = JSONFileLoader.load_file

    def noted(self: JSONFileLoader, path: str) -> object:
        read: object = load_file(self, path)
        if read is not None:
            threads.append(threading.get_ident())
        return read

    monkeypatch.setattr(JSONFileLoader, "load_file", noted)
    async with store_that_answers(answer("404 Not Found", b""), "aioboto3") as store:
        with pytest.raises(ObjectMissing):
            await store.get("a/b")
    assert threads and threading.get_ident() not in threads


async def test_a_store_that_is_not_there_is_told_with_its_cause() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # nothing listens there once it is closed

    store = open_store(f"s3://bucket?endpoint=http://127.0.0.1:{port}", clock=SystemClock(), environ=ENVIRON)
    try:
        with pytest.raises(StoreUnavailable, match="Connection refused"):
            await store.put("a/b", [b"x"], if_absent=True)
    finally:
        await store.close()
