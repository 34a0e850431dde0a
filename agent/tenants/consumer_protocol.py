"""What members of a group tell each other through the coordinator, where it is of the consumers' protocol. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from agent.tenants.translation import Replace, translated
from tailrace.kafka.compiler import Codec, codec
from tailrace.kafka.errors import MalformedRequest
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tailrace.kafka.schema import Entity, Message

_LATEST = 3
_VERSION_BYTES = 2

Kind = type[ConsumerProtocolSubscription] | type[ConsumerProtocolAssignment]


def translated_bytes(kind: Kind, given: bytes, replacements: Mapping[Entity, Replace]) -> bytes:
    """The same message with its names replaced. Bytes that are no such message stay as they are.

    Nothing says for certain of which protocol the bytes are. So they are taken for this one only if it would write the
    very same bytes: then the names in an answer are replaced exactly where they were in the request.
    """
    if len(given) < _VERSION_BYTES:
        return given
    version = min(int.from_bytes(given[:_VERSION_BYTES], "big"), _LATEST)
    messages = codec(kind, version, False, from_client=True)
    try:
        message, end = messages.decode(memoryview(given), _VERSION_BYTES)
    except (MalformedRequest, IndexError):
        return given
    before, behind = given[:_VERSION_BYTES], given[end:]
    if _written(messages, message, before) + behind != given:
        return given
    return _written(messages, translated(message, replacements), before) + behind


def _written(messages: Codec, message: Message, before: bytes) -> bytes:
    out = bytearray(before)
    assert messages.encode(message, out, []) is out, "without records there is one part"
    return bytes(out)
