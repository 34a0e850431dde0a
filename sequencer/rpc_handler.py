"""The sequencer behind RPC: any implementation of the interface, method by method, out of the interface itself."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sequencer.api import Sequencer, SequencerError
from sequencer.methods import FORWARD, METHODS
from tailrace.buffers import Buffer
from tailrace.rpc import CallFailed, decode_body, encode_body


class RpcHandler:
    """An RPC handler. `forward` answers what may be passed on to another node; without it, `sequencer` does."""

    def __init__(self, sequencer: Sequencer, forward: Sequencer | None = None) -> None:
        self._sequencer = sequencer
        self._forward = forward if forward is not None else sequencer

    async def handle(self, method: str, body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
        """Answer one call; a SequencerError travels as its code and message."""
        asked = self._sequencer
        if method.startswith(FORWARD):
            asked, method = self._forward, method.removeprefix(FORWARD)
        known = METHODS.get(method)
        if known is None:
            raise CallFailed(
                "unknown_method", f"the sequencer has no method {method!r}; is this server older?"
            )
        try:
            request = decode_body(body, known.request)
        except msgspec.DecodeError as error:
            raise CallFailed("bad_request", f"{method}: not a {known.request.__name__}: {error}") from error
        try:
            answer = await getattr(asked, method)(request)
        except SequencerError as error:
            raise CallFailed(error.code, str(error)) from error
        return encode_body(answer), ()
