"""DescribeUserScramCredentials: users with SCRAM credentials, and their mechanisms (KIP-554)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, ErrorMessage, Int8, Int16, Int32, Message, On, ScramUser


class UserName(Message):
    name: ScramUser = ""


class DescribeUserScramCredentialsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "0", flexible="0+")

    users: Annotated[list[UserName] | None, On(nullable="0+")] = []


class CredentialInfo(Message):
    mechanism: Int8 = 0
    iterations: Int32 = 0


class DescribeUserScramCredentialsResult(Message):
    user: ScramUser = ""
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    credential_infos: list[CredentialInfo] = []


class DescribeUserScramCredentialsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    results: list[DescribeUserScramCredentialsResult] = []
