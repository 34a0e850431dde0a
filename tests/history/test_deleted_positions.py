"""A deletion of a group's position is a commit of -1."""

from __future__ import annotations

import pytest

from tests.support.history.checker import check
from tests.support.history.events import AnyEvent, OffsetCommitAsked, OffsetCommitEnded, OffsetFetched


def written(name: str, offset: int, asked: float, done: float | None) -> list[AnyEvent]:
    asking = OffsetCommitAsked(
        at=asked, client="c", commit=name, group="g", topic="t", partition=0, offset=offset
    )
    return [asking] if done is None else [asking, OffsetCommitEnded(at=done, client="c", commit=name)]


def fetched(offset: int, asked: float) -> AnyEvent:
    return OffsetFetched(
        at=asked + 0.5, client="r", group="g", topic="t", partition=0, offset=offset, asked=asked
    )


@pytest.mark.parametrize("deleted_at, allowed", [(4.0, {-1}), (None, {-1, 5})])
@pytest.mark.parametrize("told", [-1, 5, 7])
def test_after_a_deletion_there_is_no_position(
    told: int, deleted_at: float | None, allowed: set[int]
) -> None:
    events = [*written("a", 5, 1.0, 2.0), *written("deletion", -1, 3.0, deleted_at), fetched(told, 6.0)]

    assert bool(check(events).violations) is (told not in allowed)


def test_a_position_that_is_committed_after_a_deletion_is_there() -> None:
    events = [*written("deletion", -1, 1.0, 2.0), *written("a", 5, 3.0, 4.0)]

    assert not check([*events, fetched(5, 6.0)]).violations
    assert check([*events, fetched(-1, 6.0)]).violations
