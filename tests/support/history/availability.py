"""Finds the longest gaps between acknowledgements, in which nobody got an answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from tests.support.history.events import Acked, AnyEvent, Ended, Sent


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without an acknowledgement, in seconds on the history's clock."""

    seconds: float = 0.0
    began_at: float = 0.0


Flow = tuple[str, str, int]
"""What one client sends to one partition: client, topic, partition. A client's replacement continues the same flow."""


@dataclass(slots=True)
class Availability:
    """The longest gaps in a span of time: between any two acknowledgements, and those of one partition or flow."""

    acks: int = 0
    any: Gap = Gap()
    by_partition: dict[tuple[str, int], Gap] = field(default_factory=dict)
    by_flow: dict[Flow, Gap] = field(default_factory=dict)
    transactions: Gap = Gap()
    """Between two ends of transactions."""

    @property
    def worst_partition(self) -> Gap:
        return max(self.by_partition.values(), key=lambda gap: gap.seconds, default=Gap())


def find_gaps(events: Iterable[AnyEvent], since: float, until: float) -> Availability:
    """Find the gaps within [since, until]; a gap that extends beyond an end is cut there. A flow or a partition that
    was used before, and has no acknowledgement within the span, has a gap of the whole span."""
    flow_of: dict[str, Flow] = {}
    times: list[float] = []
    by_partition: dict[tuple[str, int], list[float]] = defaultdict(list)
    by_flow: dict[Flow, list[float]] = defaultdict(list)
    ends: list[float] = []
    has_transactions = False
    for event in events:
        match event:
            case Sent() if event.at <= until:
                flow = _base(event.client), event.topic, event.partition
                flow_of[event.record] = flow
                by_flow.setdefault(flow, [])
                by_partition.setdefault((event.topic, event.partition), [])
            case Acked() if since <= event.at <= until:
                flow = flow_of[event.record]
                times.append(event.at)
                by_flow[flow].append(event.at)
                by_partition[flow[1:]].append(event.at)
            case Ended() if event.at <= until:
                has_transactions = True
                if since <= event.at and event.outcome != "unknown":
                    ends.append(event.at)
    return Availability(
        len(times),
        _longest(times, since, until),
        {each: _longest(found, since, until) for each, found in by_partition.items()},
        {each: _longest(found, since, until) for each, found in by_flow.items()},
        _longest(ends, since, until) if has_transactions else Gap(),
    )


def flows_served(events: Iterable[AnyEvent], since: float) -> set[Flow]:
    """Return the flows in which a record that was sent after `since` was acknowledged."""
    sent: dict[str, Flow] = {}
    served: set[Flow] = set()
    for event in events:
        match event:
            case Sent() if event.at > since:
                sent[event.record] = _base(event.client), event.topic, event.partition
            case Acked() if event.record in sent:
                served.add(sent[event.record])
    return served


def _base(client: str) -> str:
    return client.partition("#")[0]


def _longest(times: list[float], since: float, until: float) -> Gap:
    edges = [since, *sorted(times), until]
    return max((Gap(after - before, before) for before, after in pairwise(edges)), key=_seconds)


def _seconds(gap: Gap) -> float:
    return gap.seconds
