"""What an agent remembers of topics and ring."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from agent.handlers import metadata
from agent.metadata import EMPTY, MAX_DEPARTED, departed_of
from agent.protocol.messages.metadata import MetadataRequest
from agent.services import RequestContext
from cache.ring import Replicas
from sequencer.api import AgentInfo, AgentRef, Member, Ring
from tests.support.agents import AgentBench, run

CONFLUENT_PYTHON = "confluent-kafka-python/2.16.1-rdkafka-2.16.0"
"""As confluent-kafka 2.16.1 says it in ApiVersions."""
JAVA = "apache-kafka-java/4.3.1"


def ring_of(*broker_ids: int) -> Ring:
    info = AgentInfo("h", 1, "", 0, 0, "z", "0", UUID(int=1))
    return Ring(1, [Member(each, 1, info, False) for each in broker_ids])


def test_who_has_left_is_remembered_until_it_is_back_and_not_without_bound() -> None:
    known = replace(EMPTY, replicas=Replicas(ring_of(1, 2, 3)))
    known = replace(known, departed=departed_of(known, ring_of(1)), replicas=Replicas(ring_of(1)))
    assert [member.broker_id for member in known.departed] == [2, 3]
    known = replace(known, departed=departed_of(known, ring_of(1, 3)), replicas=Replicas(ring_of(1, 3)))
    assert [member.broker_id for member in known.departed] == [2]
    many = replace(known, replicas=Replicas(ring_of(*range(4, 104))))
    assert len(departed_of(many, ring_of(1))) == MAX_DEPARTED


def test_only_librdkafka_is_told_of_agents_that_have_left() -> None:
    async def scenario(bench: AgentBench) -> None:
        other = await bench.join("az-a", 2)
        await bench.services.catalog.refresh()
        await bench.sequencer.release_agent(AgentRef(other.broker_id, other.lease_epoch))
        listed = {}
        for software in (CONFLUENT_PYTHON, "librdkafka/2.16.0", "confluent-kafka-dotnet/2.16.0", JAVA):
            context = RequestContext(12, "c", "h", "az-a", software)
            answer = await metadata.handle(bench.services, context, MetadataRequest(topics=None))
            listed[software] = [broker.node_id for broker in answer.brokers]
        mine = bench.identity.broker_id
        assert listed.pop(JAVA) == [mine]
        assert set(map(tuple, listed.values())) == {(mine, other.broker_id)}

    run(scenario)
