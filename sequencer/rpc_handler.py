"""The sequencer behind RPC: decodes a request, calls the method that the frame names, encodes its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from sequencer.api.errors import SequencerError
from sequencer.api.values import Value
from sequencer.methods import FORWARD, METHODS, NUMBER_BYTES, READ, Call, Method
from tailrace.buffers import Buffer
from tailrace.rpc import CallFailed, decode_body, encode_body

Read = Callable[[int, Method, Value], Awaitable[Value]]
"""Answers a query at this journal number or a later one."""
_MAX_DIGITS = 18


class RpcHandler:
    """An RPC handler. `forward` carries out calls that this server may forward, and `read` those that a follower may
    answer; both default to `call`. `number` returns the journal number that an answer given now reflects."""

    def __init__(
        self,
        call: Call,
        forward: Call | None = None,
        read: Read | None = None,
        number: Callable[[], int] | None = None,
    ) -> None:
        self._call = call
        self._forward = forward if forward is not None else call
        self._read: Read = read if read is not None else lambda _, method, request: call(method, request)
        self._number = number

    async def handle(self, name: str, body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
        """Answer one call; a SequencerError is sent as its code and message."""
        call = self._call
        if name.startswith(FORWARD):
            call, name = self._forward, name.removeprefix(FORWARD)
        elif name.startswith(READ):
            seen, _, name = name.removeprefix(READ).partition(".")
            if seen.isascii() and seen.isdecimal() and len(seen) <= _MAX_DIGITS:
                call = partial(self._read, int(seen))
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
        if self._number is None:
            return encode_body(answer), ()
        return encode_body(answer), (max(0, self._number()).to_bytes(NUMBER_BYTES, "big"),)
