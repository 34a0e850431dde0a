"""Which topics the members of a consumer group say that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.protocol.compiler import codec
from agent.protocol.errors import MalformedRequest
from agent.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

if TYPE_CHECKING:
    from agent.groups.group import Group

CONSUMER = "consumer"
_LATEST = 3
_VERSION_BYTES = 2


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics of all members; None when some member's subscription can't be read, or they are no consumers."""
    if group.members and group.protocol_type != CONSUMER:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        for _, metadata in member.protocols[:1]:
            try:
                topics.update(_subscription(metadata).topics)
            except (MalformedRequest, IndexError):
                return None
    return frozenset(topics)


def reads_the_same(protocol_type: str | None, before: bytes, now: bytes) -> bool:
    """Whether a member that came back wants what it wanted before.

    Of consumers only the topics count: the rest of their metadata (partitions owned, generation, an assignor's notes)
    tells what a member had, which differs for one that has just been started.
    """
    if before == now:
        return True
    if protocol_type != CONSUMER:
        return False
    try:
        return set(_subscription(before).topics) == set(_subscription(now).topics)
    except (MalformedRequest, IndexError):
        return False


def _subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """A subscription of a later version is read as the latest known: fields are only ever appended."""
    if len(metadata) < _VERSION_BYTES:
        raise MalformedRequest(f"a subscription of {len(metadata)} bytes")
    version = min(int.from_bytes(metadata[:_VERSION_BYTES], "big"), _LATEST)
    subscription, _ = codec(ConsumerProtocolSubscription, version, False).decode(
        memoryview(metadata), _VERSION_BYTES
    )
    assert isinstance(subscription, ConsumerProtocolSubscription), "the codec makes what it was compiled for"
    return subscription
