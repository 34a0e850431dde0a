"""A consumer group whose assignment the coordinator computes (KIP-848), without I/O, clock or tasks.

Members heartbeat; everything else follows from three epochs. The group's epoch rises whenever its subscriptions or
the partitions of its topics change. A target assignment is made for each group epoch. Each member moves towards the
target on its own, and gets the target's epoch once it has given up everything that it must give up:

    member       | waits until                                         | leaves the state when
    Stable       | -                                                   | the target has a later epoch
    Unrevoked    | its client gives up partitions for others           | a heartbeat no longer names them; a time-out
    Unreleased   | other members give up partitions for it             | they have, as of one of its heartbeats

    group        |
    Empty        | no members; offsets may remain
    Assigning    | the target is older than the group's epoch
    Reconciling  | some member has not reached the target
    Stable       | all members have reached the target

While clients are restarted one by one, members of the classic protocol are among them (see `classic_members`).

Every call takes `now` (seconds, monotonic). `is_dirty`: the state must be stored before an answer is sent.

Invariants:
- a partition has at most one member. No other member gets it until its holder's client no longer names it, or the
  holder is gone;
- the group's epoch never falls; a member's epoch rises only by steps that were sent to it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import ClassVar, NamedTuple
from uuid import UUID

from agent.catalog import KnownTopic
from agent.groups.assignors import ASSIGNORS, Assignment, Subscriber
from agent.groups.group import Answer, names_bytes
from agent.groups.topic_names import NAMES_IN_A_STEP, NO_TOPICS, TopicNames
from agent.groups.topic_pattern import TopicPattern
from sequencer.api.groups import CONSUMER_GROUP, OffsetPosition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.turns import Steps, in_parts

JOINS, LEAVES, LEAVES_FOR_NOW = 0, -1, -2
"""Member epochs with a special meaning. Only a static member can leave temporarily: its place is kept."""

MAX_PATTERNS = 16
"""Limit of different regular expressions in one group: each is matched with all topics whenever these change."""

DEFAULT_ASSIGNOR = next(iter(ASSIGNORS))

Topics = Mapping[str, KnownTopic]
"""The cluster's topics by name; replaced by a new mapping when a topic changes."""


class ConsumerGroupPhase(enum.StrEnum):
    """The group's states, with Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberPhase(enum.IntEnum):
    """How far a member has moved to its target."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member reads, and its preferred assignor."""

    topics: TopicNames = NO_TOPICS
    pattern: str = ""
    assignor: str = ""

    @property
    def kept_bytes(self) -> int:
        return self.topics.kept_bytes + len(self.pattern)


@dataclass(frozen=True, slots=True)
class ClassicClient:
    """What a classic member sent when it joined. `protocols`: (name, metadata), most preferred first."""

    session_seconds: float
    protocols: tuple[tuple[str, bytes], ...]

    @property
    def kept_bytes(self) -> int:
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)


@dataclass(slots=True)
class Consumer:
    """A member. `assigned`: partitions that its client may read; `revoking`: those that it must give up and may still
    read. `classic`: None for a client of the new protocol. `answer_deadline`: when a classic client must have sent the
    JoinGroup or SyncGroup that is due."""

    member_id: str
    instance_id: str | None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_seconds: float = 0.0
    subscription: Subscription = Subscription()
    epoch: int = 0
    previous_epoch: int = 0
    phase: MemberPhase = MemberPhase.STABLE
    assigned: Assignment = field(default_factory=dict)
    revoking: Assignment = field(default_factory=dict)
    target: Assignment = field(default_factory=dict)
    session_deadline: float = 0.0
    revocation_deadline: float = inf
    classic: ClassicClient | None = None
    answer_deadline: float = inf

    @property
    def has_left_for_now(self) -> bool:
        return self.epoch == LEAVES_FOR_NOW

    @property
    def deadline(self) -> float:
        """When it is removed if it sends nothing."""
        return min(self.session_deadline, self.revocation_deadline, self.answer_deadline)

    @property
    def names_bytes(self) -> int:
        return names_bytes(self.member_id, self.instance_id, self.client_id, self.client_host, self.rack_id)

    @property
    def kept_bytes(self) -> int:
        classic = 0 if self.classic is None else self.classic.kept_bytes
        return self.names_bytes + self.subscription.kept_bytes + classic


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat request. None: the client left the field out, because it has not changed."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_seconds: float | None = None
    topics: TopicNames | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None

    @property
    def names_bytes(self) -> int:
        """What the member's names will count."""
        return names_bytes(self.member_id, self.instance_id, self.client_id, self.client_host, self.rack_id)

    @property
    def is_full(self) -> bool:
        """Whether the request is complete. Clients send a complete one if they can't know the coordinator's state."""
        has_subscription = self.topics is not None or self.pattern is not None
        return self.rebalance_seconds is not None and has_subscription and self.owned is not None


@dataclass(frozen=True, slots=True)
class ConsumerAnswer:
    """The answer to a heartbeat. `assigned` is None if it has not changed."""

    code: ErrorCode
    member_id: str = ""
    epoch: int = 0
    assigned: Assignment | None = None
    message: str | None = None


class PartitionHolder(NamedTuple):
    """The member that holds a partition, and the epoch at which it got it."""

    member: Consumer
    since: int


@dataclass(slots=True)
class ConsumerGroup:
    """One group. Owned by one coordinator. Settings: `session_seconds`, `max_size` (members) and `max_bytes` (of all
    members' names and subscriptions together)."""

    type: ClassVar[str] = CONSUMER_GROUP

    group_id: str
    session_seconds: float = 45.0
    max_size: int = 10_000
    max_bytes: int = 4 << 20
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = DEFAULT_ASSIGNOR
    members: dict[str, Consumer] = field(default_factory=dict)
    partitions: dict[UUID, int] = field(default_factory=dict)
    """The number of partitions of each topic that is read."""
    is_dirty: bool = False
    _is_dead: bool = False
    _known: Topics | None = None
    """The topics that `partitions` and `_read` were made from."""
    _read: dict[str, frozenset[UUID]] = field(default_factory=dict)
    """The topics that each member reads. `_is_read`: whether this is complete."""
    _is_read: bool = False
    _matches: dict[str, frozenset[str]] = field(default_factory=dict)
    """The names in `_known` that each pattern matches."""
    _instances: dict[str, Consumer] = field(default_factory=dict)
    """The static members, by instance id."""
    _holders: dict[tuple[UUID, int], PartitionHolder] = field(default_factory=dict, repr=False)
    """The holder of each partition, whether assigned or being revoked."""
    _nothing_before: float | None = None
    """The next time at which something is due; None if it must be computed."""
    _answers: list[tuple[int, Answer]] = field(default_factory=list)

    # --- for the coordinator

    @property
    def generation(self) -> int:
        """The generation that fences commits at the sequencer: it rises with every stored change."""
        return self.epoch

    @property
    def phase(self) -> ConsumerGroupPhase:
        if self._is_dead:
            return ConsumerGroupPhase.DEAD
        if not self.members:
            return ConsumerGroupPhase.EMPTY
        if self.target_epoch < self.epoch:
            return ConsumerGroupPhase.ASSIGNING
        is_there = all(
            member.phase is MemberPhase.STABLE and member.epoch in (self.target_epoch, LEAVES_FOR_NOW)
            for member in self.members.values()
        )
        return ConsumerGroupPhase.STABLE if is_there else ConsumerGroupPhase.RECONCILING

    def answer(self, ticket: int, answer: Answer) -> None:
        """Answer a classic client's request once the state is stored."""
        self._answers.append((ticket, answer))

    def take_answers(self) -> list[tuple[int, Answer]]:
        """Return the answers to classic clients, by ticket. Each is returned once."""
        answers, self._answers = self._answers, []
        return answers

    @property
    def has_only_classic_members(self) -> bool:
        """Whether all members use the classic protocol, and there is at least one."""
        return bool(self.members) and all(member.classic is not None for member in self.members.values())

    @property
    def is_idle(self) -> bool:
        """Whether the group can be dropped from memory without loss, once stored."""
        return not self.members

    def next_deadline(self, now: float) -> float | None:
        """Return when `expire` must be called next; None if never.

        Heartbeats only move deadlines to later times, so members are examined only when the last result has passed.
        """
        if self._nothing_before is None or self._nothing_before <= now:
            self._nothing_before = min((member.deadline for member in self.members.values()), default=inf)
        return None if self._nothing_before == inf else self._nothing_before

    def subscribed_topics(self, topics: Topics) -> Steps[set[str]]:
        """Return the topic names that members subscribe to, including the matches of their patterns."""
        if topics is not self._known:
            yield from self._match(topics)
        names = set[str]()
        for member in self.members.values():
            names |= member.subscription.topics
            yield 1 + len(member.subscription.topics)
        for pattern in {member.subscription.pattern for member in self.members.values()}:
            names |= self._matches.get(pattern, frozenset())
            yield len(names)
        return names

    def static_member(self, instance_id: str) -> Consumer | None:
        return self._instances.get(instance_id)

    # --- ConsumerGroupHeartbeat

    def heartbeat(self, now: float, request: ConsumerHeartbeat, topics: Topics) -> Steps[ConsumerAnswer]:
        """Serve a heartbeat: join, continue or leave, and take the member's next step towards its target. Steps count
        topics and partitions; the group must not be used otherwise between them."""
        if self._is_dead:
            return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if request.epoch in (LEAVES, LEAVES_FOR_NOW):
            return (yield from self._leave(request))
        refusal = self.refusal(request)
        if refusal is not None:
            return refusal
        size = len(self.members)
        member = yield from self._member_of(request)
        before = (member.epoch, member.assigned)
        is_changed = self._take(member, request) or len(self.members) > size
        yield from self.retarget(topics, is_changed=is_changed)
        if request.epoch == member.epoch:
            yield from self.advance(now, member, request.owned)
        else:  # it may be a late one, whose client owns more by now than it names
            self.restart_session(member, now)
        has_changed = before != (member.epoch, member.assigned) or request.epoch != member.epoch
        return ConsumerAnswer(
            ErrorCode.NONE,
            member.member_id,
            member.epoch,
            member.assigned if has_changed or request.is_full else None,
        )

    def refusal(self, request: ConsumerHeartbeat) -> ConsumerAnswer | None:
        """Return the error of a request that can't be served, or None."""
        known = self.members.get(request.member_id)
        held_by = None if request.instance_id is None else self.static_member(request.instance_id)
        if request.epoch == JOINS:
            is_held = held_by is not None and held_by.classic is None and not held_by.has_left_for_now
            if held_by is not None and held_by is not known and is_held:
                return _refused(
                    ErrorCode.UNRELEASED_INSTANCE_ID, f"{held_by.member_id} holds {request.instance_id}"
                )
            if known is None and held_by is None and len(self.members) >= self.max_size:
                return _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{self.max_size} members are allowed")
        else:
            code = self.code_of_member(request.member_id, request.instance_id)
            if code is not ErrorCode.NONE:
                return _refused(code)
            assert known is not None, "it was just looked up"
            if known.classic is not None:
                return _refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} joined by JoinGroup")
            if not _is_current(known, request):
                return _refused(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    f"{request.member_id} is at epoch {known.epoch}, not {request.epoch}; join again",
                )
        return self._refusal_of_size(known, request)

    def _refusal_of_size(self, known: Consumer | None, request: ConsumerHeartbeat) -> ConsumerAnswer | None:
        grows = known is None or request.names_bytes > known.names_bytes
        if request.topics is None and request.pattern is None and not grows:
            return None
        asked = _merged(Subscription() if known is None else known.subscription, request)
        others = [member for member in self.members.values() if member is not known]
        said = request.names_bytes + asked.kept_bytes
        if said + sum(other.kept_bytes for other in others) > self.max_bytes:
            return _refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"names and subscriptions of more than {self.max_bytes} bytes",
            )
        if len({asked.pattern, *(other.subscription.pattern for other in others)} - {""}) > MAX_PATTERNS:
            return _refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{MAX_PATTERNS} in one group are allowed")
        return None

    def _member_of(self, request: ConsumerHeartbeat) -> Steps[Consumer]:
        """Return the member of the request: known, new, or a static member that replaces an earlier one."""
        member = self.members.get(request.member_id)
        if member is None and request.instance_id is not None:
            member = self.static_member(request.instance_id)
            if member is not None:
                self.rename(member, request.member_id)
        if member is None:
            member = Consumer(request.member_id, request.instance_id)
            self.add(member)
        if request.epoch == JOINS:
            yield from self.restart(member)
            member.classic = None
        return member

    def restart(self, member: Consumer) -> Steps[None]:
        """Reset a member whose client reads nothing yet, whatever it read before."""
        member.epoch = member.previous_epoch = 0
        member.phase, member.revocation_deadline = MemberPhase.STABLE, inf
        member.answer_deadline = inf
        self._nothing_before, self.is_dirty = None, True
        yield from self._release_all(member)
        member.assigned, member.revoking = {}, {}

    def add(self, member: Consumer) -> None:
        """Add a member, without a target."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member
        self._is_read = False

    def rename(self, member: Consumer, member_id: str) -> None:
        """Give the place of a static member to the next client with its instance id."""
        if member.member_id in self._read:
            self._read[member_id] = self._read.pop(member.member_id)
        member.member_id = member_id
        self.members = {joined.member_id: joined for joined in self.members.values()}

    def _take(self, member: Consumer, request: ConsumerHeartbeat) -> bool:
        """Update the member from the request. Return whether its subscription changed."""
        self.describe(
            member,
            client_id=request.client_id,
            client_host=request.client_host,
            rack_id=member.rack_id if request.rack_id is None else request.rack_id,
            rebalance_seconds=(
                member.rebalance_seconds if request.rebalance_seconds is None else request.rebalance_seconds
            ),
        )
        return self.subscribe(member, _merged(member.subscription, request))

    def describe(
        self,
        member: Consumer,
        *,
        client_id: str,
        client_host: str,
        rack_id: str | None,
        rebalance_seconds: float,
    ) -> None:
        """Update the member's description of its client."""
        described = (client_id, client_host, rack_id, rebalance_seconds)
        if described != (member.client_id, member.client_host, member.rack_id, member.rebalance_seconds):
            member.client_id, member.client_host, member.rack_id, member.rebalance_seconds = described
            self.is_dirty = True

    def subscribe(self, member: Consumer, subscription: Subscription) -> bool:
        """Set the member's subscription. Return whether it changed."""
        if subscription == member.subscription:
            return False
        member.subscription = subscription
        self._read.pop(member.member_id, None)
        self._is_read = False
        return True

    def _leave(self, request: ConsumerHeartbeat) -> Steps[ConsumerAnswer]:
        code = self.code_of_member(request.member_id, request.instance_id)
        if code is not ErrorCode.NONE:
            return _refused(code)
        member = self.members[request.member_id]
        if request.epoch == LEAVES_FOR_NOW:
            yield from self._release(member, member.revoking)
            member.epoch, member.phase, member.revoking = LEAVES_FOR_NOW, MemberPhase.STABLE, {}
            member.revocation_deadline, self.is_dirty = inf, True
        else:
            yield from self.remove(member)
        return ConsumerAnswer(ErrorCode.NONE, request.member_id, request.epoch)

    def code_of_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE if this is a member and holds the instance id, if one is given; otherwise the error."""
        if instance_id is not None:
            held_by = self.static_member(instance_id)
            if held_by is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if held_by.member_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # --- the target

    def retarget(self, topics: Topics, *, is_changed: bool = False) -> Steps[None]:
        """Make a new target if members, subscriptions or topics changed."""
        if not (topics is self._known and self._is_read) and (yield from self._look_up(topics)):
            is_changed = True
        if is_changed:
            self._raise_epoch()
        if self.target_epoch < self.epoch:
            yield from self._assign()

    def _look_up(self, topics: Topics) -> Steps[bool]:
        """Look up the partitions that are read: for changed members only, or for all if the topics changed. Return
        whether the topics or partitions that are read changed."""
        yield len(self.members)  # the caller has gone over them, too
        is_all = topics is not self._known
        unknown = [
            member for member_id, member in self.members.items() if is_all or member_id not in self._read
        ]
        yield from self._match(topics)
        partitions: dict[UUID, int] = {} if is_all else dict(self.partitions)
        alike = {} if is_all else {read: read for read in self._read.values()}
        found: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}
        for member in unknown:
            wanted = (member.subscription.topics, member.subscription.pattern)
            if wanted not in found:
                of_member: dict[UUID, int] = {}
                names = iter(self.names_of(member))
                while some := list(islice(names, NAMES_IN_A_STEP)):
                    read = (topics[name].topic for name in some if name in topics)
                    of_member.update((topic.topic_id, topic.partitions) for topic in read)
                    yield len(some)
                partitions |= of_member
                topic_ids = frozenset(of_member)
                found[wanted] = alike.setdefault(topic_ids, topic_ids)
                yield len(topic_ids)
            self._read[member.member_id] = found[wanted]
            yield 1 + len(member.subscription.topics)
        is_other = partitions != self.partitions
        self._known, self.partitions, self._is_read = topics, partitions, True
        return is_other

    def _match(self, topics: Topics) -> Steps[None]:
        """Find the topics that the patterns match. A known pattern is matched with new names only."""
        patterns = {member.subscription.pattern for member in self.members.values()} - {""}
        matches: dict[str, frozenset[str]] = {}
        if patterns:
            known = self._known or {}
            new, gone = topics.keys() - known.keys(), known.keys() - topics.keys()
            yield len(topics)
            for pattern in patterns:
                compiled, names = TopicPattern(pattern), new if pattern in self._matches else topics
                matched = set(self._matches.get(pattern, frozenset()) - gone)
                for some in in_parts(list(names), NAMES_IN_A_STEP):
                    matched |= compiled.matches(some)
                    yield len(some)
                matches[pattern] = frozenset(matched)
        self._matches = matches

    def names_of(self, member: Consumer) -> frozenset[str]:
        """Return the topics that the member reads, whether they exist or not."""
        matches = self._matches.get(member.subscription.pattern)
        return member.subscription.topics | matches if matches else member.subscription.topics

    def _raise_epoch(self) -> None:
        self.epoch += 1
        self.is_dirty = True

    def _assign(self) -> Steps[None]:
        """Make the target for the group's epoch."""
        self.assignor = self._vote()
        subscribers = {
            member_id: Subscriber(self._read.get(member_id, frozenset()), member.instance_id, member.target)
            for member_id, member in self.members.items()
        }
        yield len(subscribers)
        target = yield from ASSIGNORS[self.assignor](subscribers, self.partitions)
        for member_id, member in self.members.items():
            member.target = target[member_id]
            yield 1
        self.target_epoch, self.is_dirty = self.epoch, True

    def _vote(self) -> str:
        """Return the assignor that most members prefer; ties go to the first."""
        votes = [member.subscription.assignor for member in self.members.values()]
        return max(ASSIGNORS, key=votes.count) if any(votes) else DEFAULT_ASSIGNOR

    # --- a member's steps to the target

    def advance(self, now: float, member: Consumer, owned: Assignment | None) -> Steps[None]:
        """Take the member's next step. `owned`: the partitions that its client reports, None if unchanged."""
        self.restart_session(member, now)
        if member.phase is MemberPhase.UNREVOKED:
            if owned is None or _overlap(member.revoking, owned):
                self._take_back_unread(member)
                return
            yield from self._release(member, member.revoking)
            yield from self._step(now, member, owned)
        elif member.phase is MemberPhase.UNRELEASED or member.epoch != self.target_epoch:
            yield from self._step(now, member, owned)

    def _step(self, now: float, member: Consumer, owned: Assignment | None) -> Steps[None]:
        """Move from the current to the target assignment: give up first, then take what is free."""
        kept = _both(member.assigned, member.target)
        yield len(member.assigned)
        leaving = _without(member.assigned, kept)
        yield len(member.assigned)
        before = (member.epoch, member.phase, member.assigned, member.revoking)
        must_give_up = leaving and member.epoch != JOINS and (owned is None or _overlap(leaving, owned))
        if must_give_up:
            member.assigned, member.revoking = kept, leaving
            member.phase, next_epoch = MemberPhase.UNREVOKED, member.epoch
            member.revocation_deadline = now + member.rebalance_seconds
        else:
            yield from self._release(member, leaving)
            free = yield from self._free_for(member)
            member.assigned, member.revoking = _union(kept, free), {}
            yield len(member.assigned)
            is_complete = member.assigned == member.target
            if is_complete:
                member.assigned = member.target  # in memory once
            member.phase = MemberPhase.STABLE if is_complete else MemberPhase.UNRELEASED
            next_epoch, member.revocation_deadline = self.target_epoch, inf
            holder = PartitionHolder(member, self.target_epoch)
            for topic_id, partitions in member.assigned.items():
                for partition in partitions:
                    self._holders.setdefault((topic_id, partition), holder)
                yield len(partitions)
        member.previous_epoch, member.epoch = member.epoch, next_epoch
        if before != (member.epoch, member.phase, member.assigned, member.revoking):
            self.is_dirty, self._nothing_before = True, None

    def _take_back_unread(self, member: Consumer) -> None:
        """Also revoke partitions of topics that the member has unsubscribed from: it must not get their records."""
        read = self._read[member.member_id]
        unread = {topic_id: places for topic_id, places in member.assigned.items() if topic_id not in read}
        if unread:
            member.assigned = _without(member.assigned, unread)
            member.revoking, self.is_dirty = _union(member.revoking, unread), True

    def _free_for(self, member: Consumer) -> Steps[Assignment]:
        """Return the missing part of the member's target that no other member holds."""
        free: Assignment = {}
        missing = _without(member.target, member.assigned)
        yield len(member.target)
        for topic_id, partitions in missing.items():
            free[topic_id] = frozenset(each for each in partitions if self._is_free((topic_id, each), member))
            yield len(partitions)
        return free

    def _is_free(self, topic_partition: tuple[UUID, int], member: Consumer) -> bool:
        """Whether no other member holds this partition."""
        return topic_partition not in self._holders or self._is_held(topic_partition, member)

    def has_a_step(self, member: Consumer) -> Steps[bool]:
        """Whether the member can get closer to its target when its client reports what it owns."""
        if member.phase is MemberPhase.UNREVOKED or member.epoch < self.epoch:
            return True
        if member.phase is MemberPhase.STABLE:
            return False
        free = yield from self._free_for(member)
        return any(free.values())

    def await_answer(self, member: Consumer, now: float) -> None:
        """Give a classic client its rebalance timeout for the JoinGroup or SyncGroup that is due."""
        if member.answer_deadline == inf:
            member.answer_deadline, self._nothing_before = now + member.rebalance_seconds, None
        self.restart_session(member, now)

    def await_nothing(self, member: Consumer, now: float) -> None:
        """Note that a classic client has sent the request that was due."""
        member.answer_deadline = inf
        self.restart_session(member, now)

    def restart_session(self, member: Consumer, now: float) -> None:
        """Give the member its full session timeout again."""
        classic = member.classic
        member.session_deadline = now + (self.session_seconds if classic is None else classic.session_seconds)

    def _release_all(self, member: Consumer) -> Steps[None]:
        yield from self._release(member, member.assigned)
        yield from self._release(member, member.revoking)

    def _release(self, member: Consumer, partitions: Assignment) -> Steps[None]:
        for topic_id, released in partitions.items():
            for partition in released:
                if self._is_held((topic_id, partition), member):
                    del self._holders[topic_id, partition]
            yield len(released)

    def _is_held(self, topic_partition: tuple[UUID, int], member: Consumer, *, since: float = inf) -> bool:
        """Whether the member holds this partition, and has held it since this epoch or earlier."""
        holder = self._holders.get(topic_partition)
        return holder is not None and holder.member is member and holder.since <= since

    # --- OffsetCommit, OffsetFetch

    def validate_reader(self, member_id: str, epoch: int) -> ErrorCode:
        """Whether this member may read positions now: only at its epoch."""
        return self.commit(0.0, member_id, None, epoch)

    def commit(
        self,
        now: float,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        positions: Sequence[OffsetPosition] | None = None,
        is_transactional: bool = False,
        names_epochs: bool = True,
    ) -> ErrorCode:
        """Whether this member may commit these positions now: at its epoch, or at an earlier one if it has held all
        their partitions since then (KIP-1251). With `positions` None only its epoch is valid. `names_epochs`: the
        version of the request is one for members of the new protocol. As in Kafka, an instance id that nobody holds is
        not looked at."""
        is_held = instance_id is not None and self.static_member(instance_id) is not None
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if self._is_dead else ErrorCode.NONE
        code = code or self.code_of_member(member_id, instance_id if is_held else None)
        if code is not ErrorCode.NONE:
            return code
        member = self.members[member_id]
        names_generation = is_transactional or member.classic is not None
        if not names_epochs and not names_generation:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch == member.epoch or (positions is not None and self._held_at(member, epoch, positions)):
            return ErrorCode.NONE
        return ErrorCode.ILLEGAL_GENERATION if names_generation else ErrorCode.STALE_MEMBER_EPOCH

    def _held_at(self, member: Consumer, epoch: int, positions: Sequence[OffsetPosition]) -> bool:
        return epoch < member.epoch and all(
            self._is_held((position.topic_id, position.partition), member, since=epoch)
            for position in positions
        )

    # --- time, and the end

    def expire(self, now: float) -> Steps[None]:
        """Remove members whose session timed out, and members that did not revoke in time."""
        self._nothing_before = None
        for member_id in list(self.members):
            if self.members[member_id].deadline <= now:
                yield from self.remove(self.members[member_id])
            yield 1

    def resume(self, now: float) -> Steps[None]:
        """Take over from another coordinator: every session and every revocation gets its full time again. Since when a
        member holds its partitions is not stored, so until its epoch rises it may commit at its present one only."""
        self._nothing_before = None
        for member in list(self.members.values()):
            self.add(member)
            self.restart_session(member, now)
            if member.phase is MemberPhase.UNREVOKED:
                member.revocation_deadline = now + member.rebalance_seconds
            yield 1
            holder = PartitionHolder(member, member.epoch)
            for held in (member.assigned, member.revoking):
                for topic_id, partitions in held.items():
                    self._holders.update(((topic_id, each), holder) for each in partitions)
                    yield len(partitions)

    def close(self, code: ErrorCode) -> None:
        """Mark the group as dead. No request waits for an answer of this group."""
        self._is_dead = True

    def remove(self, member: Consumer) -> Steps[None]:
        """Remove a member and release what it held."""
        del self.members[member.member_id]
        self._read.pop(member.member_id, None)
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        self._nothing_before = None
        self._raise_epoch()
        yield from self._release_all(member)


def _refused(code: ErrorCode, message: str | None = None) -> ConsumerAnswer:
    return ConsumerAnswer(code, message=message)


def _is_current(member: Consumer, request: ConsumerHeartbeat) -> bool:
    """Whether the client's epoch is the coordinator's, or one step behind because the last answer was lost."""
    if request.epoch == member.epoch:
        return True
    if member.has_left_for_now or request.epoch != member.previous_epoch or request.owned is None:
        return False
    return not _without(request.owned, member.assigned)


def _merged(known: Subscription, request: ConsumerHeartbeat) -> Subscription:
    """Return the member's new subscription. Fields that the request leaves out are unchanged."""
    if request.topics is None and request.pattern is None and request.assignor is None:
        return known
    return Subscription(
        known.topics if request.topics is None else request.topics,
        known.pattern if request.pattern is None else request.pattern,
        known.assignor if request.assignor is None else request.assignor,
    )


def _nonempty(assignment: Iterable[tuple[UUID, frozenset[int]]]) -> Assignment:
    return {topic_id: partitions for topic_id, partitions in assignment if partitions}


def _both(one: Assignment, other: Assignment) -> Assignment:
    return _nonempty((topic_id, one[topic_id] & other.get(topic_id, frozenset())) for topic_id in one)


def _without(one: Assignment, other: Assignment) -> Assignment:
    return _nonempty((topic_id, one[topic_id] - other.get(topic_id, frozenset())) for topic_id in one)


def _union(one: Assignment, other: Assignment) -> Assignment:
    return _nonempty(
        (topic_id, one.get(topic_id, frozenset()) | other.get(topic_id, frozenset()))
        for topic_id in one.keys() | other.keys()
    )


def _overlap(one: Assignment, other: Assignment) -> bool:
    return any(one[topic_id] & other.get(topic_id, frozenset()) for topic_id in one)
