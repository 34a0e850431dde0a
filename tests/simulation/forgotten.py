"""Clients that rest for about as long as the cluster remembers them. State in use must be kept, unused state forgotten.

The settings of such a seed are short (scenario.FORGETFUL_SETTINGS). A client knows when the cluster may first forget
its state: a fixed time after the client's last request that used it. It also knows when the cluster must have forgotten
it: some seconds after that, if there were no faults meanwhile. Between the two any answer is right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tailrace.batches.records import NewRecord, decode_records, encode_batch
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.simulation.clients import OUT_OF_SEQUENCE, Log, OutBatch, Producer, Stage
from tests.simulation.groups import SESSION_MS, GroupMember, GroupWatch, MustJoin
from tests.simulation.keyed import quiet
from tests.simulation.network import NoAnswer
from tests.simulation.scenario import FORGOTTEN_AFTER_S
from tests.simulation.transactions import Fenced, TransactionalProducer, fetch_positions
from tests.support.history.events import Guarantee

SURELY_AFTER_S = FORGOTTEN_AFTER_S + 8.0
"""Expiry runs every second; rows of transactions expire up to 3.6 s late, and a lost JoinGroup leaves a member for
1.5 s."""
DELIVERY_S = 2.5
"""How long a batch is resent: much shorter than producers are remembered, as Kafka demands of its clients."""
CLOCKS_S = 0.2
"""How much the times of a client and of a decision may differ."""
RESTS = 2
"""How often a producer rests, with or without faults; it rests once more after them."""


DEFINITE = (
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.NON_EMPTY_GROUP,
)


class Memory:
    """What the cluster may have forgotten. `used`: a request that was sent at one time and answered at another has used
    it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._asked_at = self._answered_at = stage.now()

    def used(self, asked_at: float) -> None:
        self._asked_at, self._answered_at = asked_at, self._stage.now()

    @property
    def may_be_gone(self) -> bool:
        """Whether the cluster may have forgotten it by now."""
        is_over = self._stage.now() >= self._asked_at + FORGOTTEN_AFTER_S - CLOCKS_S
        return is_over or not self._stage.is_time_kept

    def is_gone(self, asked_at: float, calm_since: float) -> bool:
        """Return whether a request sent at this time must find nothing."""
        return asked_at > max(self._answered_at, calm_since) + SURELY_AFTER_S and self._stage.is_time_kept


async def rest(client: Producer | GroupMember, *, is_long: bool) -> float:
    """Sleep for about as long as the cluster remembers; longer if `is_long`, after the end of the faults. Returns since
    when there were none."""
    while is_long and not client.stage.is_calm:
        await client.clock.sleep(0.2)
    calm_since = client.stage.now()
    span = FORGOTTEN_AFTER_S * (0.7 + 0.6 * client.luck.fraction())
    await client.clock.sleep(SURELY_AFTER_S + 0.1 if is_long else span)
    return calm_since if is_long else float("inf")


class RestingProducer(Producer):
    """An idempotent producer with one batch in flight. If the cluster does not know it, it begins a new epoch and
    resends the batch, as Kafka's producer does."""

    guarantee: Guarantee = "idempotent"
    expected = (ErrorCode.UNKNOWN_PRODUCER_ID,)

    async def run(self, topic: str) -> None:
        log = await self.surely_look_up(topic)
        partition = self.luck.below(log.partitions)
        self._sequence, self._memory = 0, Memory(self.stage)
        await self.take_producer_id()
        calm_since = float("inf")
        for number in range(RESTS + 1):
            for _ in range(1 + self.luck.below(3)):
                await self._send(log, partition, calm_since)
                calm_since = float("inf")
                await self.pause(0.0, 0.3)
            if number < RESTS or self.luck.below(2):
                calm_since = await rest(self, is_long=number == RESTS)
        await self._send(log, partition, calm_since)

    async def _send(self, log: Log, partition: int, calm_since: float) -> None:
        """Send until the batch is stored, or can't be resent safely."""
        batch, began = self.make(log, partition, self._sequence), self.stage.now()
        while not batch.is_acked:
            if self.stage.now() > began + DELIVERY_S:
                self.give_up(batch)
                await self.clock.sleep(FORGOTTEN_AFTER_S)  # attempts in transfer arrive before the next batch
                await self.take_producer_id()
                self._sequence = 0
                return
            was_doubtful = batch.is_doubtful
            await self._attempt(batch)
            if batch.refusal in OUT_OF_SEQUENCE:
                self._check_refusal(batch)
                if was_doubtful:
                    began = float("-inf")
                    continue
                self._begin_epoch(batch)
            if not batch.is_acked:
                await self.pause(0.0, 0.1)
        if batch.base_sequence and self._memory.is_gone(began, calm_since):
            self.stage.violated(f"{batch.records[0]} stored, though its producer must be forgotten")
        self._memory.used(began)
        self._sequence = batch.base_sequence + len(batch.records)

    async def _attempt(self, batch: OutBatch) -> None:
        batch.refusal = None
        try:
            stream, answer = self.hand_over(self.some_agent(), [batch], version=11)
            self.settle([batch], await self.wait(stream, answer, DELIVERY_S))
        except NoAnswer:
            batch.is_doubtful = True

    def _check_refusal(self, batch: OutBatch) -> None:
        """Check a refusal. Out of order is also the answer if the batch's object was deleted while its agent waited for
        the sequences before it."""
        assert batch.refusal is not None, "it was refused"
        if not self._memory.may_be_gone or not batch.base_sequence:
            what = "its producer is in use"
            self.stage.violated(f"{self.name}: {batch.records[0]} refused, {batch.refusal.name}: {what}")

    def _begin_epoch(self, batch: OutBatch) -> None:
        """Encode the same records as the first batch of the producer's next epoch."""
        self.epoch += 1
        records = decode_records(memoryview(batch.data))
        batch.data = encode_batch(
            [NewRecord(each.key, each.value, each.headers) for each in records],
            timestamps=[each.timestamp for each in records],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=0,
        )
        batch.base_sequence, batch.is_doubtful = 0, False


class RestingTransactions(TransactionalProducer):
    """Rests between its transactions and within them. An open one ends as it should, however long it was open."""

    timeout_ms = 60_000
    expected = (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.TRANSACTION_ABORTABLE)

    async def work(self, topic: str) -> None:
        log = await self.surely_look_up(topic)
        self._memory = Memory(self.stage)
        await self._begin_anew()
        await self._try_to_transact(log, float("inf"))
        await rest(self, is_long=False)
        await self._try_to_transact(log, float("inf"), rests=True)
        await self._try_to_transact(log, await rest(self, is_long=True))
        while not await self._try_to_transact(log, float("inf")):
            await self.pause(0.1, 0.3)

    async def _begin_anew(self) -> None:
        while True:
            asked_at = self.stage.now()
            try:
                await self.init()
            except Fenced as error:
                self.stage.note(f"{self.name} is fenced: {error}")
                continue
            self._memory.used(asked_at)
            return

    async def _try_to_transact(self, log: Log, calm_since: float, *, rests: bool = False) -> bool:
        """Run a transaction; returns whether it is committed. A fenced instance takes its transactional id again."""
        began, is_committed = self.stage.now(), False
        try:
            is_committed = await self._transact_slowly(log, rests=rests)
            if is_committed and self._memory.is_gone(began, calm_since):
                self.stage.violated(f"{self.name} commits under an id that must be forgotten")
            self._memory.used(began)
        except Fenced as error:
            if "INVALID_PRODUCER_ID_MAPPING" in str(error) and not self._memory.may_be_gone:
                self.stage.violated(f"{self.name} is fenced, {error}, and was in use")
            await self._begin_anew()
        return is_committed

    async def _transact_slowly(self, log: Log, *, rests: bool) -> bool:
        transaction, partition = self.begin(), self.luck.below(log.partitions)
        await self.add_partitions([(log, partition)])
        is_whole = await self.send([self._next_batch(log, partition, transaction)])
        if is_whole and rests:
            self.stage.note(f"{transaction} stays open")
            await self.clock.sleep(FORGOTTEN_AFTER_S + 5.0)
            self._memory.used(self.stage.now())
            is_whole = await self.send([self._next_batch(log, partition, transaction)])
        return await self.end(transaction, is_commit=is_whole, is_whole=is_whole) and is_whole

    def give_up(self, batch: OutBatch) -> None:
        if batch.refusal in OUT_OF_SEQUENCE and not self._memory.may_be_gone:
            self.stage.violated(f"{self.name}: {batch.refusal.name}, and its producer is in use")
        super().give_up(batch)


class PatientMember(GroupMember):
    """Asks until its coordinator's answer is definite."""

    is_in_doubt = False
    """An attempt had no answer: it may be carried out now or later."""

    async def ask_until(
        self, api: ApiKey, version: int, request: Any, code_of: Callable[[Any], int]
    ) -> ErrorCode:
        """Return the coordinator's definite answer."""
        while True:
            try:
                answer = await self.ask_coordinator(api, version, request)
                code = ErrorCode(getattr(answer, "error_code", 0) or code_of(answer))
                if code in DEFINITE:
                    return code
            except NoAnswer:
                self.is_in_doubt = True
            self._coordinator = ""
            await self.pause(0.05, 0.2)

    async def delete_group(self) -> ErrorCode:
        """Delete the group; returns the coordinator's definite answer."""
        request = DeleteGroupsRequest([self._group])
        return await self.ask_until(
            ApiKey.DELETE_GROUPS, 2, request, lambda answer: answer.results[0].error_code
        )


class RestingMember(PatientMember):
    """The only member of its group. It stays for long without a commit, leaves for long, and returns. Now and then it
    deletes its group, sometimes twice at once; that must fail while it is a member. One request commits all positions,
    but they may be forgotten one by one."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(quiet(stage), name, name, GroupWatch(lambda what: None))
        self._memory = Memory(stage)
        self._other = PatientMember(self.stage, name, name, self.watch, process=self.process)
        """Deletes the group over its own connections."""
        self._offset = -1
        """The last position that is known to be committed; -1 for none, or if some are gone."""
        self._asked = -1
        """The last position that it asked to commit; the answer may be lost. It only grows."""
        self._heard_at = -1.0
        self._may_be_deleted = self._is_deleted = self._is_haunted = False
        """Haunted: a copy of a deletion that was refused or not answered may still arrive and be carried out."""

    async def run(self, topic: str) -> None:
        """Stay twice, the first time longer than positions without a member are kept, and be absent in between."""
        log = await self.surely_look_up(topic)
        await self._stay(log, 1.1 * FORGOTTEN_AFTER_S)
        await self._go()
        await rest(self, is_long=False)
        await self._look(log, float("inf"))
        await self._stay(log, 1.0)
        await self._go()
        if at_once := self.luck.below(3):
            await self._delete(at_once)
            await self._look(log, float("inf"))
            if not await self._commit_as_no_member(log):
                return
            await self._stay(log, 0.5)
            await self._go()
        await self._look(log, await rest(self, is_long=True))

    async def _stay(self, log: Log, seconds: float) -> None:
        """Join, commit once, and then only send heartbeats."""
        until, is_committed = self.stage.now() + seconds, False
        while not is_committed or self.stage.now() < until:
            try:
                if self.generation < 0:
                    await self.join(log)
                    await self._look(log, float("inf"))
                if not is_committed:
                    await self._commit_next(log)
                    is_committed = True
                await self.heartbeat()
                if self.luck.below(4) == 0:
                    await self._delete()
                await self.pause(0.2, 0.5)
            except (MustJoin, NoAnswer) as error:
                self.generation = -1
                await self.look_again(error)
        await self._look(log, float("inf"))

    async def heartbeat(self) -> None:
        asked_at = self.stage.now()
        await super().heartbeat()
        self._heard_at = asked_at
        self._memory.used(asked_at)

    async def _commit_next(self, log: Log) -> None:
        asked_at = self.stage.now()
        self._may_be_deleted, self._is_deleted = self._may_be_deleted or self._is_deleted, False
        self._asked += 1
        await self.commit(log, dict.fromkeys(range(log.partitions), self._asked))
        self._offset, self._may_be_deleted = self._asked, self._is_haunted
        self._memory.used(asked_at)

    async def _commit_as_no_member(self, log: Log) -> bool:
        """Commit without a membership; returns False if the commit may be stored at any time."""
        try:
            await self._commit_next(log)
        except (MustJoin, NoAnswer):
            return False
        await self.pause(0.0, 0.5)
        await self._look(log, float("inf"))
        return True

    async def _go(self) -> None:
        """Leave, and wait for the answer."""
        request = LeaveGroupRequest(self._group, members=[MemberIdentity(self.member_id)])
        await self.ask_until(ApiKey.LEAVE_GROUP, 4, request, lambda answer: answer.members[0].error_code)
        self.member_id, self.generation, self._heard_at = "", -1, -1.0

    async def _look(self, log: Log, calm_since: float) -> None:
        """Check that each position is the last that was committed, or a later one without an answer, or forgotten."""
        asked_at = self.stage.now()
        found = await fetch_positions(self, self._group, log, range(log.partitions))
        kept = [offset for offset in found.values() if offset >= 0]
        for offset in kept:
            self._check_kept(offset, must_be_gone=self._memory.is_gone(asked_at, calm_since))
        if len(kept) == len(found):
            self._offset = min(kept)
            return
        may_be_gone = self._memory.may_be_gone or self._may_be_deleted or self._is_deleted
        if self._offset >= 0 and not may_be_gone:
            self.stage.violated(f"{self._group}: position {self._offset} is forgotten, and was in use")
        self._offset = -1

    def _check_kept(self, offset: int, *, must_be_gone: bool) -> None:
        if self._is_deleted or must_be_gone:
            self.stage.violated(f"{self._group}: position {offset} of a group that must be gone")
        elif not self._offset <= offset <= self._asked:
            self.stage.violated(f"{self._group}: position {offset}; {self._offset} was committed")

    async def _delete(self, at_once: int = 1) -> None:
        """Send this many deletions at once."""
        tools: list[PatientMember] = [self, self._other][:at_once]
        for tool in tools:
            tool.is_in_doubt = False
        codes = await asyncio.gather(*(tool.delete_group() for tool in tools))
        is_in_doubt = any(tool.is_in_doubt for tool in tools)
        is_member = self.stage.now() < self._heard_at + SESSION_MS / 1000
        self._is_haunted |= not is_member and (is_in_doubt or set(codes) != {ErrorCode.NONE})
        if set(codes) == {ErrorCode.NON_EMPTY_GROUP}:
            # A lost JoinGroup leaves a member: it may have joined after some positions were gone.
            self._may_be_deleted |= is_in_doubt or not is_member
            return
        if is_member:
            told = ", ".join(code.name for code in codes)
            self.stage.violated(f"{self._group} has a member, and its deletion is told {told}")
        self._is_deleted = True
