"""Consumers that are not members: they commit a partition's position, directly or in a transaction, and delete it.

Only one of them commits and deletes the position of its partition, one after the other, so the history knows what the
position must be. In the history a deletion is a commit of -1. Others do the same with other partitions of the group.
"""

from __future__ import annotations

from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.simulation.clients import PATIENCE_S, Log, Stage
from tests.simulation.groups import GroupMember, GroupWatch
from tests.simulation.invariants import STANDALONE
from tests.simulation.network import NoAnswer
from tests.simulation.transactions import Fenced, Processor, fetch_positions
from tests.support.history.events import (
    UNKNOWN_OFFSET,
    OffsetCommitAsked,
    OffsetCommitEnded,
    OffsetFetched,
    OffsetsAdded,
)


class StandaloneConsumer(Processor):
    """The only consumer of this partition. Each position that it commits is new."""

    def __init__(self, stage: Stage, name: str, partition: int) -> None:
        is_second_version = bool(stage.entropy(f"version of {name}").below(2))
        super().__init__(stage, name, name, is_second_version=is_second_version)
        self._group = GroupMember(
            stage, self.name, STANDALONE, GroupWatch(stage.violated), process=self.process
        )
        self._partition = partition
        self._offset = 0
        self._deletions = 0
        self._sendings = 0
        """How often positions were sent in this transaction."""

    async def run_steps(self, topic: str, steps: int) -> None:
        log = await self.surely_look_up(topic)
        await self._begin_anew()
        for _ in range(steps):
            step = (self._commit, self._commit, self._delete, self._transact_once)[self.luck.below(4)]
            try:
                await step(log)
            except Fenced:
                await self._begin_anew()
            await self._look(log)
            await self.pause(0.0, 0.3)

    async def _begin_anew(self) -> None:
        while True:
            try:
                return await self.init()
            except Fenced as error:
                self.stage.note(f"{self.name} is fenced: {error}")

    async def _look(self, log: Log) -> None:
        await fetch_positions(self, STANDALONE, log, [self._partition])

    async def _commit(self, log: Log) -> None:
        while True:
            self._offset += 1
            try:
                return await self._group.commit(log, {self._partition: self._offset})
            except NoAnswer as error:
                await self._group.look_again(error)

    # --- deletions

    async def _delete(self, log: Log) -> bool:
        """Delete until there is an answer; returns whether the position is deleted. A group without any has none to
        delete."""
        while True:
            asked_at, code = self.stage.now(), await self._try_to_delete(log)
            if code is ErrorCode.GROUP_ID_NOT_FOUND:
                self.stage.record(
                    OffsetFetched(
                        at=self.stage.now(), client=self.name, group=STANDALONE, topic=log.name,
                        partition=self._partition, offset=UNKNOWN_OFFSET, asked=asked_at,
                    )
                )  # fmt: skip
            if code is not None:
                return code is ErrorCode.NONE
            await self._group.look_again(NoAnswer("no deletion"))

    async def _try_to_delete(self, log: Log) -> ErrorCode | None:
        """Return the answer's code, or None without an answer."""
        self._deletions += 1
        deletion = f"{self.name}/deletion {self._deletions}"
        self.stage.record(
            OffsetCommitAsked(
                at=self.stage.now(), client=self.name, commit=deletion, group=STANDALONE,
                topic=log.name, partition=self._partition, offset=UNKNOWN_OFFSET,
            )
        )  # fmt: skip
        partitions = [OffsetDeleteRequestPartition(self._partition)]
        request = OffsetDeleteRequest(STANDALONE, [OffsetDeleteRequestTopic(log.topic, partitions)])
        try:
            answer = await self._group.ask_coordinator(ApiKey.OFFSET_DELETE, 0, request)
        except NoAnswer:
            return None
        code = ErrorCode(answer.error_code or answer.topics[0].partitions[0].error_code)
        if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            return None
        if code is ErrorCode.NONE:  # a late copy of a refused one may delete the next commit
            self.stage.record(OffsetCommitEnded(at=self.stage.now(), client=self.name, commit=deletion))
        return code

    # --- transactions

    async def ask(
        self, host: str, api: ApiKey, version: int, request: Any, patience_s: float = PATIENCE_S
    ) -> Any:
        self._sendings += api is ApiKey.TXN_OFFSET_COMMIT
        return await super().ask(host, api, version, request, patience_s)

    async def _transact_once(self, log: Log) -> None:
        """Commit one position in a transaction. If the position is deleted before the end, the end leaves none, as in
        Kafka."""
        transaction, self._sendings = self.begin(), 0
        self._offset += 1
        is_whole = await self._add_offsets(transaction, log, STANDALONE, {self._partition: self._offset})
        is_sent_once = is_whole and self._sendings == 1
        if is_sent_once and self.luck.below(2) and await self._delete(log):
            self.stage.record(
                OffsetsAdded(
                    at=self.stage.now(), client=self.name, transaction=transaction, group=STANDALONE,
                    topic=log.name, partition=self._partition, offset=UNKNOWN_OFFSET,
                )
            )  # fmt: skip
        is_commit = is_whole and self.luck.below(4) != 0
        await self.end(transaction, is_commit=is_commit, is_whole=is_whole)
