"""SaslAuthenticate: exchange one token of a login (KIP-152). The response has the session's lifetime (KIP-368)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bytes, ErrorMessage, Int16, Int64, Message, On


class SaslAuthenticateRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.SASL_AUTHENTICATE, "0-2", flexible="2+")

    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(Message):
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, On("1+", ignorable=True)] = 0
