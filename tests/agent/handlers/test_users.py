"""AlterUserScramCredentials: each user gets its own result."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.api.errors import SequencerUnavailable
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from tailrace.security.acls import Operation, ResourceType
from tests.agent.handlers.test_delegation_tokens import allowed, ask
from tests.support.agents import AgentBench, agent_bench

ADMIN = (allowed(Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster", "alice"),)


def upsertion(user: str, iterations: int = 8192) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=user, mechanism=1, iterations=iterations, salt=b"a salt of 16 byt", salted_password=bytes(32)
    )


async def results(bench: AgentBench, *upsertions: ScramCredentialUpsertion) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(upsertions=list(upsertions))
    return {row.user: row.error_code for row in (await ask(bench, request, acls=ADMIN)).results}


async def test_a_refused_user_keeps_its_own_error_while_the_sequencer_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench() as bench:

        async def away(_: Any) -> Any:
            raise SequencerUnavailable("there is no committer")

        monkeypatch.setattr(bench.services.sequencer, "alter_scram", away, raising=False)
        found = await results(bench, upsertion("weak", iterations=1), upsertion("bob"))
        assert found["weak"] == ErrorCode.UNACCEPTABLE_CREDENTIAL
        assert found["bob"] not in (ErrorCode.NONE, ErrorCode.UNACCEPTABLE_CREDENTIAL)


async def test_a_user_that_is_altered_twice_does_not_stop_the_others() -> None:
    async with agent_bench() as bench:
        found = await results(bench, upsertion("twice"), upsertion("twice"), upsertion("bob"))
        assert found == {"twice": ErrorCode.DUPLICATE_RESOURCE, "bob": ErrorCode.NONE}
