"""Members of a consumer group: they join, share the partitions, read, commit what they read, and are thrown out.

`GroupWatch` sees what all of them are told: a generation has one leader and one owner for each partition, and once
somebody was told of a generation, nothing of an older one is accepted any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent.protocol import ApiKey
from agent.protocol.error_codes import ErrorCode
from agent.protocol.messages.find_coordinator import FindCoordinatorRequest
from agent.protocol.messages.heartbeat import HeartbeatRequest
from agent.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from agent.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from agent.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from agent.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.simulation.clients import Log, Reader, Stage
from tests.simulation.network import NoAnswer
from tests.simulation.transactions import fetch_positions
from tests.support.history.events import OffsetCommitAsked, OffsetCommitEnded

SESSION_MS, REBALANCE_MS = 1_500, 2_000
PROTOCOL = "simulated"


class MustJoin(Exception):
    """The member has to join again; `is_new`: as somebody whom the group has never seen."""

    def __init__(self, reason: str, *, is_new: bool) -> None:
        super().__init__(reason)
        self.is_new = is_new


@dataclass(slots=True)
class GroupWatch:
    """What the members of one group were told, as they were told it."""

    violated: Callable[[str], None]
    newest: int = -1
    newest_at: float = -1.0
    leaders: dict[int, str] = field(default_factory=dict)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)

    def joined(self, at: float, generation: int, leader: str) -> None:
        """A JoinGroup was answered."""
        known = self.leaders.setdefault(generation, leader)
        if known != leader:
            self.violated(f"generation {generation} has the leaders {known} and {leader}")
        if generation > self.newest:
            self.newest, self.newest_at = generation, at

    def synced(self, generation: int, member: str, partitions: list[int]) -> None:
        """A SyncGroup was answered."""
        for partition in partitions:
            owner = self.owners.setdefault((generation, partition), member)
            if owner != member:
                self.violated(f"generation {generation}: partition {partition} is {owner}'s and {member}'s")

    def accepted(self, asked_at: float, generation: int, what: str) -> None:
        """A request of this generation was answered without an error."""
        if generation < self.newest and asked_at > self.newest_at:
            self.violated(
                f"{what} of generation {generation} accepted, asked at {asked_at:.3f};"
                f" {self.newest} was told at {self.newest_at:.3f}"
            )


class GroupMember(Reader):
    """One member: joins, reads what it is assigned, commits."""

    def __init__(self, stage: Stage, name: str, group: str, watch: GroupWatch) -> None:
        super().__init__(stage, name, "uncommitted")
        self._group = group
        self._watch = watch
        self._coordinator = ""
        self._member_id = ""
        self._generation = -1
        self._commits = 0

    async def run(self, topic: str) -> None:
        """Until the input has ended; then a last commit, and good-bye."""
        log = await self.surely_look_up(topic)
        while not self.stage.is_input_over:
            try:
                partitions = await self._join(log)
                await self._consume(log, partitions)
            except MustJoin as error:
                if error.is_new:
                    self._member_id, self._generation = "", -1
                await self.pause(0.0, 0.1)
            except NoAnswer:
                self._coordinator = ""
                await self.pause(0.05, 0.2)
        await self._leave()

    # --- membership

    async def _ask_coordinator(self, api: ApiKey, version: int, request: Any) -> Any:
        if not self._coordinator:
            asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group])
            found = (await self.ask(self.some_agent(), ApiKey.FIND_COORDINATOR, 4, asked)).coordinators[0]
            if found.error_code != ErrorCode.NONE or found.host not in self.stage.cluster.agents:
                raise NoAnswer("no coordinator")
            self._coordinator = found.host
        return await self.ask(self._coordinator, api, version, request)

    def _check(self, code: int) -> None:
        match ErrorCode(code):
            case ErrorCode.NONE:
                return
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_INSTANCE_ID:
                raise MustJoin("unknown", is_new=True)
            case ErrorCode.ILLEGAL_GENERATION | ErrorCode.REBALANCE_IN_PROGRESS:
                raise MustJoin("another generation", is_new=False)
            case other:
                self._coordinator = ""
                raise NoAnswer(other.name)

    async def _join(self, log: Log) -> list[int]:
        """Take part in the next generation; the partitions that are this member's in it."""
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._member_id,
            protocol_type=PROTOCOL,
            protocols=[JoinGroupRequestProtocol(PROTOCOL, b"")],
        )
        joined = await self._ask_coordinator(ApiKey.JOIN_GROUP, 5, request)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = self._member_id = joined.member_id
            joined = await self._ask_coordinator(ApiKey.JOIN_GROUP, 5, request)
        self._check(joined.error_code)
        self._member_id, self._generation = joined.member_id, joined.generation_id
        self._watch.joined(self.stage.now(), joined.generation_id, joined.leader)
        assignments: list[SyncGroupRequestAssignment] = []
        if joined.leader == self._member_id:
            members = sorted(member.member_id for member in joined.members)
            for index, member in enumerate(members):
                mine = range(index, log.partitions, len(members))
                assignments.append(SyncGroupRequestAssignment(member, bytes(mine)))
        synced = await self._ask_coordinator(
            ApiKey.SYNC_GROUP,
            3,
            SyncGroupRequest(self._group, self._generation, self._member_id, assignments=assignments),
        )
        self._check(synced.error_code)
        partitions = list(bytes(synced.assignment))
        self._watch.synced(self._generation, self._member_id, partitions)
        return partitions

    async def _heartbeat(self) -> None:
        asked_at, generation = self.stage.now(), self._generation
        answer = await self._ask_coordinator(
            ApiKey.HEARTBEAT, 3, HeartbeatRequest(self._group, generation, self._member_id)
        )
        self._check(answer.error_code)
        self._watch.accepted(asked_at, generation, "a heartbeat")

    async def _leave(self) -> None:
        if not self._member_id:
            return
        request = LeaveGroupRequest(self._group, members=[MemberIdentity(self._member_id)])
        try:
            await self._ask_coordinator(ApiKey.LEAVE_GROUP, 4, request)
        except NoAnswer:
            self.stage.note(f"{self.name} left without an answer")

    # --- reading and committing

    async def _consume(self, log: Log, partitions: list[int]) -> None:
        if not partitions:
            await self.pause(0.1, 0.4)
            await self._heartbeat()
            return
        positions = await fetch_positions(self, self._group, log, partitions)
        for partition in partitions:
            positions[partition] = max(0, positions[partition])
            self.position(log, partition, positions[partition], is_seek=True)
        while not self.stage.is_input_over:
            found = await self.fetch(self.some_agent(), log, positions, max_wait_ms=200)
            for partition, got in found.items():
                if got.code is ErrorCode.NONE:
                    self.saw(log, partition, got)
                    positions[partition] = got.position
                elif got.code is ErrorCode.OFFSET_OUT_OF_RANGE and positions[partition] < got.log_start:
                    positions[partition] = got.log_start
                    self.position(log, partition, got.log_start, is_seek=True)
            await self._heartbeat()
            if self.luck.below(2):
                await self._commit(log, positions)
            await self.pause(0.0, 0.3)
        await self._commit(log, positions)

    async def _commit(self, log: Log, positions: dict[int, int]) -> None:
        asked_at, generation = self.stage.now(), self._generation
        commits: dict[int, str] = {}
        for partition, offset in positions.items():
            self._commits += 1
            commits[partition] = f"{self.name}/{self._commits}"
            self.stage.record(
                OffsetCommitAsked(
                    at=asked_at, client=self.name, commit=commits[partition], group=self._group,
                    topic=log.name, partition=partition, offset=offset,
                )
            )  # fmt: skip
        rows = [
            OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
            for partition, offset in positions.items()
        ]
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=generation,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(name=log.topic, partitions=rows)],
        )
        codes: dict[int, int] = {}
        try:
            answer = await self._ask_coordinator(ApiKey.OFFSET_COMMIT, 7, request)
            codes = {row.partition_index: row.error_code for row in answer.topics[0].partitions}
        finally:
            # What was refused may have been an answer to the repetition of a request that was carried out.
            for partition, commit in commits.items():
                is_done = codes.get(partition) == ErrorCode.NONE
                self.stage.record(
                    OffsetCommitEnded(
                        at=self.stage.now(), client=self.name, commit=commit,
                        answer="done" if is_done else "unknown",
                    )
                )  # fmt: skip
        for code in codes.values():
            self._check(code)
        self._watch.accepted(asked_at, generation, "a commit of positions")
