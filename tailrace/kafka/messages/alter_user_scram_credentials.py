"""AlterUserScramCredentials: delete and set SCRAM credentials (KIP-554)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bytes, ErrorMessage, Int8, Int16, Int32, Message, On, ScramUser


class ScramCredentialDeletion(Message):
    name: ScramUser = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Message):
    name: ScramUser = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""


class AlterUserScramCredentialsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "0", flexible="0+")

    deletions: list[ScramCredentialDeletion] = []
    upsertions: list[ScramCredentialUpsertion] = []


class AlterUserScramCredentialsResult(Message):
    user: ScramUser = ""
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None


class AlterUserScramCredentialsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = []
