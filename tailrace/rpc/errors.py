"""Errors between two processes, in the caller's terms."""

from __future__ import annotations


class RpcError(Exception):
    """A call got no answer; the subclass says why."""


class LinkDown(RpcError):
    """The connection was lost or could not be made. The peer may or may not have carried out the call."""


class NotConnected(LinkDown):
    """No connection could be made: the peer saw nothing of the call."""


class HelloRefused(NotConnected):
    """The two sides don't belong together. `code`: 'version', 'cluster', 'incarnation' or 'secret'."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class CallTimedOut(RpcError):
    """No answer came in time. The peer may or may not have carried out the call."""


class CallFailed(RpcError):
    """The peer answered with an error.

    Codes of this layer: 'unknown_method', 'bad_request', 'overloaded', 'closing', 'too_large', 'internal'.
    Handlers raise it with codes of their own.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class FrameTooLarge(RpcError):
    """A request is larger than the largest frame that may be sent; nothing was sent."""


class ProtocolViolation(RpcError):
    """Bytes that none of our peers sends: the connection is closed."""
