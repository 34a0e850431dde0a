"""Errors in the bytes or messages of Kafka's protocol."""

from __future__ import annotations


class ProtocolError(Exception):
    """Base class of the codecs' errors."""


class MalformedRequest(ProtocolError):
    """The bytes do not match their declared API and version. The connection can't be used any more."""


class UnsupportedVersion(ProtocolError):
    """The API is not served, or not in this version."""

    def __init__(self, api_key: int, api_version: int) -> None:
        super().__init__(f"API key {api_key} has no version {api_version} here")
        self.api_key = api_key
        self.api_version = api_version


class UnencodableMessage(ProtocolError):
    """The version can't express the message, because of a null, a number or a field."""
