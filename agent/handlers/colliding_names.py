"""Topic names that differ only in `.` and `_`. Kafka refuses to create such a topic, because both would have the same
name in its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.catalog import Snapshot
from tailrace.turns import Turns

NAMES_IN_A_TURN = 5_000
"""Topic names processed in one turn of the loop."""


async def collisions(new: Iterable[str], known: Snapshot) -> dict[str, str]:
    """Return the new names that collide with an existing topic, each with that topic's name. Names that exist already
    are left out."""
    wanted = [name for name in new if name not in known.by_name and ("." in name or "_" in name)]
    there = await _unified(known) if wanted else {}
    return {name: there[unified(name)] for name in wanted if unified(name) in there}


async def _unified(known: Snapshot) -> Mapping[str, str]:
    """Return all topics by unified name. The result is kept, because refused clients retry often."""
    if not known.unified_names:
        found: dict[str, str] = {}
        async for name in Turns(NAMES_IN_A_TURN).over(list(known.by_name)):
            found[unified(name)] = name
        known.unified_names.update(found)
    return known.unified_names


def unified(name: str) -> str:
    """Return the name that all colliding names share."""
    return name.replace(".", "_")


def why_refused(name: str, there: str) -> str:
    """Return Kafka's error message."""
    return f"Topic '{name}' collides with existing topic: {there}"
