"""UpdateFeatures: change the finalized levels of the cluster's features."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, ErrorMessage, Int8, Int16, Int32, Message, On, String


class FeatureUpdateKey(Message):
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Annotated[Bool, On("0")] = False
    upgrade_type: Annotated[Int8, On("1+")] = 1


class UpdateFeaturesRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.UPDATE_FEATURES, "0-2", flexible="0+")

    timeout_ms: Int32 = 60_000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: Annotated[Bool, On("1+")] = False


class UpdatableFeatureResult(Message):
    feature: String = ""
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = ""


class UpdateFeaturesResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = ""
    results: Annotated[list[UpdatableFeatureResult], On("0-1", ignorable=True)] = []
