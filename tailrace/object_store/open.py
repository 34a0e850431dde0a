"""Opens the store that a URL (`--store`) names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tailrace.clock import Clock
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.folder import FolderStore
from tailrace.object_store.memory import MemoryStore
from tailrace.object_store.s3_location import S3Credentials, S3Location

FOLDER_THREADS = 8

_ALLOWED = "`memory:`, a folder's path, `file:///path`, or `s3://bucket/prefix?endpoint=...&region=...`"
_LOGIN = re.compile(r"(//|%2F%2F|endpoint=(?!https?(?::|%3A)))[^/?@]*(?::|%3A)[^?]*(?:@|%40)", re.IGNORECASE)
_ENDPOINT = re.compile(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d+)?(/[!-~]*)?", re.ASCII)
"""obstore panics at other addresses."""
_BACKENDS = ("obstore", "aioboto3")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_OPTIONS = ("endpoint", "region", "backend", "path_style")


class BadStoreUrl(ValueError):
    """The URL does not name a store, or its credentials are incomplete; the message says what was given and what is
    allowed."""


def open_store(
    url: str, *, clock: Clock, environ: Mapping[str, str] = os.environ, repeats_requests: bool = True
) -> ObjectStore:
    """Open the store that `url` names. `repeats_requests`: see S3Location.

    - `memory:` is a new, empty store each time;
    - `/path`, `relative/path`, `file:///path`: a folder, which is created if it is missing;
    - `s3://bucket[/prefix]`, with the options `endpoint` (default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL,
      then AWS itself), `region` (default: AWS_REGION, AWS_DEFAULT_REGION, then us-east-1), `backend`
      (obstore or aioboto3), `path_style` (true or false; default true with an endpoint).
      Credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, else the instance's role.

    Raises:
        BadStoreUrl: an unknown kind of store or an unknown option, or half of the credentials.
        StoreRefused, StoreFull: the folder, or AWS's configuration, can't be used.
    """
    parsed = _parsed(url, environ)
    if parsed is None:
        return MemoryStore(clock)
    if isinstance(parsed, Path):
        executor = ThreadPoolExecutor(FOLDER_THREADS, thread_name_prefix="folder-store")
        return FolderStore(parsed, clock, executor)
    location, backend = parsed
    return _open_s3(replace(location, repeats_requests=repeats_requests), backend)


def check_store_url(url: str) -> None:
    """Raise BadStoreUrl if `open_store` would. Opens and creates nothing."""
    _parsed(url, os.environ)


def object_url(store_url: str, key: str) -> str:
    """Return the URL of an object for other programs: file:///path or s3://bucket/key."""
    split = urlsplit(store_url)
    if split.scheme == "s3":
        return f"s3://{split.netloc}/{s3_location(store_url).prefix}{key}"
    path = unquote(split.path) if split.scheme == "file" else store_url
    return f"file://{Path(path).expanduser().absolute()}/{key}"


def load_backend(url: str | None) -> None:
    """Import the libraries for this URL's store. Call it before the event loop starts: S3's take a second."""
    if url is not None and url.startswith("s3:"):
        import_module("tailrace.object_store.s3_obstore")


def shown(url: str) -> str:
    """Return the URL without credentials, for messages and logs."""
    return _LOGIN.sub(r"\1", url)


def s3_location(url: str, environ: Mapping[str, str] = os.environ) -> S3Location:
    """Return the bucket, prefix and settings of an `s3://` URL, for tools that have their own client."""
    split = urlsplit(url)
    if split.scheme != "s3":
        raise BadStoreUrl(f"store {shown(url)!r}: not an s3:// URL")
    return _location(url, split, _options(url, split), environ)


def _parsed(url: str, environ: Mapping[str, str]) -> Path | tuple[S3Location, str] | None:
    """Return the folder, or the location on S3 with the library for it; None for memory."""
    if url in ("memory:", "memory://"):
        return None
    split = urlsplit(url)
    if split.scheme == "s3":
        return _parsed_s3(url, split, environ)
    if split.scheme == "file":
        if split.netloc not in ("", "localhost") or not split.path or split.query:
            raise BadStoreUrl(
                f"store {shown(url)!r}: a file URL has three slashes and no options: file:///var/lib/tailrace"
            )
        return Path(unquote(split.path)).expanduser()
    if not url or "://" in url or url.startswith("memory:"):
        raise BadStoreUrl(f"store {shown(url)!r}: allowed are {_ALLOWED}")
    return Path(url).expanduser()


def _parsed_s3(url: str, split: SplitResult, environ: Mapping[str, str]) -> tuple[S3Location, str]:
    options = _options(url, split)
    location = _location(url, split, options, environ)
    backend = options.get("backend", _BACKENDS[0])
    if backend not in _BACKENDS:
        raise BadStoreUrl(f"store {shown(url)!r}: backend {backend!r}: allowed are {', '.join(_BACKENDS)}")
    return location, backend


def _open_s3(location: S3Location, backend: str) -> ObjectStore:
    # Imported only here: together they take a second, which a broker on a folder does not need.
    if backend == "aioboto3":
        from tailrace.object_store.s3_aioboto3 import Aioboto3Store

        return Aioboto3Store(location)
    from tailrace.object_store.s3_obstore import ObstoreStore

    return ObstoreStore(location)


def _options(url: str, split: SplitResult) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(split.query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise BadStoreUrl(f"store {shown(url)!r}: option {name!r}: allowed are {', '.join(_OPTIONS)}")
        if name in options or not value:
            raise BadStoreUrl(f"store {shown(url)!r}: option {name!r}: give it once, with a value")
        options[name] = value
    return options


def _location(
    url: str, split: SplitResult, options: Mapping[str, str], environ: Mapping[str, str]
) -> S3Location:
    if not split.netloc or "@" in split.netloc or ":" in split.netloc:
        raise BadStoreUrl(
            f"store {shown(url)!r}: s3:// is followed by a bucket's name; credentials come from AWS_* variables"
        )
    endpoint = (
        options.get("endpoint") or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    )
    if endpoint and "@" in endpoint:
        raise BadStoreUrl(
            f"store {shown(url)!r}: the endpoint has a login; credentials come from AWS_* variables"
        )
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise BadStoreUrl(f"store {shown(url)!r}: endpoint {endpoint!r}: must begin with http:// or https://")
    if endpoint and not _is_address(endpoint):
        raise BadStoreUrl(
            f"store {shown(url)!r}: endpoint {endpoint!r}: must be http(s)://host, perhaps with :port and a path"
        )
    path_style = options.get("path_style")
    if path_style is not None and path_style not in _BOOLEANS:
        raise BadStoreUrl(f"store {shown(url)!r}: path_style {path_style!r}: allowed are true and false")
    prefix = unquote(split.path).strip("/")
    return S3Location(
        bucket=split.netloc,
        prefix=f"{prefix}/" if prefix else "",
        endpoint=endpoint.rstrip("/") if endpoint else None,
        region=options.get("region")
        or environ.get("AWS_REGION")
        or environ.get("AWS_DEFAULT_REGION")
        or "us-east-1",
        path_style=None if path_style is None else _BOOLEANS[path_style],
        credentials=_credentials(environ),
    )


def _is_address(endpoint: str) -> bool:
    try:
        return urlsplit(endpoint).port != 0 and _ENDPOINT.fullmatch(endpoint) is not None
    except ValueError:  # a port that is none
        return False


def _credentials(environ: Mapping[str, str]) -> S3Credentials | None:
    access = environ.get("AWS_ACCESS_KEY_ID")
    secret = environ.get("AWS_SECRET_ACCESS_KEY")
    if not access and not secret:
        return None
    if not access or not secret:
        raise BadStoreUrl(
            f"AWS_{'SECRET_ACCESS_KEY' if access else 'ACCESS_KEY_ID'} is not set: set both AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or neither for the instance's role"
        )
    return S3Credentials(access, secret, environ.get("AWS_SESSION_TOKEN") or None)
