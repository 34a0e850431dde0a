"""Names of topics that differ by `.` and `_` alone. Kafka creates no topic beside such a one: both have one name in its
metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.catalog import Snapshot
from tailrace.turns import Turns

NAMES_IN_A_TURN = 5_000
"""Topics whose names are looked at in one turn of the loop."""


async def collisions(new: Iterable[str], known: Snapshot) -> dict[str, str]:
    """Of names of new topics those that collide, each with the name of a topic. Those that exist collide with none."""
    wanted = [name for name in new if name not in known.by_name and ("." in name or "_" in name)]
    there = await _unified(known) if wanted else {}
    return {name: there[unified(name)] for name in wanted if unified(name) in there}


async def _unified(known: Snapshot) -> Mapping[str, str]:
    """The names of all topics as they are unified; kept, as clients that are refused ask again and again."""
    if not known.unified_names:
        found: dict[str, str] = {}
        async for name in Turns(NAMES_IN_A_TURN).over(list(known.by_name)):
            found[unified(name)] = name
        known.unified_names.update(found)
    return known.unified_names


def unified(name: str) -> str:
    """The same for all names that collide."""
    return name.replace(".", "_")


def why_refused(name: str, there: str) -> str:
    """Kafka's words for it."""
    return f"Topic '{name}' collides with existing topic: {there}"
