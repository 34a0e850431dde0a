"""Members of a consumer group: they join, share the partitions, read, commit what they read, and are removed.

Some process what they read in transactions (KIP-447): the group's generation fences the positions.

`GroupWatch` sees all their answers: a generation has one leader and one owner for each partition, and once any member
has seen a generation, no request of an older one is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sequencer.store.rows import GroupOffsetRow
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.heartbeat import HeartbeatRequest
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tailrace.kafka.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.simulation.clients import Log, Reader, Stage
from tests.simulation.loop import SimulatedProcess
from tests.simulation.network import NoAnswer
from tests.simulation.transactions import FATAL, Fenced, Processor, Progress, fetch_positions
from tests.support.history.events import (
    AnyEvent,
    Isolation,
    OffsetCommitAsked,
    OffsetCommitEnded,
    OffsetFetched,
)

SESSION_MS, REBALANCE_MS = 1_500, 2_000
PROTOCOL = "simulated"


class MustJoin(Exception):
    """The member must join again; `is_new`: under a new member id."""

    def __init__(self, reason: str, *, is_new: bool) -> None:
        super().__init__(reason)
        self.is_new = is_new


@dataclass(slots=True)
class GroupWatch:
    """The answers that the members of one group received, in order."""

    violated: Callable[[str], None]
    newest: int = -1
    newest_at: float = -1.0
    leaders: dict[int, str] = field(default_factory=dict)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    served: set[int] = field(default_factory=set)
    """Partitions for which a position was committed after the last fault: all must be, however the group changes."""

    def joined(self, at: float, generation: int, leader: str) -> None:
        """Note the answer to a JoinGroup."""
        known = self.leaders.setdefault(generation, leader)
        if known != leader:
            self.violated(f"generation {generation} has the leaders {known} and {leader}")
        if generation > self.newest:
            self.newest, self.newest_at = generation, at

    def synced(self, generation: int, member: str, partitions: list[int]) -> None:
        """Note the answer to a SyncGroup."""
        for partition in partitions:
            owner = self.owners.setdefault((generation, partition), member)
            if owner != member:
                self.violated(f"generation {generation}: partition {partition} is {owner}'s and {member}'s")

    def accepted(self, asked_at: float, generation: int, what: str) -> None:
        """Note that a request of this generation was answered without an error."""
        if generation < self.newest and asked_at > self.newest_at:
            self.violated(
                f"{what} of generation {generation} accepted, asked at {asked_at:.3f};"
                f" {self.newest} was told at {self.newest_at:.3f}"
            )


class GroupMember(Reader):
    """One member: joins, reads what it is assigned, commits. `instance_id`: set for a static member."""

    instance_id: str | None = None

    def __init__(
        self,
        stage: Stage,
        name: str,
        group: str,
        watch: GroupWatch,
        isolation: Isolation = "uncommitted",
        process: SimulatedProcess | None = None,
    ) -> None:
        super().__init__(stage, name, isolation, process)
        self._group = group
        self.watch = watch
        self._coordinator = ""
        self.member_id = ""
        self.generation = -1
        self._commits = 0
        self.commit_version = 7
        """The version of its OffsetCommit."""
        self.counts = True
        """Whether its commits prove that the group serves a partition."""

    async def run(self, topic: str) -> None:
        """Run until the input has ended and every partition was served; then commit once more and leave."""
        log = await self.surely_look_up(topic)
        while not self.is_over(log):
            try:
                partitions = await self.join(log)
                await self._consume(log, partitions)
            except (MustJoin, NoAnswer) as error:
                await self.look_again(error)
        await self.leave()

    def is_over(self, log: Log) -> bool:
        """Return whether the input has ended, and the group serves each of the log's partitions."""
        return self.stage.is_input_over and len(self.watch.served) == log.partitions

    async def look_again(self, error: MustJoin | NoAnswer) -> None:
        """Recover from an error: begin as a new member if needed, or look up the coordinator again."""
        if isinstance(error, NoAnswer):
            self._coordinator = ""
        elif error.is_new:
            self.member_id, self.generation = "", -1
        await self.pause(0.0, 0.2)

    # --- membership

    async def ask_coordinator(self, api: ApiKey, version: int, request: Any) -> Any:
        """Ask the group's coordinator, looking it up first. Raises NoAnswer."""
        if not self._coordinator:
            asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group])
            found = (await self.ask(self.some_agent(), ApiKey.FIND_COORDINATOR, 4, asked)).coordinators[0]
            if found.error_code != ErrorCode.NONE or found.host not in self.stage.cluster.agents:
                raise NoAnswer("no coordinator")
            self._coordinator = found.host
        return await self.ask(self._coordinator, api, version, request)

    def check(self, code: int) -> None:
        """Raise MustJoin or NoAnswer for one of the group's error codes."""
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

    async def join(self, log: Log) -> list[int]:
        """Join the next generation; returns this member's partitions in it."""
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL,
            protocols=[JoinGroupRequestProtocol(PROTOCOL, b"")],
        )
        joined = await self.ask_coordinator(ApiKey.JOIN_GROUP, 5, request)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = self.member_id = joined.member_id
            joined = await self.ask_coordinator(ApiKey.JOIN_GROUP, 5, request)
        self.check(joined.error_code)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self.watch.joined(self.stage.now(), joined.generation_id, joined.leader)
        assignments: list[SyncGroupRequestAssignment] = []
        if joined.leader == self.member_id:
            members = sorted(member.member_id for member in joined.members)
            for index, member in enumerate(members):
                mine = range(index, log.partitions, len(members))
                assignments.append(SyncGroupRequestAssignment(member, bytes(mine)))
        synced = await self.ask_coordinator(
            ApiKey.SYNC_GROUP,
            3,
            SyncGroupRequest(
                self._group, self.generation, self.member_id, self.instance_id, assignments=assignments
            ),
        )
        self.check(synced.error_code)
        partitions = list(bytes(synced.assignment))
        self.watch.synced(self.generation, self.member_id, partitions)
        return partitions

    async def heartbeat(self) -> None:
        """Stay a member. Raises MustJoin, NoAnswer."""
        asked_at, generation = self.stage.now(), self.generation
        answer = await self.ask_coordinator(
            ApiKey.HEARTBEAT, 3, HeartbeatRequest(self._group, generation, self.member_id, self.instance_id)
        )
        self.check(answer.error_code)
        self.watch.accepted(asked_at, generation, "a heartbeat")

    async def leave(self) -> None:
        """Leave, so that the others need not wait for the session's end."""
        if not self.member_id:
            return
        request = LeaveGroupRequest(self._group, members=[MemberIdentity(self.member_id)])
        try:
            await self.ask_coordinator(ApiKey.LEAVE_GROUP, 4, request)
        except NoAnswer:
            self.stage.note(f"{self.name} left without an answer")

    # --- reading and committing

    async def _consume(self, log: Log, partitions: list[int]) -> None:
        while not partitions and not self.is_over(log):
            await self.pause(0.1, 0.4)
            await self.heartbeat()
        if not partitions:
            return
        positions = await fetch_positions(self, self._group, log, partitions)
        for partition in partitions:
            positions[partition] = max(0, positions[partition])
            self.position(log, partition, positions[partition], is_seek=True)
        while not self.is_over(log):
            found = await self.fetch(self.some_agent(), log, positions, max_wait_ms=200)
            for partition, got in found.items():
                if got.code is ErrorCode.NONE:
                    self.saw(log, partition, got)
                    positions[partition] = got.position
                elif got.code is ErrorCode.OFFSET_OUT_OF_RANGE and positions[partition] < got.log_start:
                    positions[partition] = got.log_start
                    self.position(log, partition, got.log_start, is_seek=True)
            if self.instance_id is not None or self.luck.below(2):  # others let their sessions end at times
                await self.heartbeat()
            if self.luck.below(2):
                await self.commit(log, positions)
            await self.pause(0.0, 0.3)
        await self.commit(log, positions)

    async def commit(self, log: Log, positions: dict[int, int]) -> None:
        """Send OffsetCommit, and record it in the history. Raises MustJoin, NoAnswer."""
        asked_at, generation = self.stage.now(), self.generation
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
            OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=commits[partition]
            )
            for partition, offset in positions.items()
        ]
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[OffsetCommitRequestTopic(name=log.topic, partitions=rows)],
        )
        codes: dict[int, int] = {}
        try:
            answer = await self.ask_coordinator(ApiKey.OFFSET_COMMIT, self.commit_version, request)
            codes = {row.partition_index: row.error_code for row in answer.topics[0].partitions}
        finally:
            # The refusal may answer the repetition of a request that was carried out.
            for partition, commit in commits.items():
                is_done = codes.get(partition) == ErrorCode.NONE
                self.stage.record(
                    OffsetCommitEnded(
                        at=self.stage.now(), client=self.name, commit=commit,
                        answer="done" if is_done else "unknown",
                    )
                )  # fmt: skip
        for code in codes.values():
            self.check(code)
        self.watch.accepted(asked_at, generation, "a commit of positions")
        if self.stage.is_calm and self.counts:
            self.watch.served.update(positions)


def may_fall(history: Sequence[AnyEvent], before: GroupOffsetRow, row: GroupOffsetRow) -> bool:
    """Return whether this lower position may follow, as it may in Kafka. A member lost the answer to a commit and asked
    for its position. The answer was from before that commit, which was still in transfer, and the member committed what
    it read from there. Within a generation nothing fences the first commit. Members name their commits in the metadata.

    The history checker decides whether the position in the answer was true.
    """
    asked = {event.commit: event for event in history if isinstance(event, OffsetCommitAsked)}
    higher, lower = asked.get(before.metadata), asked.get(row.metadata)
    if higher is None or lower is None or higher.client != lower.client:
        return False
    is_answered = any(
        isinstance(event, OffsetCommitEnded) and event.commit == higher.commit and event.answer == "done"
        for event in history
    )
    told = [
        event.offset
        for event in history
        if isinstance(event, OffsetFetched)
        and (event.client, event.topic, event.partition) == (lower.client, lower.topic, lower.partition)
        and higher.at < event.asked
        and event.at <= lower.at
    ]
    return not is_answered and bool(told) and told[-1] <= lower.offset


class GroupProcessor(Processor):
    """A consume-transform-produce loop over the partitions that its group assigns to it.

    Its transactions outlive its session: another member meets those that it left open.
    """

    timeout_ms = 6_000

    def __init__(
        self,
        stage: Stage,
        name: str,
        transactional_id: str,
        group: str,
        watch: GroupWatch,
        *,
        is_second_version: bool,
    ) -> None:
        super().__init__(stage, name, transactional_id, is_second_version=is_second_version)
        self._member = GroupMember(stage, self.name, group, watch, "committed", self.process)
        self._reader = self._member

    async def work_in_group(self, source: str, target: str, group: str, progress: Progress) -> None:
        """Work until the input has ended and this member's part of it is processed, or until fenced."""
        source_log, target_log = await self.surely_look_up(source), await self.surely_look_up(target)
        try:
            await self.init()
            is_over = False
            while not is_over:
                try:
                    partitions = await self._member.join(source_log)
                    is_over = await self._process_on(source_log, target_log, partitions, group)
                except (MustJoin, NoAnswer) as error:
                    await self._member.look_again(error)
            await self._member.leave()
            progress.transactions_left = 0
        except Fenced as error:
            self.stage.note(f"{self.name} is fenced: {error}")

    async def still_there(self) -> None:
        await self._member.heartbeat()

    async def commit_positions(self, request: TxnOffsetCommitRequest) -> bool:
        request.generation_id, request.member_id = self._member.generation, self._member.member_id
        version = 5 if self._is_v2 else 3
        while True:
            try:
                asked_at = self.stage.now()
                answer = await self._member.ask_coordinator(ApiKey.TXN_OFFSET_COMMIT, version, request)
                codes = {row.error_code for topic in answer.topics for row in topic.partitions}
                if codes & set(FATAL):
                    return False
                for code in codes:
                    self._member.check(code)
                self._member.watch.accepted(asked_at, request.generation_id, "positions of a transaction")
                return True
            except NoAnswer as error:
                await self._member.look_again(error)
            except MustJoin as error:
                await self._member.look_again(error)
                return False
