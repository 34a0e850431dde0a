"""URLs of stores, and what the S3 stores say of a bucket that refuses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.clock import SystemClock
from tailrace.object_store.api import ObjectStore, StoreFull, StoreRefused, StoreUnavailable
from tailrace.object_store.folder import FolderStore
from tailrace.object_store.memory import MemoryStore
from tailrace.object_store.open import BadStoreUrl, open_store, s3_location
from tests.support.servers import S3Server

CLOCK = SystemClock()
BACKENDS = pytest.mark.parametrize("backend", ["obstore", "aioboto3"])


def close(store: ObjectStore) -> None:
    asyncio.run(store.close())


def test_the_libraries_of_s3_are_loaded_before_the_loop_starts_and_only_for_s3() -> None:
    code = (
        "import sys; from tailrace.object_store.open import load_backend; load_backend(None); load_backend('/data');"
        "assert 'botocore' not in sys.modules; load_backend('s3://bucket/x'); assert 'botocore' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_path_and_a_file_url_are_folders(tmp_path: Path) -> None:
    for url in (str(tmp_path / "one"), f"file://{tmp_path}/t%20wo"):
        store = open_store(url, clock=CLOCK)
        assert isinstance(store, FolderStore)
        close(store)
    assert (tmp_path / "one").is_dir() and (tmp_path / "t wo").is_dir()
    assert isinstance(open_store("memory:", clock=CLOCK), MemoryStore)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "gs://bucket/x",
            "memory:x",
            "file://host/x",
            "s3://",
            "s3://key:secret@bucket",
            "s3://b?region=",
        ),
        *(
            "s3://b?endpiont=http://x",
            "s3://b?endpoint=127.0.0.1:9000",
            "s3://b?backend=boto",
            "s3://b?path_style=maybe",
        ),
    ],
)
def test_a_url_of_no_store_is_refused_with_the_given_text(url: str) -> None:
    with pytest.raises(BadStoreUrl, match="store "):
        open_store(url, clock=CLOCK, environ={})


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:hush/hu+sh@bucket/x",
        "s3://bucket?endpoint=https://KEY:hush@store.example",
        "s3://bucket?endpoint=KEY:hush@store.example",
        "s3://bucket?endpoint=https%3A%2F%2FKEY%3Ahush%40store.example",
        "gs://KEY:hush@bucket",
        "s3://KEY:hush@bucket?endpiont=x",
    ],
)
def test_a_login_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(BadStoreUrl) as refused:
        open_store(url, clock=CLOCK, environ={})
    assert "hush" not in str(refused.value)


def test_the_url_wins_over_the_environment() -> None:
    environ = {"AWS_ENDPOINT_URL_S3": "http://elsewhere", "AWS_REGION": "eu-west-1"}
    given = s3_location("s3://b/p/q?endpoint=http://here:9000/&region=eu-north-1", environ)
    assert (given.bucket, given.prefix, given.endpoint, given.region) == (
        "b",
        "p/q/",
        "http://here:9000",
        "eu-north-1",
    )
    fallen_back = s3_location("s3://b", environ)
    assert (fallen_back.prefix, fallen_back.endpoint, fallen_back.region) == (
        "",
        "http://elsewhere",
        "eu-west-1",
    )
    assert s3_location("s3://b", {}).endpoint is None


@BACKENDS
def test_a_variable_that_names_another_endpoint_is_not_followed(
    backend: str, moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    url = moto.url(moto.create_bucket(), "pre/fix", backend)

    async def scenario() -> None:
        store = open_store(url, clock=CLOCK, environ=moto.environ)
        await store.put("k/x", [b"x"])
        assert [info.key async for info in store.list("")] == ["k/x"]
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("given", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_half_of_the_credentials_is_refused_with_the_name_of_the_other(given: str) -> None:
    missing = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} - {given}
    with pytest.raises(BadStoreUrl, match=f"{missing.pop()} is not set"):
        open_store("s3://b", clock=CLOCK, environ={given: "x"})


@BACKENDS
def test_a_profile_that_does_not_exist_is_refused(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(StoreRefused, match="no-such-profile"):
        open_store(f"s3://b?backend={backend}", clock=CLOCK, environ={})


@pytest.mark.parametrize(
    "endpoint", ["http://", "http://a b:9000", "http://a:99999", "http://a:b", "http://a/\n"]
)
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(BadStoreUrl, match="must be http"):
        open_store("s3://b", clock=CLOCK, environ={"AWS_ENDPOINT_URL": endpoint})


@pytest.mark.parametrize(
    "endpoint", ["http://a", "https://s3.a-b.c:9000/p/q", "http://[::1]:9000", "http://min_io:1/"]
)
def test_an_endpoint_may_be_any_address(endpoint: str) -> None:
    assert s3_location("s3://b", {"AWS_ENDPOINT_URL": endpoint}).endpoint == endpoint.rstrip("/")


@BACKENDS
async def test_a_missing_bucket_refuses(backend: str, moto: S3Server) -> None:
    store = open_store(moto.url("no-such-bucket", "", backend), clock=CLOCK, environ=moto.environ)
    with pytest.raises(StoreRefused):
        await store.put("k", [b"x"])
    with pytest.raises(StoreRefused):
        await store.get("k")
    with pytest.raises(StoreRefused):
        assert [info async for info in store.list("")]
    await store.close()


@BACKENDS
@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (503, "SlowDown", StoreUnavailable),
        (403, "AccessDenied", StoreRefused),
        (400, "ExpiredToken", StoreRefused),
        (403, "RequestTimeTooSkewed", StoreUnavailable),
        (507, "XMinioStorageFull", StoreFull),
        (400, "XMinioAdminBucketQuotaExceeded", StoreFull),
    ],
)
async def test_an_error_of_the_service_becomes_our_error(
    backend: str, status: int, code: str, expected: type[Exception]
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status} No\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = open_store(
        f"s3://bucket?endpoint=http://127.0.0.1:{port}&backend={backend}",
        clock=CLOCK,
        environ={"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
    )
    with pytest.raises(expected):
        await store.put("k", [b"x"], if_absent=True)
    with pytest.raises(expected):
        await store.get("k")
    await store.close()
    server.close()
