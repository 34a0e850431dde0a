"""A change of a topic sends that topic; a caller with too old a version gets everything."""

from __future__ import annotations

from uuid import UUID

import pytest

from sequencer.api.topics import Metadata, MetadataRequest
from sequencer.reading import topic_changes
from sequencer.reading.topic_changes import TopicChanges
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.rows import Changes, CounterRow, TopicRow
from sequencer.store.state import METADATA_VERSION, HotState

ME = DatabaseIdentity("c", 1)


def row(number: int, partitions: int = 1) -> TopicRow:
    return TopicRow(UUID(int=number), f"t{number}", partitions, {}, 0)


class Driver:
    """A state with its topic changes, as a committer moves them."""

    def __init__(self, topics: int) -> None:
        rows = [row(number) for number in range(topics)]
        self.state = HotState({TopicRow: rows, CounterRow: [CounterRow(METADATA_VERSION, 7)]})
        self.metadata = TopicChanges(self.state)

    def write(self, *put: TopicRow, deleted: tuple[int, ...] = ()) -> None:
        changes = Changes()
        changes.put(CounterRow(METADATA_VERSION, self.state.counter(METADATA_VERSION) + 1))
        for one in put:
            changes.put(one)
        for number in deleted:
            changes.delete(TopicRow, (UUID(int=number),))
        self.state.apply(changes)
        self.metadata.apply(changes)

    def ask(self, version: int, *, takes_changes: bool = True) -> Metadata:
        return self.metadata.answer(MetadataRequest(version, 0, takes_changes), ME)


def told(answer: Metadata) -> tuple[list[str], list[int]]:
    assert answer.topics is None
    return [topic.name for topic in answer.changed], [topic_id.int for topic_id in answer.deleted]


def test_a_change_of_one_topic_of_many_sends_that_one() -> None:
    driver = Driver(1_000)
    driver.write(row(3, partitions=5))
    answer = driver.ask(7)
    assert (answer.version, told(answer)) == (8, (["t3"], []))
    assert answer.changed[0].partitions == 5
    assert told(driver.ask(8)) == ([], [])


def test_changes_in_a_row_are_sent_together_each_topic_once_as_it_is_now() -> None:
    driver = Driver(10)
    driver.write(row(3, partitions=5))
    driver.write(row(20))
    driver.write(row(3, partitions=6), deleted=(4, 20))
    assert told(driver.ask(7)) == (["t3"], [4, 20])
    assert told(driver.ask(9)) == (["t3"], [4, 20])
    assert told(driver.ask(10)) == ([], [])


@pytest.mark.parametrize("version", [-1, 6, 9])
def test_a_caller_with_an_unknown_version_gets_everything(version: int) -> None:
    driver = Driver(10)
    driver.write(row(3))
    answer = driver.ask(version)
    assert answer.topics is not None and len(answer.topics) == 10 and not answer.changed


def test_a_caller_that_takes_no_changes_gets_everything_or_nothing() -> None:
    driver = Driver(10)
    driver.write(row(3))
    everything, nothing = driver.ask(7, takes_changes=False), driver.ask(8, takes_changes=False)
    assert everything.topics is not None and len(everything.topics) == 10
    assert nothing.topics is None


def test_changes_past_the_limit_are_forgotten_and_callers_that_missed_them_get_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_changes, "MAX_CHANGES", 2)
    driver = Driver(10)
    for number in range(3):
        driver.write(row(number, partitions=2))
    assert driver.ask(7).topics is not None
    assert told(driver.ask(8)) == (["t1", "t2"], [])
