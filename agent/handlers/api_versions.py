"""ApiVersions: the versions of every API, and the cluster's features.

Clients choose their behaviour by Kafka's feature levels. With `transaction.version` 2 (KIP-890) they use Produce 12 and
EndTxn 5 and above: no AddPartitionsToTxn, and a new epoch with every transaction. `group.version` 1 announces consumer
groups (KIP-848), `share.version` 1 share groups (KIP-932).
"""

from __future__ import annotations

from agent.services import RequestContext, Services
from tailrace.kafka import ApiKey
from tailrace.kafka.apis import listed_versions
from tailrace.kafka.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

FEATURES = {"group.version": (0, 1), "share.version": (0, 1), "transaction.version": (0, 2)}
"""The lowest supported level, and the highest, which is also the finalized level."""
OF_TELEMETRY = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
"""Listed while someone subscribes to clients' metrics; otherwise clients need not ask."""
FEATURES_EPOCH = 1
"""Must rise when finalized levels change: clients use the levels of the highest epoch that they have seen."""
FIRST_WITH_LEVEL_0 = 4
"""Clients of older versions fail if a supported range begins at 0 (KAFKA-17011)."""


async def handle(
    services: Services, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """List the APIs and versions that are served."""
    supported = [SupportedFeatureKey(name, lowest, highest) for name, (lowest, highest) in FEATURES.items()]
    is_subscribed = bool(services.catalog.client_configs.metrics)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(key, first, last)
            for key, first, last in listed_versions()
            if is_subscribed or key not in OF_TELEMETRY
        ],
        supported_features=supported if context.api_version >= FIRST_WITH_LEVEL_0 else [],
        finalized_features_epoch=FEATURES_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(name, highest, highest) for name, (_, highest) in FEATURES.items()
        ],
    )
