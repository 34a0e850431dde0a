"""ExpireDelegationToken: expire a delegation token, now or later (KIP-48)."""

from __future__ import annotations

from typing import ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bytes, Int16, Int32, Int64, Message


class ExpireDelegationTokenRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.EXPIRE_DELEGATION_TOKEN, "1-2", flexible="2+")

    hmac: Bytes = b""
    expiry_time_period_ms: Int64 = 0


class ExpireDelegationTokenResponse(Message):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
