from __future__ import annotations

import pytest

from agent.handlers import acls as handler
from sequencer.api.security import CreateAcls
from tailrace.kafka.messages.describe_acls import DescribeAclsRequest
from tailrace.security.acls import Operation, PatternType, Permission, ResourceType
from tests.agent.handlers.test_delegation_tokens import allowed, ask
from tests.support.agents import agent_bench
from tests.support.turns import counted_turns


async def test_acls_are_described_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "MATCHED_IN_A_TURN", 2)
    given = counted_turns(monkeypatch, handler)

    async with agent_bench() as bench:
        topics = [f"t{number}" for number in range(6)]
        stored = [allowed(Operation.READ, ResourceType.TOPIC, topic, "bob") for topic in topics]
        await bench.sequencer.create_acls(CreateAcls(stored))
        request = DescribeAclsRequest(
            resource_type_filter=ResourceType.ANY,
            pattern_type_filter=PatternType.ANY,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        )
        may = allowed(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster", "alice")
        described = await ask(bench, request, acls=(may,))
        assert sorted(resource.resource_name for resource in described.resources) == topics
        assert len(given) == 3
