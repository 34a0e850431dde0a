"""ApiVersions: the APIs that have a handler, with the versions that are declared for them."""

from __future__ import annotations

from agent.protocol.api_keys import supported_versions
from agent.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from agent.services import RequestContext, Services


async def handle(
    services: Services, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """List what is served."""
    from agent.handlers import HANDLERS

    return ApiVersionsResponse(
        api_keys=[ApiVersion(key, first, last) for key, first, last in supported_versions(HANDLERS)]
    )
