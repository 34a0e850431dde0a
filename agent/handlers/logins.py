"""SaslHandshake and SaslAuthenticate on listeners without SASL; `agent.security.login_sessions` handles the others."""

from __future__ import annotations

from agent.services import RequestContext, Services
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tailrace.kafka.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


async def handshake(
    services: Services, context: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Refuse: this listener has no logins."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


async def authenticate(
    services: Services, context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Refuse, with Kafka's error message."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
