"""S3 through aioboto3: a complete second backend, which also lists and deletes for `s3_obstore.py`.

A PUT costs four times as much CPU as with obstore, all of it on the loop (decision 77). aioboto3 covers more of S3's
API.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import aioboto3
from aiobotocore.session import get_session
from aiohttp import ClientError as HttpClientError
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)

from tailrace.buffers import Buffer
from tailrace.object_store.api import (
    BucketMissing,
    NotDeleted,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from tailrace.object_store.keys import check_key, check_prefix, check_range
from tailrace.object_store.s3_location import S3Location

_DELETE_PAGE = 1000  # S3's limit for one DeleteObjects
_FULL_CODES = {
    "XMinioStorageFull",
    "InsufficientStorage",
    "507",
    "QuotaExceeded",
    "XMinioAdminBucketQuotaExceeded",
}
_RETRIABLE_CODES = {
    *("SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "ConditionalRequestConflict", "OperationAborted"),
    *(
        "Throttling",
        "TooManyRequests",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "ServiceUnavailable",
    ),
}


class Aioboto3Store:
    """One bucket, or one prefix of it. The first call opens the sockets."""

    def __init__(self, location: S3Location) -> None:
        self._location = location
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        try:
            self._core: Any = get_session()
            self._session: Any = aioboto3.Session(botocore_session=self._core)
        except BotoCoreError as error:  # such as an AWS_PROFILE that does not exist
            raise StoreRefused(f"{location.bucket}: {error}") from error
        self._clients: dict[bool, Any] = {}  # by whether the library retries failed requests

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        check_key(key)
        body = b"".join(parts)
        # The library must not retry a conditional put: if the response to a successful first attempt were lost, the
        # second would find the object of the first and report that it exists.
        client = await self._client(retries=self._location.repeats_requests and not if_absent)
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        try:
            await client.put_object(**self._at(key), Body=body, **condition)
        except (ClientError, BotoCoreError, OSError) as error:
            raise _as_store_error(error, key) from error

    async def get(self, key: str) -> bytes:
        check_key(key)
        return await self._get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        check_key(key)
        check_range(start, length)
        if length == 0:
            await self.head(key)
            return b""
        return await self._get(key, start, length)

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        client = await self._client(retries=self._location.repeats_requests)
        try:
            answer = await client.head_object(**self._at(key))
        except (ClientError, BotoCoreError, OSError) as error:
            raise _as_store_error(error, key) from error
        return ObjectInfo(key, answer["ContentLength"], _milliseconds(answer["LastModified"]))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        more = {"StartAfter": self._location.prefix + start_after} if start_after else {}
        async for page in self._pages(prefix, more):
            for entry in page.get("Contents", ()):
                key = entry["Key"][len(self._location.prefix) :]
                yield ObjectInfo(key, entry["Size"], _milliseconds(entry["LastModified"]))

    async def list_prefixes(self, prefix: str) -> Sequence[str]:
        check_prefix(prefix)
        skip = len(self._location.prefix) + len(prefix)
        parts: list[str] = []
        async for page in self._pages(prefix, {"Delimiter": "/"}):
            parts.extend(entry["Prefix"][skip:] for entry in page.get("CommonPrefixes", ()))
        return sorted(parts)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        unique = list(dict.fromkeys(keys))
        left: dict[str, str] = {}
        for first in range(0, len(unique), _DELETE_PAGE):
            left |= await self._delete_page(unique[first : first + _DELETE_PAGE])
        if left:
            raise NotDeleted(left, len(unique))

    async def close(self) -> None:
        """Close the sockets. May be called twice."""
        self._clients.clear()
        await self._stack.aclose()

    async def create_bucket(self) -> None:
        """Create the bucket unless we own it already. For set-up and tests."""
        client = await self._client()
        elsewhere = self._location.region != "us-east-1"
        where: dict[str, Any] = (
            {"CreateBucketConfiguration": {"LocationConstraint": self._location.region}} if elsewhere else {}
        )
        try:
            await client.create_bucket(Bucket=self._location.bucket, **where)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") != "BucketAlreadyOwnedByYou":
                raise _as_store_error(error, self._location.bucket) from error
        except (BotoCoreError, OSError) as error:
            raise _as_store_error(error, self._location.bucket) from error

    # --- details

    async def _client(self, *, retries: bool = True) -> Any:
        async with self._opening:
            if retries not in self._clients:
                attempts = self._location.max_retries + 1 if retries else 1
                try:
                    if not self._clients:
                        await asyncio.to_thread(self._load_descriptions)
                    self._clients[retries] = await self._enter(attempts)
                except (BotoCoreError, OSError) as error:  # such as credentials that can't be fetched
                    raise _as_store_error(error, self._location.bucket) from error
            return self._clients[retries]

    def _load_descriptions(self) -> None:
        """Read botocore's descriptions of S3, which takes 100 ms. Its loader keeps them for the clients."""
        loader = self._core.get_component("data_loader")
        for name in ("partitions", "endpoints", "sdk-default-configuration"):
            loader.load_data_with_path(name)
        for kind in ("service-2", "endpoint-rule-set-1"):
            loader.load_service_model("s3", kind)

    async def _enter(self, attempts: int) -> Any:
        location = self._location
        config = Config(
            connect_timeout=location.connect_seconds,
            read_timeout=location.request_seconds,
            max_pool_connections=location.connections,
            retries={"mode": "standard", "total_max_attempts": attempts},
            signature_version="s3v4",
            s3={"addressing_style": "path" if location.is_path_style else "virtual"},
        )
        keys: dict[str, Any] = {}
        if location.credentials is not None:
            keys = {
                "aws_access_key_id": location.credentials.access_key_id,
                "aws_secret_access_key": location.credentials.secret_access_key,
                "aws_session_token": location.credentials.session_token,
            }
        client = self._session.client(
            "s3", endpoint_url=location.endpoint, region_name=location.region, config=config, **keys
        )
        return await self._stack.enter_async_context(client)

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._location.bucket, "Key": self._location.prefix + key}

    async def _get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        client = await self._client(retries=self._location.repeats_requests)
        asked = {} if length is None else {"Range": f"bytes={start}-{start + length - 1}"}
        try:
            answer = await client.get_object(**self._at(key), **asked)
            async with answer["Body"] as body:
                given = str(answer.get("ContentRange", "the whole object"))
                if asked and not given.startswith(f"bytes {start}-"):
                    raise StoreUnavailable(
                        f"{key}: the store was asked for {asked['Range']} and sent {given}"
                    )
                data: bytes = await body.read()
                return data
        except ClientError as error:
            if _status(error) == 416:
                return b""  # the range starts at the end of the object or after it
            raise _as_store_error(error, key) from error
        except (BotoCoreError, HttpClientError, OSError) as error:
            raise _as_store_error(error, key) from error

    async def _pages(self, prefix: str, more: Mapping[str, str]) -> AsyncIterator[Mapping[str, Any]]:
        client = await self._client()
        asked: dict[str, Any] = {
            "Bucket": self._location.bucket,
            "Prefix": self._location.prefix + prefix,
            "MaxKeys": self._location.list_page,
            **more,
        }
        while True:
            try:
                page = await client.list_objects_v2(**asked)
            except (ClientError, BotoCoreError, OSError) as error:
                raise _as_store_error(error, prefix or self._location.bucket, is_listing=True) from error
            yield page
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

    async def _delete_page(self, keys: Sequence[str]) -> dict[str, str]:
        """Delete objects. Return S3's error code for each that is left."""
        client = await self._client()
        objects = [{"Key": self._location.prefix + key} for key in keys]
        what = f"{keys[0]} (of {len(keys)} to delete)"
        try:
            answer = await client.delete_objects(
                Bucket=self._location.bucket, Delete={"Objects": objects, "Quiet": True}
            )
        except (ClientError, BotoCoreError, OSError) as error:
            raise _as_store_error(error, what, is_listing=True) from error
        left = {
            str(error.get("Key", ""))[len(self._location.prefix) :]: str(error.get("Code"))
            for error in answer.get("Errors", ())
            if error.get("Code") != "NoSuchKey"
        }
        if not left.keys() <= set(keys):  # an error names none of them, so any may be left
            return dict.fromkeys(keys, next(iter(left.values())))
        return left


def _milliseconds(moment: Any) -> int:
    return int(moment.timestamp() * 1000)


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _as_store_error(error: Exception, what: str, *, is_listing: bool = False) -> StoreError:
    """Convert an error. `is_listing`: a 404 means that the bucket is missing, because a listing names no object."""
    if isinstance(error, ClientError):
        return _of_answer(error, what, is_listing)
    if isinstance(error, NoCredentialsError | PartialCredentialsError | ParamValidationError):
        return StoreRefused(f"{what}: {error}")
    return StoreUnavailable(f"{what}: {type(error).__name__}: {error}")


def _of_answer(error: ClientError, what: str, is_listing: bool) -> StoreError:
    status = _status(error)
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = (
        f"{what}: the store answered {status} {code}: {error.response.get('Error', {}).get('Message', '')}"
    )
    if code in _FULL_CODES or status == 507:
        return StoreFull(message)
    if code in _RETRIABLE_CODES or status in (408, 409, 429) or status >= 500 or status < 300:
        return StoreUnavailable(message)
    if status == 412:
        return ObjectExists(message)
    if code == "NoSuchBucket":
        return BucketMissing(message)
    if status == 404 and not is_listing:
        return ObjectMissing(message)
    return StoreRefused(message)
