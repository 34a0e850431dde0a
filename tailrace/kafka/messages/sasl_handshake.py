"""SaslHandshake: choose the mechanism of a login."""

from __future__ import annotations

from typing import ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Int16, Message, String


class SaslHandshakeRequest(Message):
    # After version 0, tokens follow without requests around them (kafka-python before 2.1).
    api: ClassVar[Api] = Api(ApiKey.SASL_HANDSHAKE, "0-1")

    mechanism: String = ""


class SaslHandshakeResponse(Message):
    error_code: Int16 = 0
    mechanisms: list[String] = []
