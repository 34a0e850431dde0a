"""Frequent requests read no idle rows."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest

from sequencer.api.agents import AgentInfo
from sequencer.api.commits import ObjectKind, SessionRef
from sequencer.api.errors import UnknownGroup
from sequencer.api.groups import LagsRequest
from sequencer.api.reads import Run
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.reading.maintenance import Maintenance
from sequencer.reading.positions import Positions
from sequencer.rules import leases, repeats, upload_sessions
from sequencer.rules.group_watch import GroupWatch
from sequencer.rules.repeats import are_too_large, forget_surplus
from sequencer.rules.retention import plan_retention
from sequencer.rules.time_to_live import forget
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.memory import MemoryRowStore
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.rows import (
    REFUSED,
    AgentRow,
    AnswerRow,
    Changes,
    DelegationTokenRow,
    GroupOffsetRow,
    GroupRow,
    LogEpoch,
    PartitionRow,
    Row,
    SessionRow,
    SwapRow,
    TopicRow,
    TransactionRow,
    WriteRow,
)
from sequencer.store.state import HotState, replace_row
from tailrace.turns import at_once
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.hooked_rows import counted_deletions

ME = DatabaseIdentity("c", 1)
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


def test_a_registration_visits_only_the_agent_that_had_its_address(state: Watched) -> None:
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


def test_writes_update_the_indexes(state: Watched) -> None:
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
        grant = upload_sessions.renew_session(draft, SessionRef(UUID(int=1)), ME, SETTINGS)
        row = draft.get(SessionRow, UUID(int=1))
        assert row is not None and grant.lease_ms == row.expires_ms - draft.now_ms, (
            "no more is said than is written"
        )
        assert grant.lease_ms > SETTINGS.session_lease_ms * 9 // 10
        writes += bool(draft.changes)
        state.apply(draft.changes)
    assert writes == 10


class PositionReads(MemoryRowStore):
    """Every group has a position on partition 0; counts the groups whose positions are read."""

    groups = 0

    async def positions_of_groups(self, group_ids: Sequence[str], limit: int) -> list[GroupOffsetRow]:
        self.groups += len(group_ids)
        return [GroupOffsetRow(each, UUID(int=1), 0, 5, 0, "", NOW, None) for each in group_ids]

    async def positions_of(
        self, group_id: str, after: tuple[UUID, int] | None, limit: int
    ) -> list[GroupOffsetRow]:
        return await self.positions_of_groups([group_id], limit)


def test_an_agent_that_asks_for_its_groups_lags_reads_no_other_group() -> None:
    groups = [
        GroupRow(
            f"g{number:04}", number % 100 if number < 900 else -1, 1, 0, "", "", [], b"", NOW, positions=1
        )
        for number in range(1_000)
    ]
    topic = UUID(int=1)
    state = HotState(
        {
            AgentRow: [agent(number) for number in range(99)],
            GroupRow: groups,
            TopicRow: [TopicRow(topic, "t", 1, {}, NOW)],
            PartitionRow: [PartitionRow(topic, 0, 0, 7, -1, [LogEpoch(0, 0)])],
        }
    )

    async def settled() -> None:
        """Nothing is written."""

    def lags_of(owner: int, *, with_orphans: bool = False) -> list[str]:
        store = PositionReads(ManualClock())
        positions = Positions(store, lambda: state, settled)
        found = asyncio.run(positions.lags(LagsRequest(None, owner, with_orphans))).lags
        assert store.groups == len(found)
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

    def group(
        name: str, owner: int = -1, members: tuple[str, ...] = (), updated_ms: int = now, **of_positions: Any
    ) -> GroupRow:
        return GroupRow(name, owner, 1, 0, "", "", list(members), b"", updated_ms, **of_positions)

    kept = group("kept", updated_ms=0, positions=1)
    state = HotState(
        {
            AgentRow: [agent(1)],
            GroupRow: [
                group("watched", owner=1, members=("m",), updated_ms=0, positions=1, has_expiries=True),
                group("abandoned", owner=2, members=("m",)),
                group("fresh"),
                group("young", updated_ms=now - day, positions=3),
                group("empty", updated_ms=0),
                kept,
                group("maybe over", updated_ms=now - 8 * day, positions=1),
                group("maybe over by itself", positions=1, has_expiries=True),
            ],
        }
    )
    watch = GroupWatch(SETTINGS)
    for row in state.all(GroupRow):
        watch.watch(row.group_id)
    found = asyncio.run(watch.take(state, now))
    assert found == ["abandoned", "empty", "kept", "maybe over", "maybe over by itself"]
    watch.positions_last("kept", now + day)
    assert "kept" not in asyncio.run(watch.take(state, now)), "its position was read: it was committed lately"
    sooner = Changes()
    sooner.put(GroupOffsetRow("kept", UUID(int=1), 0, 5, 0, "", now, now - 1))
    watch.note(sooner)
    assert "kept" in asyncio.run(watch.take(state, now)), "it has one with an expiry of its own"
    watch.positions_last("kept", now + day)
    for commit_ms, is_due in ((now, False), (now - 8 * day, True)):
        written = changed(replace_row(kept, positions=2))
        written.put(GroupOffsetRow("kept", UUID(int=1), 1, 5, 0, "", commit_ms, None))
        state.apply(written)
        watch.note(written)
        assert ("kept" in asyncio.run(watch.take(state, now))) == is_due, (
            "one with a commit time in the past is over"
        )


def test_the_group_watch_keeps_no_position_in_memory() -> None:
    watch = GroupWatch(SETTINGS)
    for expires_ms in (None, NOW + 1):
        position = GroupOffsetRow("g", UUID(int=1), 0, 5, 0, "", NOW, expires_ms)
        written = changed(position)
        held = sys.getrefcount(position)
        watch.note(written)
        assert sys.getrefcount(position) == held


def changed(row: Row) -> Changes:
    changes = Changes()
    changes.put(row)
    return changes


# --- what housekeeping looks at


def idle(rows: int) -> Watched:
    """A state in which nothing happens for a while: partitions with records, producers, transactional ids, groups."""
    topic = UUID(int=1)
    return Watched(
        {
            AgentRow: [agent(1)],
            TopicRow: [TopicRow(topic, "t", rows, {}, NOW)],
            PartitionRow: [PartitionRow(topic, each, 0, 7, -1, [LogEpoch(0, 0)]) for each in range(rows)],
            TransactionRow: [
                TransactionRow.new(f"t{each}", producer_id=each, timeout_ms=1, now_ms=NOW)
                for each in range(rows)
            ],
            SwapRow: [SwapRow(UUID(int=each), 1, NOW) for each in range(rows)],
            AnswerRow: [AnswerRow(UUID(int=each), b"", NOW) for each in range(rows)],
            WriteRow: [WriteRow(UUID(int=each), 0, 1, NOW + 60_000) for each in range(rows)],
            GroupRow: [
                GroupRow(f"g{each}", -1, -1, 0, "", "", [], b"", NOW, positions=1) for each in range(rows)
            ],
        }
    )


class OneOldRun(MemoryRowStore):
    """Every partition has a run that is as old as its topic; counts the partitions that were asked for."""

    asked = 0

    async def runs_from_many(
        self,
        queries: Sequence[tuple[UUID, int, int, int]],
        max_runs: int = 1000,
        *,
        with_batches: bool = True,
    ) -> list[list[Run]]:
        self.asked += len(queries)
        return [[old_run(partition)] for _, partition, _, _ in queries]


def old_run(partition: int) -> Run:
    nil = UUID(int=0)
    return Run(
        topic_id=UUID(int=1), partition=partition, base_offset=0, end_offset=7, object_id=nil, kind=ObjectKind.MIXED,
        key="k", object_size=9, index_start=9, start=0, length=9, max_timestamp=NOW, running_max_timestamp=NOW,
        commit_number=1, created_ms=NOW, batches=[],
    )  # fmt: skip


def looks_of_a_pass(rows: int, changed: int) -> tuple[int, int]:
    """How many rows housekeeping visits, and how many partitions it reads runs of, when `changed` partitions, producers
    and groups were used since it had looked at everything."""

    async def scenario() -> tuple[int, int]:
        state, store = idle(rows), OneOldRun(ManualClock(wall_ms=NOW))
        maintenance = Maintenance(state, SETTINGS)

        async def look() -> None:
            await maintenance.fill()
            assert not await maintenance.groups.take(state, NOW)
            for kind in maintenance.lifetimes:
                assert maintenance.take_unused(kind, NOW, 100) == ([], 0)
            plan = await plan_retention(state, store, SETTINGS, maintenance.partitions)
            assert not plan.removable and not plan.due and not plan.has_more

        await look()
        changes = Changes()
        for each in range(changed):
            changes.put(PartitionRow(UUID(int=1), each, 0, 9, -1, [LogEpoch(0, 0)]))
            changes.put(GroupOffsetRow(f"g{each}", UUID(int=1), 0, 6, 0, "", NOW + 1, None))
        state.apply(changes)
        maintenance.note(changes)
        state.visited.clear()
        store.asked = 0
        await look()
        return sum(state.visited.values()), store.asked

    return asyncio.run(scenario())


def test_housekeeping_visits_what_was_used_and_nothing_that_is_idle() -> None:
    few, many = looks_of_a_pass(100, changed=20), looks_of_a_pass(1_000, changed=20)
    assert few == many
    assert few[0] <= 3 * 20 and few[1] == 0, "no partition's runs are read: each is known to be young"
    assert looks_of_a_pass(1_000, changed=0) == (1, 0), "the cluster's configs"


def test_a_transactional_id_is_forgotten_when_its_time_has_come_and_not_before() -> None:
    state = idle(10)
    maintenance = Maintenance(state, SETTINGS)
    asyncio.run(maintenance.fill())
    used = Changes()
    used.put(TransactionRow.new("t3", producer_id=3, timeout_ms=1, now_ms=NOW + 1_000_000))
    state.apply(used)
    kept = SETTINGS.transactional_id_expiration_ms
    assert maintenance.take_unused(TransactionRow, NOW + kept - 700_000, 100) == ([], 0)
    unused, looked = maintenance.take_unused(TransactionRow, NOW + kept, 100)
    assert looked == 10 and sorted(unused) == [(f"t{each}",) for each in (0, 1, 2, 4, 5, 6, 7, 8, 9)]
    maintenance.put_back_unused(TransactionRow, unused[:1], NOW + kept)
    later, _ = maintenance.take_unused(TransactionRow, NOW + kept + 2_000_000, 100)
    assert sorted(later) == sorted([unused[0], ("t3",)]), "one could not be removed, one was used later"


def test_what_is_kept_for_repeats_is_forgotten_in_time_and_a_write_that_continues_is_not() -> None:
    state = idle(10)
    maintenance = Maintenance(state, SETTINGS)
    asyncio.run(maintenance.fill())
    renewed = Changes()
    renewed.put(WriteRow(UUID(int=3), 1, 2, NOW + 90 * 24 * 3_600_000))
    renewed.put(AnswerRow(UUID(int=99), b"", NOW + 1_000))
    state.apply(renewed)
    later = NOW + SETTINGS.request_answers_ms + 10
    draft = Draft(state, later)
    forgotten = {}
    for kind in (WriteRow, AnswerRow, SwapRow):
        keys, _ = maintenance.take_unused(kind, later, 100)
        forgotten[kind] = forget(draft, kind, keys, maintenance.lifetimes[kind])
    assert forgotten == {WriteRow: 9, AnswerRow: 10, SwapRow: 0}
    assert [row.write_id.int for row in draft.all(WriteRow)] == [3]
    assert [row.request_id.int for row in draft.all(AnswerRow)] == [99], "it appeared after the others"


def test_a_token_that_expires_earlier_than_before_is_forgotten_then_and_is_looked_at_once() -> None:
    state = HotState({})
    maintenance = Maintenance(state, SETTINGS)
    first = DelegationTokenRow(
        "f", "id", "User:alice", "User:alice", [], NOW, NOW + 9_000_000, NOW + 99_000_000
    )
    for expires_ms in (NOW + 9_000_000, NOW + 50_000_000, NOW + 90_000, NOW + 80_000_000, NOW + 60_000):
        changes = Changes()
        changes.put(msgspec.structs.replace(first, expires_ms=expires_ms))
        state.apply(changes)
        maintenance.note(changes)
    assert maintenance.take_unused(DelegationTokenRow, NOW + 50_000, 100) == ([], 0)
    assert maintenance.take_unused(DelegationTokenRow, NOW + 60_000, 100) == ([("f",)], 1)
    assert maintenance.take_unused(DelegationTokenRow, NOW + 99_000_000, 100) == ([], 0)


def test_answers_beyond_the_bound_are_forgotten_the_oldest_first() -> None:
    draft = Draft(
        HotState({AnswerRow: [AnswerRow(UUID(int=each), b"", 100 - each) for each in range(10)]}), NOW
    )
    at_once(forget_surplus(draft, SequencerSettings(max_request_answers=10)))
    assert not draft.changes
    at_once(forget_surplus(draft, SequencerSettings(max_request_answers=7)))
    assert sorted(row.request_id.int for row in draft.all(AnswerRow)) == [0, 1, 2, 3, 4, 5, 6]


def test_refusals_push_out_refusals_and_no_answers_to_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "LOOKED_AT_ONCE", 7)
    refused = REFUSED + UnknownGroup.code.encode()
    answers = [AnswerRow(UUID(int=each), b"", each) for each in range(15)]
    refusals = [AnswerRow(UUID(int=1_000 - each), refused, 1_000 - each) for each in range(50)]
    state = HotState({AnswerRow: [*refusals, *answers]})
    draft = Draft(state, NOW)
    at_once(forget_surplus(draft, SequencerSettings(max_request_answers=20)))
    assert sorted(row.request_id.int for row in draft.all(AnswerRow)) == [*range(15), 999, 1_000]
    state.apply(draft.changes)
    assert list(state.refusals) == [UUID(int=1_000), UUID(int=999)]
    assert state.answer_bytes == 2 * len(refused)


def test_the_oldest_of_very_many_answers_are_found_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "LOOKED_AT_ONCE", 7)
    refusals = [AnswerRow(UUID(int=each), REFUSED, each * 37 % 101) for each in range(1, 15)]
    answers = [AnswerRow(UUID(int=each), b"", each * 37 % 101) for each in range(15, 101)]
    draft = Draft(HotState({AnswerRow: [*answers, *refusals]}), NOW)
    steps = list(forget_surplus(draft, SequencerSettings(max_request_answers=40)))
    assert max(steps) == 7 and sum(steps) == 14 + 100
    left = draft.all(AnswerRow)
    assert len(left) == 40
    assert sum(row.is_refusal for row in left) <= 4
    gone = {row.created_ms for row in answers} - {row.created_ms for row in left}
    assert max(gone) < min(row.created_ms for row in left if not row.is_refusal)


def test_answers_that_are_forgotten_early_leave_nothing_behind_until_they_would_have_been_due() -> None:
    """A thousand a second would leave millions of keys: answers are kept for an hour, and a limited number of them."""
    state = HotState({})
    maintenance = Maintenance(state, SETTINGS)
    answers = [AnswerRow(UUID(int=each), b"", NOW) for each in range(100)]
    for some in (answers[:60], answers[60:]):
        added = Changes()
        for row in some:
            added.put(row)
        state.apply(added)
        maintenance.note(added)
        if some is not answers[60:]:
            asyncio.run(maintenance.fill())
    gone = Changes()
    for row in answers[5:95]:
        gone.delete(AnswerRow, (row.request_id,))
    state.apply(gone)
    maintenance.note(gone)
    asyncio.run(maintenance.fill())
    due = maintenance._unused[AnswerRow]
    assert sum(map(len, due._keys.values())) == len(due._earliest or ()) == 10
    later = NOW + SETTINGS.request_answers_ms
    keys, _ = maintenance.take_unused(AnswerRow, later, 1_000)
    assert sorted(keys) == sorted((row.request_id,) for row in (*answers[:5], *answers[95:]))


async def test_a_decision_forgets_a_limited_number_of_answers_and_retention_takes_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeats, "FORGOTTEN_AT_ONCE", 4)
    refused = REFUSED + UnknownGroup.code.encode()

    clock = ManualClock()
    store = MemoryRowStore(clock)
    epoch = await store.take_committer_lease("fill", "", 1_000)
    assert epoch is not None
    added, now = Changes(), clock.wall_ms()
    for number in range(40):
        added.put(AnswerRow(UUID(int=number), b"" if number % 2 else refused, now + number))
    await store.write(added, epoch)
    await store.release_committer_lease(epoch)
    sequencer = Committer(store, clock, SeededEntropy(1), SequencerSettings(max_request_answers=10))
    await sequencer.start()
    forgotten = counted_deletions(store, AnswerRow)
    await sequencer.apply_retention(Empty())
    left = [row.request_id.int for row in sequencer._context.state.all(AnswerRow)]
    assert sorted(left) == [23, 25, 27, 29, 31, 33, 35, 37, 38, 39]
    assert max(forgotten) == 4
    await sequencer.close()


def test_answers_of_more_bytes_than_the_bound_are_forgotten_the_oldest_first() -> None:
    settings = SequencerSettings(max_request_answer_bytes=1 << 20)
    rows = [AnswerRow(UUID(int=each), bytes(1 << 17), 100 - each) for each in range(9)]
    state = HotState({AnswerRow: rows[:8]})
    assert not are_too_large(state, settings)
    state = HotState({AnswerRow: rows})
    assert are_too_large(state, settings)
    draft = Draft(state, NOW)
    at_once(forget_surplus(draft, settings))
    assert sorted(row.request_id.int for row in draft.all(AnswerRow)) == [0, 1, 2, 3, 4, 5]
    state.apply(draft.changes)
    assert state.answer_bytes == 6 << 17


@pytest.mark.parametrize(("most", "size"), [(10, 0), (1_000, 1 << 18)])
def test_two_decisions_of_a_group_forget_the_same_answers(most: int, size: int) -> None:
    settings = SequencerSettings(max_request_answers=most, max_request_answer_bytes=1 << 20)
    refusals = [AnswerRow(UUID(int=each), REFUSED, 100 - each) for each in range(3)]
    answers = [AnswerRow(UUID(int=each), bytes(size), 100 - each) for each in range(3, 14)]
    draft = Draft(HotState({AnswerRow: [*refusals, *answers]}), NOW)
    at_once(forget_surplus(draft, settings))
    kept = [row.request_id for row in draft.all(AnswerRow)]
    at_once(forget_surplus(draft, settings))
    assert kept and [row.request_id for row in draft.all(AnswerRow)] == kept
