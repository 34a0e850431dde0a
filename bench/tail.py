"""The cost of tail readers for the committer: many agents that each watch some partitions, and objects of many runs.

    python -m bench.tail [--agents 1000] [--partitions 100000] [--watched 100] [--objects 200] [--runs 64]

There is one process with rows in memory and no RPC. The figures are the CPU time of queueing changes for subscribers,
and of building and encoding the responses. For comparison, the same objects are also read from the feed of earlier
versions, which sent all partitions to each agent. Its bytes are for one agent, because all got the same.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from uuid import UUID

from sequencer.api.agents import AgentInfo
from sequencer.api.commits import (
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
)
from sequencer.api.reads import FeedRequest, WatchRequest
from sequencer.api.topics import CreateTopic, Topic
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.clock import SystemEntropy
from tailrace.rpc import encode_body
from tests.support.clocks import ManualClock

PARTITIONS_OF_A_TOPIC = 10_000
ADDED_AT_ONCE = 1_000
BATCH_BYTES = 1_000


class Watcher:
    """One agent's subscription, with the bytes and runs that it received."""

    def __init__(self, sequencer: Committer, number: int) -> None:
        self._sequencer = sequencer
        self._subscriber = UUID(int=number + 1)
        self._turn = self._taken = 0
        self.bytes = self.runs = 0

    async def call(self, added: list[tuple[UUID, int]]) -> None:
        self._turn += bool(added)
        request = WatchRequest(self._subscriber, self._turn, self._taken, added, [], 0)
        answer = await self._sequencer.watch(request)
        assert not answer.is_reset, "the bench calls often enough"
        self._taken += len(answer.changes)
        self.bytes += len(encode_body(answer))
        self.runs += sum(len(change.runs) for change in answer.changes)


def request_of(
    session: SessionGrant, number: int, places: list[tuple[UUID, int]], luck: random.Random
) -> CommitRequest:
    """Return the commit of an object with a run of one batch for each of these partitions."""
    batch = BatchCoordinates(BATCH_BYTES, 10, 1, 1, -1, -1, -1, 0)
    size = BATCH_BYTES * len(places)
    described = ObjectDescription(
        UUID(int=luck.getrandbits(128)),
        ObjectKind.MIXED,
        f"{session.prefix}{number:012d}",
        size + 100,
        0,
        size,
        0,
    )
    runs = [
        RunProposal(*place, at * BATCH_BYTES, BATCH_BYTES, [batch]) for at, place in enumerate(sorted(places))
    ]
    return CommitRequest(session.session_id, number, number, described, runs)


async def made_topics(sequencer: Committer, partitions: int) -> list[Topic]:
    """Create topics with `partitions` partitions together."""
    made = []
    for first in range(0, partitions, PARTITIONS_OF_A_TOPIC):
        count = min(PARTITIONS_OF_A_TOPIC, partitions - first)
        made.append(await sequencer.create_topic(CreateTopic(f"t-{first}", count, {})))
    return made


async def measure(asked: argparse.Namespace) -> None:
    """Subscribe, commit, and print the figures."""
    luck = random.Random(1)
    clock = ManualClock()
    settings = SequencerSettings(max_feed_commits=100_000, max_feed_runs=1_000_000)
    sequencer = Committer(MemoryRowStore(clock), clock, SystemEntropy(), settings)
    await sequencer.start()
    topics = await made_topics(sequencer, asked.partitions)
    places = [(topic.topic_id, number) for topic in topics for number in range(topic.partitions)]
    lease = await sequencer.register_agent(AgentInfo("a", 1, "a", 0, 0, "z", "0", UUID(int=1)))
    session = await sequencer.open_session(OpenSession(lease.broker_id, lease.epoch))
    watchers = [Watcher(sequencer, number) for number in range(asked.agents)]

    began = time.process_time()
    for watcher in watchers:
        wanted = luck.sample(places, asked.watched)
        for first in range(0, len(wanted), ADDED_AT_ONCE):
            await watcher.call(wanted[first : first + ADDED_AT_ONCE])
    subscribed_s = time.process_time() - began

    start_bytes = sum(watcher.bytes for watcher in watchers)
    after, feed_bytes, commit_s, answer_s = sequencer.known.commit, 0, 0.0, 0.0
    for number in range(asked.objects):
        began = time.process_time()
        await sequencer.commit(request_of(session, number, luck.sample(places, asked.runs), luck))
        commit_s += time.process_time() - began
        if number % 10 == 9:
            began = time.process_time()
            for watcher in watchers:
                await watcher.call([])
            answer_s += time.process_time() - began
            while after < sequencer.known.commit:
                answer = await sequencer.feed(FeedRequest(after, [], 0))
                after, feed_bytes = answer.commit_number, feed_bytes + len(encode_body(answer))
    sent = sum(watcher.bytes for watcher in watchers) - start_bytes
    runs = sum(watcher.runs for watcher in watchers)
    objects, agents = asked.objects, asked.agents
    print(f"{agents} agents watch {asked.watched} of {len(places)} partitions each")
    print(f"subscribing: {subscribed_s / agents / asked.watched * 1e6:.1f} us a partition")
    print(
        f"an object of {asked.runs} runs: {commit_s / objects * 1e6:.0f} us, committed and queued for its subscribers"
    )
    each_us = answer_s / max(runs, 1) * 1e6
    print(f"runs sent, all agents: {runs / objects:.1f} an object, {each_us:.1f} us each (beats included)")
    own, whole = sent / agents / objects, feed_bytes / objects
    print(f"bytes an agent and object: {own:.1f} from its subscription, {whole:.0f} from the feed")
    await sequencer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--watched", type=int, default=100, help="partitions that each agent watches")
    parser.add_argument("--objects", type=int, default=200)
    parser.add_argument("--runs", type=int, default=64, help="runs of an object")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
