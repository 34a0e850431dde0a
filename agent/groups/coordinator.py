"""The group coordinator: loads groups, runs their state machines, and stores each state before it answers from it.

The coordinator loads a group when a request for it arrives and the sequencer places the group on this agent. The group
stays in memory until it is empty, or until the lease under which it was loaded is over. An unknown group is loaded as
an empty one, and created when it is first stored: a look-up or a refusal creates none. One lock per group orders its
requests, so answers leave in the order of the states that they describe. Cancelling a caller loses nothing: each step
runs to its end in a task that the coordinator owns.

Nothing is answered from memory once another agent may own the groups: when this agent's lease was not renewed for the
silence that a suspected agent is granted, minus a margin (checked when the answer leaves, not when the request
arrives). Requests then wait for the next renewal, as long as a committer's failover takes. After that, NOT_COORDINATOR
makes every client look for the coordinator again. The same happens after a group could not be stored: such groups are
dropped from memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import structlog

from agent.catalog import Catalog
from agent.groups import classic_members
from agent.groups.consumer_group import JOINS, ConsumerAnswer, ConsumerGroup, ConsumerHeartbeat, Topics
from agent.groups.deadlines import GroupDeadlines
from agent.groups.group import Answer, Group, GroupPhase, JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from agent.groups.group_bytes import AnyGroup, GroupBytes
from agent.groups.group_configs import GroupConfigs
from agent.groups.share_group import ShareGroup, ShareHeartbeat, ShareHeartbeatAnswer
from agent.groups.stored_groups import emptied, restored, stored
from agent.identity import AgentIdentity
from agent.settings import AgentSettings
from cache.ring import group_candidates
from sequencer.api.errors import SequencerError, SequencerUnavailable, StaleGroup
from sequencer.api.groups import (
    CLASSIC_GROUP,
    CONSUMER_GROUP,
    SHARE_GROUP,
    CommitOffsets,
    GroupOwner,
    GroupRef,
    LoadGroup,
    LocateGroup,
    OffsetErrors,
    OffsetPosition,
    SaveGroup,
    first_turn,
)
from sequencer.api.interface import Sequencer
from sequencer.api.transactions import TransactionRef
from tailrace.background_tasks import cancel_and_wait, log_and_continue, retrieve_error
from tailrace.clock import Clock, Entropy, wait_for
from tailrace.configs.group_config import CONSUMER_SESSION_TIMEOUT_MS, SHARE_SESSION_TIMEOUT_MS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.limits import is_name
from tailrace.turns import Steps, Turns, in_turns

log = structlog.get_logger("agent.groups")

T = TypeVar("T")
M = TypeVar("M", ConsumerGroup, ShareGroup)

JoinedGroup = Group | ConsumerGroup
"""The group of a client that sends JoinGroup. During a migration a consumer group has members of both protocols."""
SESSION_TIMEOUT_OF = {CONSUMER_GROUP: CONSUMER_SESSION_TIMEOUT_MS, SHARE_GROUP: SHARE_SESSION_TIMEOUT_MS}

RENEWAL_PATIENCE_SECONDS = 3.0
"""How long a request waits for the lease's next renewal: a committer's failover takes that long."""

LEASE_MARGIN_SECONDS = 0.5
"""How long before its lease ends a coordinator stops answering: more than an answer takes to leave the process."""

LEASE_LOOK_SECONDS = 1.0
"""How often groups of an ended lease are looked for, to answer the members that wait for them."""

LOOK_AGAIN_SECONDS = 10.0
"""How often groups that had to be dropped are loaded again."""

MAX_POSITIONS = 20_000
"""The most positions in one commit: all or none are stored, and readers see them in one turn of the committer's loop.
Kafka's limit is the size of a batch in its offsets topic, which some 15,000 positions reach."""
ASSIGNED_IN_A_TURN = 2_000
"""Topics and partitions processed in one turn of the loop, to make an assignment or to take a step to it."""
ANSWERS_IN_A_TURN = 200
"""Members answered in one turn of the loop: an answer is made for each."""
MAX_ATTEMPTS = 3
"""How often a request retries with a group that was dropped while the request waited for its turn."""


class GroupRefusal(Exception):
    """A request about a group can't be served. `code` is the whole answer."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code


def _refuse_unless(has_room: bool) -> None:
    """Refuse a request that would bring all groups above their limit. Clients retry it later."""
    if not has_room:
        raise GroupRefusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "agent.groups_max_bytes is reached")


class _TopicsNeeded(Exception):
    """The catalog must be refreshed first."""


@dataclass(slots=True, eq=False)
class _Held:
    """A group in this agent's memory, and the lease epoch under which it was loaded. `lock` orders its changes. `turn`:
    the turn of the newest change sent to the sequencer. `generation`: the generation of the newest stored state; the
    group itself may already be moving to the next one. `is_stored`: it had a state when it was loaded, or was stored
    since; if that state is gone, it must not be created again."""

    group: AnyGroup
    lease_epoch: int
    is_stored: bool
    turn: int
    generation: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_over: bool = False

    def next_turn(self) -> int:
        """Return the turn for a change that is requested now."""
        self.turn += 1
        return self.turn


class GroupCoordinator:
    """Coordinates the groups that the sequencer places on this agent. `start` before use, `close` at the end."""

    def __init__(
        self,
        sequencer: Sequencer,
        clock: Clock,
        entropy: Entropy,
        settings: AgentSettings,
        identity: Callable[[], AgentIdentity],
        catalog: Catalog,
    ) -> None:
        self._sequencer = sequencer
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self._identity = identity
        self._catalog = catalog
        self.configs = GroupConfigs(catalog, settings)
        self.bytes = GroupBytes(settings.groups_max_bytes)
        self._held: dict[str, _Held] = {}
        self._loading: dict[str, asyncio.Task[_Held]] = {}
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._last_ticket = 0
        self._deadlines = GroupDeadlines()
        self._steps: set[asyncio.Task[Any]] = set()
        self._dropped: dict[str, None] = {}
        """Groups of this agent that were dropped from memory. If their members are gone, no request loads them."""
        self._timers: list[asyncio.Task[None]] = []
        self._is_closed = False
        self.on_stored: Callable[[str], None] = lambda group_id: None
        """Called with each group whose state was stored."""
        self.on_taken_up: Callable[[str], None] = lambda group_id: None
        """Called with each loaded group that has members: another coordinator had it, or this one dropped it."""

    # --- start and end

    async def start(self) -> None:
        """Start to watch timeouts."""
        self._timers = [
            asyncio.create_task(self._watch_deadlines()),
            asyncio.create_task(self._reload_dropped()),
        ]

    async def close(self) -> None:
        """Answer all waiting requests with NOT_COORDINATOR, and serve no more. All answered states are stored."""
        self._is_closed = True
        await cancel_and_wait(*self._timers)
        for held in list(self._held.values()):
            self._forget(held)
        while self._steps:
            await asyncio.wait(list(self._steps))

    # --- requests of members

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """JoinGroup: wait until the next generation is made and stored."""

        def act(group: JoinedGroup, now: float, ticket: int) -> Steps[None]:
            _refuse_unless(self.bytes.may_join(group, request))
            if isinstance(group, ConsumerGroup):
                self._refuse_classic_members(group)
                joined = yield from classic_members.join(group, now, request, self._topics)
                group.answer(ticket, joined)  # the group is stored next, which counts its bytes
            else:
                before = self.bytes.of_member(group, request)
                yield from group.join(now, ticket, request)
                self.bytes.add(group_id, self.bytes.of_member(group, request) - before)

        answer = await self._ask(group_id, act, if_other=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        assert isinstance(answer, JoinAnswer), "a join is answered as a join"
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """SyncGroup: wait until the leader's assignment has arrived and is stored."""

        def act(group: JoinedGroup, now: float, ticket: int) -> Steps[None]:
            _refuse_unless(self.bytes.may_assign(group, request))
            if isinstance(group, ConsumerGroup):
                synced = yield from classic_members.sync(group, now, request, self._topics)
                group.answer(ticket, synced)
            else:
                group.sync(now, ticket, request)

        answer = await self._ask(group_id, act)
        assert isinstance(answer, SyncAnswer), "a sync is answered as a sync"
        return answer

    async def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Heartbeat: keep the session, and report when to join again."""

        def act(group: JoinedGroup, now: float) -> ErrorCode | Steps[ErrorCode]:
            if isinstance(group, ConsumerGroup):
                return classic_members.heartbeat(
                    group, now, (member_id, instance_id, generation), self._topics
                )
            return group.heartbeat(now, member_id, instance_id, generation)

        return await self._step_of_joined(group_id, act)

    async def consumer_heartbeat(self, group_id: str, request: ConsumerHeartbeat) -> ConsumerAnswer:
        """ConsumerGroupHeartbeat: a member joins, stays in or leaves a consumer group. A classic group becomes a
        consumer group when a client of the new protocol joins it."""

        def act(group: AnyGroup, now: float) -> Steps[ConsumerAnswer]:
            assert isinstance(group, ConsumerGroup), "the group has the requested type"
            _refuse_unless(self.bytes.may_subscribe(group, request))
            return self._configured(group).heartbeat(now, request, self._topics)

        try:
            return await self._step(group_id, act, lambda held: self._upgrade(held, request))
        except _TopicsNeeded:
            await self._catalog.refresh()
        return await self._step(group_id, act, lambda held: self._upgrade(held, request, has_topics=True))

    async def share_heartbeat(self, group_id: str, request: ShareHeartbeat) -> ShareHeartbeatAnswer:
        """ShareGroupHeartbeat: a member joins, stays in or leaves a share group. A share group stays one when it is
        empty, because no other group type can use its state."""

        def act(group: AnyGroup, now: float) -> Steps[ShareHeartbeatAnswer]:
            assert isinstance(group, ShareGroup), "the group has the requested type"
            _refuse_unless(self.bytes.may_subscribe(group, request))
            return self._configured(group).heartbeat(now, request, self._topics)

        return await self._step(group_id, act, self._be_share_group)

    async def make_share_group(self, group_id: str) -> None:
        """Ensure that a share group of this name exists; create one without members if there is no group."""

        def act(group: AnyGroup, now: float) -> None:
            assert isinstance(group, ShareGroup), "the group has the requested type"
            group.begin()

        await self._step(group_id, act, self._be_share_group)

    async def leave(self, group_id: str, leaving: list[tuple[str, str | None]]) -> list[ErrorCode]:
        """LeaveGroup: return one code per (member id, instance id)."""

        def act(group: JoinedGroup, now: float) -> list[ErrorCode] | Steps[list[ErrorCode]]:
            if isinstance(group, ConsumerGroup):
                return classic_members.leave(group, leaving)
            return group.leave(now, leaving)

        return await self._step_of_joined(group_id, act)

    async def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: list[OffsetPosition],
        retention_ms: int = -1,
        *,
        transaction: TransactionRef | None = None,
        joins: bool = False,
        number: int = -1,
        names_epochs: bool = True,
    ) -> OffsetErrors:
        """OffsetCommit: by a member of this generation, or (generation -1, no member) for an empty group.

        TxnOffsetCommit if `transaction` is given; then generation -1 and no member mean a client that doesn't send
        them. `names_epochs`: the version of the request is one for members of KIP-848's protocol.

        Raises:
            GroupRefusal: applies to all partitions.
            SequencerError: the sequencer can't commit now.
        """
        if not is_name(group_id):
            raise GroupRefusal(ErrorCode.INVALID_GROUP_ID)
        if len(offsets) > MAX_POSITIONS:
            raise GroupRefusal(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        identity = self._identity()
        request = CommitOffsets(
            group_id=group_id,
            broker_id=identity.broker_id,
            lease_epoch=identity.lease_epoch,
            generation=generation,
            member_id=member_id,
            offsets=offsets,
            retention_ms=retention_ms,
            transaction=transaction,
            joins=joins,
            number=number,
        )
        if generation < 0 and await self._is_outside(group_id, member_id, instance_id):
            try:
                return await self._sequencer.commit_offsets(msgspec.structs.replace(request, member_id=""))
            except StaleGroup as error:
                raise GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID) from error
        return await self._commit_of_member(request, instance_id, names_epochs=names_epochs)

    async def _commit_of_member(
        self, request: CommitOffsets, instance_id: str | None, *, names_epochs: bool
    ) -> OffsetErrors:
        group_id, fenced = request.group_id, request
        for _ in range(MAX_ATTEMPTS):
            await self._may_commit(request, instance_id, names_epochs=names_epochs)
            held = self._held.get(group_id)
            if held is not None:
                fence = held.generation  # for a consumer group it differs from its members' epochs
                fenced = msgspec.structs.replace(request, turn=held.next_turn(), generation=fence)
            try:
                return await self._sequencer.commit_offsets(fenced)
            except StaleGroup as error:
                # The group in memory has moved on meanwhile, or another agent has the group now.
                stale = error
                held = self._held.get(group_id)
                if held is None or held.generation == fenced.generation:
                    break
        if held is not None:
            self._forget(held)
        raise GroupRefusal(ErrorCode.NOT_COORDINATOR) from stale

    async def _is_outside(self, group_id: str, member_id: str, instance_id: str | None) -> bool:
        """Whether a client that sends no generation is not part of the group. Java's and librdkafka's consumers send
        their instance id even if their application has assigned the partitions."""
        is_unnamed = not member_id and instance_id is None
        return is_unnamed or await self.look(group_id, lambda group: not group.members)

    async def _may_commit(
        self, request: CommitOffsets, instance_id: str | None, *, names_epochs: bool
    ) -> None:
        code = await self._step(
            request.group_id,
            lambda group, now: group.commit(
                now,
                request.member_id,
                instance_id,
                request.generation,
                positions=request.offsets,
                is_transactional=request.transaction is not None,
                names_epochs=names_epochs,
            ),
        )
        if code is not ErrorCode.NONE:
            raise GroupRefusal(code)

    # --- requests of tools

    async def look(self, group_id: str, view: Callable[[AnyGroup], T | Steps[T]]) -> T:
        """Return the result of `view` on the group's current state. `view` must not change or keep the group."""
        return await self._step(group_id, lambda group, now: view(group))

    async def delete(self, group_id: str) -> None:
        """DeleteGroups: delete an empty group and its offsets, also while clients have asked for an id and not joined
        yet.

        Raises:
            GroupRefusal: the group has members, or another agent coordinates it.
            SequencerError: UnknownGroup, or the sequencer can't delete it now.
        """

        def refuse_if_used(group: AnyGroup) -> None:
            if group.members or group.phase == GroupPhase.PREPARING_REBALANCE:
                raise GroupRefusal(ErrorCode.NON_EMPTY_GROUP)

        await self._step(group_id, lambda group, now: refuse_if_used(group))
        await self._sequencer.delete_group(GroupRef(group_id))
        held = self._held.get(group_id)
        if held is not None:
            held.is_stored = False
            self._forget(held)

    async def locate(self, group_id: str) -> GroupOwner:
        """Return the group's coordinator. A group without a live owner is placed by the ring."""
        candidates = group_candidates(self._catalog.snapshot.ring, group_id)
        return await self._sequencer.locate_group(LocateGroup(group_id, candidates))

    def held_group(self, group_id: str) -> AnyGroup | None:
        """Return the group if it is in memory, where its state is newer than the stored one. It must not be changed."""
        held = self._held.get(group_id)
        return held.group if held is not None and self._is_mine(held) else None

    def used_groups(self) -> list[str]:
        """Return the groups in memory that have members."""
        return [group_id for group_id, held in self._held.items() if held.group.members]

    # --- one step of one group

    async def _ask(
        self,
        group_id: str,
        act: Callable[[JoinedGroup, float, int], Steps[None] | None],
        if_other: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID,
    ) -> Answer:
        self._last_ticket += 1
        ticket = self._last_ticket
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        try:
            await self._step_of_joined(group_id, lambda group, now: act(group, now, ticket), if_other)
            return await future
        finally:
            del self._waiting[ticket]

    async def _step_of_joined(
        self,
        group_id: str,
        act: Callable[[JoinedGroup, float], T | Steps[T]],
        if_other: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID,
    ) -> T:
        """Run a step for a classic client: on a classic group, or on a consumer group with members."""

        def act_on(group: AnyGroup, now: float) -> T | Steps[T]:
            assert isinstance(group, Group | ConsumerGroup), "the group has the requested type"
            return act(group, now)

        def prepare(held: _Held) -> None:
            if not isinstance(held.group, ConsumerGroup) or held.group.is_idle:
                self._convert(held, Group, if_other)

        return await self._step(group_id, act_on, prepare)

    @property
    def _topics(self) -> Topics:
        return self._catalog.snapshot.by_name

    def _upgrade(self, held: _Held, request: ConsumerHeartbeat, *, has_topics: bool = False) -> Steps[None]:
        """Turn a classic group with members into a consumer group, for a client of the new protocol that joins it.

        Raises _TopicsNeeded unless `has_topics`: members would lose partitions of topics that the catalog does not
        know.
        """
        group = held.group
        if (
            not isinstance(group, Group)
            or group.is_idle
            or request.epoch != JOINS
            or not self._may_migrate("upgrade")
        ):
            self._convert(held, ConsumerGroup, ErrorCode.GROUP_ID_NOT_FOUND)
            return
        if not has_topics:
            raise _TopicsNeeded
        empty = self._emptied(group, CONSUMER_GROUP)
        assert isinstance(empty, ConsumerGroup), "of the type that was asked for"
        try:
            now = self._clock.monotonic()
            upgraded = yield from classic_members.upgraded(group, empty, now, self._topics)
        except classic_members.NotUpgradable as error:
            raise GroupRefusal(error.code, str(error)) from error
        refusal = upgraded.refusal(request)
        if refusal is not None:
            raise GroupRefusal(refusal.code, refusal.message)
        held.group = upgraded

    async def _downgrade(self, held: _Held, epoch: int) -> None:
        """Make a group classic if its last member of the new protocol has left. `epoch`: the epoch before that."""
        group = held.group
        if not isinstance(group, ConsumerGroup) or not group.has_only_classic_members:
            return
        empty = self._emptied(group, CLASSIC_GROUP)
        assert isinstance(empty, Group), "of the type that was asked for"
        empty.generation = epoch
        now = self._clock.monotonic()
        held.group = await _in_turns(classic_members.downgraded(group, empty, now, self._topics))

    def _may_migrate(self, change: str) -> bool:
        """Whether groups with members may `upgrade` or `downgrade`."""
        return self._settings.group_consumer_migration_policy in (change, "bidirectional")

    def _refuse_classic_members(self, group: ConsumerGroup) -> None:
        if self._settings.group_consumer_migration_policy == "disabled":
            raise GroupRefusal(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{group.group_id!r} is a {group.type} group"
            )

    def _configured(self, group: M) -> M:
        group.session_seconds = self.configs.seconds(group.group_id, SESSION_TIMEOUT_OF[group.type])
        return group

    def _be_share_group(self, held: _Held) -> None:
        self._convert(held, ShareGroup, ErrorCode.GROUP_ID_NOT_FOUND)

    def _convert(self, held: _Held, kind: type[AnyGroup], if_other: ErrorCode) -> None:
        if isinstance(held.group, kind):
            return
        is_kept = held.is_stored and SHARE_GROUP in (held.group.type, kind.type)
        if is_kept or not held.group.is_idle:
            raise GroupRefusal(if_other, f"{held.group.group_id!r} is a {held.group.type} group")
        held.group = self._emptied(held.group, kind.type)

    async def _step(
        self,
        group_id: str,
        act: Callable[[AnyGroup, float], T | Steps[T]],
        prepare: Callable[[_Held], Steps[None] | None] = lambda held: None,
    ) -> T:
        if not is_name(group_id):
            raise GroupRefusal(ErrorCode.INVALID_GROUP_ID)
        await self._ensure_lease()
        return await self._shielded(self._perform(group_id, act, prepare))

    async def _shielded(self, step: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._begun(step))

    def _begun(self, step: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._stepped)
        return task

    def _stepped(self, task: asyncio.Task[Any]) -> None:
        self._steps.discard(task)
        retrieve_error(task)

    async def _perform(
        self,
        group_id: str,
        act: Callable[[AnyGroup, float], T | Steps[T]],
        prepare: Callable[[_Held], Steps[None] | None],
    ) -> T:
        for _ in range(MAX_ATTEMPTS):
            held = await self._load_group(group_id)
            async with held.lock:
                if held.is_over:
                    continue
                before = held.group
                try:
                    await _result(prepare(held))
                    result = await self._change(held, lambda now: act(held.group, now))  # noqa: B023 - called at once
                except GroupRefusal:
                    held.group = before
                    self._drop_or_schedule(held)  # keep nothing in memory for a refused request
                    raise
                if await self._settle(held):
                    return result
                break
        raise GroupRefusal(ErrorCode.NOT_COORDINATOR)

    async def _change(self, held: _Held, change: Callable[[float], T | Steps[T]]) -> T:
        """Change the group, and its type if its last member of the new protocol leaves. A change of very many
        partitions takes several turns of the loop, under the group's lock."""
        group = held.group
        is_mixed = isinstance(group, ConsumerGroup) and not group.has_only_classic_members
        epoch = group.generation
        result = await _result(change(self._clock.monotonic()))
        if is_mixed and self._may_migrate("downgrade"):
            await self._downgrade(held, epoch)
        return result

    async def _settle(self, held: _Held) -> bool:
        """Store the changes, then send the answers. Return False, with refusals sent, if the group is lost."""
        group = held.group
        answers = group.take_answers()
        if group.is_dirty and not held.is_over:
            self.bytes.count(group)
            if not await self._save(held):
                self._forget(held)
        await self._deliver_all(held, answers)
        if not self._may_answer_from(held):
            return False
        self._drop_or_schedule(held)
        return True

    async def _deliver_all(self, held: _Held, answers: list[tuple[int, Answer]]) -> None:
        """Send these answers, or refusals instead once the group is lost."""
        turns = Turns(ANSWERS_IN_A_TURN)
        for ticket, answer in answers:
            self._deliver(ticket, answer if self._may_answer_from(held) else _refused(answer))
            await turns.did()

    def _may_answer_from(self, held: _Held) -> bool:
        """Whether this agent may still answer from the group's state."""
        return not held.is_over and self._is_mine(held)

    def _drop_or_schedule(self, held: _Held) -> None:
        """Drop a group that has nothing to keep; otherwise set the timer for its deadlines."""
        if held.group.is_idle:
            held.is_over = True
            self._drop(held)
        else:
            self.bytes.count_pending(held.group)
            self._arm(held)

    def _drop(self, held: _Held) -> None:
        group_id = held.group.group_id
        if self._held.get(group_id) is held:
            del self._held[group_id]
            self._deadlines.forget(group_id)
            self.bytes.forget(group_id)

    async def _save(self, held: _Held) -> bool:
        state = await _in_turns(stored(held.group))
        if held.is_over:
            return False  # and the state may say that the group was closed meanwhile
        held.generation, held.group.is_dirty = state.generation, False
        identity = self._identity()
        try:
            await self._sequencer.save_group(
                SaveGroup(
                    identity.broker_id,
                    held.lease_epoch,
                    state,
                    may_create=not held.is_stored,
                    turn=held.next_turn(),
                )
            )
        except SequencerError as error:
            log.warning(
                "a group could not be stored and is dropped from memory",
                group=held.group.group_id,
                error=str(error),
            )
            # It is unknown whether the group exists now, so it is loaded again later.
            held.is_stored |= isinstance(error, SequencerUnavailable)
            return False
        held.is_stored = True
        self.on_stored(held.group.group_id)
        return True

    def _deliver(self, ticket: int, answer: Answer) -> None:
        future = self._waiting.get(ticket)
        if future is not None and not future.done():
            future.set_result(answer)

    def _forget(self, held: _Held) -> None:
        held.is_over = True
        self._drop(held)
        if held.is_stored and held.lease_epoch == self._identity().lease_epoch:
            self._dropped[held.group.group_id] = None
        held.group.close(ErrorCode.NOT_COORDINATOR)
        answers = held.group.take_answers()
        if answers:
            self._begun(self._deliver_all(held, answers))

    # --- ownership

    async def _ensure_lease(self) -> None:
        give_up_at = self._clock.monotonic() + RENEWAL_PATIENCE_SECONDS
        while not self._may_answer():
            patience = give_up_at - self._clock.monotonic()
            if self._is_closed or patience <= 0:
                raise GroupRefusal(ErrorCode.NOT_COORDINATOR)
            await wait_for(self._clock, self._identity().next_renewal(), patience)

    def _may_answer(self) -> bool:
        until = self._identity().coordinates_until - LEASE_MARGIN_SECONDS
        return not self._is_closed and self._clock.monotonic() < until

    def _is_mine(self, held: _Held) -> bool:
        return held.lease_epoch == self._identity().lease_epoch and self._may_answer()

    async def _load_group(self, group_id: str) -> _Held:
        held = self._held.get(group_id)
        if held is not None:
            if held.lease_epoch == self._identity().lease_epoch:
                return held
            self._forget(held)
        loading = self._loading.get(group_id)
        if loading is None:
            loading = self._loading[group_id] = asyncio.create_task(self._load(group_id))
            loading.add_done_callback(lambda _: self._loading.pop(group_id, None))
        return await asyncio.shield(loading)

    async def _load(self, group_id: str) -> _Held:
        identity = self._identity()
        broker_id, lease_epoch = identity.broker_id, identity.lease_epoch
        owner = await self.locate(group_id)
        if owner.broker_id != broker_id:
            raise GroupRefusal(ErrorCode.NOT_COORDINATOR)
        state = await self._sequencer.load_group(LoadGroup(group_id, broker_id, lease_epoch))
        if state.type != CLASSIC_GROUP:
            await self._catalog.refresh()  # the previous coordinator may know topics that this catalog lacks
        held = _Held(
            group=await _in_turns(
                restored(state, now=self._clock.monotonic(), settings=self._settings, configs=self.configs)
            ),
            lease_epoch=lease_epoch,
            is_stored=bool(state.blob),
            turn=first_turn(state.term),
            generation=state.generation,
        )
        if self._is_closed:
            raise GroupRefusal(ErrorCode.NOT_COORDINATOR)
        self._held[group_id] = held
        self.bytes.count(held.group)
        self._arm(held)
        if held.group.members:
            self.on_taken_up(group_id)
        return held

    def _emptied(self, group: AnyGroup, kind: str) -> AnyGroup:
        """Return a group of this type without members, at this group's generation."""
        return emptied(
            group, kind, now=self._clock.monotonic(), settings=self._settings, configs=self.configs
        )

    # --- timeouts

    def _arm(self, held: _Held) -> None:
        deadline = held.group.next_deadline(self._clock.monotonic())
        if deadline is not None:
            self._deadlines.arm(held.group.group_id, deadline)

    async def _watch_deadlines(self) -> None:
        """Examine the groups whose armed deadline has passed. Most of them have only moved it to a later time."""
        epoch = self._identity().lease_epoch
        while True:
            await self._deadlines.wait(self._clock, LEASE_LOOK_SECONDS)
            with log_and_continue(log, "groups' deadlines could not be checked"):
                if self._identity().lease_epoch != epoch:
                    epoch = self._identity().lease_epoch
                    for held in [group for group in self._held.values() if group.lease_epoch != epoch]:
                        self._forget(held)
                self._expire_due()

    async def _reload_dropped(self) -> None:
        """Load the groups that had to be dropped, so that members that are gone expire."""
        while True:
            await self._clock.sleep(LOOK_AGAIN_SECONDS)
            with log_and_continue(
                log, "dropped groups could not be loaded; they are retried", SequencerError
            ):
                while self._dropped and self._may_answer():
                    group_id = next(iter(self._dropped))
                    del self._dropped[group_id]
                    await self._shielded(self._reload(group_id))

    async def _reload(self, group_id: str) -> None:
        try:
            held = await self._load_group(group_id)
        except GroupRefusal:
            return  # another agent has it
        except SequencerError:
            self._dropped[group_id] = None
            raise
        async with held.lock:
            if not held.is_over:
                self._drop_or_schedule(held)

    def _expire_due(self) -> None:
        for group_id in self._deadlines.take_due(self._clock.monotonic()):
            held = self._held.get(group_id)
            if held is not None:
                self._begun(self._expire(held))

    async def _expire(self, held: _Held) -> None:
        async with held.lock:
            if held.is_over:
                return
            if not self._is_mine(held):
                self._forget(held)
                return
            now = self._clock.monotonic()
            deadline = held.group.next_deadline(now)
            if deadline is not None and deadline <= now:
                await self._change(held, held.group.expire)
            await self._settle(held)


async def _in_turns(steps: Steps[T]) -> T:
    return await in_turns(steps, Turns(ASSIGNED_IN_A_TURN))


async def _result(work: T | Steps[T]) -> T:
    """Return the result of work on a group, which comes in steps if very many members or partitions may be in it."""
    given: Any = work
    result: T = await _in_turns(given) if isinstance(given, Generator) else given
    return result


def _refused(answer: Answer) -> Answer:
    if isinstance(answer, JoinAnswer):
        return JoinAnswer(ErrorCode.NOT_COORDINATOR, answer.member_id)
    return SyncAnswer(ErrorCode.NOT_COORDINATOR)
