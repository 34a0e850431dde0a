"""The cost of consumer groups (KIP-848) for their coordinator: while forming, at rest, and after its death.

    python -m bench.consumer_groups [--groups 1000] [--members 10] [--partitions 20] [--json FILE]

The members of each group join one after another, and send heartbeats until each has its assignment. Then all send one
heartbeat. Then their coordinator is silent until its lease has expired, and all send heartbeats to another one. There
is one process with rows in memory, no RPC, and a clock that stands still. The figures are the CPU time of coordinator
and committer together, and what they store.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.groups.assignors import Assignment
from agent.groups.consumer_group import ConsumerAnswer, ConsumerHeartbeat
from agent.groups.coordinator import GroupCoordinator
from agent.groups.topic_names import TopicNames
from bench.support.report import report
from sequencer.api.groups import SaveGroup
from sequencer.api.topics import CreateTopic
from sequencer.api.values import Empty
from tailrace.kafka.error_codes import ErrorCode
from tests.support.coordinators import LEASE_SECONDS, Coordinators

TOPIC = "t"


@dataclass(slots=True)
class Stored:
    """Counts what the coordinators store in the sequencer."""

    writes: int = 0
    bytes: int = 0

    def watch(self, stand: Coordinators) -> None:
        """Start counting."""
        save = stand.sequencer.save_group

        async def counted(request: SaveGroup) -> Empty:
            self.writes += 1
            self.bytes += len(request.group.blob)
            return await save(request)

        stand.sequencer.save_group = counted  # type: ignore[method-assign]


@dataclass(slots=True)
class GroupMember:
    """A client. With its next heartbeat it takes over assigned partitions and gives up revoked ones."""

    group_id: str
    member_id: str
    epoch: int = 0
    owned: Assignment = field(default_factory=dict)
    has_changed: bool = False
    """Whether the last response changed what it owns."""

    async def join(self, coordinator: GroupCoordinator) -> None:
        """Join the group without partitions."""
        self._take(
            await coordinator.consumer_heartbeat(
                self.group_id,
                ConsumerHeartbeat(
                    self.member_id, 0, rebalance_seconds=30.0, topics=TopicNames((TOPIC,)), owned={}
                ),
            )
        )

    async def beat(self, coordinator: GroupCoordinator) -> bool:
        """Send a heartbeat. Return whether the response has anything new. Like Kafka's clients, it reports its
        partitions only after a change."""
        asked = ConsumerHeartbeat(self.member_id, self.epoch, owned=self.owned if self.has_changed else None)
        return self._take(await coordinator.consumer_heartbeat(self.group_id, asked))

    def _take(self, answer: ConsumerAnswer) -> bool:
        assert answer.code is ErrorCode.NONE, f"{self.group_id}: {answer}"
        is_new = answer.epoch != self.epoch or answer.assigned is not None
        self.has_changed = answer.assigned is not None
        self.epoch = answer.epoch
        if answer.assigned is not None:
            self.owned = answer.assigned
        return is_new


async def settle(members: Sequence[GroupMember], coordinator: GroupCoordinator) -> int:
    """Send heartbeats until no response has anything new. Return how many heartbeats that took."""
    beats = 0
    while True:
        news = [await member.beat(coordinator) for member in members]
        beats += len(news)
        if not any(news):
            return beats


async def run(groups: int, members: int, partitions: int) -> dict[str, float]:
    """Return the costs and what is stored. Checks that every partition has one owner at the end, and that no member
    lost one."""
    stand, stored = Coordinators(), Stored()
    await stand.open()
    await stand.sequencer.create_topic(CreateTopic(TOPIC, partitions, {}))
    await stand.learn_topics()
    stored.watch(stand)
    every = [
        [GroupMember(f"group-{group}", f"member-{number}") for number in range(members)]
        for group in range(groups)
    ]
    first, second = stand.agents
    figures: dict[str, float] = {"groups": groups, "members": members, "partitions": partitions}
    began = time.process_time()
    beats = 0
    for group in every:
        for member in group:
            await member.join(first)
        beats += await settle(group, first)
    figures |= _costs("form", began, groups * members, stored)
    figures["form_heartbeats_per_member"] = round(beats / (groups * members), 2)
    figures |= await _round(every, first, "rest", stored)
    await stand.advance(LEASE_SECONDS + 4, 1)
    figures |= await _round(every, second, "take_over", stored)
    for group in every:
        owned = sorted(index for member in group for indexes in member.owned.values() for index in indexes)
        assert owned == list(range(partitions)), "each partition has one owner"
    await stand.close()
    return figures


async def _round(
    every: Sequence[Sequence[GroupMember]],
    coordinator: GroupCoordinator,
    name: str,
    stored: Stored,
) -> dict[str, float]:
    """Send one heartbeat per member, when no response should have anything new."""
    began, count = time.process_time(), sum(map(len, every))
    told = 0
    for group in every:
        for member in group:
            told += await member.beat(coordinator)
    return _costs(name, began, count, stored) | {f"{name}_told_something_new": told}


def _costs(name: str, began: float, members: int, stored: Stored) -> dict[str, float]:
    spent = time.process_time() - began
    figures = {
        f"{name}_cpu_s": round(spent, 3),
        f"{name}_us_per_member": round(spent / members * 1e6, 1),
        f"{name}_writes": stored.writes,
        f"{name}_stored_mib": round(stored.bytes / 2**20, 2),
    }
    stored.writes = stored.bytes = 0
    return figures


def main() -> None:
    """Form the groups, measure them at rest and after the coordinator's death, and print."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--groups", type=int, default=1_000)
    asked.add_argument("--members", type=int, default=10, help="of each group")
    asked.add_argument("--partitions", type=int, default=20, help="of the topic that all of them read")
    asked.add_argument("--json", type=Path, help="where to write the figures")
    options = asked.parse_args()
    report(asyncio.run(run(options.groups, options.members, options.partitions)), options.json)


if __name__ == "__main__":
    main()
