"""Members of a share group: they join, acquire records, acknowledge them in different ways, or not at all.

`ShareWatch` sees all their answers:
- while a member holds a record under a lock, nobody else receives it;
- once the acceptance of a record was answered, nobody receives it;
- every record that the log acknowledged is delivered sooner or later;
- a record that a member certainly held and rejected is in the dead-letter topic at the end.

A member can't know when the facts in an answer took effect; the rules assume the time that allows most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sequencer.api.share_groups import AcknowledgeType
from tailrace.batches.record_batch import check_crc, split
from tailrace.batches.records import decode_records
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
)
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tailrace.kafka.messages.share_acknowledge import ShareAcknowledgeRequest
from tailrace.kafka.messages.share_fetch import (
    AcknowledgementBatch,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    SharePartitionData,
)
from tailrace.kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.simulation.clients import Admin, Client, Log, Reader, Stage
from tests.simulation.loop import SimulatedProcess
from tests.simulation.network import KafkaStream, NoAnswer
from tests.support.history.events import identity

LOCK_S = 2.0
"""The lock time in the settings of the simulated agents."""
GROUP_RESOURCE = 32
MARGIN_S = 0.02
"""The database's clock counts whole milliseconds."""
Place = tuple[str, int, int]
"""A record: its log, partition and offset."""
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
RENEW = AcknowledgeType.RENEW
SAID = (*6 * [ACCEPT], RELEASE, RENEW, REJECT)
"""How members acknowledge records, each entry equally likely."""


@dataclass(slots=True)
class Holding:
    """A record in a member's hands. Nobody else may have it from `had_at` until `locked_until`, unless it was given up:
    `freed_at` is when the member first asked for that. The record is also freed if a connection ends by which it came,
    or by which a renewal of its lock was sent."""

    had_at: float
    locked_until: float
    held_by: list[KafkaStream]
    freed_at: float | None = None
    first_said: AcknowledgeType | None = None
    """The member's first acknowledgement of it, except renewals. A member may hold the same record twice, and its
    second acknowledgement is void."""

    def is_sure(self, now: float) -> bool:
        """Return whether its lock certainly has not ended, nor any connection that holds it."""
        return now < self.locked_until - MARGIN_S and not any(stream.agent_knows for stream in self.held_by)


@dataclass(slots=True)
class ShareWatch:
    """The answers that the members of one group received."""

    violated: Callable[[str], None]
    is_time_kept: bool = True
    """The database's clock, by which locks end, has not jumped yet."""
    holdings: dict[Place, list[Holding]] = field(default_factory=dict)
    done_at: dict[Place, float] = field(default_factory=dict)
    """When an answer said that a record is done."""
    rejected: set[Place] = field(default_factory=set)
    """Records rejected by a member that certainly held them when the rejection was answered."""
    delivered: set[str] = field(default_factory=set)
    """Identities of records that were delivered to a member."""

    def handed_out(
        self, place: Place, record: str, member: str, asked_at: float, now: float, came_by: KafkaStream
    ) -> Holding:
        """Note that a member received a record, between these two times."""
        self.delivered.add(record)
        done_at = self.done_at.get(place)
        if done_at is not None and asked_at > done_at:
            self.violated(f"{place} is handed to {member}, asked at {asked_at:.3f}; done at {done_at:.3f}")
        known = self.holdings.setdefault(place, [])
        for other in known:
            is_certain = self.is_time_kept and other.had_at < asked_at and other.is_sure(now)
            if is_certain and (other.freed_at is None or other.freed_at > now):
                self.violated(
                    f"{place} is handed to {member} at {asked_at:.3f} to {now:.3f}, and is another's from"
                    f" {other.had_at:.3f} to {other.locked_until:.3f}"
                )
        holding = Holding(now, asked_at + LOCK_S, [came_by])
        known.append(holding)
        return holding

    def done(self, places: Iterable[Place], now: float) -> None:
        """Note an answer that these records are done."""
        for place in places:
            self.done_at.setdefault(place, now)


DEAD_LETTERS = "dlq.events"


async def make_dead_letter_topic(admin: Admin, group: str) -> None:
    """Create the topic, and configure the group to use it."""
    await admin.make_topic(DEAD_LETTERS, 1, errors_deadletterqueue_group_enable="true")
    config = AlterableConfig("errors.deadletterqueue.topic.name", value=DEAD_LETTERS)
    await admin.until_answered(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP_RESOURCE, group, [config])]),
        lambda response: response.responses[0].error_code == ErrorCode.NONE,
    )


async def missing_letters(reader: Reader, watch: ShareWatch, log: Log) -> list[Place]:
    """Return the rejected records that are still in the log, but not in the dead-letter topic."""
    letters = await reader.surely_look_up(DEAD_LETTERS)
    end, at = await reader.offset_of(letters, 0, -1), 0
    written: set[tuple[int, int]] = set()
    while at < end:
        asked = FetchTopic(topic_id=letters.topic_id, partitions=[FetchPartition(0, fetch_offset=at)])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[asked])
        asked.partitions[0].partition_max_bytes = 1 << 20
        try:
            (row,) = (
                (await reader.ask(reader.some_agent(), ApiKey.FETCH, 16, request)).responses[0].partitions
            )
        except (NoAnswer, IndexError):
            continue
        for header, batch in split(memoryview(bytes(row.records or b""))):
            at = header.end_offset
            for record in decode_records(batch):
                named = {name: (value or b"").decode() for name, value in record.headers}
                written.add((int(named["__dlq.errors.partition"]), int(named["__dlq.errors.offset"])))
    starts = [await reader.offset_of(log, partition, -2) for partition in range(log.partitions)]
    return sorted(
        place
        for place in watch.rejected
        if place[0] == log.name and place[2] >= starts[place[1]] and place[1:] not in written
    )


@dataclass(slots=True)
class Batch:
    """Records of one partition that were acquired together, and are not acknowledged yet."""

    partition: int
    first: int
    last: int
    holdings: dict[int, Holding]

    def said(self, kind: AcknowledgeType, now: float, sent_by: KafkaStream) -> AcknowledgementBatch:
        """Return the acknowledgement to send for the batch."""
        for holding in self.holdings.values():
            if kind is RENEW:
                holding.held_by.append(sent_by)
            else:
                holding.freed_at = now
                holding.first_said = holding.first_said or kind
        return AcknowledgementBatch(self.first, self.last, [kind])


class ShareMember(Client):
    """One member: sends heartbeats, fetches from any agent, and acknowledges with the next fetch."""

    def __init__(
        self, stage: Stage, name: str, group: str, watch: ShareWatch, process: SimulatedProcess | None = None
    ) -> None:
        super().__init__(stage, name, process)
        self._group = group
        self.watch = watch
        self._coordinator = ""
        self._epoch = 0
        self._host, self._session = "", 0
        self._held: list[Batch] = []
        self._holdings: list[Holding] = []
        self._heard_at = -1.0

    async def run(self, topic: str) -> None:
        """Run until the input has ended."""
        log = await self.surely_look_up(topic)
        while not self.stage.is_input_over:
            await self._turn(log)
        await self._give_everything_back()
        await self._leave()

    async def drain(self, topic: str) -> None:
        """Read until the group is done with every record."""
        log = await self.surely_look_up(topic)
        while True:
            await self._turn(log, is_last=True)
            if not self._held and await self._lag(log) == 0:
                break
        await self._leave()

    async def _turn(self, log: Log, *, is_last: bool = False) -> None:
        try:
            if self.stage.now() - self._heard_at > 0.4:
                await self._heartbeat(log)
            await self._fetch(log, is_last=is_last)
        except NoAnswer:
            await self.pause(0.0, 0.2)
        await self.pause(0.0, 0.1)

    # --- membership

    async def _heartbeat(self, log: Log) -> None:
        names = [log.topic] if self._epoch == 0 else None
        request = ShareGroupHeartbeatRequest(
            self._group, self.name, self._epoch, subscribed_topic_names=names
        )
        answer = await self._ask_coordinator(ApiKey.SHARE_GROUP_HEARTBEAT, 1, request)
        match ErrorCode(answer.error_code):
            case ErrorCode.NONE:
                self._epoch, self._heard_at = answer.member_epoch, self.stage.now()
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_MEMBER_EPOCH:
                self._epoch = 0
                raise NoAnswer("to join again")
            case other:
                self._coordinator = ""
                raise NoAnswer(other.name)

    async def _ask_coordinator(self, api: ApiKey, version: int, request: Any) -> Any:
        if not self._coordinator:
            asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group])
            found = (await self.ask(self.some_agent(), ApiKey.FIND_COORDINATOR, 4, asked)).coordinators[0]
            if found.error_code != ErrorCode.NONE or found.host not in self.stage.cluster.agents:
                raise NoAnswer("no coordinator")
            self._coordinator = found.host
        try:
            return await self.ask(self._coordinator, api, version, request)
        except NoAnswer:
            self._coordinator = ""
            raise

    async def _leave(self) -> None:
        try:
            await self._ask_coordinator(
                ApiKey.SHARE_GROUP_HEARTBEAT, 1, ShareGroupHeartbeatRequest(self._group, self.name, -1)
            )
        except NoAnswer:
            self.stage.note(f"{self.name} left without an answer")

    async def _give_everything_back(self) -> None:
        """End the session: records that it holds and has not acknowledged become available to all."""
        if self._session == 0:
            return
        for holding in self._holdings:
            holding.freed_at = self.stage.now() if holding.freed_at is None else holding.freed_at
        request = ShareAcknowledgeRequest(self._group, self.name, -1)
        try:
            answer = await self.ask(self._host, ApiKey.SHARE_ACKNOWLEDGE, 2, request)
            self.stage.note(f"{self.name} ended its session: {ErrorCode(answer.error_code).name}")
        except NoAnswer:
            self.stage.note(f"{self.name} ended its session without an answer")

    async def _lag(self, log: Log) -> int:
        """Return with how many offsets the group is not done; -1 if unknown."""
        asked = DescribeShareGroupOffsetsRequest([DescribeShareOffsetsGroup(self._group, None)])
        try:
            (group,) = (await self._ask_coordinator(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, asked)).groups
        except NoAnswer:
            return -1
        if group.error_code != ErrorCode.NONE:
            self._coordinator = ""
            return -1
        rows = [row for topic in group.topics if topic.topic_id == log.topic_id for row in topic.partitions]
        return sum(row.lag for row in rows) if len(rows) == log.partitions else -1

    # --- records

    async def _fetch(self, log: Log, *, is_last: bool) -> None:
        if not self._host or self.luck.below(20) == 0:
            left = self._streams.pop(self._host, None)
            if left is not None:  # it ends while the member reads elsewhere, or reconnects
                self.stage.cluster.loop.call_later(self.luck.fraction(), left.cut)
            self._host, self._session = self.some_agent(), 0
        asked_at, epoch = self.stage.now(), self._session
        said = [] if epoch == 0 else self._to_say(is_last=is_last)
        is_renewing = bool(said) and said[0][1] is RENEW
        try:
            came_by = self.stream(self._host)
        except NoAnswer:
            self._host, self._session = "", 0  # its machine may be gone
            raise
        request = self._request(log, epoch, said, came_by, is_renewing=is_renewing)
        self._session = 0  # until an answer shows that the agent has the session
        response = await self.wait(came_by, came_by.send(ApiKey.SHARE_FETCH, 2, request, self.name))
        now = self.stage.now()
        if response.error_code != ErrorCode.NONE:
            self._host = ""
            raise NoAnswer(ErrorCode(response.error_code).name)
        self._session = epoch + 1
        for topic in response.responses:
            for row in topic.partitions:
                if row.acknowledge_error_code == ErrorCode.NONE:
                    self._answered(log, row.partition_index, said, asked_at, now)
                self._take_in(log, row, asked_at, now, came_by)

    def _to_say(self, *, is_last: bool) -> list[tuple[Batch, AcknowledgeType]]:
        """Choose the acknowledgements to send now: the same type for all, at most one batch per partition."""
        kind = ACCEPT if is_last else SAID[self.luck.below(len(SAID))]
        if not is_last and self.luck.below(12) == 0:
            self._held = []  # it forgets what it holds: the locks time out
        by_partition = {batch.partition: batch for batch in reversed(self._held)}
        return [(batch, kind) for batch in by_partition.values()]

    def _request(
        self,
        log: Log,
        epoch: int,
        said: list[tuple[Batch, AcknowledgeType]],
        sent_by: KafkaStream,
        *,
        is_renewing: bool,
    ) -> ShareFetchRequest:
        now = self.stage.now()
        acknowledged = {batch.partition: [batch.said(kind, now, sent_by)] for batch, kind in said}
        if not is_renewing:
            self._held = [batch for batch in self._held if all(batch is not each for each, _ in said)]
        return ShareFetchRequest(
            self._group,
            self.name,
            epoch,
            max_wait_ms=0 if is_renewing else 200,
            min_bytes=0 if is_renewing else 1,
            max_bytes=0 if is_renewing else 1 << 20,
            max_records=0 if is_renewing else 1 + self.luck.below(12),
            share_acquire_mode=self.luck.below(2),
            is_renew_ack=is_renewing,
            topics=[
                ShareFetchTopic(
                    log.topic_id,
                    [ShareFetchPartition(each, acknowledged.get(each, [])) for each in range(log.partitions)],
                )
            ],
        )

    def _answered(
        self,
        log: Log,
        partition: int,
        said: list[tuple[Batch, AcknowledgeType]],
        asked_at: float,
        now: float,
    ) -> None:
        for batch, kind in said:
            if batch.partition != partition:
                continue
            if kind is REJECT:
                self.watch.rejected.update(
                    (log.name, partition, offset)
                    for offset, holding in batch.holdings.items()
                    if self.watch.is_time_kept and holding.first_said is REJECT and holding.is_sure(now)
                )
            if kind in (ACCEPT, REJECT):
                self.watch.done(
                    ((log.name, partition, offset) for offset in range(batch.first, batch.last + 1)), now
                )
            elif kind is RENEW:
                for holding in batch.holdings.values():
                    if holding.is_sure(now):  # otherwise the record may be done, and a renewal means nothing
                        holding.locked_until = max(holding.locked_until, asked_at + LOCK_S)

    def _take_in(
        self, log: Log, row: SharePartitionData, asked_at: float, now: float, came_by: KafkaStream
    ) -> None:
        records = {
            record.offset: identity(record.key, record.value)
            for header, batch in split(memoryview(bytes(row.records)))  # type: ignore[arg-type]
            if check_crc(batch) is None and not header.is_control
            for record in decode_records(batch)
        }
        for acquired in row.acquired_records:
            batch = Batch(row.partition_index, acquired.first_offset, acquired.last_offset, {})
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                if offset in records:
                    place = (log.name, row.partition_index, offset)
                    holding = self.watch.handed_out(place, records[offset], self.name, asked_at, now, came_by)
                    batch.holdings[offset] = holding
                    # Its earlier holding was released without a request, so an acknowledgement of one applies to both.
                    for before in self._held:
                        if before.partition == batch.partition and offset in before.holdings:
                            before.holdings[offset] = holding
                    self._holdings.append(holding)
            self._held.append(batch)
