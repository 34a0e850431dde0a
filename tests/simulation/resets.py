"""The only member of a share group: it reads, leaves, resets the group's start or deletes a topic's state, and returns.

Until a reset, what it was told about a record holds. The group then reports the start that was set, delivers nothing
before it, and can't be reset while it has a member.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_share_group_offsets import (
    AlteredShareOffset,
    AlteredShareTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from tailrace.kafka.messages.delete_share_group_offsets import (
    DeletedShareTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareOffsetsTopic,
)
from tailrace.kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
)
from tailrace.kafka.messages.share_fetch import SharePartitionData
from tests.simulation.clients import Log, Reader, Stage
from tests.simulation.keyed import quiet
from tests.simulation.network import KafkaStream, NoAnswer
from tests.simulation.shares import ShareMember, ShareWatch

SESSION_S = 1.5
"""The session time-out in the settings of the simulated agents."""
TURNS = 4
RESETS = 3
NOWHERE = -1
"""A group's start in a partition that it has not read."""


class Doubtful(Exception):
    """A change had no definite answer: it may be carried out at any time."""


class ResettingMember(ShareMember):
    """The only client that resets the group's start."""

    def __init__(self, stage: Stage, name: str, group: str, watch: ShareWatch) -> None:
        super().__init__(stage, name, group, watch)
        self._bounds = Reader(quiet(stage), name, "uncommitted", self.process)
        self._begins: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        """By partition, the end of the records that it received."""

    async def run_resets(self, topic: str) -> None:
        """Run until a change is doubtful, or RESETS were made."""
        log = await self.surely_look_up(topic)
        try:
            for _ in range(RESETS):
                for _ in range(TURNS):
                    await self._turn(log)
                await self._try_as_member(log)
                await self._give_everything_back()
                await self._leave()
                self._epoch, self._session, self._host, self._held = 0, 0, "", []
                while not await self._reset(log):
                    await self.pause(0.1, 0.4)
                await self._look(log)
        except Doubtful as error:
            self.stage.note(f"{self.name}: {error}")

    async def _try_as_member(self, log: Log) -> None:
        try:
            await self._heartbeat(log)
        except NoAnswer:
            return
        if await self._reset(log) and self.stage.now() < self._asked_at + SESSION_S:
            self.stage.violated(f"{self.name} is a member, and its group begins elsewhere")

    async def _heartbeat(self, log: Log) -> None:
        self._asked_at = self.stage.now()
        await super()._heartbeat(log)

    async def _reset(self, log: Log) -> bool:
        """Reset the group's start; returns False if the group had members."""
        is_deletion = self.luck.below(3) == 0
        begins = {each: self.luck.below(self._seen.get(each, 0) + 1) for each in range(log.partitions)}
        changed = await (self._delete(log) if is_deletion else self._alter(log, begins))
        if changed:
            self._begins = dict.fromkeys(begins, NOWHERE) if is_deletion else begins
            self.watch.holdings.clear()
            self.watch.done_at.clear()
            self.stage.note(f"{self.name}: the group begins at {self._begins}")
        return changed

    async def _alter(self, log: Log, begins: dict[int, int]) -> bool:
        partitions = [AlterShareOffsetsPartition(*begin) for begin in begins.items()]
        request = AlterShareGroupOffsetsRequest(self._group, [AlterShareOffsetsTopic(log.topic, partitions)])
        return await self._change(ApiKey.ALTER_SHARE_GROUP_OFFSETS, request)

    async def _delete(self, log: Log) -> bool:
        request = DeleteShareGroupOffsetsRequest(self._group, [DeleteShareOffsetsTopic(log.topic)])
        return await self._change(ApiKey.DELETE_SHARE_GROUP_OFFSETS, request)

    async def _change(self, api: ApiKey, request: Any) -> bool:
        try:
            answer = await self._ask_coordinator(api, 0, request)
        except NoAnswer as error:
            raise Doubtful(f"{api.name}: {error}") from error
        if refused := [row.error_code for row in rows_of(answer.responses) if row.error_code]:
            raise Doubtful(f"{api.name}: {refused}, of a part")
        match ErrorCode(answer.error_code):
            case ErrorCode.NONE:
                return True
            case ErrorCode.NON_EMPTY_GROUP | ErrorCode.GROUP_ID_NOT_FOUND:
                return False
            case ErrorCode.NOT_COORDINATOR:
                self._coordinator = ""
                return False
            case other:
                raise Doubtful(f"{api.name}: {other.name}")

    async def _look(self, log: Log) -> None:
        """Check that the group reports what was set, except for records that were deleted."""
        told = await self._told(log)
        if told is None:
            return
        for partition, begin in self._begins.items():
            found = told.get(partition, NOWHERE)
            if found != begin:
                start = await self._bounds.offset_of(log, partition, -2)
                if not begin < found <= start:
                    self.stage.violated(
                        f"{self.name}: {log.name}-{partition} begins at {found}; set to {begin}, log start {start}"
                    )

    async def _told(self, log: Log) -> dict[int, int] | None:
        asked = DescribeShareGroupOffsetsRequest([DescribeShareOffsetsGroup(self._group, None)])
        try:
            (group,) = (await self._ask_coordinator(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, asked)).groups
        except NoAnswer:
            return None
        if group.error_code != ErrorCode.NONE:
            self._coordinator = ""
            return None
        return {
            row.partition_index: row.start_offset
            for topic in group.topics
            if topic.topic_id == log.topic_id
            for row in topic.partitions
        }

    def _take_in(
        self, log: Log, row: SharePartitionData, asked_at: float, now: float, came_by: KafkaStream
    ) -> None:
        super()._take_in(log, row, asked_at, now, came_by)
        for acquired in row.acquired_records:
            place = row.partition_index
            self._seen[place] = max(self._seen.get(place, 0), acquired.last_offset + 1)
            if acquired.first_offset < self._begins.get(place, 0):
                self.stage.violated(
                    f"{self.name}: {log.name}-{place} at {acquired.first_offset} is handed out, before"
                    f" {self._begins[place]}, where its group begins"
                )


def rows_of(
    topics: Sequence[AlteredShareTopic | DeletedShareTopic],
) -> list[AlteredShareOffset | DeletedShareTopic]:
    """Return the answer's rows of each partition, or of each topic if it has only these."""
    return [
        row
        for topic in topics
        for row in (topic.partitions if isinstance(topic, AlteredShareTopic) else [topic])
    ]
