"""Client quotas: Kafka's entities and the limits that they can have (KIP-13, KIP-124, KIP-546, KIP-612). Pure."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

import msgspec

from tailrace.addresses import plain_address
from tailrace.limits import MAX_NAME_BYTES, is_name

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)
DEFAULT = ""
"""As an entity's name, it means every entity without its own quota. Kafka does not allow empty names."""

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

_LARGEST_INT = 2**31 - 1
_LARGEST_LONG = 2.0**63
"""Kafka's 2**63 - 1 as a floating-point number."""
_WHOLE: dict[str, tuple[float, str]] = {
    PRODUCER_BYTE_RATE: (_LARGEST_LONG, "LONG"),
    CONSUMER_BYTE_RATE: (_LARGEST_LONG, "LONG"),
    CONNECTION_CREATION_RATE: (_LARGEST_INT, "INT"),
}
"""Quotas that are whole numbers, with the largest value and Kafka's name of the type."""
_OF_CLIENTS = {PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE}
_OF_ADDRESSES = {CONNECTION_CREATION_RATE}


class InvalidQuota(ValueError):
    """An entity or a value that Kafka refuses; the message is Kafka's."""


class QuotaEntity(msgspec.Struct, frozen=True, order=True):
    """The clients that a quota applies to: those of a user, a client id, both, or an address.

    None matches any name; DEFAULT matches each name that has no quota of its own.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def parts(self) -> dict[str, str]:
        """The entity's names by type, without None."""
        named = zip(ENTITY_TYPES, (self.user, self.client_id, self.ip), strict=True)
        return {kind: name for kind, name in named if name is not None}

    @property
    def text(self) -> str:
        """The entity as text, such as `user=alice&client-id=`; `entity_of` reads it."""
        return urlencode(self.parts)


def entity_of(text: str) -> QuotaEntity:
    """Parse an entity from text. Raises InvalidQuota."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, max_num_fields=3)
    except ValueError:
        raise InvalidQuota(f"{text[:100]!r} names no quota's entity") from None
    return checked_entity(pairs)


def checked_entity(parts: list[tuple[str, str]]) -> QuotaEntity:
    """Return the entity of these (type, name) pairs. Raises InvalidQuota."""
    if not parts:
        raise InvalidQuota("Invalid empty client quota entity")
    named: dict[str, str] = {}
    for kind, name in parts:
        if kind in named:
            raise InvalidQuota(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind not in ENTITY_TYPES:
            raise InvalidQuota(f"Unhandled client quota entity type: {kind[:100]}")
        named[kind] = name
    if IP in named:
        if len(named) > 1:
            raise InvalidQuota(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        if named[IP] != DEFAULT:
            named[IP] = _address(named[IP])
    entity = QuotaEntity(named.get(USER), named.get(CLIENT_ID), named.get(IP))
    if not is_name(entity.text):
        raise InvalidQuota(f"the entity's names have more than {MAX_NAME_BYTES} bytes as a URL writes them")
    return entity


def _address(text: str) -> str:
    """Return the address in its canonical form. Refuses host names, because an agent does not query DNS."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise InvalidQuota(f"{text[:100]} is not a valid IP address.") from None
    return plain_address(text)


def checked_limit(entity: QuotaEntity, key: str, value: float) -> float:
    """Return the value if the entity may have it for this quota. Raises InvalidQuota."""
    if key not in (_OF_CLIENTS if entity.ip is None else _OF_ADDRESSES):
        raise InvalidQuota(f"Invalid configuration key {key[:100]}")
    if not (math.isfinite(value) and value > 0):
        raise InvalidQuota(f"Quota {key} must be greater than 0")
    largest, kind = _WHOLE.get(key, (0, ""))
    if kind and value > largest:
        raise InvalidQuota(f"Proposed value for {key} is too large for a {kind}.")
    if kind and value % 1.0 > 1e-6:
        raise InvalidQuota(f"{key} cannot be a fractional value.")
    return value


def limits_of(entity: QuotaEntity, configs: Mapping[str, str]) -> dict[str, float]:
    """Parse quotas that are stored as configs. Raises InvalidQuota."""
    try:
        return {key: checked_limit(entity, key, float(value)) for key, value in configs.items()}
    except ValueError as error:
        raise InvalidQuota(str(error)) from None
