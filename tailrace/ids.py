"""Identifiers that all parts share."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

NO_PRODUCER_ID = -1
NIL_TOPIC_ID = UUID(int=0)


class TopicPartition(NamedTuple):
    """A partition of one incarnation of a topic: the topic's id, never its name."""

    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"
