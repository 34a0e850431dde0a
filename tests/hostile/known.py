"""What a hostile client knows about a broker: its own names, and the ids from answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tailrace.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tailrace.kafka.messages.share_acknowledge import ShareAcknowledgeRequest
from tailrace.kafka.messages.share_fetch import ShareFetchRequest
from tailrace.kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

QUIET_TOPIC, QUIET_GROUP = "quiet", "quiet-readers"
"""The bystanders' topic and group. Hostile requests read and describe them, but never ask for a change, because the
broker would carry it out."""
WIDE_TOPIC, WIDE_GROUP = "hostile-wide", "hostile-wide-readers"
"""A topic of many partitions, and a group with a position in each: answers about them are often slow."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group whose members have epochs: a consumer group (KIP-848) or a share group (KIP-932)."""

    group_id: str
    member_id: str
    epoch: int


@dataclass(slots=True)
class Known:
    """Names of what exists, as far as answers have revealed them."""

    own_member: str = "hostile-member"
    topics: list[str] = field(default_factory=lambda: [f"hostile-{number}" for number in range(4)])
    topic_ids: list[UUID] = field(default_factory=list)
    kept_topic_ids: list[UUID] = field(default_factory=list)
    """The ids of topics that are only read."""
    foreign_topic_ids: tuple[UUID, ...] = ()
    """The ids of another tenant's topics: any request may contain them."""
    changes_defaults: bool = False
    """Whether requests may change cluster-wide defaults: only if these do not affect the bystanders."""
    groups: list[str] = field(default_factory=lambda: [f"hostile-group-{number}" for number in range(4)])
    """At first one with classic members, one with only positions, a consumer group and a share group."""
    transactional_ids: list[str] = field(
        default_factory=lambda: [f"hostile-txn-{number}" for number in range(4)]
    )
    members: list[str] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    consumers: list[Member] = field(default_factory=list)
    sharers: list[Member] = field(default_factory=list)
    share_session_epoch: int = 0
    """The epoch of the next request in the share session."""
    producers: list[tuple[int, int]] = field(default_factory=list)
    sessions: list[tuple[int, int]] = field(default_factory=list)
    broker_ids: list[int] = field(default_factory=lambda: [1])

    def learn(self, answer: Any, request: Any = None) -> None:
        """Add the ids in an answer."""
        for message in parts_of(answer):
            values = {name: getattr(message, name) for name in message.__struct_fields__}
            topic_id = values.get("topic_id")
            if isinstance(topic_id, UUID) and topic_id.int and values.get("name"):
                is_kept = values["name"] in (QUIET_TOPIC, WIDE_TOPIC)
                _remember(self.kept_topic_ids if is_kept else self.topic_ids, topic_id)
            if values.get("member_id"):
                _remember(self.members, values["member_id"])
            if values.get("generation_id", -1) >= 0:
                _remember(self.generations, values["generation_id"])
            if values.get("producer_id", -1) >= 0 and "producer_epoch" in values:
                _remember(self.producers, (values["producer_id"], values["producer_epoch"]))
            if values.get("session_id"):
                _remember(self.sessions, (values["session_id"], 1))
        if answer is not None:
            self._learn_of_members(answer, request)

    def _learn_of_members(self, answer: Any, request: Any) -> None:
        if isinstance(request, ShareFetchRequest | ShareAcknowledgeRequest):
            is_refused = answer.error_code or request.share_session_epoch < 0
            self.share_session_epoch = 0 if is_refused else request.share_session_epoch + 1
        elif isinstance(request, ConsumerGroupHeartbeatRequest | ShareGroupHeartbeatRequest):
            is_consumer = isinstance(request, ConsumerGroupHeartbeatRequest)
            members = self.consumers if is_consumer else self.sharers
            members[:] = [each for each in members if each.member_id != request.member_id]
            if answer.member_id and answer.member_epoch > 0:
                _remember(members, Member(request.group_id, answer.member_id, answer.member_epoch))


def _remember(known: list[Any], value: Any, most: int = 8) -> None:
    if value not in known:
        known.append(value)
        del known[:-most]


def parts_of(message: Any) -> list[Any]:
    """Return a message and all structures in it."""
    if isinstance(message, list | tuple):
        return [part for each in message for part in parts_of(each)]
    if not hasattr(message, "__struct_fields__"):
        return []
    return [
        message,
        *(part for name in message.__struct_fields__ for part in parts_of(getattr(message, name))),
    ]
