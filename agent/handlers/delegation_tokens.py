"""Create-, Renew-, Expire- and DescribeDelegationToken (KIP-48): there are none.

The answers are those of a Kafka whose `delegation.token.secret.key` is not set.
"""

from __future__ import annotations

from typing import Any

from agent.security.access import ANONYMOUS
from agent.services import RequestContext, Services
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode


async def handle(services: Services, context: RequestContext, request: Any) -> Any:
    """That tokens are not to be had: not by those who did not log in, and by nobody else."""
    is_known = context.access.principal != ANONYMOUS
    code = (
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        if is_known
        else ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    )
    return APIS[request.api.key].response(error_code=code)
