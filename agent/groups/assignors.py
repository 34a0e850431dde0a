"""The assignors that run on the coordinator (KIP-848, KIP-932), as functions of the members' subscriptions.

    uniform   evenly, with the fewest moves: no reader has two partitions more than another
    range     neighbouring partitions of a topic to one reader: first to static members in the order of their instance
              ids, then to the others in the order of their member ids
    shared    for share groups: evenly; a partition goes to several readers if there are more readers than partitions

Each partition of a subscribed topic gets one of the topic's subscribers, or more in a share group.

They work in steps, and report how many topics or partitions they processed.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from uuid import UUID

from tailrace.turns import Steps, in_parts

Assignment = dict[UUID, frozenset[int]]
"""Partitions by topic id. A topic without partitions is left out."""


def united(named: Iterable[tuple[UUID, Iterable[int]]]) -> Assignment:
    """Merge the partitions that a client names; it may name a topic several times."""
    assignment: Assignment = {}
    for topic_id, partitions in named:
        assignment[topic_id] = assignment.get(topic_id, frozenset()).union(partitions)
    return assignment


MAX_PASSES = 8
"""Passes of `uniform` over all topics. One is enough if all members read the same topics; otherwise the result is
nearly even."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it. `topics`: those that exist; `current`: its previous target assignment."""

    topics: frozenset[UUID]
    instance_id: str | None = None
    current: Assignment = field(default_factory=dict)


Assignor = Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], Steps[dict[str, Assignment]]]
"""Returns each member's assignment, by member id, given the members and the topics' partition counts."""

TOPICS_IN_A_STEP = 1_000


def range_(members: Mapping[str, Subscriber], partitions: Mapping[UUID, int]) -> Steps[dict[str, Assignment]]:
    """Give each reader neighbouring partitions; the first readers get one more if they don't divide evenly. Static
    members come first, so that they keep their places when others return under new ids."""
    target: dict[str, Assignment] = {member_id: {} for member_id in members}

    def place(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, instance_id or "", member_id

    in_order = sorted(members, key=place)
    read = {member_id: member.topics for member_id, member in members.items()}
    for readers, topics in (yield from _by_readers(read, in_order, partitions)):
        for topic_id in topics:
            count = partitions[topic_id]
            each, more = divmod(count, len(readers))
            for index, member_id in enumerate(readers[:count]):
                first = index * each + min(index, more)
                target[member_id][topic_id] = frozenset(range(first, first + each + (index < more)))
            yield count
    return target


def uniform(
    members: Mapping[str, Subscriber], partitions: Mapping[UUID, int]
) -> Steps[dict[str, Assignment]]:
    """Assign as evenly as the subscriptions allow, with the fewest moves."""
    loads = dict.fromkeys(sorted(members), 0)
    shares = yield from _shares_of(members, partitions)
    for share in shares:
        yield from share.keep(members, loads)
    for share in shares:
        yield from share.give(loads)
    for _ in range(MAX_PASSES):
        moved = 0
        for share in shares:
            moved += yield from share.level(loads)
        if not moved:
            break
    held: dict[str, dict[UUID, set[int]]] = {member_id: defaultdict(set) for member_id in members}
    while shares:
        for member_id, topic_partitions in shares.pop().held.items():
            for some in in_parts(topic_partitions, TOPICS_IN_A_STEP):
                for topic_id, partition in some:
                    held[member_id][topic_id].add(partition)
                yield len(some)
            yield 1
    target: dict[str, Assignment] = {}
    for member_id in members:
        assigned = target[member_id] = {}
        topics = held.pop(member_id)
        for topic_id, of_topic in topics.items():
            assigned[topic_id] = frozenset(of_topic)
            yield 1 + len(of_topic)
        yield 1
    return target


def shared(
    readers: Mapping[str, frozenset[UUID]], partitions: Mapping[UUID, int]
) -> Steps[dict[str, Assignment]]:
    """Deal each partition to the reader with the fewest, and then a partition to each reader that has none. In each
    case the first readers, in the given order, come first. So no more is dealt than there are partitions and readers.
    """
    order = list(readers)
    loads = [0] * len(order)
    places = {member_id: place for place, member_id in enumerate(order)}
    held: list[dict[UUID, set[int]]] = [defaultdict(set) for _ in order]
    by_readers = yield from _by_readers(readers, order, partitions)
    for members, topics in sorted(by_readers, key=lambda shared: len(shared[0])):
        heap = [(loads[places[member_id]], places[member_id]) for member_id in members]
        heapq.heapify(heap)
        yield len(heap)
        for topic_id in topics:
            for partition in range(partitions[topic_id]):
                load, place = heap[0]
                held[place][topic_id].add(partition)
                loads[place] = load + 1
                heapq.heapreplace(heap, (load + 1, place))
            yield 1 + partitions[topic_id]
    idle: dict[frozenset[UUID], list[int]] = defaultdict(list)
    for place, member_id in enumerate(order):
        if not loads[place]:
            idle[readers[member_id]].append(place)
    for topics_read, waiting in idle.items():
        read = _sorted(topics_read & partitions.keys())
        yield 1 + len(topics_read)
        dealt = [
            (topic_id, each) for topic_id in read[: len(waiting)] for each in range(partitions[topic_id])
        ]
        for number, place in enumerate(waiting if dealt else ()):
            topic_id, partition = dealt[number % len(dealt)]
            held[place][topic_id].add(partition)
        yield len(dealt) + len(waiting)
    target: dict[str, Assignment] = {}
    for member_id, topics_held in zip(order, held, strict=True):
        assigned = target[member_id] = {}
        for topic_id, of_topic in topics_held.items():
            assigned[topic_id] = frozenset(of_topic)
            yield 1 + len(of_topic)
    return target


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": range_}
"""The assignors by the name that clients use. The first is the default."""


@dataclass(slots=True)
class _Share:
    """The topics that the same members read, in order. `held`: their partitions by member; `free`: partitions without
    a member yet."""

    held: dict[str, list[tuple[UUID, int]]]
    free: dict[UUID, set[int]]

    def keep(self, members: Mapping[str, Subscriber], loads: dict[str, int]) -> Steps[None]:
        """Keep each partition at its member. If two members claim it, the lower id keeps it."""
        for member_id, held in self.held.items():
            current = members[member_id].current
            for topic_id in _sorted(current.keys() & self.free.keys()):
                kept = self.free[topic_id] & current[topic_id]
                self.free[topic_id] -= kept
                held += [(topic_id, partition) for partition in sorted(kept)]
                yield 1 + len(kept)
            loads[member_id] += len(held)
            yield 1

    def give(self, loads: dict[str, int]) -> Steps[None]:
        """Give each free partition to the member with the fewest partitions."""
        readers = _by(loads, self.held)
        yield len(readers)
        for topic_id, free in self.free.items():
            for partition in sorted(free):
                load, member_id = readers[0]
                self.held[member_id].append((topic_id, partition))
                loads[member_id] = load + 1
                heapq.heapreplace(readers, (load + 1, member_id))
            yield 1 + len(free)

    def level(self, loads: dict[str, int]) -> Steps[int]:
        """Move partitions from the members with the most to those with the fewest. Return the number of moves."""
        moved = 0
        takers = _by(loads, self.held)
        givers = [(-loads[member_id], member_id) for member_id, held in self.held.items() if held]
        heapq.heapify(givers)
        yield len(takers) + len(givers)
        while givers:
            (negative, giver), (least, taker) = givers[0], takers[0]
            if -negative != loads[giver] or not self.held[giver]:
                heapq.heappop(givers)  # it received partitions, or has no more of these topics
            elif least != loads[taker]:
                heapq.heapreplace(takers, (loads[taker], taker))
            elif loads[giver] - least <= 1:
                break
            else:
                self.held[taker].append(self.held[giver].pop())
                loads[giver] -= 1
                loads[taker] += 1
                heapq.heapreplace(givers, (-loads[giver], giver))
                heapq.heapreplace(takers, (loads[taker], taker))
                moved += 1
                yield 1
        return moved


def _by(loads: Mapping[str, int], readers: Iterable[str]) -> list[tuple[int, str]]:
    """Return a heap of the members: the fewest partitions first, then the lower id."""
    heap = [(loads[member_id], member_id) for member_id in readers]
    heapq.heapify(heap)
    return heap


def _sorted(topic_ids: Iterable[UUID]) -> list[UUID]:
    """Sort the ids: five times as fast as by their own comparison."""
    return sorted(topic_ids, key=attrgetter("int"))


def _shares_of(members: Mapping[str, Subscriber], partitions: Mapping[UUID, int]) -> Steps[list[_Share]]:
    """Group the topics by their readers. Topics with the fewest readers come first, because their partitions have the
    least choice."""
    read = {member_id: member.topics for member_id, member in members.items()}
    by_readers = yield from _by_readers(read, sorted(members), partitions)
    shares = []
    for readers, topics in sorted(by_readers, key=lambda shared: len(shared[0])):
        free: dict[UUID, set[int]] = {}
        for topic_id in topics:
            free[topic_id] = set(range(partitions[topic_id]))
            yield 1 + partitions[topic_id]
        shares.append(_Share({member_id: [] for member_id in readers}, free))
        yield len(readers)
    return shares


def _by_readers(
    topics_read: Mapping[str, frozenset[UUID]], in_order: Sequence[str], partitions: Mapping[UUID, int]
) -> Steps[list[tuple[list[str], list[UUID]]]]:
    """Group the subscribed topics by their readers, in the given order. Members with the same subscription are
    processed once: a group may have thousands of members and of topics, but mostly has one subscription."""
    alike: dict[frozenset[UUID], list[int]] = defaultdict(list)
    for place, member_id in enumerate(in_order):
        alike[topics_read[member_id]].append(place)
    readers: dict[UUID, list[int]] = defaultdict(list)
    for number, topics in enumerate(alike):
        for some in in_parts(list(topics), TOPICS_IN_A_STEP):
            for topic_id in some:
                readers[topic_id].append(number)
            yield len(some)
    topics_of: dict[tuple[int, ...], list[UUID]] = defaultdict(list)
    for topic_id in _sorted(readers.keys() & partitions.keys()):
        topics_of[tuple(readers[topic_id])].append(topic_id)
        yield len(readers[topic_id])
    places, shared = list(alike.values()), []
    for who, read in topics_of.items():
        found = sorted(place for number in who for place in places[number])
        shared.append(([in_order[place] for place in found], read))
        yield len(found)
    return shared
