"""What can be wrong with bytes or messages of Kafka's protocol."""

from __future__ import annotations


class ProtocolError(Exception):
    """Anything the codecs raise."""


class MalformedRequest(ProtocolError):
    """The bytes are not what their declared API and version say; the connection can't be trusted further."""


class UnsupportedVersion(ProtocolError):
    """The API, or this version of it, is not declared."""

    def __init__(self, api_key: int, api_version: int) -> None:
        super().__init__(f"API key {api_key} has no version {api_version} here")
        self.api_key = api_key
        self.api_version = api_version


class UnencodableMessage(ProtocolError):
    """A message of ours does not fit its version: a null, a number or a field that it can't carry."""
