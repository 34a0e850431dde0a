"""S3 through obstore: uploads and reads outside the event loop. Lists and deletes through `s3_aioboto3.py`.

obstore's listing only takes prefixes of whole path parts, and has no `start_after`. Listing and deleting are rare.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import S3Store

from tailrace.buffers import Buffer
from tailrace.object_store.api import (
    BucketMissing,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from tailrace.object_store.keys import check_key, check_range
from tailrace.object_store.s3_aioboto3 import Aioboto3Store
from tailrace.object_store.s3_location import S3Location

_STATUS = re.compile(r"\bstatus(?: code)?:? (\d{3})\b", re.IGNORECASE)
_ANSWER = re.compile(r"<Code>(.*?)</Code>(?:\s*<Message>(.*?)</Message>)?", re.DOTALL)
_CAUSE = re.compile(r'"([^"]+)"')
_BARE_CAUSE = re.compile(r"([A-Z]\w+),$", re.MULTILINE)
_ERRORS = (BaseError, OSError, ValueError)
_RETRIABLE_CODES = ("ConditionalRequestConflict", "OperationAborted", "RequestTimeTooSkewed")
_FULL_CODES = ("XMinioStorageFull", "QuotaExceeded")
"""QuotaExceeded is also the end of MinIO's XMinioAdminBucketQuotaExceeded."""


class ObstoreStore:
    """One bucket, or one prefix of it."""

    def __init__(self, location: S3Location) -> None:
        self._location = location
        self._once = _open(location, 0)
        self._retrying = _open(location, location.max_retries) if location.repeats_requests else self._once
        self._rest = Aioboto3Store(location)

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        check_key(key)
        # An upload of any size is one request, and its buffers are not joined. obstore does not accept an empty list
        # as a body, and refuses buffers of signed bytes (pyarrow's).
        body = [memoryview(part).cast("B") for part in parts if len(part)] or [memoryview(b"")]
        try:
            if if_absent:
                # Without retries: a second attempt would find the object of the first and report that it exists.
                await obstore.put_async(self._once, self._at(key), body, mode="create", use_multipart=False)
            else:
                await obstore.put_async(self._retrying, self._at(key), body, use_multipart=False)
        except _ERRORS as error:
            raise _as_store_error(error, key, is_put=True) from error

    async def get(self, key: str) -> bytes:
        check_key(key)
        try:
            answer = await obstore.get_async(self._retrying, self._at(key))
            return bytes(await answer.bytes_async())
        except _ERRORS as error:
            raise _as_store_error(error, key) from error

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        check_key(key)
        check_range(start, length)
        if length == 0:
            await self.head(key)
            return b""
        try:
            return bytearray(
                await obstore.get_range_async(self._retrying, self._at(key), start=start, length=length)
            )
        except _ERRORS as error:
            if _is_past_the_end(error):
                return b""
            raise _as_store_error(error, key) from error

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        try:
            metadata = await obstore.head_async(self._retrying, self._at(key))
        except _ERRORS as error:
            raise _as_store_error(error, key) from error
        return ObjectInfo(key, metadata["size"], round(metadata["last_modified"].timestamp() * 1000))

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._rest.list(prefix, start_after=start_after)

    async def list_prefixes(self, prefix: str) -> Sequence[str]:
        return await self._rest.list_prefixes(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._rest.delete(keys)

    async def create_bucket(self) -> None:
        """Create the bucket unless we own it already. For set-up and tests."""
        await self._rest.create_bucket()

    async def close(self) -> None:
        """Close the sockets. obstore closes its own when the last reference is dropped."""
        await self._rest.close()

    def _at(self, key: str) -> str:
        return self._location.prefix + key


def _open(location: S3Location, max_retries: int) -> Any:
    config: dict[str, Any] = {
        "region": location.region,
        "virtual_hosted_style_request": not location.is_path_style,
        "unsigned_payload": True,  # SHA-256 over the body costs more than the upload
        "checksum_algorithm": "CRC64NVME",  # protects the body instead
    }
    if location.endpoint is not None:
        # AWS_ENDPOINT_URL_S3 in the environment would silently override `endpoint`, but not this name.
        config["endpoint"] = config["aws_endpoint_url_s3"] = _with_bucket(location, location.endpoint)
    if location.credentials is not None:
        config["access_key_id"] = location.credentials.access_key_id
        config["secret_access_key"] = location.credentials.secret_access_key
        if location.credentials.session_token is not None:
            config["session_token"] = location.credentials.session_token
    try:
        return S3Store(
            location.bucket,
            config=config,
            client_options={
                "allow_http": location.endpoint is not None and location.endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=location.connect_seconds),
                "timeout": timedelta(seconds=location.request_seconds),
                "pool_max_idle_per_host": str(location.connections),
            },
            retry_config={
                "max_retries": max_retries,
                "retry_timeout": timedelta(seconds=location.retry_seconds),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=50),
                    "max_backoff": timedelta(seconds=2),
                    "base": 2,
                },
            },
        )
    except _ERRORS as error:
        raise StoreRefused(f"{location.bucket}: {_explained(error)}") from error


def _with_bucket(location: S3Location, endpoint: str) -> str:
    """Return the endpoint with the bucket in its host name, unless it is path-style. obstore does not add it."""
    if location.is_path_style:
        return endpoint
    scheme, _, host = endpoint.partition("://")
    return f"{scheme}://{location.bucket}.{host}"


def _explained(error: Exception) -> str:
    """Return the store's answer, or the first line of the error's text and the cause, if obstore's dump of its
    internals names one below "inner": its only words, such as "Connection refused", or its last type (`TimedOut`)."""
    text, _, dump = str(error).partition("\n\nDebug source:\n")
    if answer := _ANSWER.search(text):
        words = " ".join((answer[2] or "").split())
        return f"the store answered {_status(error)} {answer[1]}: {words}"
    inner = dump.partition(" inner: ")[2]
    causes = _CAUSE.findall(inner) or _BARE_CAUSE.findall(inner)[-1:]
    first_line = f"{type(error).__name__}: {text.partition(chr(10))[0]}"
    return f"{first_line} ({': '.join(causes)})" if causes else first_line


def _status(error: Exception) -> int:
    match = _STATUS.search(str(error))
    return int(match[1]) if match else 0


def _is_past_the_end(error: Exception) -> bool:
    return _status(error) == 416 or "InvalidRange" in str(error)


def _as_store_error(error: Exception, what: str, *, is_put: bool = False) -> StoreError:
    """Convert an error by its type, then by the HTTP status in its text: obstore has no field for the status."""
    text = str(error)
    status = _status(error)
    message = f"{what}: {_explained(error)}"
    if "NoSuchBucket" in text:
        return BucketMissing(message)
    if isinstance(error, FileNotFoundError):
        return StoreRefused(message) if is_put else ObjectMissing(message)
    if any(code in text for code in _RETRIABLE_CODES):
        return StoreUnavailable(message)
    if isinstance(error, AlreadyExistsError | PreconditionError):
        return ObjectExists(message)
    if isinstance(
        error,
        PermissionDeniedError
        | UnauthenticatedError
        | InvalidPathError
        | NotSupportedError
        | UnknownConfigurationKeyError,
    ):
        return StoreRefused(message)
    if status == 507 or any(code in text for code in _FULL_CODES):
        return StoreFull(message)
    if 300 <= status < 500 and status not in (408, 409, 429):
        return StoreRefused(message)
    return StoreUnavailable(message)
