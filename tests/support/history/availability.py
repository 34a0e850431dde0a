"""How long nobody got an answer: the longest gaps between acknowledgements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from tests.support.history.events import Acked, AnyEvent, Ended, Sent


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without an acknowledgement; seconds on the history's clock."""

    seconds: float = 0.0
    began_at: float = 0.0


@dataclass(slots=True)
class Availability:
    """The longest gaps of a stretch of time: between any two acknowledgements, and those of one partition or client."""

    acks: int = 0
    any: Gap = Gap()
    by_partition: dict[tuple[str, int], Gap] = field(default_factory=dict)
    by_client: dict[str, Gap] = field(default_factory=dict)
    transactions: Gap = Gap()
    """Between two ends of transactions."""

    @property
    def worst_partition(self) -> Gap:
        return max(self.by_partition.values(), key=lambda gap: gap.seconds, default=Gap())

    @property
    def worst_client(self) -> Gap:
        return max(self.by_client.values(), key=lambda gap: gap.seconds, default=Gap())


def find_gaps(events: Iterable[AnyEvent], since: float, until: float) -> Availability:
    """The gaps within [since, until]; one that reaches over an end is cut there."""
    place: dict[str, tuple[str, int]] = {}
    times: list[float] = []
    by_partition: dict[tuple[str, int], list[float]] = defaultdict(list)
    by_client: dict[str, list[float]] = defaultdict(list)
    ends: list[float] = []
    for event in events:
        match event:
            case Sent():
                place[event.record] = event.topic, event.partition
                if since <= event.at <= until:
                    by_partition.setdefault((event.topic, event.partition), [])
            case Acked() if since <= event.at <= until:
                times.append(event.at)
                by_partition[place[event.record]].append(event.at)
                by_client[event.client.partition("#")[0]].append(event.at)
            case Ended() if since <= event.at <= until and event.outcome != "unknown":
                ends.append(event.at)
    return Availability(
        len(times),
        _longest(times, since, until),
        {each: _longest(found, since, until) for each, found in by_partition.items()},
        {each: _longest(found, since, until) for each, found in by_client.items()},
        _longest(ends, since, until) if ends else Gap(),
    )


def find_recovery(events: Iterable[AnyEvent], back_at: float) -> dict[tuple[str, int], float]:
    """For each partition that was sent to, the seconds from `back_at` to its first acknowledgement; inf for none."""
    place: dict[str, tuple[str, int]] = {}
    found: dict[tuple[str, int], float] = {}
    for event in events:
        match event:
            case Sent():
                place[event.record] = event.topic, event.partition
                found.setdefault((event.topic, event.partition), inf)
            case Acked() if event.at >= back_at:
                partition = place[event.record]
                found[partition] = min(found[partition], event.at - back_at)
    return found


def _longest(times: list[float], since: float, until: float) -> Gap:
    edges = [since, *sorted(times), until]
    return max((Gap(after - before, before) for before, after in pairwise(edges)), key=_seconds)


def _seconds(gap: Gap) -> float:
    return gap.seconds
