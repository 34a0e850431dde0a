"""Groups and their lag over HTTP, of real consumers of both protocols."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from agent.gateway import groups
from sequencer.api.groups import CommitOffsets, GroupState, LoadGroup, OffsetPosition, SaveGroup
from tests.agent.gateway.serving import Served, opened_gateway
from tests.support.sequencer_bench import info
from tests.support.turns import counted_turns

pytestmark = pytest.mark.uvloop


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_groups_members_and_lag_are_shown(tmp_path: Path, protocol: str) -> None:
    async def shown(there: Served) -> None:
        [group] = (await there.get("/consumer-groups"))["data"]
        assert (group["consumer_group_id"], group["state"]) == ("readers", "STABLE")
        got = await there.get("/consumer-groups/readers")
        assert got["state"] == "STABLE" and got["partition_assignor"] and not got["is_simple"]
        [member] = (await there.get(got["consumers"]["related"]))["data"]
        assert member["client_id"] == "laptop"
        assert await there.get(member["metadata"]["self"]) == member
        assigned = (await there.get(member["assignments"]["related"]))["data"]
        assert [(each["topic_name"], each["partition_id"]) for each in assigned] == [("t", 0), ("t", 1)]

        lags = (await there.get("/consumer-groups/readers/lags"))["data"]
        assert [(each["current_offset"], each["log_end_offset"], each["lag"]) for each in lags] == [
            (1, 3, 2),
            (1, 1, 0),
        ]
        assert {each["client_id"] for each in lags} == {"laptop"}
        assert await there.get(assigned[0]["lag"]["related"]) == lags[0]
        summary: Any = await there.get(got["lag_summary"]["related"])
        assert (summary["max_lag"], summary["total_lag"], summary["max_lag_partition_id"]) == (2, 2, 0)
        assert summary["max_lag_consumer_id"] == member["consumer_id"]
        for path in ("", "/lags", "/lag-summary", "/consumers"):
            status, missing = await there.ask("GET", f"/consumer-groups/nobody{path}")
            assert (status, missing["error_code"]) == (404, 40403), path

    async with opened_gateway(tmp_path) as there:
        await there.wired.topic("t", partitions=2)
        value = {"type": "STRING", "data": "x"}
        await there.produce("t", *({"partition_id": part, "value": value} for part in (0, 0, 0, 1)))
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{there.wired.agent.kafka_port}",
                "group.id": "readers",
                "group.protocol": protocol,
                "client.id": "laptop",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe(["t"])
        try:
            read = await asyncio.to_thread(consumer.consume, 4, 15)
            assert len(read) == 4
            places = [TopicPartition("t", 0, 1), TopicPartition("t", 1, 1)]
            await asyncio.to_thread(lambda: consumer.commit(offsets=places, asynchronous=False))
            await shown(there)
        finally:
            await asyncio.to_thread(consumer.close)


async def test_a_group_of_another_agent_is_shown_with_its_lag_and_its_members_are_that_agents(
    tmp_path: Path,
) -> None:
    async with opened_gateway(tmp_path) as there:
        topic = await there.wired.topic("t")
        await there.produce("t", {}, {}, {})
        sequencer = there.wired.sequencer
        lease = await sequencer.register_agent(info("other"))
        state = GroupState("theirs", 1, "Stable", "consumer", ["m"], b"")
        await sequencer.load_group(LoadGroup("theirs", lease.broker_id, lease.epoch))
        await sequencer.save_group(SaveGroup(lease.broker_id, lease.epoch, state))
        position = OffsetPosition(topic.topic_id, 0, 1, -1, "")
        await sequencer.commit_offsets(
            CommitOffsets("theirs", lease.broker_id, lease.epoch, 1, "m", [position])
        )
        [listed] = (await there.get("/consumer-groups"))["data"]
        assert (listed["consumer_group_id"], listed["state"]) == ("theirs", "STABLE")
        assert await there.get("/consumer-groups/theirs") == listed
        assert (await there.get("/consumer-groups/theirs/lag-summary"))["total_lag"] == 2
        status, refused = await there.ask("GET", "/consumer-groups/theirs/consumers")
        assert (status, refused["error_code"]) == (503, 50302)
        assert (
            refused["message"]
            == "The agent at other:9092 knows the members of this group. Send the request to it."
        )


async def test_the_lags_of_a_large_group_take_turns_and_are_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "LAGS_TOGETHER", 1)
    given = counted_turns(monkeypatch, groups)

    async with opened_gateway(tmp_path) as there:
        positions = []
        for name in ("b", "a"):
            topic = await there.wired.topic(name, partitions=4)
            positions += [OffsetPosition(topic.topic_id, partition, 0, -1, "") for partition in (3, 0, 2)]
        await there.produce("a", {"partition_id": 2}, {"partition_id": 2})
        await there.wired.sequencer.commit_offsets(CommitOffsets("readers", -1, -1, -1, "", positions))
        lags = (await there.get("/consumer-groups/readers/lags"))["data"]
        assert [(each["topic_name"], each["partition_id"], each["lag"]) for each in lags] == [
            ("a", 0, 0), ("a", 2, 2), ("a", 3, 0), ("b", 0, 0), ("b", 2, 0), ("b", 3, 0),
        ]  # fmt: skip
        assert len(given) == 12, "six positions, and six ends"
