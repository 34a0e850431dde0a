"""A commit hashes and compares its topic's id by C code, however many runs it has."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from sequencer.api.commits import BatchError, RunProposal
from sequencer.api.topics import CreateTopic
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from sequencer.store.quick_ids import quick_id
from tests.support.committer_bench import CommitterBench, on_committer
from tests.support.sequencer_bench import batch, outcomes

PARTITIONS = 100
OPERATIONS_OF_A_COMMIT = 20


class World(CommitterBench[MemoryRowStore]):
    settings = SequencerSettings()


async def test_the_id_of_a_topic_is_hashed_and_compared_in_python_a_few_times_a_commit_and_not_for_each_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with on_committer(World, MemoryRowStore) as world:
        topic = await world.committer.create_topic(CreateTopic("wide", PARTITIONS, {}))
        used: list[UUID] = []
        hash_of, equals = UUID.__hash__, UUID.__eq__

        def hash_counted(an_id: UUID) -> int:
            used.append(an_id)
            return hash_of(an_id)

        def equals_counted(an_id: UUID, other: object) -> bool:
            used.append(an_id)
            return equals(an_id, other)

        monkeypatch.setattr(UUID, "__hash__", hash_counted)
        monkeypatch.setattr(UUID, "__eq__", equals_counted)
        for sequence in range(2):
            request = world.request(batch(producer=0), topic=topic)
            runs = [
                RunProposal(topic.topic_id, number, 8, 100, [batch(producer=number, sequence=sequence)])
                for number in range(PARTITIONS)
            ]
            sent = msgspec.msgpack.encode(msgspec.structs.replace(request, runs=runs))
            used.clear()
            answer = await world.committer.commit(msgspec.msgpack.decode(sent, type=type(request)))
            assert outcomes(answer) == [(BatchError.NONE, sequence)] * PARTITIONS
            assert sum(an_id.int == topic.topic_id.int for an_id in used) <= OPERATIONS_OF_A_COMMIT


def test_a_quick_id_is_the_same_id() -> None:
    plain, other = UUID(int=1 << 100), UUID(int=1)
    quick = quick_id(plain)
    assert quick == plain and plain == quick and quick != other and isinstance(quick, UUID)
    assert hash(quick) == hash(plain) and {quick: 1}[plain] == {plain: 1}[quick] == 1
    assert (str(quick), quick.int, quick.bytes, quick.hex) == (str(plain), plain.int, plain.bytes, plain.hex)
    assert msgspec.msgpack.encode(quick) == msgspec.msgpack.encode(plain)
