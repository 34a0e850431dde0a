"""The agent's catalog of topics and ring."""

from __future__ import annotations

from dataclasses import replace
from typing import cast
from uuid import UUID

from agent.catalog import EMPTY, MAX_DEPARTED, Catalog, departed_of
from agent.handlers import metadata
from agent.services import RequestContext
from cache.ring import Replicas
from sequencer.api.agents import AgentInfo, AgentRef, Member, Ring
from sequencer.api.interface import Sequencer
from sequencer.api.topics import BrokerConfigsRequest, Configs, Metadata, MetadataRequest, Topic
from tailrace.kafka.messages import metadata as kafka
from tests.support.agents import agent_bench

CONFLUENT_PYTHON = "confluent-kafka-python/2.16.1-rdkafka-2.16.0"
"""As confluent-kafka 2.16.1 says it in ApiVersions."""
JAVA = "apache-kafka-java/4.3.1"


def ring_of(*broker_ids: int) -> Ring:
    info = AgentInfo("h", 1, "", 0, 0, "z", "0", UUID(int=1))
    return Ring(1, [Member(each, 1, info, False) for each in broker_ids])


def test_departed_agents_are_remembered_until_they_return_up_to_a_limit() -> None:
    known = replace(EMPTY, replicas=Replicas(ring_of(1, 2, 3)))
    known = replace(known, departed=departed_of(known, ring_of(1)), replicas=Replicas(ring_of(1)))
    assert [member.broker_id for member in known.departed] == [2, 3]
    known = replace(known, departed=departed_of(known, ring_of(1, 3)), replicas=Replicas(ring_of(1, 3)))
    assert [member.broker_id for member in known.departed] == [2]
    many = replace(known, replicas=Replicas(ring_of(*range(4, 104))))
    assert len(departed_of(many, ring_of(1))) == MAX_DEPARTED


async def test_only_librdkafka_gets_agents_that_have_left() -> None:
    async with agent_bench() as bench:
        other = await bench.join("az-a", 2)
        await bench.services.catalog.refresh()
        await bench.sequencer.release_agent(AgentRef(other.broker_id, other.lease_epoch))
        listed = {}
        for software in (CONFLUENT_PYTHON, "librdkafka/2.16.0", "confluent-kafka-dotnet/2.16.0", JAVA):
            context = RequestContext(12, "c", "h", "az-a", software)
            answer = await metadata.handle(bench.services, context, kafka.MetadataRequest(topics=None))
            listed[software] = [broker.node_id for broker in answer.brokers]
        mine = bench.identity.broker_id
        assert listed.pop(JAVA) == [mine]
        assert set(map(tuple, listed.values())) == {(mine, other.broker_id)}


def topic(number: int, name: str, partitions: int = 1) -> Topic:
    return Topic(UUID(int=number), name, partitions, {}, 0)


class Told:
    """A sequencer that has one answer to each question about metadata, in order."""

    def __init__(self, *answers: Metadata, configs: dict[str, str] | None = None) -> None:
        self.answers = list(answers)
        self.configs = configs or {}

    async def metadata(self, request: MetadataRequest) -> Metadata:
        assert request.takes_changes
        return self.answers.pop(0)

    async def broker_configs(self, request: BrokerConfigsRequest) -> Configs:
        return Configs(self.configs)


async def test_changes_are_put_into_what_is_known() -> None:
    ring = ring_of(1)
    told = Told(
        Metadata(
            cluster_id="c",
            incarnation=1,
            version=5,
            topics=[topic(1, "a"), topic(2, "b"), topic(3, "c")],
            ring=ring,
        ),
        Metadata(
            cluster_id="c",
            incarnation=1,
            version=7,
            topics=None,
            ring=None,
            changed=[topic(1, "a", 4), topic(4, "b")],
            deleted=[UUID(int=2)],
        ),
        Metadata(cluster_id="c", incarnation=1, version=7, topics=None, ring=None),
    )
    catalog = Catalog(cast("Sequencer", told))
    before = await catalog.refresh()
    after = await catalog.refresh()
    assert sorted(before.by_name) == ["a", "b", "c"]
    assert {name: known.topic.topic_id.int for name, known in after.by_name.items()} == {
        "a": 1,
        "b": 4,
        "c": 3,
    }
    assert (after.version, after.by_name["a"].topic.partitions) == (7, 4)
    assert after.by_id[UUID(int=3)] is before.by_id[UUID(int=3)], "what did not change is left alone"
    assert await catalog.refresh() is after


async def test_a_change_of_the_clusters_configs_reaches_every_topic() -> None:
    told = Told(
        Metadata(
            cluster_id="c", incarnation=1, version=5, topics=[topic(1, "a"), topic(2, "b")], ring=ring_of(1)
        ),
        Metadata(
            cluster_id="c",
            incarnation=1,
            version=6,
            topics=None,
            ring=None,
            changed=[],
            deleted=[UUID(int=2)],
        ),
    )
    catalog = Catalog(cast("Sequencer", told))
    before = await catalog.refresh()
    told.configs = {"message.max.bytes": "2048"}
    after = await catalog.refresh()
    assert list(after.by_name) == ["a"]
    assert before.by_name["a"].settings != after.by_name["a"].settings
