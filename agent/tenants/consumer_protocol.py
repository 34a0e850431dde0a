"""What members of a group tell each other through the coordinator, where it is of the consumers' protocol. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from agent.tenants.translation import Replace, translated
from tailrace.kafka.embedded import VERSION_BYTES, read_embedded, write_embedded
from tailrace.kafka.errors import MalformedRequest
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tailrace.kafka.schema import Entity

Kind = type[ConsumerProtocolSubscription] | type[ConsumerProtocolAssignment]


def translated_bytes(kind: Kind, given: bytes, replacements: Mapping[Entity, Replace]) -> bytes:
    """The same message with its names replaced. Bytes that are no such message stay as they are.

    Nothing says for certain of which protocol the bytes are. So they are taken for this one only if it would write the
    very same bytes: then the names in an answer are replaced exactly where they were in the request.
    """
    try:
        message, end = read_embedded(kind, given)
    except MalformedRequest:
        return given
    version, behind = given[:VERSION_BYTES], given[end:]
    if write_embedded(message, version) + behind != given:
        return given
    return write_embedded(translated(message, replacements), version) + behind
