"""What is asked often visits no rows but its own, however many idle ones there are."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import msgspec
import pytest

from sequencer.api import AgentInfo, LagsRequest, SessionRef
from sequencer.rules import leases, sessions
from sequencer.rules.groups import expiring_groups, lags
from sequencer.settings import SequencerSettings
from sequencer.store.rows import (
    AgentRow,
    GroupOffsetRow,
    GroupRow,
    Identity,
    LogEpoch,
    PartitionRow,
    Row,
    SessionRow,
    TopicRow,
)
from sequencer.store.state import Draft, HotState

ME = Identity("c", 1, 1)
SETTINGS = SequencerSettings()
NOW = 1_000_000
AGENTS, SESSIONS = 500, 5_000


def info(number: int) -> AgentInfo:
    return AgentInfo(f"h{number}", 9092, "p", 0, 0, "z", "0", UUID(int=number))


def agent(number: int) -> AgentRow:
    return AgentRow(
        number, 1, msgspec.msgpack.Encoder(uuid_format="bytes").encode(info(number)), NOW + 5_000, False
    )


def session(number: int, broker_id: int, closed_ms: int | None) -> SessionRow:
    return SessionRow(UUID(int=number), broker_id, f"p/{number}/", None, 0, NOW + 30_000, closed_ms)


class Watched(HotState):
    """Counts the rows that are looked at, by kind."""

    def __init__(self, loaded: dict[type[Row], list[Any]]) -> None:
        super().__init__(loaded)
        self.visited: Counter[type[Row]] = Counter()

    def get(self, kind: type[Any], *key: object) -> Any:
        self.visited[kind] += 1
        return super().get(kind, *key)

    def all(self, kind: type[Any]) -> Any:
        for row in super().all(kind):
            self.visited[kind] += 1
            yield row


@pytest.fixture
def state() -> Watched:
    agents = [agent(number) for number in range(AGENTS)]
    closed = [session(number, number % AGENTS, 1) for number in range(SESSIONS)]
    opened = [session(SESSIONS + number, number, None) for number in range(AGENTS)]
    return Watched({AgentRow: agents, SessionRow: [*closed, *opened]})


def test_an_agent_that_registers_visits_only_whoever_had_its_address(state: Watched) -> None:
    draft = Draft(state, NOW)
    leases.register_agent(draft, info(7), ME, SETTINGS)
    assert state.visited[AgentRow] <= 2 and state.visited[SessionRow] <= 2
    fenced = draft.get(SessionRow, UUID(int=SESSIONS + 7))
    assert fenced is not None and fenced.closed_ms == NOW, "its predecessor's session is closed"
    spared = draft.get(SessionRow, UUID(int=SESSIONS + 8))
    assert spared is not None and spared.closed_ms is None


def test_ending_leases_of_sessions_visits_no_closed_one(state: Watched) -> None:
    draft = Draft(state, NOW + 40_000)
    assert leases.expire_sessions(draft) == AGENTS
    assert state.visited[SessionRow] == AGENTS


def test_those_who_register_in_one_group_see_each_other() -> None:
    draft = Draft(HotState({}), NOW)
    first = leases.register_agent(draft, info(1), ME, SETTINGS)
    second = leases.register_agent(draft.savepoint(), info(1), ME, SETTINGS)
    assert (second.broker_id, second.epoch) == (first.broker_id, first.epoch + 1)


def test_what_is_written_moves_the_indexes(state: Watched) -> None:
    draft = Draft(state, NOW)
    leases.register_agent(draft, info(7), ME, SETTINGS)
    draft.delete(AgentRow, 9)
    draft.delete(SessionRow, UUID(int=SESSIONS + 9))
    state.apply(draft.changes)
    loaded = HotState({kind: list(state.all(kind)) for kind in (AgentRow, SessionRow)})
    assert state.agents_at == loaded.agents_at
    assert {*state.open_sessions} == {*loaded.open_sessions} and len(loaded.open_sessions) == AGENTS - 2
    assert state.sessions_of == loaded.sessions_of


def test_a_session_that_is_renewed_every_second_is_written_every_third() -> None:
    state = HotState({SessionRow: [session(1, 1, None)]})
    writes = 0
    for second in range(1, 31):
        draft = Draft(state, NOW + second * 1_000)
        grant = sessions.renew_session(draft, SessionRef(UUID(int=1)), ME, SETTINGS)
        row = draft.get(SessionRow, UUID(int=1))
        assert row is not None and grant.lease_ms == row.expires_ms - draft.now_ms, (
            "no more is said than is written"
        )
        assert grant.lease_ms > SETTINGS.session_lease_ms * 9 // 10
        writes += bool(draft.changes)
        state.apply(draft.changes)
    assert writes == 10


def test_an_agent_that_asks_for_its_groups_lags_visits_no_other_group() -> None:
    groups = [
        GroupRow(f"g{number:04}", number % 100 if number < 900 else -1, 1, 0, "Empty", "", [], b"", NOW)
        for number in range(1_000)
    ]
    topic = UUID(int=1)
    state = Watched(
        {
            AgentRow: [agent(number) for number in range(99)],
            GroupRow: groups,
            GroupOffsetRow: [GroupOffsetRow(each.group_id, topic, 0, 5, 0, "", NOW, None) for each in groups],
            TopicRow: [TopicRow(topic, "t", 1, {}, NOW)],
            PartitionRow: [PartitionRow(topic, 0, 0, 7, -1, [LogEpoch(0, 0)])],
        }
    )

    def lags_of(owner: int, *, with_orphans: bool = False) -> list[str]:
        state.visited.clear()
        found = lags(state, LagsRequest(None, owner, with_orphans)).lags
        assert state.visited[GroupOffsetRow] == len(found)
        assert all(lag.high_watermark - lag.committed == 2 for lag in found)
        return [lag.group_id for lag in found]

    assert lags_of(7) == [f"g{number:04}" for number in range(7, 900, 100)]
    assert lags_of(5_000) == []
    unowned = [f"g{number:04}" for number in range(1_000) if number >= 900 or number % 100 in (7, 99)]
    assert lags_of(7, with_orphans=True) == unowned, "its own, those of agent 99, which is gone, and nobody's"
    assert len(lags_of(-1)) == 1_000


def test_groups_with_nothing_to_let_go_are_not_looked_at_by_the_committer() -> None:
    day = 24 * 3_600_000
    now = NOW + 30 * day

    def group(name: str, owner: int = -1, members: tuple[str, ...] = (), updated_ms: int = now) -> GroupRow:
        return GroupRow(name, owner, 1, 0, "", "", list(members), b"", updated_ms)

    def position(group_id: str, commit_ms: int, expires_ms: int | None = None) -> GroupOffsetRow:
        return GroupOffsetRow(group_id, UUID(int=1), 0, 5, 0, "", commit_ms, expires_ms)

    state = HotState(
        {
            AgentRow: [agent(1)],
            GroupRow: [
                group("watched", owner=1, members=("m",), updated_ms=0),
                group("abandoned", owner=2, members=("m",)),
                group("fresh"),
                group("empty", updated_ms=0),
                group("kept", updated_ms=0),
                group("over", updated_ms=0),
                group("over-by-itself"),
            ],
            GroupOffsetRow: [
                position("kept", now - day),
                position("over", now - 8 * day),
                position("over-by-itself", now, now - 1),
                position("watched", 0, 1),
            ],
        }
    )
    found = asyncio.run(expiring_groups(state, now, SETTINGS))
    assert found == ["abandoned", "empty", "over", "over-by-itself"]
