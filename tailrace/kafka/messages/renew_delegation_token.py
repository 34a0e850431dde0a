"""RenewDelegationToken: extend the life of a delegation token (KIP-48)."""

from __future__ import annotations

from typing import ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bytes, Int16, Int32, Int64, Message


class RenewDelegationTokenRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.RENEW_DELEGATION_TOKEN, "1-2", flexible="2+")

    hmac: Bytes = b""
    renew_period_ms: Int64 = 0


class RenewDelegationTokenResponse(Message):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
