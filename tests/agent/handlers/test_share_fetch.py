"""ShareFetch and ShareAcknowledge: acquired records, sessions, and the states of records (KIP-932)."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from agent.connection import KafkaConnection
from agent.fetch.fetch_sessions import PartitionKey, RequestedPartition
from agent.fetch.partition_fetch import PartitionFetch
from agent.fetch.share_releases import ShareReleases
from agent.fetch.share_sessions import ShareSessions
from agent.fetch.share_spans import MAX_TYPES, acknowledged_of, span_of
from agent.handlers import share_fetch
from agent.handlers.dead_letters import copied, why_unusable
from sequencer.api.reads import AbortedTransaction, FoundPartition, PartitionError
from sequencer.api.share_groups import ShareOffsetsRequest, ShareRequest
from sequencer.api.topics import AlterConfig, ConfigChange, ConfigOperation, ConfigScope
from sequencer.api.values import Value
from sequencer.methods import Method
from sequencer.pages import all_share_offsets
from tailrace.batches.record_batch import Compression, framed, hole_batch, split
from tailrace.batches.records import NewRecord, decode_records, encode_batch
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareOffsetsTopic,
)
from tailrace.kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
    DescribeShareOffsetsTopic,
)
from tailrace.kafka.messages.fetch import PartitionData
from tailrace.kafka.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from tailrace.kafka.messages.share_fetch import (
    AcknowledgementBatch,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)
from tailrace.tenants import stored_in_same_tenant
from tests.agent.handlers.test_configs import GROUP, SET, alter
from tests.agent.handlers.test_current_topics import elsewhere_made_anew
from tests.agent.handlers.test_fetch import fetch, offsets, request_of, rows_of
from tests.agent.handlers.test_group_offsets import located
from tests.agent.handlers.test_produce import produce
from tests.agent.handlers.test_share_groups import beat
from tests.agent.quotas.test_quotas import Client, set_quota
from tests.support.agents import AgentBench, agent_bench, batch, connection, context, settle
from tests.support.cancelled import CancelledAt
from tests.support.clocks import SeededEntropy
from tests.support.patience import PATIENCE_SECONDS
from tests.support.transactions import TransactionalProducer

EARLIEST = {"group_share_auto_offset_reset": "earliest"}
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


def batches(*said: tuple[int, int, int]) -> list[AcknowledgementBatch]:
    """Of (first offset, last offset, type)s."""
    return [AcknowledgementBatch(first, last, [kind]) for first, last, kind in said]


class Member:
    """A member of group g that reads partition 0 of topic t, as a client would."""

    def __init__(self, bench: AgentBench, member_id: str) -> None:
        self.bench, self.member_id, self.epoch = bench, member_id, 0
        self.connection = connection()
        self.topic_id = bench.services.catalog.snapshot.by_name["t"].topic.topic_id

    async def join(self) -> Member:
        answer = await beat(self.bench, 0, self.member_id, subscribed_topic_names=["t"])
        assert answer.error_code == 0, answer.error_message
        return self

    async def asked(self, *said: tuple[int, int, int], version: int = 2, **more: Any) -> Any:
        request = ShareFetchRequest(
            "g",
            self.member_id,
            self.epoch,
            **{"max_records": 500, "min_bytes": 1, **more},
            topics=[ShareFetchTopic(self.topic_id, [ShareFetchPartition(0, batches(*said))])],
        )
        answer = await self.bench.until(
            asyncio.ensure_future(self.bench.ask(ApiKey.SHARE_FETCH, version, request, by=self.connection))
        )
        if answer.error_code == 0:
            self.epoch += 1
        return answer

    async def row(self, *said: tuple[int, int, int], **more: Any) -> Any:
        """The row of the partition, None if nothing is said of it."""
        answer = await self.asked(*said, **{"max_wait_ms": 500, **more})
        assert answer.error_code == 0, answer.error_message
        rows = [row for topic in answer.responses for row in topic.partitions]
        return rows[0] if rows else None

    async def acquired(self, *said: tuple[int, int, int], **more: Any) -> list[tuple[int, int, int]]:
        row = await self.row(*said, **more)
        assert row is None or (row.error_code, row.acknowledge_error_code) == (0, 0)
        each = [] if row is None else row.acquired_records
        return [(one.first_offset, one.last_offset, one.delivery_count) for one in each]

    async def acknowledge(
        self, *said: tuple[int, int, int], epoch: int | None = None, renews: bool = False, version: int = 2
    ) -> Any:
        request = ShareAcknowledgeRequest(
            "g",
            self.member_id,
            self.epoch if epoch is None else epoch,
            topics=[AcknowledgeTopic(self.topic_id, [AcknowledgePartition(0, batches(*said))])],
        )
        if version >= 2:
            request.is_renew_ack = renews
        answer = await self.bench.ask(ApiKey.SHARE_ACKNOWLEDGE, version, request)
        if answer.error_code:
            return answer.error_code
        self.epoch += 1
        return answer.responses[0].partitions[0].error_code


async def filled(bench: AgentBench, *sizes: int) -> Member:
    """A member of a group that has a partition with batches of so many records before it."""
    await bench.topic("t", 1)
    await located(bench)
    for size in sizes:
        await produce(bench, (0, batch(*[b"x"] * size)))
    return await Member(bench, "a").join()


async def test_records_go_to_one_member_each_and_are_done_when_they_are_accepted() -> None:
    async with agent_bench(**EARLIEST) as bench:
        first = await filled(bench, 2, 3)
        second = await Member(bench, "b").join()

        assert await first.acquired() == [(0, 4, 1)]
        assert await second.acquired() == []
        await produce(bench, (0, batch(b"y")))
        assert await second.acquired() == [(5, 5, 1)]
        assert await first.acquired((0, 4, ACCEPT)) == []
        assert await second.acknowledge((5, 5, ACCEPT)) == 0
        assert await second.acknowledge((5, 5, ACCEPT)) == 0, "it is before the start: done"
        (row,) = (await bench.sequencer.share_offsets(ShareOffsetsRequest("g"))).offsets
        assert (row.start_offset, row.lag) == (6, 0)


@pytest.mark.parametrize("version", [1, 2])
async def test_an_acknowledgement_is_answered_in_every_version(version: int) -> None:
    async with agent_bench(**EARLIEST) as bench:
        member = await filled(bench, 2)
        assert await member.acquired(version=version) == [(0, 1, 1)]

        assert await member.acknowledge((0, 1, ACCEPT), version=version) == 0


async def test_a_group_begins_at_the_end_unless_it_is_told_otherwise() -> None:
    async with agent_bench() as bench:
        member = await filled(bench, 3)

        assert await member.acquired() == []
        await produce(bench, (0, batch(b"y")))
        assert await member.acquired() == [(3, 3, 1)]


async def test_a_waiting_fetch_gets_what_is_produced_meanwhile() -> None:
    async with agent_bench() as bench:
        member = await filled(bench)
        await member.acquired()

        waiting = asyncio.ensure_future(member.acquired(max_wait_ms=20_000))
        await produce(bench, (0, batch(b"y", b"z")))

        assert await bench.until(waiting, 1.0) == [(0, 1, 1)]


async def test_released_rejected_and_expired_records_go_to_the_right_state() -> None:
    async with agent_bench(**EARLIEST) as bench:
        first = await filled(bench, 4)
        second = await Member(bench, "b").join()
        await first.acquired()

        assert await first.acknowledge((0, 0, RELEASE), (1, 1, REJECT)) == 0
        assert await second.acquired() == [(0, 0, 2)]
        assert await first.acknowledge((2, 2, RENEW)) == ErrorCode.INVALID_REQUEST
        await bench.advance(20, step=1)
        assert await first.acknowledge((2, 2, RENEW), renews=True) == 0
        await bench.advance(11, step=1)

        assert sorted(await second.acquired()) == [(0, 0, 3), (3, 3, 2)]
        assert await first.acknowledge((3, 3, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
        assert await first.acknowledge((2, 2, ACCEPT)) == 0


async def test_the_end_of_a_session_gives_everything_back() -> None:
    async with agent_bench(**EARLIEST) as bench:
        first = await filled(bench, 4)
        second = await Member(bench, "b").join()
        await first.acquired()

        assert await first.acknowledge((0, 0, ACCEPT), epoch=-1) == 0

        assert await second.acquired() == [(1, 3, 2)]
        assert await first.acknowledge((1, 1, ACCEPT)) == ErrorCode.SHARE_SESSION_NOT_FOUND


async def test_the_end_of_a_session_gives_back_nothing_that_the_member_has_by_another_agent() -> None:
    async with agent_bench(**EARLIEST) as bench:
        first = await filled(bench, 4)
        second = await Member(bench, "b").join()
        assert await first.acquired() == [(0, 3, 1)]
        assert await first.acquired((0, 3, ACCEPT), max_wait_ms=0) == []
        await produce(bench, (0, batch(b"y")))

        here, epoch = bench.services.share_sessions, first.epoch
        bench.services.share_sessions = ShareSessions(10, SeededEntropy(9))
        first.epoch = 0
        assert await first.acquired() == [(4, 4, 1)]
        there, bench.services.share_sessions = bench.services.share_sessions, here
        assert epoch and await first.acknowledge(epoch=-1) == 0

        assert await second.acquired() == []
        bench.services.share_sessions = there
        first.epoch = 1
        assert await first.acknowledge((4, 4, ACCEPT)) == 0


async def test_a_member_above_its_quota_acknowledges_and_gets_no_records_until_it_has_waited() -> None:
    async with agent_bench(**EARLIEST) as bench:
        member = await filled(bench, 100, 1)
        await set_quota(bench, consumer_byte_rate=10)
        member.connection = Client(bench).connection
        assert await member.acquired() == [(0, 99, 1)], "a batch at least"
        answer = await member.asked((0, 99, ACCEPT), max_wait_ms=500)
        assert answer.throttle_time_ms > 0
        assert [row for topic in answer.responses for row in topic.partitions if row.acquired_records] == []
        (row,) = (await bench.sequencer.share_offsets(ShareOffsetsRequest("g"))).offsets
        assert row.start_offset == 100
        await bench.advance(answer.throttle_time_ms / 1_000 + 1, step=1)
        assert await member.acquired() == [(100, 100, 1)]


async def dead_letters(bench: AgentBench, **configs: str) -> None:
    """Have the group's dead letters go to topic dlq.t."""
    names = {"topic_name": "dlq.t", **configs}
    changes = [
        ConfigChange(f"errors.deadletterqueue.{name.replace('_', '.')}", ConfigOperation.SET, value)
        for name, value in names.items()
    ]
    await bench.sequencer.alter_config(AlterConfig(ConfigScope.GROUP, "g", changes))
    await bench.services.catalog.refresh()


async def letters(bench: AgentBench, count: int) -> list[tuple[bytes | None, bytes | None, dict[str, str]]]:
    """Key, value and headers of what is in partition 0 of dlq.t, once there is so much: a thread decodes."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found := await letters_now(bench)) < count:
            await asyncio.sleep(0.001)
    return found


async def letters_now(bench: AgentBench) -> list[tuple[bytes | None, bytes | None, dict[str, str]]]:
    """The same at once."""
    await bench.until(asyncio.ensure_future(settle(400)))
    topic = bench.services.catalog.snapshot.by_name["dlq.t"].topic
    (row,) = rows_of(await fetch(bench, request_of(topic, (0, 0))))
    return [
        (each.key, each.value, {name: (value or b"").decode() for name, value in each.headers})
        for _, data in split(memoryview(bytes(row.records)))
        for each in decode_records(data)
    ]


@pytest.mark.parametrize(("copy", "content"), [("true", (b"k", b"x")), ("false", (None, None))])
async def test_undeliverable_records_go_to_the_dead_letter_topic(
    copy: str, content: tuple[bytes | None, bytes | None]
) -> None:
    async with agent_bench(**EARLIEST, group_share_delivery_count_limit=2) as bench:
        member = await filled(bench, 3)
        await bench.topic("dlq.t", 1, errors_deadletterqueue_group_enable="true")
        await dead_letters(bench, copy_record_enable=copy)
        assert await member.acquired() == [(0, 2, 1)]
        assert await member.acquired((0, 0, ACCEPT), (1, 1, REJECT), (2, 2, RELEASE), max_wait_ms=0) == []
        assert await member.acquired() == [(2, 2, 2)]
        assert await member.acquired((2, 2, RELEASE), max_wait_ms=0) == []

        found = await letters(bench, 2)

        assert [(key, value) for key, value, _ in found] == [content] * 2
        says = [
            {name.removeprefix("__dlq.errors."): text for name, text in each.items()} for _, _, each in found
        ]
        assert says[0] == {
            "topic": "t",
            "partition": "0",
            "offset": "1",
            "group": "g",
            "delivery.count": "1",
            "message": "Offset rejected by client.",
        }
        assert (says[1]["offset"], says[1]["message"]) == (
            "2",
            "Offset delivery count exceeded the threshold.",
        )
        offsets = (await bench.sequencer.share_offsets(ShareOffsetsRequest("g"))).offsets
        assert [each.start_offset for each in offsets] == [3]


async def test_records_wait_for_their_dead_letters_to_be_stored() -> None:
    async with agent_bench(**EARLIEST, group_share_record_lock_duration_ms=1_000) as bench:
        member = await filled(bench, 1)
        await bench.topic("dlq.t", 1, errors_deadletterqueue_group_enable="true")
        await dead_letters(bench)
        await member.acquired()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("agent.handlers.dead_letters._write", _fails)
            await member.acquired((0, 0, REJECT), max_wait_ms=0)
            await settle(200)
        (offset,) = (await bench.sequencer.share_offsets(ShareOffsetsRequest("g"))).offsets
        assert (offset.start_offset, offset.lag) == (0, 1)

        await bench.advance(1.5)
        await member.acquired(max_wait_ms=0)

        assert len(await letters(bench, 1)) == 1
        (offset,) = (await bench.sequencer.share_offsets(ShareOffsetsRequest("g"))).offsets
        assert (offset.start_offset, offset.lag) == (1, 0)


async def _fails(*args: object) -> bool:
    return False


def test_a_tenants_group_names_the_tenants_topics_alone() -> None:
    assert stored_in_same_tenant("acme~g", "dlq.t") == "acme~dlq.t"
    assert stored_in_same_tenant("acme~g", "other~dlq.t") == "acme~other~dlq.t", "which no topic is called"
    assert stored_in_same_tenant("g", "dlq.t") == "dlq.t"


async def test_a_topic_that_takes_no_dead_letters_blocks_nobody() -> None:
    async with agent_bench(**EARLIEST) as bench:
        member = await filled(bench, 1)
        await bench.topic("dlq.t", 1)
        await dead_letters(bench)
        await member.acquired()
        await member.acquired((0, 0, REJECT), max_wait_ms=0)
        await settle(200)

        (offset,) = (await bench.sequencer.share_offsets(ShareOffsetsRequest("g"))).offsets
        assert offset.start_offset == 1
        known = bench.services.catalog.snapshot.by_name
        assert (
            why_unusable("dlq.t", known["dlq.t"], "dlq.")
            == "its config errors.deadletterqueue.group.enable is not true"
        )
        assert why_unusable("t", known["t"], "dlq.") is not None
        assert why_unusable("dlq.u", None, "dlq.") == "it does not exist"
        await bench.topic("__consumer_offsets", 1)
        internal = bench.services.catalog.snapshot.by_name["__consumer_offsets"]
        assert why_unusable("__consumer_offsets", internal, "") == "it is internal"


async def test_the_end_of_a_connection_gives_back_what_came_by_it() -> None:
    async with agent_bench(**EARLIEST) as bench:
        first = await filled(bench, 4, 2)
        second = await Member(bench, "b").join()
        assert await first.acquired(max_records=1) == [(0, 3, 1)]
        ended, first.connection, first.epoch = first.connection, connection(), 0
        assert await first.acquired() == [(4, 5, 1)]
        assert await second.acquired() == []

        await ends(bench, ended)
        assert await second.acquired(max_wait_ms=0) == []  # its session is another connection's
        await ends(bench, first.connection)

        assert await second.acquired() == [(4, 5, 2)]
        assert (await first.asked()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


async def ends(bench: AgentBench, connection: KafkaConnection) -> None:
    """The connection ends, and the agent gives back what it has to."""
    services = bench.services
    releases = ShareReleases(bench.sequencer, services.share_sessions, services.groups.configs.share_limits)
    releases.start()
    releases.connection_ended(connection)
    await settle()
    await releases.close()


@pytest.mark.parametrize(("mode", "expected"), [(0, [(0, 5, 1)]), (1, [(0, 3, 1)])])
async def test_the_number_of_records_is_rounded_to_batches_or_strict(
    mode: int, expected: list[tuple[int, int, int]]
) -> None:
    async with agent_bench(**EARLIEST) as bench:
        member = await filled(bench, 3, 3, 3)
        row = await member.row(max_records=4, share_acquire_mode=mode)
        row = row if row.acquired_records else await member.row(max_records=4, share_acquire_mode=mode)

        assert [
            (each.first_offset, each.last_offset, each.delivery_count) for each in row.acquired_records
        ] == expected
        assert offsets(row) == [0, 3]


async def test_topics_that_are_gone_are_looked_for_once_for_all() -> None:
    async with agent_bench(**EARLIEST) as bench:
        member = await filled(bench, 1)
        catalog, asked = bench.services.catalog, 0
        refresh = catalog.refresh

        async def counted() -> Any:
            nonlocal asked
            asked += 1
            return await refresh()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "refresh", counted)
            gone = [ShareFetchTopic(UUID(int=each), [ShareFetchPartition(0, [])]) for each in range(7, 40)]
            request = ShareFetchRequest("g", "a", 0, max_records=1, max_bytes=1 << 20, topics=gone)
            answer = await bench.ask(ApiKey.SHARE_FETCH, 2, request)
            assert {row.partitions[0].error_code for row in answer.responses} == {ErrorCode.UNKNOWN_TOPIC_ID}
            assert asked == 1
            names = [f"gone-{number}" for number in range(30)]
            await beat(bench, 0, member.member_id, subscribed_topic_names=names)
        assert asked == 2


async def test_sessions_have_epochs() -> None:
    async with agent_bench() as bench:
        member = await filled(bench, 1)

        assert (await member.asked((0, 0, ACCEPT))).error_code == ErrorCode.INVALID_REQUEST
        assert await member.acknowledge((0, 0, ACCEPT)) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        member.epoch = 1
        assert (await member.asked()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        member.epoch = 0
        assert (await member.asked()).acquisition_lock_timeout_ms == 30_000
        member.epoch = 2
        assert (await member.asked()).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH


async def test_a_client_that_gets_no_session_is_refused_after_its_wait() -> None:
    async with agent_bench(fetch_sessions=1) as bench:
        await (await filled(bench, 1)).asked()
        asked_at = bench.clock.monotonic()
        answer = await Member(bench, "b").asked(max_wait_ms=500)
        assert answer.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert bench.clock.monotonic() - asked_at >= 0.5


async def test_a_group_may_begin_some_time_ago() -> None:
    async with agent_bench() as bench:
        await bench.topic("t", 1)
        await located(bench)
        hour_ms, now_ms = 3_600_000, bench.clock.wall_ms()
        for hours in (3, 2, 1):
            await produce(bench, (0, batch(b"x", at=now_ms - hours * hour_ms)))
        name = "share.auto.offset.reset"
        assert await alter(bench, GROUP, "g", (name, SET, "by_duration:PT2H30M")) == 0
        assert await alter(bench, GROUP, "h", (name, SET, "by_duration:-PT1H")) == ErrorCode.INVALID_CONFIG
        member = Member(bench, "a")
        assert await member.acquired() == [], "it has not joined yet"
        await member.join()
        assert await member.acquired() == [(1, 2, 1)]
        await member.acknowledge((1, 2, RELEASE))
        assert await alter(bench, GROUP, "g", (name, SET, "by_duration:PT1M")) == 0
        member.epoch = 0
        assert await member.acquired() == [(1, 2, 2)], "where a group has begun, it goes on"


async def test_an_administrator_sets_where_a_group_begins_before_there_is_one() -> None:
    async with agent_bench() as bench:
        await bench.topic("t", 1)
        await located(bench)
        await produce(bench, (0, batch(b"1", b"2", b"3")))
        topic = AlterShareOffsetsTopic("t", [AlterShareOffsetsPartition(0, 1)])
        request = AlterShareGroupOffsetsRequest("g", [topic])
        answer = await bench.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, request)
        assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0)
        member = await Member(bench, "a").join()
        assert await member.acquired() == [(1, 2, 1)]
        answer = await bench.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, request)
        assert answer.error_code == ErrorCode.NON_EMPTY_GROUP


async def test_only_members_are_given_records() -> None:
    async with agent_bench(**EARLIEST) as bench:
        await filled(bench, 1)
        stranger = Member(bench, "stranger")

        assert await stranger.acquired() == []
        row = await stranger.row((0, 0, ACCEPT))
        assert row.acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
        assert row.acknowledge_error_message


async def test_offsets_that_cannot_be_altered_or_deleted_have_a_reason() -> None:
    async with agent_bench() as bench:
        await bench.topic("t", 1)
        await located(bench)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic, partition in (("nowhere", 0), ("t", 7)):
            start = AlterShareOffsetsTopic(topic, [AlterShareOffsetsPartition(partition, 0)])
            request = AlterShareGroupOffsetsRequest("g", [start])
            answer = await bench.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, request)
            (row,) = answer.responses[0].partitions
            assert row.error_code == unknown and row.error_message
        gone = DeleteShareGroupOffsetsRequest("g", [DeleteShareOffsetsTopic("nowhere")])
        (row,) = (await bench.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, gone)).responses
        assert row.error_code == unknown and row.error_message


async def test_offsets_are_described_altered_and_deleted_once_the_members_have_left() -> None:
    async with agent_bench(**EARLIEST) as bench:
        member = await filled(bench, 3)
        await member.acquired()
        await member.acknowledge((0, 1, ACCEPT))

        async def described(topics: Any = None) -> list[tuple[int, int]]:
            request = DescribeShareGroupOffsetsRequest([DescribeShareOffsetsGroup("g", topics)])
            (group,) = (await bench.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, request)).groups
            assert group.error_code == 0, group.error_message
            return [(row.start_offset, row.lag) for topic in group.topics for row in topic.partitions]

        async def altered(start: int) -> int:
            partition = AlterShareOffsetsPartition(0, start)
            request = AlterShareGroupOffsetsRequest("g", [AlterShareOffsetsTopic("t", [partition])])
            answer = await bench.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, request)
            return int(answer.error_code or answer.responses[0].partitions[0].error_code)

        async def deleted() -> int:
            request = DeleteShareGroupOffsetsRequest("g", [DeleteShareOffsetsTopic("t")])
            answer = await bench.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, request)
            return int(answer.error_code or answer.responses[0].error_code)

        assert await described() == [(2, 1)]
        assert await described([DescribeShareOffsetsTopic("t", [0])]) == [(2, 1)]
        assert await altered(0) == ErrorCode.NON_EMPTY_GROUP
        await beat(bench, -1, "a")
        assert await altered(1) == 0
        assert await described() == [(1, 2)]
        assert await deleted() == 0
        assert await described() == []
        assert await described([DescribeShareOffsetsTopic("t", [0])]) == [(-1, -1)]


async def test_offsets_of_a_topic_that_another_agent_recreated_are_altered_and_deleted_as_new_ones() -> None:
    async with agent_bench(**EARLIEST) as bench:
        await filled(bench, 3)
        await beat(bench, -1, "a")
        catalog = bench.services.catalog
        stale = catalog.snapshot
        made = await elsewhere_made_anew(bench, stale.by_name["t"].topic)

        start = AlterShareOffsetsTopic("t", [AlterShareOffsetsPartition(0, 0)])
        altered = await bench.ask(
            ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, AlterShareGroupOffsetsRequest("g", [start])
        )
        assert (altered.error_code, altered.responses[0].topic_id) == (0, made.topic_id)
        assert altered.responses[0].partitions[0].error_code == 0
        stored = await all_share_offsets(bench.sequencer, "g")
        assert [(each.topic_id, each.start_offset) for each in stored] == [(made.topic_id, 0)]

        catalog.snapshot = stale
        topics = [DeleteShareOffsetsTopic("t")]
        deleted = await bench.ask(
            ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, DeleteShareGroupOffsetsRequest("g", topics)
        )
        assert (deleted.error_code, deleted.responses[0].topic_id) == (0, made.topic_id)
        assert await all_share_offsets(bench.sequencer, "g") == []


async def test_a_deleted_group_takes_what_it_has_read_along() -> None:
    async with agent_bench(**EARLIEST) as bench:
        member = await filled(bench, 3)
        await member.acquired()
        await beat(bench, -1, "a")

        answer = await bench.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(["g"]))

        assert answer.results[0].error_code == 0
        assert (await bench.sequencer.share_offsets(ShareOffsetsRequest("g"))).offsets == []


def test_markers_aborted_records_and_holes_are_skipped() -> None:
    found = FoundPartition(
        error=PartitionError.NONE,
        high_watermark=12,
        last_stable_offset=12,
        log_start_offset=0,
        leader_epoch=0,
        runs=[],
        aborted=[AbortedTransaction(9, 3, 5)],
    )
    aborted = encode_batch([NewRecord(b"k", b"v")], timestamps=[0], producer_id=9, is_transactional=True)
    parts = [
        *framed(memoryview(batch(b"x", b"y")), 0, 0),
        *framed(memoryview(aborted), 3, 0),
        *framed(memoryview(hole_batch(6)), 5, 0),
        *framed(memoryview(batch(b"z")), 8, 0),
    ]
    requested = RequestedPartition(PartitionKey("t", UUID(int=1), 0), 1, 1 << 20, -1, -1)
    read = PartitionFetch(requested, None, PartitionData(records=parts), True, found, read_end=12)

    assert span_of(read, 100, is_strict=False).skipped == [(2, 8), (9, 12)]
    assert span_of(read, 2, is_strict=False).end_offset == 4


def test_the_work_on_a_partition_in_one_request_is_bounded_and_in_order() -> None:
    most = [AcknowledgementBatch(0, MAX_TYPES - 1, [ACCEPT] * MAX_TYPES)]
    assert len(acknowledged_of(most, may_renew=False)) == 1
    for wrong in ([*most, *batches((MAX_TYPES, MAX_TYPES, ACCEPT))], batches((1, 1, ACCEPT), (1, 1, ACCEPT))):
        with pytest.raises(ValueError, match="types"):
            acknowledged_of(wrong, may_renew=False)
    with pytest.raises(ValueError, match="0 to 3"):
        acknowledged_of(batches((1, 1, RENEW)), may_renew=False)


async def test_a_group_that_reads_committed_gets_nothing_of_aborted_and_open_transactions() -> None:
    async with agent_bench(**EARLIEST) as bench:
        member = await filled(bench, 1)
        changes = ConfigChange("share.isolation.level", ConfigOperation.SET, "read_committed")
        await bench.sequencer.alter_config(AlterConfig(ConfigScope.GROUP, "g", [changes]))
        await bench.services.catalog.refresh()
        writer = TransactionalProducer(bench)
        assert await writer.init() == 0
        for commit in (False, True, None):
            await writer.send(0, b"v")
            assert commit is None or await writer.end(commit=commit) == 0

        assert await member.acquired() == [(0, 0, 1), (3, 3, 1)]
        assert await member.acquired((0, 0, ACCEPT), (3, 3, ACCEPT)) == []
        assert await writer.end(commit=True) == 0
        assert await member.acquired() == [(5, 5, 1)]


async def test_a_fetch_that_acknowledges_and_acquires_is_one_call_to_the_sequencer() -> None:
    async with agent_bench(**EARLIEST) as bench:
        member = await filled(bench, 1, 1, 1)
        assert await member.acquired(max_records=1) == [(0, 0, 1)]
        calls: list[str] = []
        committer, call = bench.sequencer.inner, bench.sequencer.inner.call

        async def counted(method: Method, request: Value) -> Value:
            calls.append(method.name)
            return await call(method, request)

        committer.call = counted  # type: ignore[method-assign]

        assert await member.acquired((0, 0, ACCEPT), max_records=1) == [(1, 1, 1)]

        assert [name for name in calls if name not in ("watch", "find_batches")] == ["share_records"]


def test_contents_are_copied_a_bounded_part_at_a_time_whatever_they_unpack_from() -> None:
    mib = 1 << 20
    large = encode_batch([NewRecord(b"k", bytes(mib))] * 6, timestamps=[0] * 6, compression=Compression.GZIP)
    beyond = encode_batch(
        [NewRecord(None, bytes(5 * mib))], base_offset=6, timestamps=[0], compression=Compression.GZIP
    )
    small = encode_batch([NewRecord(b"k", b"v")], base_offset=7, timestamps=[0])
    broken = bytearray(encode_batch([NewRecord(b"k", b"v")], base_offset=8, timestamps=[0]))
    broken[-1] = 1
    last = encode_batch([NewRecord(b"k", b"v")], base_offset=9, timestamps=[0])
    data = large + beyond + small + bytes(broken) + last
    contents, end = copied(data, 1, 10)
    assert (list(contents), end) == ([1, 2, 3], 4)
    contents, end = copied(data, end, 10)
    assert (list(contents), end) == ([4, 5, 7, 9], 10)
    assert contents[9] == (b"k", b"v")


@pytest.mark.parametrize("number", range(1, 6))
async def test_a_share_fetch_that_is_cancelled_anywhere_gives_its_memory_back(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with agent_bench(**EARLIEST) as bench:
        member = await filled(bench, 3)
        share_records = bench.sequencer.share_records

        async def later(request: ShareRequest) -> Any:
            await settle(1)
            return await share_records(request)

        monkeypatch.setattr(bench.sequencer, "share_records", later)
        request = ShareFetchRequest("g", member.member_id, 0, 500, 1, 1 << 20, 500)
        request.topics = [ShareFetchTopic(member.topic_id, [ShareFetchPartition(0)])]
        asked = structs.replace(context(2), connection=connection())
        with pytest.raises(asyncio.CancelledError):
            await CancelledAt(share_fetch.fetch(bench.services, asked, request), number)
        assert bench.services.fetch_memory.used == 0
