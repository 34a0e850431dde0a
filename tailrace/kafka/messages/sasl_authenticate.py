"""SaslAuthenticate (API key 36): one step of the SASL exchange."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Bytes, Int16, Int64, Message, On, String


class SaslAuthenticateRequest(Message):
    """SaslAuthenticate request."""

    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(Message):
    """SaslAuthenticate response."""

    error_code: Int16 = 0
    error_message: Annotated[String | None, On(nullable="0+")] = ""
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, On("1+", ignorable=True)] = 0
