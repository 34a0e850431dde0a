"""DescribeDelegationToken: list delegation tokens (KIP-48)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bytes, Int16, Int32, Int64, Message, On, ScramUser, String


class DescribeDelegationTokenOwner(Message):
    principal_type: String = ""
    principal_name: ScramUser = ""


class DescribeDelegationTokenRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, "1-3", flexible="2+")

    owners: Annotated[list[DescribeDelegationTokenOwner] | None, On(nullable="0+")] = []


class DescribedDelegationTokenRenewer(Message):
    principal_type: String = ""
    principal_name: ScramUser = ""


class DescribedDelegationToken(Message):
    principal_type: String = ""
    principal_name: ScramUser = ""
    token_requester_principal_type: Annotated[String, On("3+", ignorable=True)] = ""
    token_requester_principal_name: Annotated[ScramUser, On("3+", ignorable=True)] = ""
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = []


class DescribeDelegationTokenResponse(Message):
    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = []
    throttle_time_ms: Int32 = 0
