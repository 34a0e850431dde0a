"""Members of a consumer group whose coordinator assigns (KIP-848); some return with the other protocol.

Each life of a member speaks one protocol: heartbeats with an epoch, or the classic one, as an eager client. So the
group changes from one to the other and back, has members of both, and meanwhile other coordinators take it over.

`OwnerWatch` sees all their answers: no member is assigned a partition that another one owns. A member owns a partition
from when it was told so until it sends a request that omits the partition, or was not heard for the length of a
session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from agent.groups.subscription import read_assignment, write_assignment
from tailrace.kafka import ApiKey
from tailrace.kafka.embedded import write_embedded
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatTopicPartitions,
)
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolSubscription
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.simulation.clients import Log, Stage
from tests.simulation.groups import SESSION_MS, GroupMember, GroupWatch, MustJoin
from tests.simulation.network import NoAnswer
from tests.simulation.transactions import fetch_positions

REBALANCE_MS = 60_000
"""No member is removed for being slow to give up a partition: only the end of its session ends what it owns."""
JOINS, LEAVES = 0, -1


@dataclass(slots=True)
class OwnerWatch:
    """Who owns which partition, according to the members' answers."""

    violated: Callable[[str], None]
    owners: dict[int, set[str]] = field(default_factory=dict)
    heard_at: dict[str, float] = field(default_factory=dict)
    """When each member sent the last request that was answered."""
    served: set[int] = field(default_factory=set)
    """See GroupWatch."""

    def heard(self, member: str, asked_at: float) -> None:
        """Note that the coordinator accepted a request as a sign of life."""
        self.heard_at[member] = max(asked_at, self.heard_at.get(member, asked_at))

    def given(self, member: str, partitions: Iterable[int], now: float) -> None:
        """A member was assigned these partitions. A stopped member may receive the answer after its session has ended:
        by then others may own them."""
        for partition in partitions:
            known = self.owners.setdefault(partition, set())
            for other in sorted(known - {member}):
                if self._is_live(member, now) and self._is_live(other, now):
                    heard = f"heard at {self.heard_at[other]:.3f}"
                    self.violated(f"partition {partition} is given to {member}; it is {other}'s, {heard}")
            known.add(member)

    def _is_live(self, member: str, now: float) -> bool:
        """Return whether its session has certainly not ended."""
        return now < self.heard_at.get(member, now) + SESSION_MS / 1000

    def says(self, member: str, owned: Iterable[int]) -> None:
        """A member says, or knows, that it owns these partitions and no others."""
        kept = set(owned)
        for partition, known in self.owners.items():
            if partition not in kept:
                known.discard(member)


class ConsumerMember(GroupMember):
    """One member. `generation` is its epoch, in both protocols."""

    def __init__(self, stage: Stage, name: str, group: str, watch: OwnerWatch) -> None:
        super().__init__(stage, name, group, GroupWatch(lambda what: None, served=watch.served))
        self._owners = watch
        self._lives = 0
        self._positions: dict[int, int] = {}
        self._is_known = False

    async def run(self, topic: str) -> None:
        """Live one life after the other, until the coordinator has assigned every partition after the last fault."""
        log = await self.surely_look_up(topic)
        while not self.is_over(log):
            self._lives += 1
            is_classic = self.luck.below(2) == 0 and not self.stage.is_calm
            self.counts = not is_classic
            self.commit_version = 7 if is_classic else 9  # coordinators refuse epochs in versions below 9
            until = self.stage.now() + 0.5 + 3.0 * self.luck.fraction()
            self._begin_anew()
            self.stage.note(f"{self._me} begins, {'classic' if is_classic else 'consumer'}")
            while self.stage.now() < until and not self.is_over(log):
                try:
                    await (self._turn_of_classic(log) if is_classic else self._turn(log))
                except MustJoin as error:
                    self._begin_anew(keeps_id=is_classic and not error.is_new)
                except NoAnswer:
                    self._coordinator, self._is_known = "", False
                await self.pause(0.0, 0.2)
            await self._go(log, is_classic=is_classic)

    @property
    def _me(self) -> str:
        return f"{self.name}/{self._lives}"

    def _begin_anew(self, *, keeps_id: bool = False) -> None:
        if not keeps_id:
            self.member_id, self.generation = "", -1
        self._positions, self._is_known = {}, False
        self._owners.says(self._me, ())

    async def _go(self, log: Log, *, is_classic: bool) -> None:
        try:
            if self._positions:
                await self.commit(log, self._positions)
        except (MustJoin, NoAnswer):
            self.stage.note(f"{self._me} goes without a last commit")
        self._owners.says(self._me, ())
        self._positions = {}
        if is_classic:
            await self.leave()
        elif self.member_id:
            request = ConsumerGroupHeartbeatRequest(self._group, self.member_id, LEAVES)
            try:
                await self.ask_coordinator(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
            except NoAnswer:
                self.stage.note(f"{self._me} left without an answer")

    async def _read(self, log: Log) -> None:
        if not self._positions:
            return
        found = await self.fetch(self.some_agent(), log, self._positions, max_wait_ms=100)
        for partition, got in found.items():
            if got.code is ErrorCode.NONE:
                self.saw(log, partition, got)
                self._positions[partition] = got.position
            elif got.code is ErrorCode.OFFSET_OUT_OF_RANGE and self._positions[partition] < got.log_start:
                self._positions[partition] = got.log_start
                self.position(log, partition, got.log_start, is_seek=True)
        if self.luck.below(2):
            await self.commit(log, self._positions)

    async def _own(self, log: Log, partitions: set[int]) -> None:
        """Read assigned partitions from the group's positions. For partitions that are gone, commit what was read, and
        stop reading."""
        now = self.stage.now()
        left = {each: offset for each, offset in self._positions.items() if each not in partitions}
        self._owners.given(self._me, partitions - set(self._positions), now)
        if left:
            await self.commit(log, left)
            self._positions = {each: at for each, at in self._positions.items() if each in partitions}
        new = sorted(partitions - set(self._positions))
        if new:
            found = await fetch_positions(self, self._group, log, new)
            for partition in new:
                self._positions[partition] = max(0, found[partition])
                self.position(log, partition, self._positions[partition], is_seek=True)

    # --- a life of KIP-848

    async def _turn(self, log: Log) -> None:
        if not self.member_id:
            self.member_id, self.generation = str(self.luck.uuid()), JOINS
        await self._own_as_told(log, await self._heartbeat(log))
        await self._read(log)

    async def _heartbeat(self, log: Log) -> Any:
        """Send a heartbeat and return the answer. The request has all fields if the member can't be sure what the
        coordinator knows."""
        owned = sorted(self._positions)
        request = ConsumerGroupHeartbeatRequest(self._group, self.member_id, self.generation)
        if not self._is_known or self.luck.below(4) == 0:
            request.rebalance_timeout_ms, request.subscribed_topic_names = REBALANCE_MS, [log.topic]
        places = [ConsumerGroupHeartbeatTopicPartitions(log.topic_id, owned)] if owned else []
        request.topic_partitions = places
        self._owners.says(self._me, owned)
        asked_at = self.stage.now()
        answer = await self.ask_coordinator(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        if answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH:
            raise MustJoin("fenced", is_new=True)
        self.check(answer.error_code)
        self._owners.heard(self._me, asked_at)
        self.generation, self._is_known = answer.member_epoch, True
        return answer

    async def _own_as_told(self, log: Log, answer: Any) -> None:
        if answer.assignment is None:
            return
        topics = answer.assignment.topic_partitions
        await self._own(
            log, {each for topic in topics if topic.topic_id == log.topic_id for each in topic.partitions}
        )

    # --- a classic life

    async def _turn_of_classic(self, log: Log) -> None:
        if self.generation < 0 or not self._is_known:
            await self._join(log)
        asked_at = self.stage.now()
        try:
            await self.heartbeat()
        except MustJoin as error:
            if not error.is_new and self._positions:
                await self.commit(log, self._positions)  # before it gives up all partitions
            raise
        self._owners.heard(self._me, asked_at)
        await self._read(log)

    async def _join(self, log: Log) -> None:
        self._positions = {}
        self._owners.says(self._me, ())
        asked_at = self.stage.now()
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", _subscription(log))],
        )
        joined = await self.ask_coordinator(ApiKey.JOIN_GROUP, 5, request)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = self.member_id = joined.member_id
            joined = await self.ask_coordinator(ApiKey.JOIN_GROUP, 5, request)
        self.check(joined.error_code)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        assignments: list[SyncGroupRequestAssignment] = []
        if joined.leader == self.member_id:
            members = sorted(member.member_id for member in joined.members)
            for index, member in enumerate(members):
                share = {log.topic: range(index, log.partitions, len(members))}
                assignments.append(
                    SyncGroupRequestAssignment(member, write_assignment(_subscription(log), share))
                )
        synced = await self.ask_coordinator(
            ApiKey.SYNC_GROUP,
            3,
            SyncGroupRequest(self._group, self.generation, self.member_id, assignments=assignments),
        )
        self.check(synced.error_code)
        self._owners.heard(self._me, asked_at)
        self._is_known = True
        given = read_assignment(bytes(synced.assignment)) if synced.assignment else None
        topics = [] if given is None else given.assigned_partitions
        await self._own(
            log, {each for topic in topics if topic.topic == log.topic for each in topic.partitions}
        )


def _subscription(log: Log) -> bytes:
    return write_embedded(ConsumerProtocolSubscription([log.topic]), b"\0\0")
