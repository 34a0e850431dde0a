"""Every store keeps the largest allowed values. A request with a larger one is refused, and only that request."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from sequencer.api.compaction import TakeLease
from sequencer.api.errors import InvalidRequest, LimitReached, SequencerError
from sequencer.api.groups import CommitOffsets, FetchOffsets, OffsetPosition
from sequencer.api.producers import InitProducer
from sequencer.api.reads import PartitionError
from sequencer.api.topics import CreatePartitions, CreateTopic
from sequencer.api.transactions import AbortProducer, AddToTransaction, TransactionRef
from sequencer.settings import SequencerSettings
from tailrace.limits import MAX_NAME_BYTES
from tests.support.sequencer_bench import batch, info, opened_bench
from tests.support.sequencers import FACTORIES, Factory

WIDEST = "\\" * MAX_NAME_BYTES
"""The name that takes the most bytes in a store: each of its characters is escaped."""
LONG = 2**63 - 1


async def test_the_largest_values_of_offset_commits_are_kept(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        sequencer, topic_id = bench.sequencer, bench.topic.topic_id
        last = OffsetPosition(topic_id, 0, LONG, 2**31 - 1, "\x00\\" * 2_000)
        lowest = OffsetPosition(topic_id, 1, -LONG - 1, -(2**31), "")
        for group_id in (WIDEST, "\x00" * MAX_NAME_BYTES, "é" * (MAX_NAME_BYTES // 2)):
            asked = CommitOffsets(group_id, -1, -1, -1, "", [last, lowest], retention_ms=LONG)
            assert (await sequencer.commit_offsets(asked)).errors == [PartitionError.NONE] * 2
            found = (await sequencer.fetch_offsets(FetchOffsets(group_id, None))).positions
            assert {one.offset for one in found} == {LONG, -LONG - 1}


async def test_the_longest_transactional_id_may_have_pending_positions_of_the_longest_group(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        sequencer = bench.sequencer
        grant = await sequencer.init_producer(InitProducer(transactional_id=WIDEST, timeout_ms=60_000))
        named = TransactionRef(WIDEST, grant.producer_id, grant.producer_epoch)
        position = OffsetPosition(bench.topic.topic_id, 0, 5, 0, "")
        asked = CommitOffsets(WIDEST, -1, -1, -1, "", [position], transaction=named, joins=True)
        assert (await sequencer.commit_offsets(asked)).errors == [PartitionError.NONE]


async def test_a_name_that_is_too_long_is_refused_and_others_asked_with_it_are_served(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        sequencer = bench.sequencer
        position = OffsetPosition(bench.topic.topic_id, 0, 5, 0, "")

        async def is_refused(asked: object) -> bool:
            try:
                await asked  # type: ignore[misc]
            except InvalidRequest:
                return True
            return False

        for name in ("", WIDEST + "x", "x" * 20_000, "é" * (MAX_NAME_BYTES // 2 + 1)):
            outcomes = await asyncio.gather(
                is_refused(sequencer.commit_offsets(CommitOffsets(name, -1, -1, -1, "", [position]))),
                is_refused(sequencer.init_producer(InitProducer(transactional_id=name, timeout_ms=60_000))),
                is_refused(sequencer.take_lease(TakeLease(name, "holder", 0, 1_000))),
                *(
                    is_refused(sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", [position])))
                    for _ in range(5)
                ),
            )
            assert outcomes == [True] * 3 + [False] * 5


async def test_the_longest_lease_is_a_day(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        day_ms = 24 * 3600 * 1000
        assert (await bench.sequencer.take_lease(TakeLease("a", "me", 0, day_ms))).lease_ms == day_ms
        for lease_ms in (day_ms + 1, LONG, 0, -1):
            with pytest.raises(InvalidRequest):
                await bench.sequencer.take_lease(TakeLease("b", "me", 0, lease_ms))


async def test_a_number_wider_than_its_column_is_refused_before_it_is_decided() -> None:
    async with opened_bench(FACTORIES["rpc"]) as bench:
        position = OffsetPosition(bench.topic.topic_id, 0, 2**63, 0, "")
        with pytest.raises(SequencerError, match="9223372036854775807"):
            await bench.sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", [position]))


async def test_a_number_wider_than_what_it_is_kept_in_is_refused(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        sequencer, topic_id = bench.sequencer, bench.topic.topic_id
        wide = OffsetPosition(topic_id, 0, 5, 2**31, "")
        with pytest.raises(InvalidRequest):
            await sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", [wide]))
        with pytest.raises(InvalidRequest):
            await sequencer.register_agent(msgspec.structs.replace(info("host"), port=2**16))
        with pytest.raises(InvalidRequest):
            await sequencer.abort_producer(AbortProducer(1, 2**15, [(topic_id, 0)]))
        good = bench.request(batch())
        assert good.object is not None
        for field, value in (("format_version", 2**31), ("key", f"{bench.session.prefix}{'x' * 2_000}")):
            bad = msgspec.structs.replace(good.object, **{field: value})
            with pytest.raises(InvalidRequest):
                await sequencer.commit(msgspec.structs.replace(good, object=bad))
        for field in ("producer_epoch", "base_sequence", "record_count"):
            run_of_one = msgspec.structs.replace(
                good.runs[0], batches=[msgspec.structs.replace(good.runs[0].batches[0], **{field: 2**31})]
            )
            with pytest.raises(InvalidRequest):
                await sequencer.commit(msgspec.structs.replace(good, runs=[run_of_one]))
        assert (await sequencer.commit(good)).runs, "nothing of what was refused is in the way"


async def test_a_commit_of_more_records_than_a_checkpoint_reserves_offsets_is_refused_for_good() -> None:
    async with opened_bench(FACTORIES["memory"], SequencerSettings(checkpoint_reservation=11)) as bench:
        half = bench.request(batch(6), number=0)
        too_many = msgspec.structs.replace(half, runs=half.runs * 2)
        with pytest.raises(LimitReached, match=r"12 records at once .* reserves 11 offsets"):
            await bench.sequencer.commit(too_many)
        answer = await bench.sequencer.commit(bench.request(batch(11)))
        assert answer.runs[0].outcomes[0].base_offset == 0


async def test_groups_of_one_transaction_are_bounded() -> None:
    async with opened_bench(FACTORIES["memory"], SequencerSettings(max_groups_per_transaction=2)) as bench:
        sequencer = bench.sequencer
        grant = await sequencer.init_producer(InitProducer(transactional_id="t", timeout_ms=60_000))
        named = TransactionRef("t", grant.producer_id, grant.producer_epoch)
        for number in (1, 2, 2):
            await sequencer.add_to_transaction(AddToTransaction(named, [], f"g-{number}"))
        with pytest.raises(InvalidRequest, match="max_groups_per_transaction"):
            await sequencer.add_to_transaction(AddToTransaction(named, [], "g-3"))


async def test_partitions_of_all_topics_are_bounded_together() -> None:
    async with opened_bench(FACTORIES["memory"], SequencerSettings(max_partitions=10)) as bench:
        sequencer = bench.sequencer
        room = 10 - bench.topic.partitions
        topic = await sequencer.create_topic(CreateTopic("other", room - 1, {}))
        with pytest.raises(LimitReached, match="max_partitions is 10"):
            await sequencer.create_topic(CreateTopic("one-too-many", 2, {}))
        with pytest.raises(LimitReached, match="max_partitions is 10"):
            await sequencer.create_partitions(CreatePartitions(topic.topic_id, room + 1))
        assert (await sequencer.create_partitions(CreatePartitions(topic.topic_id, room))).partitions == room
