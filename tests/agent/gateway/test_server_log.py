import pytest
from aiohttp import ClientConnectionResetError
from aiohttp.http_exceptions import BadHttpMessage
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from agent.gateway.server_log import ServerLog
from agent.gateway.telemetry import GatewayTelemetry


@pytest.mark.parametrize(("error", "level"), [
    (ClientConnectionResetError("Cannot write to closing transport"), "debug"),
    (BadHttpMessage("no HTTP"), "warning"),
    (ValueError("a bug"), "error"),
])  # fmt: skip
def test_a_client_that_leaves_is_no_error(error: Exception, level: str) -> None:
    log = ServerLog(GatewayTelemetry(CollectorRegistry()))
    with capture_logs() as lines:
        log.exception("Error handling request from %s", "127.0.0.1", exc_info=error)
    assert [line["log_level"] for line in lines] == [level]
