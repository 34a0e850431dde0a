"""CreateDelegationToken: create a secret with which other clients log in as a user (KIP-48)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bytes, Int16, Int32, Int64, Message, On, ScramUser, String


class CreatableRenewers(Message):
    principal_type: String = ""
    principal_name: ScramUser = ""


class CreateDelegationTokenRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.CREATE_DELEGATION_TOKEN, "1-3", flexible="2+")

    owner_principal_type: Annotated[String | None, On("3+", nullable="3+", ignorable=True)] = ""
    owner_principal_name: Annotated[ScramUser | None, On("3+", nullable="3+", ignorable=True)] = ""
    renewers: list[CreatableRenewers] = []
    max_lifetime_ms: Int64 = 0


class CreateDelegationTokenResponse(Message):
    error_code: Int16 = 0
    principal_type: String = ""
    principal_name: ScramUser = ""
    token_requester_principal_type: Annotated[String, On("3+", ignorable=True)] = ""
    token_requester_principal_name: Annotated[ScramUser, On("3+", ignorable=True)] = ""
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0
