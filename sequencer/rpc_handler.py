"""The sequencer behind RPC: decodes a request, calls the method that the frame names, encodes its answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sequencer.api import SequencerError
from sequencer.methods import FORWARD, METHODS, Call
from tailrace.buffers import Buffer
from tailrace.rpc import CallFailed, decode_body, encode_body


class RpcHandler:
    """An RPC handler. `forward` carries out calls that this server may forward; by default `call` does."""

    def __init__(self, call: Call, forward: Call | None = None) -> None:
        self._call = call
        self._forward = forward if forward is not None else call

    async def handle(self, name: str, body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
        """Answer one call; a SequencerError travels as its code and message."""
        call = self._call
        if name.startswith(FORWARD):
            call, name = self._forward, name.removeprefix(FORWARD)
        method = METHODS.get(name)
        if method is None:
            raise CallFailed("unknown_method", f"the sequencer has no method {name!r}; is this server older?")
        try:
            request = decode_body(body, method.request)
        except msgspec.DecodeError as error:
            raise CallFailed("bad_request", f"{name}: not a {method.request.__name__}: {error}") from error
        try:
            answer = await call(method, request)
        except SequencerError as error:
            raise CallFailed(error.code, str(error)) from error
        return encode_body(answer), ()
