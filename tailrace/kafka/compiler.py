"""Compiles a declared message in a version to one flat decoder and one flat encoder.

The code of a codec is straight-line Python, generated on first use (1 to 3 ms) and kept. Nested structures are inlined.
One `struct` call reads or writes adjacent values of fixed size, with the length or the first varint byte after them.

Decoders do not trust their input: every declared count and length is checked against the remaining bytes before
anything is allocated, and any error in the bytes raises MalformedRequest. Encoders append to a bytearray that the
caller starts, for example with a header, and do not copy records.

Each has a variant that works in steps, for messages that may be long. It pauses after every STEP elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tailrace.kafka.decoder_source import DecoderWriter
from tailrace.kafka.encoder_source import EncoderWriter, Parts
from tailrace.kafka.schema import MessageType
from tailrace.turns import Steps

Decoder = Callable[[memoryview, int], tuple[Any, int]]
"""Maps (buffer, offset) to (message, offset after it)."""
Encoder = Callable[[Any, bytearray, Parts], bytearray]
"""Takes (message, buffer to append to, finished parts). Returns the last buffer, which is not among the parts yet."""
StepDecoder = Callable[[memoryview, int], Steps[tuple[Any, int]]]
StepEncoder = Callable[[Any, bytearray, Parts], Steps[bytearray]]


@dataclass(frozen=True, slots=True)
class Codec:
    """The compiled decoder and encoder of one message in one version, with their source."""

    decode: Decoder
    encode: Encoder
    decoder_source: str
    encoder_source: str


@cache
def codec(message: MessageType, version: int, flexible: bool, *, max_items: int | None = None) -> Codec:
    """Return the codec of a message in a version. It is compiled on first use.

    Args:
        max_items: the decoder refuses a message whose arrays together have more elements.
    """
    decoder = DecoderWriter(version, flexible, max_items)
    encoder = EncoderWriter(version, flexible)
    decoder_source = decoder.write(message)
    encoder_source = encoder.write(message)
    name = f"<{message.__name__} v{version}>"
    decode = _run(decoder_source, decoder.names, name)["decode"]
    encode = _run(encoder_source, encoder.names, name)["encode"]
    return Codec(decode, encode, decoder_source, encoder_source)


@cache
def step_decoder(message: MessageType, version: int, flexible: bool, max_items: int | None) -> StepDecoder:
    """Return the decoder of a message that works in steps. For `max_items`, see `codec`."""
    writer = DecoderWriter(version, flexible, max_items, is_stepping=True)
    decode: StepDecoder = _run(
        writer.write(message), writer.names, f"<{message.__name__} v{version} in steps>"
    )["decode"]
    return decode


@cache
def step_encoder(message: MessageType, version: int, flexible: bool) -> StepEncoder:
    """Return the encoder of a message that works in steps."""
    writer = EncoderWriter(version, flexible, is_stepping=True)
    encode: StepEncoder = _run(
        writer.write(message), writer.names, f"<{message.__name__} v{version} in steps>"
    )["encode"]
    return encode


def _run(source: str, names: dict[str, Any], filename: str) -> dict[str, Any]:
    exec(compile(source, filename, "exec"), names)
    return names
