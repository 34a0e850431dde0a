"""Coordinators over the reference sequencer: take-overs, and silent members."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agent.groups import coordinator, deadlines, stored_groups
from agent.groups.consumer_group import LEAVES, LEAVES_FOR_NOW, ConsumerAnswer, ConsumerHeartbeat
from agent.groups.coordinator import GroupRefusal
from agent.groups.group import Group, GroupPhase, JoinAnswer, JoinRequest, SyncRequest
from agent.groups.group_bytes import PARTITION_BYTES, PENDING_BYTES, AnyGroup, GroupBytes
from agent.groups.share_group import ShareHeartbeat
from agent.groups.topic_names import TopicNames
from sequencer.api.errors import SequencerUnavailable, UnknownGroup
from sequencer.api.groups import CLASSIC_GROUP, FetchOffsets, GroupState, LoadGroup, OffsetPosition, SaveGroup
from sequencer.api.reads import PartitionError
from sequencer.api.topics import CreateTopic
from sequencer.api.values import Empty
from sequencer.store.rows import GroupRow
from tailrace.kafka.error_codes import ErrorCode
from tailrace.turns import Steps
from tests.agent.groups.test_classic_members import metadata
from tests.support.coordinators import Coordinators
from tests.support.patience import opened
from tests.support.turns import passes_of


class Bench(Coordinators):
    """With a group "g"."""

    def stored(self) -> GroupRow:
        row = self.sequencer._context.state.get(GroupRow, "g")
        assert row is not None
        return row

    async def member(self, agent: int, name: str, instance: str | None = None) -> JoinAnswer:
        return await self.agents[agent].join("g", request(name, instance))

    async def stable(self, agent: int = 0) -> JoinAnswer:
        answer = await self.member(agent, "m", "i")
        await self.agents[agent].sync(
            "g", SyncRequest("m", "i", answer.generation, "consumer", "range", [("m", b"all")])
        )
        return answer


def joining(name: str, *topics: str) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(name, 0, rebalance_seconds=30.0, topics=TopicNames(topics or ("t",)), owned={})


def request(name: str, instance: str | None = None, member_id: str = "") -> JoinRequest:
    return JoinRequest(member_id, instance, "c", "/h", 30.0, 30.0, "consumer", [("range", b"t")], name, False)


async def test_a_take_over_keeps_generation_and_assignment() -> None:
    async with opened(Bench()) as bench:
        answer = await bench.stable()
        with pytest.raises(GroupRefusal, match="NOT_COORDINATOR"):
            await bench.agents[1].heartbeat("g", "m", "i", answer.generation)
        await bench.advance(14, 1)
        code = await bench.agents[1].heartbeat("g", "m", "i", answer.generation)
        assert code is ErrorCode.NONE
        synced = await bench.agents[1].sync(
            "g", SyncRequest("m", "i", answer.generation, "consumer", "range", [])
        )
        assert synced.assignment == b"all"


async def test_members_that_one_step_answers_are_answered_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(Bench()) as bench:
        monkeypatch.setattr(coordinator, "ANSWERS_IN_A_TURN", 1)
        await bench.member(0, "a")
        joining = [asyncio.create_task(bench.member(0, name)) for name in ("b", "c")]
        joining.append(asyncio.create_task(bench.agents[0].join("g", request("", member_id="a"))))
        answered = list[int]()
        while answered[-1:] != [3]:
            await asyncio.sleep(0)
            answered.append(sum(each.done() for each in joining))
        assert {1, 2, 3} <= set(answered)
        assert {each.result().generation for each in joining} == {2}


async def test_members_of_a_group_that_is_lost_are_refused_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(Bench()) as bench:
        monkeypatch.setattr(coordinator, "ANSWERS_IN_A_TURN", 1)
        await bench.member(0, "a")
        joining = [asyncio.create_task(bench.member(0, name)) for name in "bcd"]
        while len(bench.agents[0]._waiting) < len(joining) or bench.agents[0]._steps:
            await asyncio.sleep(0)
        closing = asyncio.create_task(bench.agents[0].close())
        answered = list[int]()
        while not closing.done():
            await asyncio.sleep(0)
            answered.append(sum(each.done() for each in joining))
        assert {1, 2} <= set(answered)
        assert {(await each).code for each in joining} == {ErrorCode.NOT_COORDINATOR}


async def test_an_assignment_is_made_in_turns_and_not_stored_if_the_group_is_lost_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(Bench()) as bench:
        names = [f"t{number}" for number in range(10)]
        for name in names:
            await bench.sequencer.create_topic(CreateTopic(name, 2, {}))
        await bench.learn_topics()
        agent = bench.agents[0]
        await agent.consumer_heartbeat("g", joining("first"))
        before = bench.stored()
        at_once = await passes_of(agent.consumer_heartbeat("other", joining("m", *names)))
        monkeypatch.setattr(coordinator, "ASSIGNED_IN_A_TURN", 1)
        in_turns = await passes_of(agent.consumer_heartbeat("another", joining("m", *names)))
        assert in_turns > at_once + 2 * len(names)
        asked = asyncio.create_task(agent.consumer_heartbeat("g", joining("m", *names)))
        for _ in range(in_turns // 2):
            await asyncio.sleep(0)
        await agent.close()
        with pytest.raises(GroupRefusal, match="NOT_COORDINATOR"):
            await asked
        assert bench.stored() == before


async def test_a_group_is_loaded_and_stored_in_turns_and_not_stored_if_it_is_lost_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(Bench()) as bench:
        names = [f"t{number}" for number in range(10)]
        for name in names:
            await bench.sequencer.create_topic(CreateTopic(name, 2, {}))
        await bench.learn_topics()
        agent = bench.agents[0]
        first = await agent.consumer_heartbeat("g", joining("first", *names))

        async def taken_up_again() -> None:
            agent._forget(agent._held["g"])
            assert await agent.look("g", lambda group: group.generation) == first.epoch

        at_once = await passes_of(taken_up_again())
        monkeypatch.setattr(coordinator, "ASSIGNED_IN_A_TURN", 1)
        assert await passes_of(taken_up_again()) > at_once + 2 * len(names)
        storing = asyncio.Event()

        def stored(group: AnyGroup) -> Steps[GroupState]:
            storing.set()
            return (yield from really_stored(group))

        before, really_stored = bench.stored(), stored_groups.stored
        monkeypatch.setattr(coordinator, "stored", stored)
        joined = asyncio.create_task(agent.consumer_heartbeat("g", joining("second", *names)))
        await storing.wait()
        await agent.close()
        with pytest.raises(GroupRefusal, match="NOT_COORDINATOR"):
            await joined
        assert bench.stored() == before


async def test_a_commit_is_taken_while_an_assignment_is_made_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(Bench()) as bench:
        topic = await bench.sequencer.create_topic(CreateTopic("t", 100, {}))
        await bench.learn_topics()
        agent = bench.agents[0]
        first = await agent.consumer_heartbeat("g", joining("first"))
        monkeypatch.setattr(coordinator, "ASSIGNED_IN_A_TURN", 10)
        position = OffsetPosition(topic.topic_id, 0, 5, -1, "")
        committed = asyncio.create_task(agent.commit("g", "first", None, first.epoch, [position]))
        joined = asyncio.create_task(agent.consumer_heartbeat("g", joining("second")))
        assert (await committed).errors == [PartitionError.NONE]
        assert (await joined).code is ErrorCode.NONE


async def test_a_group_that_is_lost_while_a_classic_member_joins_it_leaves_no_bytes_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(Bench()) as bench:
        await bench.sequencer.create_topic(CreateTopic("events", 2, {}))
        await bench.learn_topics()
        agent = bench.agents[0]
        await agent.consumer_heartbeat("g", joining("first", "events"))
        monkeypatch.setattr(coordinator, "ASSIGNED_IN_A_TURN", 1)
        classic = replace(request("second"), protocols=[("range", metadata())])
        asked = asyncio.create_task(agent.join("g", classic))
        while len(agent._held["g"].group.members) < 2:
            await asyncio.sleep(0)
        await agent.close()
        with pytest.raises(GroupRefusal, match="NOT_COORDINATOR"):
            await asked
        assert agent.bytes.total == 0


async def test_a_classic_client_that_replaces_the_last_static_member_of_the_new_protocol_is_answered() -> (
    None
):
    async with opened(Bench()) as bench:
        await bench.sequencer.create_topic(CreateTopic("events", 2, {}))
        await bench.learn_topics()
        agent = bench.agents[0]
        await agent.consumer_heartbeat("g", replace(joining("first", "events"), instance_id="i"))
        await agent.consumer_heartbeat("g", ConsumerHeartbeat("first", LEAVES_FOR_NOW, instance_id="i"))
        classic = replace(request("second", "i"), protocols=[("range", metadata())])

        asked = asyncio.create_task(agent.join("g", classic))
        for _ in range(100):
            await asyncio.sleep(0)
        assert asked.done()
        joined = await asked
        assert (joined.code, joined.member_id) == (ErrorCode.NONE, "second")
        again = await agent.join("g", replace(classic, member_id="second"))
        assert (again.leader, bench.stored().type) == ("second", CLASSIC_GROUP)


async def test_waiting_members_are_refused_once_the_group_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(Bench()) as bench:
        monkeypatch.setattr(coordinator, "ANSWERS_IN_A_TURN", 1)
        await bench.member(0, "a")
        second, *_, last = [asyncio.create_task(bench.member(0, name)) for name in "bcdefgh"]
        first = asyncio.create_task(bench.agents[0].join("g", request("", member_id="a")))
        while not second.done():
            await asyncio.sleep(0)
        bench.clock.advance(30.0)
        with pytest.raises(GroupRefusal, match="NOT_COORDINATOR"):
            await first
        assert (await second).code is ErrorCode.NONE
        assert (await last).code is ErrorCode.NOT_COORDINATOR


async def test_a_consumer_group_continues_at_another_agent_where_it_was() -> None:
    async with opened(Bench()) as bench:
        await bench.sequencer.create_topic(CreateTopic("t", 2, {}))
        await bench.learn_topics()
        told = await bench.agents[0].consumer_heartbeat("g", joining("m"))
        assert told.assigned is not None and set(map(len, told.assigned.values())) == {2}

        await bench.advance(14, 1)
        answer = await bench.agents[1].consumer_heartbeat("g", ConsumerHeartbeat("m", told.epoch))

        assert answer == ConsumerAnswer(ErrorCode.NONE, "m", told.epoch)


async def test_a_heartbeat_that_changes_nothing_is_not_stored() -> None:
    async with opened(Bench()) as bench:
        told = await bench.agents[0].consumer_heartbeat("g", joining("m"))
        bench.sequencer.save_group = None  # type: ignore[method-assign, assignment]

        answer = await bench.agents[0].consumer_heartbeat("g", ConsumerHeartbeat("m", told.epoch))

        assert answer.code is ErrorCode.NONE


async def test_a_commit_of_a_consumer_is_fenced_by_the_groups_epoch() -> None:
    async with opened(Bench()) as bench:
        topic = await bench.sequencer.create_topic(CreateTopic("t", 2, {}))
        await bench.learn_topics()
        first = await bench.agents[0].consumer_heartbeat("g", joining("m-1"))
        await bench.agents[0].consumer_heartbeat("g", joining("m-2"))  # the group is an epoch further
        position = OffsetPosition(topic.topic_id, 0, 7, -1, "", -1)

        done = await bench.agents[0].commit("g", "m-1", None, first.epoch, [position])

        assert done.errors == [PartitionError.NONE]


async def test_a_zombie_answers_nothing() -> None:
    async with opened(Bench()) as bench:
        answer = await bench.stable()
        await bench.advance(2, 1)
        assert await bench.agents[0].heartbeat("g", "m", "i", answer.generation) is ErrorCode.NONE
        bench.clock.advance(0.6)
        asked = [
            asyncio.create_task(bench.agents[0].heartbeat("g", "m", "i", answer.generation)),
            asyncio.create_task(bench.agents[0].commit("g", "m", "i", answer.generation, [])),
        ]
        await bench.advance(4, 1)
        for each in asked:
            with pytest.raises(GroupRefusal, match="NOT_COORDINATOR"):
                await each


async def test_a_request_waits_for_a_renewal_that_comes_soon() -> None:
    async with opened(Bench()) as bench:
        answer = await bench.stable()
        bench.clock.advance(2.9)
        asked = asyncio.create_task(bench.agents[0].heartbeat("g", "m", "i", answer.generation))
        await bench.advance(1)
        assert not asked.done(), "another agent may have the group"
        await bench.advance(1, 0)
        assert await asked is ErrorCode.NONE


async def test_a_join_that_waits_past_the_lease_is_not_answered_from_memory() -> None:
    async with opened(Bench()) as bench:
        await bench.stable()
        waiting = asyncio.create_task(bench.member(0, "second"))
        await bench.advance(12, 1)
        await bench.advance(30, 1)
        assert (await waiting).code is ErrorCode.NOT_COORDINATOR


async def test_a_group_that_cannot_be_stored_is_released() -> None:
    async with opened(Bench()) as bench:

        async def away(request: SaveGroup) -> None:
            raise SequencerUnavailable("away")

        real = bench.sequencer.save_group
        bench.sequencer.save_group = away  # type: ignore[method-assign, assignment]
        with pytest.raises(GroupRefusal, match="NOT_COORDINATOR"):
            await bench.member(0, "m")
        bench.sequencer.save_group = real  # type: ignore[method-assign]
        assert (await bench.member(0, "m")).generation == 1


async def test_members_that_ended_while_their_group_could_not_be_stored_are_forgotten_later() -> None:
    async with opened(Bench()) as bench:
        await bench.stable()
        real = bench.sequencer.save_group

        async def away(request: SaveGroup) -> Empty:
            raise SequencerUnavailable("away")

        bench.sequencer.save_group = away  # type: ignore[method-assign]
        await bench.advance(32, 0)
        assert bench.agents[0].held_group("g") is None and bench.stored().members, (
            "its end could not be stored"
        )
        bench.sequencer.save_group = real  # type: ignore[method-assign]
        await bench.advance(70, 0)
        assert not bench.stored().members, "though nobody has asked for the group"


async def test_members_of_a_new_group_whose_storing_was_not_answered_are_forgotten_later() -> None:
    async with opened(Bench()) as bench:
        real = bench.sequencer.save_group

        async def unanswered(request: SaveGroup) -> Empty:
            await real(request)
            raise SequencerUnavailable("it may have been carried out")

        bench.sequencer.save_group = unanswered  # type: ignore[method-assign]
        with pytest.raises(GroupRefusal, match="NOT_COORDINATOR"):
            await bench.member(0, "m")
        assert bench.stored().members and bench.agents[0].held_group("g") is None
        bench.sequencer.save_group = real  # type: ignore[method-assign]
        await bench.advance(70, 0)
        assert not bench.stored().members, "though nobody has asked for the group"


async def test_closing_waits_for_a_group_that_is_being_taken_up_again() -> None:
    async with opened(Bench()) as bench:
        await bench.stable()
        save, load = bench.sequencer.save_group, bench.sequencer.load_group

        async def away(request: SaveGroup) -> Empty:
            raise SequencerUnavailable("away")

        bench.sequencer.save_group = away  # type: ignore[method-assign]
        await bench.advance(32, 0)
        bench.sequencer.save_group = save  # type: ignore[method-assign]
        is_loading, may_load = asyncio.Event(), asyncio.Event()

        async def held(request: LoadGroup) -> GroupState:
            is_loading.set()
            await may_load.wait()
            return await load(request)

        bench.sequencer.load_group = held  # type: ignore[method-assign]
        await bench.advance(12, 0)
        assert is_loading.is_set()
        closing = asyncio.create_task(bench.agents[0].close())
        await bench.advance(1, 0)
        assert not closing.done()
        may_load.set()
        await closing


async def test_a_classic_group_stays_one_when_the_client_that_would_upgrade_it_is_refused() -> None:
    async with opened(Bench()) as bench:
        agent = bench.agents[0]
        said = replace(request("m", None), protocols=[("range", metadata())])
        joined = await agent.join("g", said)
        await agent.sync("g", SyncRequest("m", None, joined.generation, "consumer", "range", [("m", b"")]))
        classic = agent.held_group("g")
        agent.bytes = GroupBytes(64 << 20)
        agent.bytes.total = 64 << 20
        with pytest.raises(GroupRefusal, match="groups_max_bytes"):
            await agent.consumer_heartbeat("g", replace(joining("n"), topics=TopicNames({"t" * 4_000})))
        assert agent.held_group("g") is classic and isinstance(classic, Group)
        assert await agent.heartbeat("g", "m", None, joined.generation) is ErrorCode.NONE


async def test_joins_beyond_the_bytes_of_all_groups_come_later_and_earlier_groups_continue() -> None:
    async with opened(Bench()) as bench:
        agent = bench.agents[0]
        agent.bytes = GroupBytes(64 << 20)

        def large(name: str, member_id: str = "") -> JoinRequest:
            return replace(request(name, None, member_id), protocols=[("range", bytes((4 << 20) - 100))])

        async def refused(group_id: str, asked: JoinRequest) -> None:
            with pytest.raises(GroupRefusal, match="groups_max_bytes") as error:
                await agent.join(group_id, asked)
            assert error.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

        joined = [await agent.join(f"g{each}", large("m")) for each in range(16)]
        assert {answer.code for answer in joined} == {ErrorCode.NONE}
        await refused("g16", large("m"))
        await refused("g0", large("m2"))
        await refused("g1", replace(large("m", "m"), protocols=[("range", bytes(4 << 20))] * 2))
        assert agent.held_group("g16") is None, "a refused join leaves nothing behind"
        with pytest.raises(GroupRefusal, match="groups_max_bytes"):
            await agent.consumer_heartbeat("c", replace(joining("m"), topics=TopicNames({"t" * 4_000})))
        with pytest.raises(GroupRefusal, match="groups_max_bytes"):
            await agent.share_heartbeat("s", ShareHeartbeat("m", 0, topics=TopicNames({"t" * 4_000})))
        again = await agent.join("g0", large("m", "m"))
        assert (again.code, again.generation) == (ErrorCode.NONE, 1)
        await agent.sync("g0", SyncRequest("m", None, 1, "consumer", "range", [("m", b"all")]))
        assert await agent.heartbeat("g0", "m", None, 1) is ErrorCode.NONE
        before = agent.bytes.total
        assert await agent.leave("g0", [("m", None)]) == [ErrorCode.NONE]
        assert before - agent.bytes.total > (4 << 20) - 200
        assert (await agent.join("late", large("m"))).code is ErrorCode.NONE
        for each in range(1, 16):
            await agent.leave(f"g{each}", [("m", None)])
        await agent.leave("late", [("m", None)])
        assert agent.bytes.total == 0


async def test_partitions_that_coordinators_assign_count_among_the_bytes_of_all_groups() -> None:
    async with opened(Bench()) as bench:
        await bench.sequencer.create_topic(CreateTopic("t", 200, {}))
        await bench.learn_topics()
        agent = bench.agents[0]
        agent.bytes = GroupBytes(100 * PARTITION_BYTES)

        first = await agent.consumer_heartbeat("first", joining("m"))
        with pytest.raises(GroupRefusal, match="groups_max_bytes") as error:
            await agent.consumer_heartbeat("second", joining("m"))
        assert error.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        again = await agent.consumer_heartbeat("first", ConsumerHeartbeat("m", first.epoch))
        assert again.code is ErrorCode.NONE
        await agent.consumer_heartbeat("first", ConsumerHeartbeat("m", LEAVES))
        assert agent.bytes.total == 0

        assert (await agent.share_heartbeat("s", ShareHeartbeat("m", 0, topics=TopicNames("t")))).epoch == 1
        assert agent.bytes.total == 200 * PARTITION_BYTES + len("m") + len("t")


async def test_a_replaced_static_member_is_stored_before_it_is_answered() -> None:
    async with opened(Bench()) as bench:
        await bench.stable()
        again = await bench.member(0, "m2", "i")
        assert (again.generation, again.member_id) == (1, "m2")
        assert await bench.agents[0].heartbeat("g", "m", "i", 1) is ErrorCode.FENCED_INSTANCE_ID
        await bench.advance(14, 1)
        assert await bench.agents[1].heartbeat("g", "m", "i", 1) is ErrorCode.FENCED_INSTANCE_ID
        assert await bench.agents[1].heartbeat("g", "m2", "i", 1) is ErrorCode.NONE


async def test_offsets_come_from_members_or_from_outside_an_empty_group() -> None:
    async with opened(Bench()) as bench:
        topic = await bench.sequencer.create_topic(CreateTopic("t", 1, {}))
        position = [OffsetPosition(topic.topic_id, 0, 5, -1, "")]
        await bench.agents[1].commit("g", "", None, -1, position)
        await bench.stable()
        with pytest.raises(GroupRefusal, match="UNKNOWN_MEMBER_ID"):
            await bench.agents[0].commit("g", "", None, -1, position)
        with pytest.raises(GroupRefusal, match="ILLEGAL_GENERATION"):
            await bench.agents[0].commit("g", "m", "i", 7, position)
        await bench.agents[0].commit("g", "m", "i", 1, [OffsetPosition(topic.topic_id, 0, 9, -1, "")])
        found = await bench.sequencer.fetch_offsets(FetchOffsets("g", None))
        assert [each.offset for each in found.positions] == [9]


async def test_a_consumer_that_assigns_partitions_itself_may_commit_under_its_instance_id() -> None:
    async with opened(Bench()) as bench:
        topic = await bench.sequencer.create_topic(CreateTopic("t", 1, {}))
        position = [OffsetPosition(topic.topic_id, 0, 5, -1, "")]
        done = await bench.agents[0].commit("g", "", "i", -1, position)
        assert done.errors == [PartitionError.NONE]
        await bench.stable()
        with pytest.raises(GroupRefusal, match="FENCED_INSTANCE_ID"):
            await bench.agents[0].commit("g", "", "i", -1, position)


async def test_a_share_group_takes_no_positions() -> None:
    async with opened(Bench()) as bench:
        topic = await bench.sequencer.create_topic(CreateTopic("t", 1, {}))
        await bench.agents[0].share_heartbeat("g", ShareHeartbeat("m", 0, topics=TopicNames({"t"})))
        await bench.agents[0].share_heartbeat("g", ShareHeartbeat("m", -1))
        with pytest.raises(UnknownGroup):
            await bench.agents[0].commit("g", "", None, -1, [OffsetPosition(topic.topic_id, 0, 5, -1, "")])


async def test_a_silent_member_expires_and_the_empty_group_can_be_deleted() -> None:
    async with opened(Bench()) as bench:
        await bench.stable()
        with pytest.raises(GroupRefusal, match="NON_EMPTY_GROUP"):
            await bench.agents[0].delete("g")
        await bench.advance(32, 0)
        assert await bench.agents[0].look("g", lambda group: group.phase) is GroupPhase.EMPTY
        await bench.agents[0].delete("g")


async def test_a_client_that_has_only_asked_for_an_id_does_not_keep_a_group_from_being_deleted() -> None:
    async with opened(Bench()) as bench:
        topic = await bench.sequencer.create_topic(CreateTopic("t", 1, {}))
        await bench.agents[0].commit("g", "", None, -1, [OffsetPosition(topic.topic_id, 0, 5, -1, "")])
        asked = await bench.agents[0].join("g", replace(request("a"), requires_known_id=True))
        assert asked.code is ErrorCode.MEMBER_ID_REQUIRED
        await bench.agents[0].delete("g")
        joined = await bench.agents[0].join("g", request("a", member_id=asked.member_id))
        assert joined.code is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_session_ends_when_its_time_is_over_and_not_at_some_tick_after_it() -> None:
    async with opened(Bench()) as bench:
        await bench.stable()  # with a session of 30 s
        await bench.advance(29, 0)
        for seconds, phase in ((0.96875, GroupPhase.STABLE), (0.03125, None)):
            bench.clock.advance(seconds)
            for _ in range(20):
                await asyncio.sleep(0)
            held = bench.agents[0].held_group("g")
            assert (held and held.phase) is phase, "an empty group is let go"


async def test_members_that_come_and_go_leave_no_deadlines_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "MANY_OUTDATED", 10)

    async with opened(Bench()) as bench:
        agent = bench.agents[0]
        for number in range(50):
            await bench.member(0, f"m{number}", "i")
            assert await agent.leave("g", [("", "i")]) == [ErrorCode.NONE]
            assert len(agent._deadlines._entries) <= 12


async def test_closing_answers_who_waits() -> None:
    async with opened(Bench()) as bench:
        await bench.stable()
        waiting = asyncio.create_task(bench.member(0, "second"))
        await bench.advance(1, 0)
        await bench.agents[0].close()
        assert (await waiting).code is ErrorCode.NOT_COORDINATOR


async def test_a_client_that_hangs_up_takes_no_one_elses_answer() -> None:
    async with opened(Bench()) as bench:
        await bench.member(0, "a")
        gone = asyncio.create_task(bench.member(0, "b"))
        await bench.advance(1, 0)
        gone.cancel()
        answer = await bench.agents[0].join("g", request("x", member_id="a"))
        assert answer.generation == 2 and len(answer.members) == 2


async def test_ids_of_members_that_never_join_count_until_their_sessions_are_over() -> None:
    async with opened(Bench()) as bench:
        agent = bench.agents[0]
        agent.bytes = GroupBytes(100 * PENDING_BYTES)

        async def ask_for_an_id(group_id: str, number: int) -> JoinAnswer:
            asked = replace(request(f"m{number}"), requires_known_id=True, session_seconds=10.0)
            return await agent.join(group_id, asked)

        for number in range(100):
            answer = await ask_for_an_id(f"g{number % 3}", number)
            assert answer.code is ErrorCode.MEMBER_ID_REQUIRED
        assert agent.bytes.total == 100 * PENDING_BYTES
        with pytest.raises(GroupRefusal, match="groups_max_bytes"):
            await ask_for_an_id("g3", 100)
        await bench.advance(12, 0)
        assert agent.bytes.total == 0
        assert (await ask_for_an_id("g3", 100)).code is ErrorCode.MEMBER_ID_REQUIRED
