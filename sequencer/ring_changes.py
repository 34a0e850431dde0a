"""The difference between a ring and a later one, so that an agent that joins or leaves costs each other agent the bytes
of one member.

Pure. `ring_after(before, ring_change(before, after))` equals `after`.
"""

from __future__ import annotations

from collections.abc import Iterable

from sequencer.api.agents import Member, Ring, RingChange
from sequencer.rules.leases import MAX_DEPARTED


def ring_change(before: Ring, after: Ring) -> RingChange:
    """Return the change to send to an agent that has `before`."""
    known, live = _by_id(before.members), _by_id(after.members)
    departed = _by_id((*before.members, *before.departed))
    return RingChange(
        since=before.generation,
        generation=after.generation,
        members=[member for member in after.members if known.get(member.broker_id) != member],
        left=[broker_id for broker_id in known if broker_id not in live],
        departed=[member for member in after.departed if departed.get(member.broker_id) != member],
    )


def ring_after(before: Ring, change: RingChange) -> Ring:
    """Return the ring of the change's generation. `before` must be the ring of generation `since`."""
    assert before.generation == change.since, (
        f"{before.generation} is known, the change is since {change.since}"
    )
    live = _by_id((*before.members, *change.members))
    for broker_id in change.left:
        del live[broker_id]
    gone = _by_id((*before.departed, *before.members, *change.departed))
    departed = sorted(broker_id for broker_id in gone if broker_id not in live)[-MAX_DEPARTED:]
    return Ring(
        change.generation,
        [live[broker_id] for broker_id in sorted(live)],
        [gone[broker_id] for broker_id in departed],
    )


def _by_id(members: Iterable[Member]) -> dict[int, Member]:
    return {member.broker_id: member for member in members}
