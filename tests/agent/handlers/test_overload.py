"""While the sequencer is overloaded, clients that commit or fetch offsets wait and retry with the same coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.api.errors import SequencerOverloaded, SequencerUnavailable
from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest
from tests.support.agents import agent_bench


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SequencerOverloaded, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (SequencerUnavailable, ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_overload_is_to_be_waited_for_and_absence_to_be_looked_into(
    error: type[Exception], code: ErrorCode
) -> None:
    async with agent_bench() as bench:
        await bench.topic()

        async def refuse(request: Any) -> Any:
            raise error("by the test")

        bench.sequencer.commit_offsets = refuse  # type: ignore[attr-defined]
        bench.sequencer.fetch_offsets = refuse  # type: ignore[attr-defined]
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        committed = await bench.ask(ApiKey.OFFSET_COMMIT, 7, request)
        assert committed.topics[0].partitions[0].error_code == code
        fetched = await bench.ask(ApiKey.OFFSET_FETCH, 7, OffsetFetchRequest(group_id="g", topics=None))
        assert fetched.error_code == code
