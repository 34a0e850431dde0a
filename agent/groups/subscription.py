"""The classic protocol's metadata of consumers: the topics that they read, and the partitions assigned to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.groups.topic_names import NAMES_IN_A_STEP
from tailrace.kafka.embedded import (
    VERSION_BYTES,
    known_version,
    read_embedded,
    read_embedded_in_steps,
    write_embedded,
)
from tailrace.kafka.errors import MalformedRequest
from tailrace.kafka.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tailrace.turns import Steps, in_parts

CONSUMER = "consumer"


def add_topics(metadata: bytes, into: set[str]) -> Steps[None]:
    """Add the topics of one member's subscription. Raises MalformedRequest."""
    subscription = yield from read_subscription(metadata)
    for some in in_parts(subscription.topics, NAMES_IN_A_STEP):
        into.update(some)
        yield len(some)


def partitions_of(assignment: bytes) -> list[tuple[str, int]] | None:
    """Return the partitions of one member's assignment, sorted by topic; None if it can't be read."""
    try:
        assigned = read_assignment(assignment).assigned_partitions if assignment else []
    except MalformedRequest:
        return None
    return sorted((part.topic, index) for part in assigned for index in part.partitions)


def reads_the_same(protocol_type: str | None, before: bytes, now: bytes) -> Steps[bool]:
    """Whether a member that came back wants what it wanted before.

    For consumers only the topics count. The rest of their metadata (owned partitions, generation, an assignor's data)
    describes what a member had, which differs for a client that has just been started.
    """
    if before == now:
        return True
    if protocol_type != CONSUMER:
        return False
    missing, found = set[str](), set[str]()
    try:
        yield from add_topics(before, missing)
        subscription = yield from read_subscription(now)
    except MalformedRequest:
        return False
    for some in in_parts(subscription.topics, NAMES_IN_A_STEP):
        found |= missing.intersection(some)
        missing.difference_update(some)
        if not found.issuperset(some):
            return False
        yield len(some)
    return not missing


def read_subscription(metadata: bytes) -> Steps[ConsumerProtocolSubscription]:
    """Decode a member's subscription. Raises MalformedRequest."""
    return read_embedded_in_steps(ConsumerProtocolSubscription, metadata)


def read_assignment(assignment: bytes) -> ConsumerProtocolAssignment:
    """Decode a member's assignment. Raises MalformedRequest."""
    return read_embedded(ConsumerProtocolAssignment, assignment)[0]


def write_assignment(metadata: bytes, partitions: Mapping[str, Iterable[int]]) -> bytes:
    """Encode partitions by topic name, in the version of the metadata with which the member subscribed."""
    assignment = ConsumerProtocolAssignment(
        [TopicPartition(name, sorted(partitions[name])) for name in sorted(partitions)]
    )
    return write_embedded(assignment, known_version(metadata).to_bytes(VERSION_BYTES, "big"))
