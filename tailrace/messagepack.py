"""MessagePack from outside: whatever is wrong with it is one error, `msgspec.DecodeError`."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tailrace.buffers import Buffer

T = TypeVar("T")


def decode(decoder: msgspec.msgpack.Decoder[T], data: Buffer) -> T:
    """What the decoder makes of the bytes. Raises msgspec.DecodeError (or its ValidationError).

    msgspec itself lets UnicodeDecodeError and RecursionError through, for text that is none and for arrays in
    arrays in arrays. Declared counts and lengths it holds against the bytes that are there.
    """
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"text that is not UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
