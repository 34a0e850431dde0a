"""How each kind of name is translated. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from agent.groups.topic_pattern import local_pattern, pattern_of_tenant
from agent.tenants.consumer_protocol import translated_bytes
from agent.tenants.translation import FOREIGN, Replace
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tailrace.kafka.schema import NIL_UUID, Entity
from tailrace.tenants import Tenant

TOPIC, GROUP = 2, 32
"""The types of config resources whose names belong to tenants."""
_NAMES = (
    Entity.TOPIC_NAME,
    Entity.GROUP_ID,
    Entity.TRANSACTIONAL_ID,
    Entity.COORDINATOR_KEY,
    Entity.USER_NAME,
)
TENANTS_AT_ONCE = 1_024
"""The most tenants whose functions are cached: making them takes longer than a small request."""
LIMIT_REACHED = "A limit of the cluster is reached."
"""Replaces messages that would reveal how much all tenants together use."""


@dataclass(slots=True)
class TopicIds:
    """The topic ids of one request. The id of another tenant's topic is replaced by an id that no topic has, so the
    answer is that for an unknown id; in the answer the client's id is put back.

    `name_of` returns the stored name of a topic, None if this agent does not know the id. `unknown`: the request's ids
    that are not known. `hides_unknown`: replace these as well. Otherwise a handler that asks the sequencer again could
    find another tenant's topic.
    """

    tenant: Tenant
    name_of: Callable[[UUID], str | None]
    unused: Callable[[], UUID]
    hides_unknown: bool = False
    unknown: set[UUID] = field(default_factory=set)
    _hidden: dict[UUID, UUID] = field(default_factory=dict)
    _shown: dict[UUID, UUID] = field(default_factory=dict)

    def to_stored(self, topic_id: UUID, message: Any) -> UUID:
        if topic_id == NIL_UUID:
            return topic_id
        name = self.name_of(topic_id)
        if name is not None and self.tenant.owns(name):
            return topic_id
        if name is None and not self.hides_unknown:
            self.unknown.add(topic_id)
            return topic_id
        return self._hide(topic_id)

    def _hide(self, topic_id: UUID) -> UUID:
        if topic_id not in self._hidden:
            instead = self._hidden[topic_id] = self.unused()
            self._shown[instead] = topic_id
        return self._hidden[topic_id]

    def to_local(self, topic_id: UUID, message: Any) -> Any:
        if topic_id in self._shown:
            return self._shown[topic_id]
        name = self.name_of(topic_id)
        return topic_id if name is None or self.tenant.owns(name) else FOREIGN


@lru_cache(TENANTS_AT_ONCE)
def to_stored(tenant: Tenant) -> Mapping[Entity, Replace]:
    """Return the translations of a request's values, except topic ids."""

    def name(value: str, message: Any) -> str:
        return tenant.stored(value) if value else value

    def pattern(value: str, message: Any) -> str:
        return pattern_of_tenant(tenant, value) if value else value

    return {**_name_fields(name), Entity.TOPIC_REGEX: pattern}


@lru_cache(TENANTS_AT_ONCE)
def to_local(tenant: Tenant) -> Mapping[Entity, Replace]:
    """Return the translations of an answer's values, except topic ids."""

    def name(value: str, message: Any) -> Any:
        if not value:
            return value
        return tenant.local(value) if tenant.owns(value) else FOREIGN

    def pattern(value: str, message: Any) -> str:
        return local_pattern(value)

    def error_message(value: str, message: Any) -> str:
        if getattr(message, "error_code", 0) == ErrorCode.POLICY_VIOLATION:
            return LIMIT_REACHED
        return value.replace(tenant.prefix, "")

    def cluster_id(value: str, message: Any) -> str:
        return tenant.cluster_id(value)

    return {
        **_name_fields(name),
        Entity.TOPIC_REGEX: pattern,
        Entity.ERROR_MESSAGE: error_message,
        Entity.CLUSTER_ID: cluster_id,
    }


def _name_fields(name: Replace) -> dict[Entity, Replace]:
    """Apply `name` to fields with names, to config resources of topics and groups, and within embedded messages."""

    def config_resource(value: str, message: Any) -> Any:
        return name(value, message) if message.resource_type in (TOPIC, GROUP) else value

    def embedded(kind: Any) -> Replace:
        replacements = {Entity.TOPIC_NAME: name}
        return lambda value, message: translated_bytes(kind, value, replacements)

    return {
        **dict.fromkeys(_NAMES, name),
        Entity.CONFIG_RESOURCE: config_resource,
        Entity.SUBSCRIPTION: embedded(ConsumerProtocolSubscription),
        Entity.ASSIGNMENT: embedded(ConsumerProtocolAssignment),
    }
