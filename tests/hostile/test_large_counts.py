"""No array of any request holds an agent's loop for long, however often it names the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from agent.dispatch import Dispatcher
from tailrace.buffers import Buffer
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.schema import Field, MessageType
from tests.hostile.cases import APIS_WITH_ARRAYS, LARGE, SERVED, WIDTH
from tests.hostile.known import WIDE_GROUP, WIDE_TOPIC, Known
from tests.hostile.values import Count, array_fields, request_of_many
from tests.support.agents import AgentBench, connection, made, run, settle
from tests.support.turns import least_of_three, measured_turns

HELD_SECONDS = 0.05
"""CPU time of one turn of the loop."""
LONGEST_ANSWER_BYTES = 1 << 20
PATIENCE_ROUNDS = 100
"""Some requests ask the sequencer for each element. A client that waits for no more hangs up."""


async def stage(bench: AgentBench) -> Known:
    """What requests name: a topic of many partitions, a group with a position in each, and topics to change."""
    known = Known()
    for name in known.topics:
        topic = await bench.topic(name)
        known.topic_ids.append(topic.topic_id)
    topic = await bench.topic(WIDE_TOPIC, partitions=WIDTH)
    known.kept_topic_ids.append(topic.topic_id)
    partitions = [OffsetCommitRequestPartition(each, 1) for each in range(WIDTH)]
    positions = [OffsetCommitRequestTopic(WIDE_TOPIC, partitions=partitions)]
    await bench.ask(ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest(WIDE_GROUP, topics=positions))
    return known


def frame_of_many(api: ApiKey, at: tuple[MessageType, Field], known: Known) -> memoryview:
    """A request for the same thousands of times, in the last version with this array."""
    kind, array = at
    version = max(of for each, of in SERVED if each is api and of in array.versions)
    request = request_of_many(api, version, Count(kind, array, LARGE), known, random.Random(array.name))
    return memoryview(b"".join(encode_request(7, api, version, request, None)))[4:]


async def answer(bench: AgentBench, frame: memoryview) -> Sequence[Buffer]:
    """The answer's bytes; none where the broker hangs up, or the client, as it has not come after many turns."""

    async def ask() -> Sequence[Buffer]:
        return await made(await Dispatcher(bench.services)(frame, connection())) or ()

    asking = asyncio.ensure_future(ask())
    for _ in range(PATIENCE_ROUNDS):
        await settle()
        if asking.done():
            return asking.result()
        bench.clock.advance(0.05)
    asking.cancel()
    await asyncio.wait([asking])
    return ()


@pytest.mark.parametrize("api", APIS_WITH_ARRAYS, ids=lambda api: api.name)
@least_of_three
def test_what_is_named_thousands_of_times_leaves_the_loop_to_others(api: ApiKey) -> None:
    async def scenario(bench: AgentBench) -> None:
        known = await stage(bench)
        for at in array_fields(api):
            frame = frame_of_many(api, at, known)
            with measured_turns() as turns:
                parts = await answer(bench, frame)
            assert sum(map(len, parts)) < LONGEST_ANSWER_BYTES, at[1].name
            turns.check(HELD_SECONDS)

    run(scenario)
