"""The bytes that members of a group exchange through the coordinator, if they use the consumer protocol. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from agent.tenants.translation import Replace, translated
from tailrace.kafka.embedded import VERSION_BYTES, read_embedded, write_embedded
from tailrace.kafka.errors import MalformedRequest, UnencodableMessage
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tailrace.kafka.schema import Entity

Kind = type[ConsumerProtocolSubscription] | type[ConsumerProtocolAssignment]


def translated_bytes(kind: Kind, given: bytes, replacements: Mapping[Entity, Replace]) -> bytes:
    """Return the message with its names replaced. Bytes that are not such a message stay unchanged.

    The bytes don't name their protocol. So they count as a consumer protocol message only if encoding it again yields
    the same bytes. This makes sure that an answer's names are translated back exactly where the request's were
    translated.
    """
    try:
        message, end = read_embedded(kind, given)
    except MalformedRequest:
        return given
    version, behind = given[:VERSION_BYTES], given[end:]
    if write_embedded(message, version) + behind != given:
        return given
    try:
        return write_embedded(translated(message, replacements), version) + behind
    except UnencodableMessage:
        return b""  # a name is too long for a prefix, so no topic has it
