"""Transactional clients: producers of both transaction versions, and consume-transform-produce loops.

Version 1: partitions and groups are added before they are used, and an end keeps the epoch. Version 2 (KIP-890): the
first batch adds its partition, and every end gives a new epoch.

An instance whose transactional id was taken by another one is fenced and ends; the world starts the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tailrace.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tailrace.kafka.messages.end_txn import EndTxnRequest
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tailrace.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tailrace.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.simulation.clients import PATIENCE_S, Client, Log, OutBatch, Producer, Reader, Stage
from tests.simulation.network import NoAnswer
from tests.support.history.events import (
    AbortAsked,
    Begun,
    CommitAsked,
    Ended,
    Guarantee,
    OffsetFetched,
    OffsetsAdded,
    Outcome,
    identity,
)

TIMEOUT_MS = 3_000
ATTEMPTS = 4
"""How often a batch is sent before its transaction is given up."""
FATAL = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
)


class Fenced(Exception):
    """This instance may not continue."""


@dataclass(slots=True)
class Progress:
    """The work that is left for all instances of a transactional id."""

    transactions_left: int
    instances: int = 0
    """How many there have been so far."""


class TransactionalProducer(Producer):
    """One instance of a transactional producer."""

    guarantee: Guarantee = "transactional"
    timeout_ms = TIMEOUT_MS

    def __init__(self, stage: Stage, name: str, transactional_id: str, *, is_second_version: bool) -> None:
        super().__init__(stage, name)
        self._transactional_id = transactional_id
        self._is_v2 = is_second_version
        self._sequences: dict[tuple[str, int], int] = {}
        self._transactions = 0
        self._inits = 0

    # --- the run

    async def run(self, topics: Sequence[str], progress: Progress) -> None:
        """Run transactions until none is left, or until fenced."""
        progress.instances += 1
        logs = [await self.surely_look_up(topic) for topic in topics]
        began = self.stage.now()
        try:
            await self.init()
            while progress.transactions_left > 0:
                progress.transactions_left -= 1
                await self._transact(logs)
                await self.pause(0.0, 0.4)
        except Fenced as error:
            self.stage.note(f"{self.name} is fenced: {error}")
            has_time = self.stage.now() < began + self.timeout_ms / 1000
            is_first = self._inits == progress.instances == 1
            is_asked = self.stage.aborts.may_have_fenced((self.producer_id, self.epoch))
            if self.stage.is_time_kept and has_time and is_first and not is_asked:
                self.stage.violated(
                    f"{self.name} is fenced, {error}, and nobody asked for its id but itself, once"
                )

    async def commit_one(self, topics: Sequence[str], progress: Progress) -> bool:
        """Run a transaction that should commit; returns whether it did."""
        progress.instances += 1
        logs = [await self.surely_look_up(topic) for topic in topics]
        try:
            await self.init()
            return await self._transact(logs, should_commit=True)
        except Fenced as error:
            self.stage.note(f"{self.name} is fenced: {error}")
            return False

    async def _transact(self, logs: Sequence[Log], *, should_commit: bool = False) -> bool:
        """Run one transaction; returns whether it is known to be committed."""
        transaction = self.begin()
        log = logs[self.luck.below(len(logs))]
        first = self.luck.below(log.partitions)
        places = [(log, (first + n) % log.partitions) for n in range(1 + self.luck.below(log.partitions))]
        await self.add_partitions(places)
        is_whole = True
        for _ in range(1 + self.luck.below(2)):
            batches = [self._next_batch(log, partition, transaction) for log, partition in places]
            is_whole = await self.send(batches)
            if not is_whole:
                break
            await self.pause(0.0, 0.15)
        is_commit = is_whole and (should_commit or self.luck.below(4) != 0)
        return await self.end(transaction, is_commit=is_commit, is_whole=is_whole) and is_commit

    # --- steps

    async def ask(
        self, host: str, api: ApiKey, version: int, request: Any, patience_s: float = PATIENCE_S
    ) -> Any:
        self._inits += api is ApiKey.INIT_PRODUCER_ID
        return await super().ask(host, api, version, request, patience_s)

    async def init(self, *, is_bump: bool = False) -> None:
        """Take over the transactional id or, with `is_bump` (KIP-360), get a new epoch for this instance."""
        given = (self.producer_id, self.epoch) if is_bump else (-1, -1)
        request = InitProducerIdRequest(self._transactional_id, self.timeout_ms, *given)
        response = await self.until_answered(
            ApiKey.INIT_PRODUCER_ID,
            4,
            request,
            lambda response: response.error_code in (ErrorCode.NONE, *FATAL),
        )
        if response.error_code != ErrorCode.NONE:
            raise Fenced(f"InitProducerId: {ErrorCode(response.error_code).name}")
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        self._sequences.clear()

    def begin(self) -> str:
        self._transactions += 1
        transaction = f"{self.name}/{self._transactions}"
        self.stage.aborts.began((self.producer_id, self.epoch), transaction, self.stage.now())
        self.stage.record(
            Begun(
                at=self.stage.now(),
                client=self.name,
                transaction=transaction,
                transactional_id=self._transactional_id,
            )
        )
        return transaction

    async def add_partitions(self, places: Sequence[tuple[Log, int]]) -> None:
        """Send AddPartitionsToTxn, for version 1."""
        if self._is_v2:
            return
        topics: dict[str, list[int]] = {}
        for log, partition in places:
            topics.setdefault(log.topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name, numbers) for name, numbers in topics.items()],
        )
        response = await self.until_answered(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            request,
            lambda response: all(
                row.partition_error_code in (ErrorCode.NONE, *FATAL)
                for topic in response.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            ),
        )
        for topic in response.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                if row.partition_error_code != ErrorCode.NONE:
                    raise Fenced(f"AddPartitionsToTxn: {ErrorCode(row.partition_error_code).name}")

    def _next_batch(
        self, log: Log, partition: int, transaction: str, sources: Sequence[str] = ()
    ) -> OutBatch:
        sequence = self._sequences.get((log.name, partition), 0)
        batch = self.make(log, partition, sequence, transaction=transaction, sources=sources)
        self._sequences[log.name, partition] = sequence + len(batch.records)
        return batch

    async def send(self, batches: Sequence[OutBatch]) -> bool:
        """Send until all are stored; returns False if that failed and the transaction must be aborted."""
        version = 12 if self._is_v2 else 11
        for _ in range(ATTEMPTS):
            waiting = [batch for batch in batches if not batch.is_acked]
            try:
                stream, answer = self.hand_over(
                    self.some_agent(), waiting, version=version, transactional_id=self._transactional_id
                )
            except NoAnswer:
                await self.pause(0.05, 0.2)
                continue
            try:
                self.settle(waiting, await self.wait(stream, answer))
            except NoAnswer:
                for batch in waiting:
                    batch.is_doubtful = True
            if not self.is_any_left(batches):
                return True
            if any(batch.refusal in FATAL for batch in batches):
                break
            await self.pause(0.02, 0.1)
        for batch in batches:
            if not batch.is_acked:
                self.give_up(batch)
        return False

    async def end(self, transaction: str, *, is_commit: bool, is_whole: bool = True) -> bool:
        """Send EndTxn until the outcome is known; returns whether it is the requested one. Raises Fenced."""
        asked = CommitAsked if is_commit else AbortAsked
        self.stage.aborts.end_asked((self.producer_id, self.epoch))
        self.stage.record(asked(at=self.stage.now(), client=self.name, transaction=transaction))
        version = 5 if self._is_v2 else 3
        request = EndTxnRequest(self._transactional_id, self.producer_id, self.epoch, is_commit)
        is_doubtful = False
        while True:
            try:
                response = await self.ask(self.some_agent(), ApiKey.END_TXN, version, request)
            except NoAnswer:
                is_doubtful = True
                await self.pause(0.02, 0.2)
                continue
            code = ErrorCode(response.error_code)
            if code is ErrorCode.NONE:
                self._ended(transaction, "committed" if is_commit else "aborted")
                break
            if code in FATAL:
                self._ended(transaction, "unknown" if is_commit and is_doubtful else "aborted", code.name)
                if not is_commit and code is ErrorCode.INVALID_TXN_STATE:
                    break  # nothing was ever added to the transaction
                raise Fenced(f"EndTxn: {code.name}")
            is_doubtful = True
            await self.pause(0.02, 0.2)
        if self._is_v2 and code is ErrorCode.NONE:
            if (response.producer_id, response.producer_epoch) == (self.producer_id, self.epoch):
                self.stage.violated(f"{transaction}: the end gave no new epoch")
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self._sequences.clear()
        elif not is_whole or code is not ErrorCode.NONE:
            await self.init(is_bump=True)
        return code is ErrorCode.NONE

    def _ended(self, transaction: str, outcome: Outcome, error: str = "") -> None:
        self.stage.record(
            Ended(
                at=self.stage.now(), client=self.name, transaction=transaction, outcome=outcome, error=error
            )
        )


# --- positions of groups


async def fetch_positions(client: Client, group: str, log: Log, partitions: Sequence[int]) -> dict[int, int]:
    """Return the group's stable positions, -1 if it has none."""
    asked_at = client.stage.now()
    topics = [OffsetFetchRequestTopics(name=log.topic, partition_indexes=list(partitions))]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=True
    )
    response = await client.until_answered(
        ApiKey.OFFSET_FETCH,
        8,
        request,
        lambda response: (
            response.groups[0].error_code == ErrorCode.NONE
            and all(row.error_code == ErrorCode.NONE for row in response.groups[0].topics[0].partitions)
        ),
    )
    rows = response.groups[0].topics[0].partitions
    for row in rows:
        client.stage.record(
            OffsetFetched(
                at=client.stage.now(), client=client.name, group=group, topic=log.name,
                partition=row.partition_index, offset=row.committed_offset, asked=asked_at,
            )
        )  # fmt: skip
    return {row.partition_index: row.committed_offset for row in rows}


class Processor(TransactionalProducer):
    """Reads partitions of one topic and writes one output for each record to another topic, exactly once."""

    def __init__(self, stage: Stage, name: str, transactional_id: str, *, is_second_version: bool) -> None:
        super().__init__(stage, name, transactional_id, is_second_version=is_second_version)
        self._reader = Reader(stage, self.name, "committed", self.process)

    async def work(
        self, source: str, target: str, partitions: Sequence[int], group: str, progress: Progress
    ) -> None:
        """Work until the input has ended and all of it is processed, or until fenced."""
        source_log, target_log = await self.surely_look_up(source), await self.surely_look_up(target)
        try:
            await self.init()
            is_over = False
            while not is_over:
                is_over = await self._process_on(source_log, target_log, partitions, group)
            progress.transactions_left = 0
        except Fenced as error:
            self.stage.note(f"{self.name} is fenced: {error}")

    async def _process_on(self, source: Log, target: Log, partitions: Sequence[int], group: str) -> bool:
        """Process from the committed positions on, until a transaction fails (False) or nothing is left (True)."""
        while not partitions:
            if self.stage.is_input_over:
                return True
            await self.pause(0.1, 0.3)
            await self.still_there()
        positions = await fetch_positions(self, group, source, partitions)
        for partition in partitions:
            positions[partition] = max(0, positions[partition])
            self._reader.position(source, partition, positions[partition], is_seek=True)
        while True:
            was_over = self.stage.is_input_over
            await self.still_there()
            try:
                found = await self._reader.fetch(self.some_agent(), source, positions, max_wait_ms=200)
            except NoAnswer:
                await self.pause(0.02, 0.1)
                continue
            sources: list[str] = []
            for partition, got in found.items():
                if got.code is ErrorCode.OFFSET_OUT_OF_RANGE and positions[partition] < got.log_start:
                    positions[partition] = got.log_start
                    self._reader.position(source, partition, got.log_start, is_seek=True)
                elif got.code is ErrorCode.NONE:
                    self._reader.saw(source, partition, got)
                    positions[partition] = got.position
                    sources += [identity(record.key, record.value) for record in got.records]
            if sources:
                if not await self._process_some(source, target, group, sources, positions):
                    return False
            elif was_over and all(
                got.code is ErrorCode.NONE and got.position >= got.last_stable for got in found.values()
            ):
                return True

    async def _process_some(
        self, source: Log, target: Log, group: str, sources: Sequence[str], positions: dict[int, int]
    ) -> bool:
        transaction = self.begin()
        partition = self.luck.below(target.partitions)
        await self.add_partitions([(target, partition)])
        is_whole = await self.send([self._next_batch(target, partition, transaction, sources)])
        is_commit = is_whole and self.luck.below(8) != 0
        if is_commit:
            is_whole = await self._add_offsets(transaction, source, group, positions)
            is_commit = is_whole and self.luck.below(6) != 0
            if self.luck.below(3) == 0:
                await self.pause(0.1, 0.6)
        await self.end(transaction, is_commit=is_commit, is_whole=is_whole)
        return is_commit

    async def _add_offsets(
        self, transaction: str, source: Log, group: str, positions: dict[int, int]
    ) -> bool:
        if not self._is_v2:
            added = await self.until_answered(
                ApiKey.ADD_OFFSETS_TO_TXN,
                3,
                AddOffsetsToTxnRequest(self._transactional_id, self.producer_id, self.epoch, group),
                lambda response: response.error_code in (ErrorCode.NONE, *FATAL),
            )
            if added.error_code != ErrorCode.NONE:
                return False
        rows = [
            TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
            for partition, offset in positions.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(source.topic, rows)],
        )
        # Recorded before the request: an attempt whose answer is lost counts too, once the transaction commits.
        for partition, offset in positions.items():
            self.stage.record(
                OffsetsAdded(
                    at=self.stage.now(), client=self.name, transaction=transaction, group=group,
                    topic=source.name, partition=partition, offset=offset,
                )
            )  # fmt: skip
        return await self.commit_positions(request)

    async def still_there(self) -> None:
        """For members of a group: check that they still are members."""

    async def commit_positions(self, request: TxnOffsetCommitRequest) -> bool:
        """Send TxnOffsetCommit until its outcome is known; returns False if the transaction must be aborted."""
        response = await self.until_answered(
            ApiKey.TXN_OFFSET_COMMIT,
            5 if self._is_v2 else 3,
            request,
            lambda response: all(
                row.error_code in (ErrorCode.NONE, *FATAL)
                for topic in response.topics
                for row in topic.partitions
            ),
        )
        return all(row.error_code == ErrorCode.NONE for topic in response.topics for row in topic.partitions)
