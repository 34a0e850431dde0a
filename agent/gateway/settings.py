"""The gateway's settings: where it listens, and its limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from tailrace.rpc.link import split_address
from tailrace.settings import SettingsSection, separated_by

MIB = 1024 * 1024
_HOUR_MS = 3_600_000


class GatewaySettings(SettingsSection):
    """Topics over HTTP (see gateway.md). Sizes in bytes, times in ms."""

    listen: str = ""
    """The address (HOST:PORT) of the gateway. Empty: no gateway."""
    listener: str = ""
    """The name in `listeners` of the listener whose clients the gateway's clients count as. Empty: the first one."""
    hosts: Annotated[tuple[str, ...], NoDecode, separated_by(",")] = ()
    """Host names (comma-separated in a variable) under which clients call the gateway, in addition to `localhost`, IP
    addresses and the host of `listen`. Other names are refused on loopback, and if no login is required."""
    max_connections: int = Field(default=1_000, ge=1, le=1_000_000)
    """Limit of open connections. More are closed at once."""
    max_connections_per_address: int = Field(default=250, ge=1, le=1_000_000)
    """Limit of connections from one IP address (IPv6: one /64), so that one address leaves room for others. A proxy
    counts as one address."""
    head_ms: int = Field(default=10_000, ge=100, le=_HOUR_MS)
    """A connection is closed if the head of a request is not complete after this time."""
    max_streams: int = Field(default=500, ge=0, le=1_000_000)
    """Limit of event streams. More are answered with 429."""
    max_record_bytes: int = Field(default=2 * MIB, ge=1024, le=256 * MIB)
    """Limit of the JSON of one record to produce, and of the body of any other request."""
    max_records_per_request: int = Field(default=1_000_000, ge=1, le=1_000_000_000)
    """Limit of records that one request may produce, streaming or not."""
    max_answer_bytes: int = Field(default=MIB, ge=1024, le=64 * MIB)
    """Limit of record batches that one request reads, or an event stream at a time. A record of more than four times as
    many bytes can't be read."""
    idle_ms: int = Field(default=60_000, ge=100, le=_HOUR_MS)
    """A connection is closed if for this time it has no request, or no bytes of a request's body arrive."""
    stalled_ms: int = Field(default=30_000, ge=100, le=_HOUR_MS)
    """A response ends if its client reads nothing of it for this time."""
    heartbeat_ms: int = Field(default=15_000, ge=100, le=_HOUR_MS)
    """An event stream without records sends a comment this often."""
    drain_ms: int = Field(default=5_000, ge=0, le=_HOUR_MS)
    """How long the shutdown waits for requests in flight."""

    @field_validator("listen")
    @classmethod
    def _is_address(cls, address: str) -> str:
        if address:
            try:
                split_address(address)
            except ValueError:
                raise ValueError("expected HOST:PORT, such as 127.0.0.1:8082") from None
        return address
