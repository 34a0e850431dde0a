"""Decodes MessagePack from outside. Everything that can be wrong with it raises one error, `msgspec.DecodeError`."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tailrace.buffers import Buffer

T = TypeVar("T")


def decode(decoder: msgspec.msgpack.Decoder[T], data: Buffer) -> T:
    """Decode the bytes. Raises msgspec.DecodeError (or its ValidationError).

    msgspec raises UnicodeDecodeError for text that is not UTF-8, and RecursionError for deeply nested arrays. It checks
    declared counts and lengths against the available bytes.
    """
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"text that is not UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
