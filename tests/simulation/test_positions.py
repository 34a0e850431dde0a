"""A group's position may fall only if its member received the position from before a commit without an answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

import pytest
from msgspec.structs import replace

from sequencer.store.rows import Changes, GroupOffsetRow
from tests.simulation.groups import may_fall
from tests.simulation.invariants import RowWatch
from tests.support.history.events import Answer, AnyEvent, OffsetCommitAsked, OffsetCommitEnded, OffsetFetched

FIRST = GroupOffsetRow("static", UUID(int=1), 0, 26, -1, "member#1/1", commit_ms=0, expires_ms=None)
SECOND = replace(FIRST, offset=7, metadata="member#1/2")


def _asked(at: float, row: GroupOffsetRow) -> AnyEvent:
    return OffsetCommitAsked(
        at=at, client=row.metadata.partition("/")[0], commit=row.metadata, group="static", topic="events",
        partition=0, offset=row.offset,
    )  # fmt: skip


def _ended(at: float, row: GroupOffsetRow, answer: Answer) -> AnyEvent:
    return OffsetCommitEnded(at=at, client="member#1", commit=row.metadata, answer=answer)


def _fetched(asked: float, at: float, offset: int) -> AnyEvent:
    return OffsetFetched(
        at=at, client="member#1", group="static", topic="events", partition=0, offset=offset, asked=asked
    )


def _violations(history: Sequence[AnyEvent], *rows: GroupOffsetRow) -> list[str]:
    violations: list[str] = []
    watch = RowWatch(violations.append, partial(may_fall, history))
    for row in rows:
        changes = Changes()
        changes.put(row)
        watch(changes)
    return violations


def test_a_position_may_fall_to_what_was_read_from_where_the_group_was_before_a_commit_without_an_answer() -> (
    None
):
    """Seed 150001553: the first commit was carried out after its member had received the position again."""
    history = [_asked(1.0, FIRST), _ended(1.1, FIRST, "unknown"), _fetched(1.2, 1.3, -1), _asked(1.4, SECOND)]

    assert _violations(history, FIRST, SECOND) == []


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            [_asked(1.0, FIRST), _ended(1.1, FIRST, "done"), _fetched(1.2, 1.3, -1), _asked(1.4, SECOND)],
            id="the commit was answered",
        ),
        pytest.param(
            [_asked(1.0, FIRST), _ended(1.1, FIRST, "unknown"), _asked(1.4, SECOND)],
            id="the member did not ask again",
        ),
        pytest.param(
            [_fetched(0.8, 0.9, -1), _asked(1.0, FIRST), _ended(1.1, FIRST, "unknown"), _asked(1.4, SECOND)],
            id="it asked before the commit",
        ),
        pytest.param(
            [_asked(1.0, FIRST), _ended(1.1, FIRST, "unknown"), _fetched(1.2, 1.5, -1), _asked(1.4, SECOND)],
            id="it was told after the lower commit",
        ),
        pytest.param(
            [_asked(1.0, FIRST), _ended(1.1, FIRST, "unknown"), _fetched(1.2, 1.3, 26), _asked(1.4, SECOND)],
            id="it was told the commit",
        ),
        pytest.param([], id="by nobody's commit"),
    ],
)
def test_a_position_that_falls_otherwise_is_a_violation(history: list[AnyEvent]) -> None:
    assert len(_violations(history, FIRST, SECOND)) == 1


def test_a_position_that_falls_to_the_commit_of_another_member_is_a_violation() -> None:
    other = replace(SECOND, metadata="member#2/1")
    history = [_asked(1.0, FIRST), _ended(1.1, FIRST, "unknown"), _fetched(1.2, 1.3, -1), _asked(1.4, other)]

    assert len(_violations(history, FIRST, other)) == 1


def test_a_commit_that_is_carried_out_late_moves_no_position_back() -> None:
    late = replace(SECOND, metadata="member#1/0")
    history = [_asked(0.5, late), _ended(0.6, late, "unknown"), _fetched(0.7, 0.8, -1), _asked(1.0, FIRST)]

    assert len(_violations(history, FIRST, late)) == 1
