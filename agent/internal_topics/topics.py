"""Creates an internal topic on first use, as Kafka does."""

from __future__ import annotations

from contextlib import suppress

from agent.catalog import KnownTopic
from agent.services import Services
from sequencer.api.errors import TopicExists, UnknownTopic
from sequencer.api.topics import CreateTopic
from tailrace.configs.internal_topics import CONFIGS, PARTITIONS


async def kept_topic(services: Services, name: str) -> KnownTopic:
    """Return the internal topic of this name (as stored); create it if necessary. Raises the sequencer's errors."""
    known = await services.catalog.of_one_request().by_name(name)
    if known is None:
        with suppress(TopicExists):
            await services.sequencer.create_topic(creation(name))
        known = (await services.catalog.refresh()).by_name.get(name)
    if known is None:
        raise UnknownTopic(f"{name} was deleted right after it was created")
    return known


def creation(name: str) -> CreateTopic:
    """Return the request that creates an internal topic."""
    return CreateTopic(name, PARTITIONS, dict(CONFIGS))
