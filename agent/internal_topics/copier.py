"""Reads the changed groups and transactional ids, and appends them to the internal topics.

A single task reads, then writes. So among one agent's copies, no record has an older state than the record before it. A
failure affects no request: it is logged and counted, and the change is noted to be copied again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import structlog

from agent.groups.coordinator import GroupRefusal
from agent.internal_topics.copy_queue import MAX_CHANGES, GroupChanges, Partition, PendingChanges
from agent.internal_topics.records import group_records, position_record, transaction_record
from agent.internal_topics.topics import kept_topic
from agent.produce.own_records import is_written
from agent.services import Services
from sequencer.api.errors import SequencerError
from sequencer.api.groups import FetchOffsets, OffsetPosition
from sequencer.api.transactions import TransactionDescription, TransactionsRequest, TransactionState
from sequencer.pages import pages, positions_at
from tailrace.background_tasks import cause_of, log_and_continue
from tailrace.batches.records import NewRecord
from tailrace.configs.internal_topics import GROUPS, PARTITIONS, TRANSACTIONS, partition_of
from tailrace.configs.topic_config import Latency
from tailrace.tenants import local_name, stored_in_same_tenant
from tailrace.turns import in_parts

log = structlog.get_logger("agent.internal_topics")

AT_ONCE = 100
"""Groups or transactional ids that are read and written concurrently."""
POSITIONS_AT_ONCE = 200
"""Positions of a group that are read and written in one step."""


class CopyFailed(Exception):
    """Records of a copy are not stored, or some of them."""


async def partitions_of_group(services: Services, group_id: str) -> list[Partition]:
    """Return the partitions of a group that is about to be deleted, for tombstones; none if groups are not copied."""
    partitions: list[Partition] = []
    if services.copy_queue.keeps_groups:
        async for page in pages(services.sequencer.fetch_offsets, FetchOffsets(group_id, None)):
            partitions += [(position.topic_id, position.partition) for position in page.positions]
            if len(partitions) >= MAX_CHANGES:
                break
    return partitions


class Copier:
    """Makes the copies of one agent."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[str, TransactionDescription] = {}
        """Transactions that were open when they were copied. They are copied again until they end."""

    async def copy(self, changes: PendingChanges) -> None:
        """Copy the changes. Those that can't be copied now are noted again."""
        for some in in_parts(list(changes.groups.items()), AT_ONCE):
            causes = await asyncio.gather(*(self._tried_group(*group) for group in some))
            self._report("groups", causes)
        known, self._open = self._open, {}
        for ids in in_parts(list(changes.transactional_ids), AT_ONCE):
            causes = await self._tried_transactions(ids, known)
            self._report("transactional ids", causes)

    def _report(self, what: str, causes: Sequence[str | None]) -> None:
        failed = [cause for cause in causes if cause is not None]
        if failed:
            log.warning(
                "copies in an internal topic are made later", what=what, count=len(failed), cause=failed[0]
            )
            self._services.telemetry.internal_topic_copies.labels("failed").inc(len(failed))

    # --- groups

    async def _tried_group(self, group_id: str, changes: GroupChanges) -> str | None:
        """Copy a group. Return why that failed, or None."""
        with log_and_continue(log, "a group is not copied", group=group_id):
            try:
                await self._copy_group(group_id, changes)
            except (SequencerError, CopyFailed) as error:
                self._services.copy_queue.group(group_id, changes)
                return cause_of(error)
        return None

    async def _copy_group(self, group_id: str, changes: GroupChanges) -> None:
        if changes.state:
            await self._append(GROUPS, group_id, await self._state(group_id))
        async for positions in self._positions(group_id, changes):
            await self._append(GROUPS, group_id, await self._settled(group_id, positions))

    async def _state(self, group_id: str) -> list[NewRecord]:
        now_ms = self._services.clock.wall_ms()
        with suppress(GroupRefusal):  # then another agent has it, and copies it
            return await self._services.groups.look(group_id, lambda group: group_records(group, now_ms))
        return []

    async def _positions(
        self, group_id: str, changes: GroupChanges
    ) -> AsyncIterator[Sequence[OffsetPosition]]:
        sequencer = self._services.sequencer
        if changes.all_positions:
            asked = FetchOffsets(group_id, None, limit=POSITIONS_AT_ONCE)
            async for page in pages(sequencer.fetch_offsets, asked):
                yield page.positions
        for partitions in in_parts(list(changes.partitions), POSITIONS_AT_ONCE):
            yield await positions_at(sequencer, group_id, partitions)

    async def _settled(self, group_id: str, positions: Sequence[OffsetPosition]) -> list[NewRecord]:
        """Return the records of positions. A position that an open transaction may still change is left for later."""
        pending = [position for position in positions if position.has_pending]
        if pending:
            self._services.copy_queue.committed(group_id, pending)
        topics = self._services.catalog.of_one_request()
        records = []
        for position in positions:
            known = None if position.has_pending else await topics.by_id(position.topic_id)
            if known is not None:
                records.append(position_record(group_id, known.topic.name, position))
        return records

    # --- transactional ids

    async def _tried_transactions(
        self, ids: Sequence[str], known: dict[str, TransactionDescription]
    ) -> list[str | None]:
        """Copy transactional ids. Return for each why that failed, or None."""
        try:
            answers = pages(self._services.sequencer.transactions, TransactionsRequest(list(ids)))
            described = [each async for answer in answers for each in answer.transactions]
        except SequencerError as error:
            for transactional_id in ids:
                self._services.copy_queue.transaction(transactional_id)
            return [cause_of(error)] * len(ids)
        return await asyncio.gather(
            *(self._tried_transaction(each, known.get(each.transactional_id)) for each in described)
        )

    async def _tried_transaction(
        self, described: TransactionDescription, known: TransactionDescription | None
    ) -> str | None:
        """Copy one. Return why that failed, or None. `known`: its last copy, if its transaction was open then."""
        transactional_id = described.transactional_id
        with log_and_continue(log, "a transactional id is not copied", transactional_id=transactional_id):
            try:
                if described != known:
                    await self._append(TRANSACTIONS, transactional_id, [await self._transaction(described)])
            except (SequencerError, CopyFailed) as error:
                self._services.copy_queue.transaction(transactional_id)
                return cause_of(error)
            if described.state is TransactionState.ONGOING:
                self._services.copy_queue.transaction(transactional_id)
                self._open[transactional_id] = described
        return None

    async def _transaction(self, described: TransactionDescription) -> NewRecord:
        topics = self._services.catalog.of_one_request()
        partitions: dict[str, list[int]] = {}
        for topic_id, index in described.partitions:
            known = await topics.by_id(topic_id)
            if known is not None:
                partitions.setdefault(local_name(known.topic.name), []).append(index)
        if described.groups:  # as Kafka, which stores their positions there
            of_groups = {partition_of(local_name(group_id), PARTITIONS) for group_id in described.groups}
            partitions[GROUPS] = sorted(of_groups)
        return transaction_record(described, partitions, self._services.clock.wall_ms())

    # --- writing

    async def _append(self, internal: str, owner: str, records: Sequence[NewRecord]) -> None:
        """Append records of a group or transactional id (`owner`, as stored) to its tenant's internal topic.

        Raises CopyFailed, or the sequencer's errors.
        """
        if not records:
            return
        topic = await kept_topic(self._services, stored_in_same_tenant(owner, internal))
        partition = partition_of(local_name(owner), topic.topic.partitions)
        if not await is_written(self._services, topic, partition, records, latency=Latency.COST):
            raise CopyFailed(f"{len(records)} records for {topic.topic.name} are not stored")
        self._services.telemetry.internal_topic_copies.labels("written").inc(len(records))
