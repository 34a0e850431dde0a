"""SaslHandshake (API key 17): choose the SASL mechanism."""

from __future__ import annotations

from tailrace.kafka.schema import Int16, Message, String


class SaslHandshakeRequest(Message):
    """SaslHandshake request."""

    mechanism: String = ""


class SaslHandshakeResponse(Message):
    """SaslHandshake response."""

    error_code: Int16 = 0
    mechanisms: list[String] = []
