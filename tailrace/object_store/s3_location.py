"""The location and settings of an S3 bucket, for both S3 stores."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """A key pair, with a session token for temporary ones."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket, a prefix in it, and the time-outs for it.

    Attributes:
        prefix: prepended to every key; empty, or ends in `/`.
        endpoint: the URL of a service other than AWS; None means AWS in `region`. It overrides AWS_ENDPOINT_URL and
            AWS_ENDPOINT_URL_S3, which the libraries would otherwise read.
        path_style: puts the bucket into the path, not into the host name. Default: yes with an endpoint, else no.
        credentials: None leaves them to the library: web identity, container or instance roles.
        request_seconds: time-out of one attempt, including the body.
        retry_seconds: no attempt starts later than this after the first one.
        repeats_requests: whether the library repeats failed PUTs, GETs and HEADs. If the caller does (hedged.py), their
            attempts would multiply, and a throttled bucket would get many times the load. Lists and deletes are always
            repeated.
        connections: the most open sockets to the store.
        list_page: keys per LIST request; S3 returns at most 1,000. botocore parses a page in one turn of the event
            loop: 1,000 keys take it 60 ms.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"
    path_style: bool | None = None
    credentials: S3Credentials | None = None
    connect_seconds: float = 3.0
    request_seconds: float = 30.0
    retry_seconds: float = 10.0
    max_retries: int = 3
    repeats_requests: bool = True
    connections: int = 64
    list_page: int = 500

    def __post_init__(self) -> None:
        if self.prefix and (not self.prefix.endswith("/") or self.prefix.startswith("/")):
            raise ValueError(
                f"prefix {self.prefix!r}: must be empty, or a path that ends in '/' and begins without"
            )

    @property
    def is_path_style(self) -> bool:
        return self.endpoint is not None if self.path_style is None else self.path_style
