"""Errors in the bytes or messages of Kafka's protocol."""

from __future__ import annotations


class ProtocolError(Exception):
    """Any error that the codecs raise."""


class MalformedRequest(ProtocolError):
    """The bytes don't match their declared API and version; the connection can't be trusted further."""


class UnsupportedVersion(ProtocolError):
    """The API is not served, or not in this version."""

    def __init__(self, api_key: int, api_version: int) -> None:
        super().__init__(f"API key {api_key} has no version {api_version} here")
        self.api_key = api_key
        self.api_version = api_version


class UnencodableMessage(ProtocolError):
    """A message doesn't fit its version: a null, a number or a field that the version can't carry."""
