"""Errors between two processes, in the caller's terms."""

from __future__ import annotations


class RpcError(Exception):
    """A call failed; the subclass says why."""


class LinkDown(RpcError):
    """The connection was lost or could not be opened. The peer may or may not have executed the call."""


class NotConnected(LinkDown):
    """No connection could be opened; the peer did not get the call."""


class HelloRefused(NotConnected):
    """The two sides don't belong together. `code`: 'version', 'cluster', 'incarnation' or 'secret'."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class CallTimedOut(RpcError):
    """No response arrived before the deadline. The peer may or may not have executed the call."""


class CallFailed(RpcError):
    """The peer responded with an error.

    Codes of this layer: 'unknown_method', 'bad_request', 'overloaded', 'closing', 'too_large', 'internal'. Handlers
    raise it with other codes.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class FrameTooLarge(RpcError):
    """The request is larger than the largest allowed frame; nothing was sent."""


class ProtocolViolation(RpcError):
    """The peer sent bytes that violate the protocol. The connection is closed."""
