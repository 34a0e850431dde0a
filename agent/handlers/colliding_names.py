"""Names of topics that differ by `.` and `_` alone. Kafka creates no topic beside such a one: both have one name in its
metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.catalog import KnownTopic
from tailrace.turns import Turns

NAMES_IN_A_TURN = 5_000
"""Topics whose names are looked at in one turn of the loop."""


async def collisions(new: Iterable[str], known: Mapping[str, KnownTopic]) -> dict[str, str]:
    """Of names of new topics those that collide, each with the name of a topic. Those that exist collide with none."""
    wanted: dict[str, list[str]] = {}
    for name in dict.fromkeys(new):
        if name not in known and ("." in name or "_" in name):
            wanted.setdefault(unified(name), []).append(name)
    found: dict[str, str] = {}
    if wanted:
        async for there in Turns(NAMES_IN_A_TURN).over(list(known)):
            found.update((name, there) for name in wanted.get(unified(there), ()))
    return found


def unified(name: str) -> str:
    """The same for all names that collide."""
    return name.replace(".", "_")


def why_refused(name: str, there: str) -> str:
    """Kafka's words for it."""
    return f"Topic '{name}' collides with existing topic: {there}"
