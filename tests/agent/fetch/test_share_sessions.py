"""Share sessions: epochs, bounds, and the connections that they end with."""

from __future__ import annotations

from uuid import UUID

from agent.fetch.share_sessions import MAX_OF_CONNECTION, ShareSession, ShareSessions
from tailrace.ids import TopicPartition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.turns import at_once
from tests.support.clocks import SeededEntropy

PLACES = [TopicPartition(UUID(int=1), number) for number in range(3)]
FULL = ErrorCode.SHARE_SESSION_LIMIT_REACHED


def opened(
    sessions: ShareSessions, member: str, connection: object, epoch: int = 0
) -> ShareSession | ErrorCode:
    return at_once(sessions.fetch(("g", member), epoch, PLACES, [], connection))


def test_the_sessions_of_a_connection_end_with_it() -> None:
    sessions = ShareSessions(10, SeededEntropy(1))
    for member, connection in (("a", "x"), ("b", "x"), ("c", "y")):
        opened(sessions, member, connection)

    ended = sessions.end_of("x")

    assert [member for member, _ in ended] == [("g", "a"), ("g", "b")]
    assert opened(sessions, "a", "x", epoch=1) is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert isinstance(opened(sessions, "c", "y", epoch=1), ShareSession)
    assert sessions.end_of("x") == []


def test_a_member_that_opens_its_session_elsewhere_leaves_its_former_connection() -> None:
    sessions = ShareSessions(10, SeededEntropy(1))
    opened(sessions, "a", "x")
    opened(sessions, "a", "y")

    assert sessions.end_of("x") == []
    assert len(sessions) == 1


def test_sessions_are_bounded_and_nobody_loses_one_to_another() -> None:
    sessions = ShareSessions(2, SeededEntropy(1))
    opened(sessions, "a", "x")
    opened(sessions, "b", "y")

    assert opened(sessions, "c", "z") is FULL
    assert isinstance(opened(sessions, "a", "x", epoch=1), ShareSession)
    sessions.end_of("y")
    assert isinstance(opened(sessions, "c", "z"), ShareSession)


def test_a_connection_has_few_sessions() -> None:
    sessions = ShareSessions(1_000, SeededEntropy(1))
    answers = [opened(sessions, str(number), "x") for number in range(MAX_OF_CONNECTION + 1)]

    assert answers[-1] is FULL
    assert len(sessions) == MAX_OF_CONNECTION


def test_a_session_that_ends_while_its_partitions_are_added_is_not_found_and_not_counted() -> None:
    sessions = ShareSessions(2, SeededEntropy(1))
    adding = sessions.fetch(("g", "a"), 0, PLACES, [], "one")
    assert next(adding) == len(PLACES)

    sessions.end_of("one")

    assert at_once(adding) is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert sessions._partition_count == len(sessions) == 0
