"""ApiVersions: which versions of which APIs the broker serves."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, Int16, Int32, Int64, Message, On, String


class ApiVersionsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.API_VERSIONS, "0-4", flexible="3+")

    client_software_name: Annotated[String, On("3+", ignorable=True)] = ""
    client_software_version: Annotated[String, On("3+", ignorable=True)] = ""


class ApiVersion(Message):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Message):
    name: Annotated[String, On("3+")] = ""
    min_version: Annotated[Int16, On("3+")] = 0
    max_version: Annotated[Int16, On("3+")] = 0


class FinalizedFeatureKey(Message):
    name: Annotated[String, On("3+")] = ""
    max_version_level: Annotated[Int16, On("3+")] = 0
    min_version_level: Annotated[Int16, On("3+")] = 0


class ApiVersionsResponse(Message):
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, On("1+", ignorable=True)] = 0
    supported_features: Annotated[list[SupportedFeatureKey], On("3+", tag=0, ignorable=True)] = []
    finalized_features_epoch: Annotated[Int64, On("3+", tag=1, ignorable=True)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], On("3+", tag=2, ignorable=True)] = []
    zk_migration_ready: Annotated[Bool, On("3+", tag=3, ignorable=True)] = False
