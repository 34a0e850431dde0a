"""How each kind of name looks on either side of the border. Pure."""

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
"""The types of config resources that have names of tenants."""
_NAMES = (
    Entity.TOPIC_NAME,
    Entity.GROUP_ID,
    Entity.TRANSACTIONAL_ID,
    Entity.COORDINATOR_KEY,
    Entity.USER_NAME,
)
TENANTS_AT_ONCE = 1_024
"""Tenants for which the functions are kept: making them takes longer than a small request."""
LIMIT_REACHED = "A limit of the cluster is reached."
"""Instead of a message that tells how much there is of all tenants together."""


@dataclass(slots=True)
class TopicIds:
    """The topic ids of one request. One of a topic that is not the tenant's becomes an id that no topic has, so that
    it is answered as such an id is; in the answer it is itself again.

    `name_of`: the stored name of a topic, None if this agent knows none of this id. `unknown`: such ids of the request.
    `hides_unknown`: whether these are taken for another's too. A handler may ask the sequencer once more, and would
    find the topic.
    """

    tenant: Tenant
    name_of: Callable[[UUID], str | None]
    unused: Callable[[], UUID]
    hides_unknown: bool = False
    unknown: set[UUID] = field(default_factory=set)
    _hidden: dict[UUID, UUID] = field(default_factory=dict)
    _shown: dict[UUID, UUID] = field(default_factory=dict)

    def inward(self, topic_id: UUID, message: Any) -> UUID:
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

    def outward(self, topic_id: UUID, message: Any) -> Any:
        if topic_id in self._shown:
            return self._shown[topic_id]
        name = self.name_of(topic_id)
        return topic_id if name is None or self.tenant.owns(name) else FOREIGN


@lru_cache(TENANTS_AT_ONCE)
def inward(tenant: Tenant) -> Mapping[Entity, Replace]:
    """What becomes of the values of a request, but for topic ids."""

    def name(value: str, message: Any) -> str:
        return tenant.stored(value) if value else value

    def config_resource(value: str, message: Any) -> str:
        return name(value, message) if message.resource_type in (TOPIC, GROUP) else value

    def pattern(value: str, message: Any) -> str:
        return pattern_of_tenant(tenant, value) if value else value

    def embedded(kind: Any) -> Replace:
        replacements = {Entity.TOPIC_NAME: name}
        return lambda value, message: translated_bytes(kind, value, replacements)

    return {
        **dict.fromkeys(_NAMES, name),
        Entity.CONFIG_RESOURCE: config_resource,
        Entity.TOPIC_REGEX: pattern,
        Entity.SUBSCRIPTION: embedded(ConsumerProtocolSubscription),
        Entity.ASSIGNMENT: embedded(ConsumerProtocolAssignment),
    }


@lru_cache(TENANTS_AT_ONCE)
def outward(tenant: Tenant) -> Mapping[Entity, Replace]:
    """What becomes of the values of an answer, but for topic ids."""

    def name(value: str, message: Any) -> Any:
        if not value:
            return value
        return tenant.local(value) if tenant.owns(value) else FOREIGN

    def config_resource(value: str, message: Any) -> Any:
        return name(value, message) if message.resource_type in (TOPIC, GROUP) else value

    def pattern(value: str, message: Any) -> str:
        return local_pattern(value)

    def error_message(value: str, message: Any) -> str:
        if getattr(message, "error_code", 0) == ErrorCode.POLICY_VIOLATION:
            return LIMIT_REACHED
        return value.replace(tenant.prefix, "")

    def cluster_id(value: str, message: Any) -> str:
        return tenant.cluster_id(value)

    def embedded(kind: Any) -> Replace:
        replacements = {Entity.TOPIC_NAME: name}
        return lambda value, message: translated_bytes(kind, value, replacements)

    return {
        **dict.fromkeys(_NAMES, name),
        Entity.CONFIG_RESOURCE: config_resource,
        Entity.TOPIC_REGEX: pattern,
        Entity.ERROR_MESSAGE: error_message,
        Entity.CLUSTER_ID: cluster_id,
        Entity.SUBSCRIPTION: embedded(ConsumerProtocolSubscription),
        Entity.ASSIGNMENT: embedded(ConsumerProtocolAssignment),
    }
