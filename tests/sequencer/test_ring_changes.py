"""A change of the ring sends the changed members; a caller that knows too old a ring gets all of it."""

from __future__ import annotations

from uuid import UUID

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sequencer.api.agents import AgentInfo
from sequencer.api.topics import Metadata, MetadataRequest
from sequencer.reading.topic_changes import MAX_RINGS, TopicChanges
from sequencer.ring_changes import ring_after, ring_change
from sequencer.rules.leases import ring_of
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.rows import AgentRow, Changes, CounterRow
from sequencer.store.state import RING_GENERATION, HotState
from tailrace.rpc import encode_body

ME = DatabaseIdentity("c", 1)
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")


def agent(number: int, *, epoch: int = 1, is_live: bool = True, draining: bool = False) -> AgentRow:
    info = AgentInfo(f"host-{number}", 9092, f"host-{number}", 0, 9644, "z", "0", UUID(int=number))
    return AgentRow(number, epoch, _encoder.encode(info), 9_999 if is_live else 0, draining)


class Driver:
    """A state of so many agents, with its metadata, as a committer moves them."""

    def __init__(self, agents: int) -> None:
        rows = [agent(number) for number in range(agents)]
        self.state = HotState({AgentRow: rows, CounterRow: [CounterRow(RING_GENERATION, 1)]})
        self.metadata = TopicChanges(self.state)
        self.ask(-1)

    def write(self, *rows: AgentRow) -> None:
        changes = Changes()
        changes.put(CounterRow(RING_GENERATION, self.state.counter(RING_GENERATION) + 1))
        for row in rows:
            changes.put(row)
        self.state.apply(changes)
        self.metadata.apply(changes)

    def ask(self, generation: int, *, takes_changes: bool = True) -> Metadata:
        request = MetadataRequest(0, generation, takes_changes=True, takes_ring_changes=takes_changes)
        return self.metadata.answer(request, ME)


def test_an_agent_that_joins_a_thousand_is_sent_alone() -> None:
    driver = Driver(1_000)
    whole = driver.ask(-1)
    assert whole.ring is not None and whole.ring_change is None
    driver.write(agent(1_000))
    answer = driver.ask(1)
    assert answer.ring is None and answer.ring_change is not None
    assert [member.broker_id for member in answer.ring_change.members] == [1_000]
    assert len(encode_body(answer)) < 300 < len(encode_body(whole)) // 100
    assert driver.ask(2).ring is None and driver.ask(2).ring_change is None


def test_the_changes_of_several_generations_are_sent_together() -> None:
    driver = Driver(10)
    driver.write(agent(3, is_live=False))
    driver.ask(-1)
    driver.write(agent(4, draining=True))
    change = driver.ask(1).ring_change
    assert change is not None and (change.since, change.generation, change.left) == (1, 3, [3])
    assert [member.broker_id for member in change.members] == [4] and change.departed == []


def test_a_caller_that_takes_no_changes_or_knows_a_forgotten_ring_gets_the_whole_ring() -> None:
    driver = Driver(3)
    driver.write(agent(3))
    assert driver.ask(1, takes_changes=False).ring is not None
    assert driver.ask(77).ring is not None
    for number in range(4, 5 + MAX_RINGS):
        driver.write(agent(number))
        driver.ask(-1)
    forgotten = driver.ask(1)
    assert forgotten.ring is not None and forgotten.ring_change is None


AGENTS = st.dictionaries(
    st.integers(0, 50),
    st.tuples(st.integers(1, 2), st.booleans(), st.booleans()),
    max_size=50,
)


@given(AGENTS, AGENTS)
def test_a_ring_and_its_change_are_the_next_ring(
    before: dict[int, tuple[int, bool, bool]], changed: dict[int, tuple[int, bool, bool]]
) -> None:
    def rows(of: dict[int, tuple[int, bool, bool]]) -> list[AgentRow]:
        return [
            agent(number, epoch=epoch, is_live=is_live, draining=draining)
            for number, (epoch, is_live, draining) in of.items()
        ]

    old, new = ring_of(1, rows(before)), ring_of(2, rows(before | changed))
    assert ring_after(old, ring_change(old, new)) == new
