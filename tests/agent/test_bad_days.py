"""Bad days, end to end over a socket: the error that a client gets, the line, the metric, and what there is after."""

from __future__ import annotations

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from agent import server
from cache.chunk import ChunkId
from sequencer.api.agents import AgentInfo
from sequencer.api.topics import MetadataRequest
from sequencer.api.values import Empty
from tailrace.clock import SystemClock
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.metadata import MetadataRequest as MetadataRequestOfKafka
from tailrace.kafka.messages.metadata import MetadataRequestTopic
from tailrace.object_store.folder import FolderStore
from tests.support.agents import batch
from tests.support.faulty_store import FaultPlan, Faults, Latency
from tests.support.patience import PATIENCE_SECONDS
from tests.support.wire import GIVES_UP_EARLY, KafkaSocket, batches_of, wired_agent


async def nothing_is_half_visible(client: KafkaSocket, stored: int) -> None:
    """One batch of one record at each offset below `stored`, and no more; what was just written may take a moment."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (row := await client.fetch()).high_watermark < stored:
            await asyncio.sleep(0.01)
    assert (row.error_code, row.high_watermark) == (0, stored)
    assert batches_of(row) == [(offset, 1) for offset in range(stored)]


async def test_a_full_disk_is_a_storage_error_and_the_folder_holds_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FolderStore(tmp_path / "objects", SystemClock(), ThreadPoolExecutor(2))
    is_full = False
    really_write, really_writev = os.write, os.writev

    def write(descriptor: int, data: bytes) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really_write(descriptor, data)

    def writev(descriptor: int, parts: list[bytes]) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really_writev(descriptor, parts)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "writev", writev)
    async with wired_agent(tmp_path, objects=objects) as wired:
        await wired.topic()
        client = await wired.client()
        assert (await client.produce(batch(b"1"))).base_offset == 0
        before = await wired.keys()

        is_full = True
        refused = await client.produce(batch(b"lost"))
        is_full = False

        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR and refused.base_offset == -1
        assert "space" in (refused.error_message or "")
        (line,) = wired.told("a flush failed")
        assert "space" in line["error"] and line["log_level"] == "warning"
        assert wired.metric("flush_failures_total", reason="storage") == 1
        assert wired.metric("object_store_requests_total", operation="put", outcome="StoreFull") == 1
        assert await wired.keys() == before
        await nothing_is_half_visible(client, 1)

        assert (await client.produce(batch(b"2"))).base_offset == 1
        await nothing_is_half_visible(client, 2)


async def test_a_store_that_answers_503_is_a_storage_error_for_producers_and_consumers(
    tmp_path: Path,
) -> None:
    async with wired_agent(tmp_path, **GIVES_UP_EARLY) as wired:
        await wired.topic()
        client = await wired.client()
        assert (await client.produce(batch(b"1"))).base_offset == 0

        wired.store.outage.begin()
        refused = await client.produce(batch(b"lost"))
        for key in await wired.keys():
            wired.agent.cache.forget(ChunkId(key, 0))
        unread = await client.fetch()
        wired.store.outage.end()

        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert unread.error_code == ErrorCode.KAFKA_STORAGE_ERROR and not batches_of(unread)
        assert wired.told("a flush failed") and wired.told("records can't be read now")
        assert wired.metric("flush_failures_total", reason="storage") == 1
        assert wired.metric("refused_batches_total", error="KAFKA_STORAGE_ERROR") == 1
        assert wired.metric("fetch_failures_total", error="KAFKA_STORAGE_ERROR") == 1

        await nothing_is_half_visible(client, 1)
        assert (await client.produce(batch(b"2"))).base_offset == 1
        await nothing_is_half_visible(client, 2)


async def test_a_store_that_hangs_is_a_storage_error_at_the_deadline_and_what_lands_late_is_never_seen(
    tmp_path: Path,
) -> None:
    async with wired_agent(tmp_path, **GIVES_UP_EARLY) as wired:
        await wired.topic()
        client = await wired.client()

        wired.store.plan = FaultPlan(put=Faults(hangs_after=1.0, hang_seconds=1.5))
        refused = await client.produce(batch(b"late"))
        wired.store.plan = FaultPlan()

        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "longer than 1000 ms" in (refused.error_message or "")
        assert wired.told("a flush failed")
        assert wired.metric("flush_failures_total", reason="storage") == 1
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await wired.keys():  # the write lands, long after everybody gave up
                await wired.clock.sleep(0.02)
        await nothing_is_half_visible(client, 0)
        assert (await client.produce(batch(b"1"))).base_offset == 0
        await nothing_is_half_visible(client, 1)


async def test_a_database_that_is_away_is_a_time_out_and_all_continues_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with wired_agent(tmp_path, **GIVES_UP_EARLY) as wired:
        await wired.topic()
        client, other = await wired.client(), await wired.client()
        assert (await client.produce(batch(b"1"))).base_offset == 0

        wired.rows.is_away = True
        refused = await client.produce(batch(b"retried by its producer"))
        # What the committer remembers is served as long as its lease holds.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (unread := await other.fetch()).error_code == 0:
                assert batches_of(unread) == [(0, 1)]
                await wired.clock.sleep(0.05)
        wired.rows.is_away = False

        assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert unread.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert wired.told("no answer to a commit yet; its producers are told to retry")
        assert wired.told("a fetch got no answer from the sequencer")
        assert wired.metric("flush_failures_total", reason="timeout") == 1
        assert wired.metric("fetch_failures_total", error="NOT_LEADER_OR_FOLLOWER") == 1

        # Told to retry is not told that it is lost: the commit goes on and the batch may be there, whole.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (again := await client.produce(batch(b"2"))).error_code:
                assert again.error_code == ErrorCode.REQUEST_TIMED_OUT
        await nothing_is_half_visible(client, again.base_offset + 1)


async def test_a_fetch_is_planned_again_when_its_object_was_replaced_meanwhile(tmp_path: Path) -> None:
    async with wired_agent(tmp_path) as wired:
        await wired.topic()
        client = await wired.client()
        await client.produce(batch(b"1"))
        (key,) = await wired.keys()
        wired.agent.cache.forget(ChunkId(key, 0))
        moved = await wired.objects.get(key)
        await wired.objects.delete([key])
        plans = 0
        really_find = wired.sequencer.find_batches

        async def find_batches(request: object) -> object:
            nonlocal plans
            plans += 1
            if plans == 2:  # as if the first plan was made before, the second after a swap
                await wired.objects.put(key, [moved])
            return await really_find(request)  # type: ignore[arg-type]

        wired.sequencer.find_batches = find_batches  # type: ignore[method-assign, assignment]
        await nothing_is_half_visible(client, 1)
        assert plans == 2

        await client.produce(batch(b"2"))
        (other_key,) = set(await wired.keys()) - {key}
        wired.agent.cache.forget(ChunkId(other_key, 0))
        await wired.objects.delete([other_key])
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (gone := await client.fetch(1)).high_watermark == 1:
                await asyncio.sleep(0.01)
        assert gone.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert plans in (4, 5), "planned thrice, the first time from the window if it has come; then told"
        assert wired.told("records can't be read now")


async def test_partitions_spread_over_several_lanes_keep_their_order(tmp_path: Path) -> None:
    async with wired_agent(tmp_path, flush_lanes=3) as wired:
        await wired.topic(partitions=8)
        clients = [await wired.client() for _ in range(8)]

        async def send(partition: int) -> list[int]:
            return [
                (
                    await clients[partition].produce(batch(str(number).encode()), partition=partition)
                ).base_offset
                for number in range(5)
            ]

        assert await asyncio.gather(*map(send, range(8))) == [[0, 1, 2, 3, 4]] * 8
        prefixes = {key.rpartition("/")[0] for key in await wired.keys()}
        assert len(prefixes) > 1, "each lane has a session, and so a prefix, of its own"
        for partition in range(8):
            assert batches_of(await clients[0].fetch(partition=partition)) == [(n, 1) for n in range(5)]


async def test_draining_answers_what_was_sent_and_gives_the_lease_back(tmp_path: Path) -> None:
    async with wired_agent(tmp_path) as wired:
        await wired.topic()
        clients = [await wired.client() for _ in range(4)]
        wired.store.plan = FaultPlan(put=Faults(latency=Latency(50, 60)))
        sent = [asyncio.create_task(client.produce(batch(b"x" * 100))) for client in clients]
        while wired.metric("produced_records_total") < 4:
            await asyncio.sleep(0)

        await wired.agent.drain()

        answers = [await task for task in sent]
        assert sorted(answer.base_offset for answer in answers) == [0, 1, 2, 3]
        ring = (await wired.sequencer.metadata(MetadataRequest())).ring
        assert ring is not None and not ring.members
        statistics = await wired.sequencer.statistics(Empty())
        assert statistics.open_sessions == 0


async def test_a_drain_sends_clients_to_another_agent_while_they_can_still_ask_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("NOTICE_SECONDS", "QUIET_SECONDS"):
        monkeypatch.setattr(server, bound, PATIENCE_SECONDS)

    async with wired_agent(tmp_path) as wired:
        await wired.topic()
        producer, consumer = await wired.client(), await wired.client()
        await producer.produce(batch(b"stored here"))
        info = AgentInfo("other", 9092, "", 0, 0, "", "0", UUID(int=9))
        other = await wired.sequencer.register_agent(info)

        draining = asyncio.create_task(wired.agent.drain())
        while (sent := await producer.produce(batch(b"sent"))).error_code == 0:
            pass
        assert sent.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await consumer.fetch()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer = await producer.ask(
            ApiKey.METADATA, 12, MetadataRequestOfKafka(topics=[MetadataRequestTopic(name="t")])
        )
        assert [row.leader_id for row in answer.topics[0].partitions] == [other.broker_id]
        newcomer = await wired.client()
        assert (await newcomer.fetch()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not draining.done()
        for client in (producer, consumer, newcomer):
            client.close()
        await draining
