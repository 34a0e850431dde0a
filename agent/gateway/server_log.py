"""The log of aiohttp's server: an unexpected exception is an error of this program. Bytes that are not HTTP are not an
error, nor is a client that leaves."""

from __future__ import annotations

import logging
from typing import Any

import structlog
from aiohttp.http_exceptions import HttpProcessingError

from agent.gateway.telemetry import GatewayTelemetry

log = structlog.get_logger("agent.gateway")
SHOWN = 200
"""The most characters logged of what a client sent."""


class ServerLog(logging.Logger):
    """The logger of the gateway's server. Bytes that are not HTTP get a 400 and a closed connection."""

    def __init__(self, telemetry: GatewayTelemetry) -> None:
        super().__init__("agent.gateway.server")
        self.parent = logging.getLogger()  # handles the other levels
        self._telemetry = telemetry

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self._telemetry.closed_connections.labels("not HTTP").inc()
            log.warning("closed a connection: a request that can't be read", error=str(exc_info)[:SHOWN])
        elif isinstance(exc_info, ConnectionResetError):
            log.debug("a client has left before its request was handled", what=str(msg) % args)
        else:
            log.error("a request failed in aiohttp", what=str(msg) % args, exc_info=exc_info)
