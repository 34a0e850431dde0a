"""ApiVersions (API key 18): which versions of which APIs the broker serves."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Bool, Int16, Int32, Int64, Message, On, String


class ApiVersionsRequest(Message):
    """ApiVersions request."""

    client_software_name: Annotated[String, On("3+", ignorable=True)] = ""
    client_software_version: Annotated[String, On("3+", ignorable=True)] = ""


class ApiVersion(Message):
    """The APIs supported by the broker."""

    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Message):
    """Features supported by the broker."""

    name: Annotated[String, On("3+")] = ""
    min_version: Annotated[Int16, On("3+")] = 0
    max_version: Annotated[Int16, On("3+")] = 0


class FinalizedFeatureKey(Message):
    """List of cluster-wide finalized features."""

    name: Annotated[String, On("3+")] = ""
    max_version_level: Annotated[Int16, On("3+")] = 0
    min_version_level: Annotated[Int16, On("3+")] = 0


class ApiVersionsResponse(Message):
    """ApiVersions response."""

    error_code: Int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, On("1+", ignorable=True)] = 0
    supported_features: Annotated[list[SupportedFeatureKey], On("3+", tag=0, ignorable=True)] = []
    finalized_features_epoch: Annotated[Int64, On("3+", tag=1, ignorable=True)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], On("3+", tag=2, ignorable=True)] = []
    zk_migration_ready: Annotated[Bool, On("3+", tag=3, ignorable=True)] = False
