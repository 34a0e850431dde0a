"""Which topics the members of a consumer group say that they read."""

from __future__ import annotations

from tailrace.kafka.compiler import codec
from tailrace.kafka.errors import MalformedRequest
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolSubscription

CONSUMER = "consumer"
_LATEST = 3
_VERSION_BYTES = 2


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics of one member's subscription; None when it can't be read."""
    try:
        return frozenset(_subscription(metadata).topics)
    except (MalformedRequest, IndexError):
        return None


def reads_the_same(protocol_type: str | None, before: bytes, now: bytes) -> bool:
    """Whether a member that came back wants what it wanted before.

    Of consumers only the topics count: the rest of their metadata (partitions owned, generation, an assignor's notes)
    tells what a member had, which differs for one that has just been started.
    """
    if before == now:
        return True
    if protocol_type != CONSUMER:
        return False
    topics = topics_of(before)
    return topics is not None and topics == topics_of(now)


def _subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """A subscription of a later version is read as the latest known: fields are only ever appended."""
    if len(metadata) < _VERSION_BYTES:
        raise MalformedRequest(f"a subscription of {len(metadata)} bytes")
    version = min(int.from_bytes(metadata[:_VERSION_BYTES], "big"), _LATEST)
    subscriptions = codec(ConsumerProtocolSubscription, version, False, from_client=True)
    subscription, _ = subscriptions.decode(memoryview(metadata), _VERSION_BYTES)
    assert isinstance(subscription, ConsumerProtocolSubscription), "the codec makes what it was compiled for"
    return subscription
