"""Bugs planted in the product, one at a time, to check that the simulation finds them.

    python -m tests.simulation.mutations [--only NAME] [--after N] [--seeds 100]

runs each bug on seed after seed until one finds it, and prints how many seeds that took. A bug that no seed finds is a
failure: either the simulation doesn't check for it, or the code that the bug removes has no effect.

A bug is a patch: it replaces a function of the product for the time of a run. `needs` narrows the scenario that a seed
draws to one where the bug could show (a compaction bug needs a compactor); everything else is as drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec
from msgspec import structs

import agent.catalog as catalog_module
import agent.errors as agent_errors
import agent.fetch.tail as tail_module
import agent.fetch.window as window_module
import agent.groups.group as group_module
import agent.groups.stored_consumer_group as stored_consumer_group
import agent.groups.stored_group as stored_group
import agent.handlers.dead_letters as dead_letters
import agent.handlers.list_offsets as list_offsets
import agent.handlers.share_fetch as share_fetch
import cache.disk as disk_module
import cache.reader as reader_module
import compactor.by_key.keyed as keyed_module
import compactor.erasure.rewrite as erasure_rewrite
import compactor.erasure.search as erasure_search
import compactor.rewrite as rewrite_module
import compactor.rounds as rounds_module
import sequencer.bounds as bounds
import sequencer.engine.expiry as expiry_module
import sequencer.engine.follower as follower_module
import sequencer.engine.group_commit as group_commit_module
import sequencer.engine.term as term_module
import sequencer.reading.positions as reading_positions
import sequencer.reading.queries as reading_queries
import sequencer.recovery.bucket_scan as bucket_module
import sequencer.rules.access as access
import sequencer.rules.compaction as compaction
import sequencer.rules.deleted_topics as deleted_topics
import sequencer.rules.garbage as garbage
import sequencer.rules.group_watch as group_watch
import sequencer.rules.groups as groups
import sequencer.rules.leases as leases
import sequencer.rules.positions as positions
import sequencer.rules.producers as producers
import sequencer.rules.repeats as repeats
import sequencer.rules.retention as retention
import sequencer.rules.shares as shares
import sequencer.rules.time_to_live as kept
import sequencer.rules.tokens as tokens
import sequencer.rules.topics as topics
import sequencer.rules.transactions as transactions
import sequencer.rules.upload_sessions as upload_sessions
import sequencer.rules.writes as writes
import sequencer.server as node_module
import tailrace.background_tasks as background_tasks
from agent.catalog import Catalog
from agent.connection import KafkaConnection
from agent.fetch import alignment
from agent.fetch.fetch_sessions import FetchContext, FetchSessions
from agent.fetch.window import Window
from agent.fetch.windows import Windows
from agent.groups.consumer_group import ConsumerGroup
from agent.groups.coordinator import GroupCoordinator
from agent.groups.group import Group
from agent.lease import LeaseKeeper
from agent.memory_budget import MemoryBudget
from agent.produce.active_buffer import BatchResult
from agent.produce.lane import Lane
from agent.produce.lanes import Lanes
from agent.produce.receipts import Receipts
from agent.produce.uploader import Uploader
from agent.produce_fast_path import ProduceFastPath
from cache import framed, in_place, mixed_reader
from cache.chunk import ChunkBytes
from cache.chunk_cache import ChunkCache
from cache.layout import Layout
from sequencer.api.commits import BatchError, BatchOutcome, BatchStatus, CommitAnswer, ObjectKind, RunOutcome
from sequencer.api.compaction import NamedLease
from sequencer.api.errors import IncarnationChanged, LeaseLost, SequencerUnavailable
from sequencer.api.groups import GroupRef, OffsetErrors
from sequencer.api.producers import ProducerGrant
from sequencer.api.reads import FindPartition, FindRequest, PartitionChange, PartitionError
from sequencer.api.retention import DeadSession, GarbageRequest
from sequencer.api.security import DeletedAcls, SecurityDeletions
from sequencer.api.share_groups import AcknowledgeType
from sequencer.api.transactions import AbortedProducer
from sequencer.api.values import Empty
from sequencer.checkpoint.checkpointer import Checkpointer
from sequencer.engine.follower import Follower
from sequencer.engine.row_lookup import RowLookup
from sequencer.engine.term import Term
from sequencer.reading.positions import Positions
from sequencer.reading.security_changes import SecurityChanges
from sequencer.reading.subscriptions import Subscriptions
from sequencer.reading.topic_changes import TopicChanges
from sequencer.reading.view import CommitterView
from sequencer.rules import assign
from sequencer.rules.producers import STORE, SequenceCheck
from sequencer.rules.retention_watch import PartitionWatch
from sequencer.rules.share_partition import SharePartition
from sequencer.store.draft import Draft
from sequencer.store.memory import MemoryRowStore
from sequencer.store.recent_rows import RecentRows
from sequencer.store.rows import (
    AbortedRow,
    AclRow,
    Changes,
    CounterRow,
    DelegationTokenRow,
    GroupOffsetRow,
    GroupRow,
    LeaseRow,
    OpenRangeRow,
    ProducerRef,
    ProducerRow,
    Row,
    RunRow,
    ScramRow,
    SessionRow,
    SmallObjectRow,
    WriteRow,
    key_of,
)
from sequencer.store.state import HotState, replace_row
from sequencer.store.sums import SumDeltas
from tailrace.batches.record_batch import crc_of, patch_base_offset_and_epoch, read_header
from tailrace.kafka.error_codes import ErrorCode
from tailrace.turns import Steps, at_once
from tests.simulation.scenario import (
    COMMITTER_RESTARTS,
    DELETES_SLOWLY,
    ONLY_POISON,
    REMEMBERED_FOR_SHORT,
    RETENTION_OFF,
    SLOW_DATABASE,
    TROUBLED,
    Scenario,
    draw,
)
from tests.simulation.world import entropy_of, simulate

MAX_SEEDS = 100
MISTAKE = re.compile(r"^(TypeError|AttributeError|NameError|ImportError):", re.MULTILINE)
WRONG_ARGUMENTS = re.compile(r"^TypeError: [\w.<>]*<locals>\.[\w.<>]+\(\) (takes|missing|got)", re.MULTILINE)
PRODUCT = ("agent", "cache", "compactor", "sequencer", "tailrace")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted bug. `patches`: (owner, attribute, function that makes the replacement from the original)."""

    name: str
    patches: Sequence[tuple[Any, str, Callable[[Any], Any]]]
    needs: dict[str, Any] = field(default_factory=dict)

    def scenario(self, seed: int) -> Scenario:
        """Return the scenario that the seed draws, with what the bug needs."""
        drawn = draw(entropy_of(seed, "scenario"))
        others = tuple(each for each in drawn.misfortunes if each[1] != "the database is lost")
        drawn = replace(drawn, is_only_poisoned=False, loses_database=False, misfortunes=others)
        return replace(drawn, **self.needs)

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for where, attribute, change in self.patches:
                original = getattr(where, attribute)
                changed = change(original)
                for place in (where, *_importers(where, attribute, original)):
                    stack.enter_context(mock.patch.object(place, attribute, changed))
            yield


def _importers(where: Any, name: str, value: Any) -> list[Any]:
    """Return the product's modules that have imported a module's function by name. If the patch names such a module,
    the function is replaced only there."""
    if not isinstance(where, ModuleType) or getattr(value, "__module__", None) != where.__name__:
        return []
    return [
        module
        for path, module in sorted(sys.modules.items())
        if path.partition(".")[0] in PRODUCT and module is not where and module.__dict__.get(name) is value
    ]


@dataclass(frozen=True, slots=True)
class Finding:
    """How a planted bug was found; `seeds` is 0 if it wasn't."""

    mutation: Mutation
    seeds: int
    seconds: float
    what: str = ""


class BrokenPatch(Exception):
    """The patch itself fails, because of a wrong name or argument: finding it would prove nothing."""


def find(mutation: Mutation, max_seeds: int = MAX_SEEDS, first: int = 0) -> Finding:
    """Run seeds until one is violated. Raises BrokenPatch."""
    started = time.process_time()
    with mutation.planted():
        for seed in range(first, first + max_seeds):
            violations = simulate(seed, mutation.scenario(seed)).violations
            if any(map(_is_of_the_patch, violations)):
                raise BrokenPatch(f"{mutation.name}: {violations[0]}")
            if violations:
                seconds = time.process_time() - started
                return Finding(mutation, seed - first + 1, seconds, _short(violations))
    return Finding(mutation, 0, time.process_time() - started)


def _is_of_the_patch(violation: str) -> bool:
    """Return whether a traceback ends in this file, or in a call of a planted function with arguments that it does not
    take."""
    frames = [line for line in violation.splitlines() if line.lstrip().startswith('File "')]
    ends_here = bool(frames) and f'"{__file__}"' in frames[-1]
    return (ends_here and MISTAKE.search(violation) is not None) or WRONG_ARGUMENTS.search(
        violation
    ) is not None


def _short(violations: Sequence[str]) -> str:
    """Return the first violation in one line: for a traceback only the error, without the stacks that follow it."""
    lines = [line for line in violations[0].strip().splitlines() if not line.startswith((" ", "File "))]
    text = lines[-1 if lines[0].startswith("logged") else 0]
    return text if len(text) <= 150 else text[:147] + "..."


# --- replacements for the product's functions


def always(value: Any) -> Callable[[Any], Any]:
    """Replace by a function that always returns the same value."""
    return lambda original: lambda *args, **kwargs: value


def _skips_no_gap(original: Any) -> Any:
    """Lost sequences are never skipped."""
    return lambda *args, may_skip=False: original(*args)


def _forgets_its_producer(original: Any) -> Any:
    """An acknowledged batch no longer has a producer id, and so no sequence."""

    def answer(self: Any, topic_name: str, batch: Any) -> None:
        original(self, topic_name, batch)
        batch.coordinates = structs.replace(
            batch.coordinates, producer_id=-1, producer_epoch=-1, base_sequence=-1
        )

    return answer


def _counts_nothing(original: Any) -> Any:
    """A receipt is closed as if its batch had been stored, whatever its outcome."""
    return lambda self, receipt, result: original(self, receipt, BatchResult())


def _ends_every_lock(original: Any) -> Any:
    """Locks end only in the year 2100, whatever their time is."""
    return lambda self, now_ms: original(self, 1 << 42)


def _of_all_sessions(original: Any) -> Any:
    """A session's end releases what its member holds in any session."""
    return lambda self, member_id, session: original(self, member_id, 0)


def _writes_nothing(original: Any) -> Any:
    async def write(*args: Any) -> bool:
        return True

    return write


def _gives_back(original: Any) -> Any:
    """An accepted record becomes available again."""

    def acknowledged(self: Any, span: Any, kind: Any, lock: Any) -> Any:
        return original(self, span, AcknowledgeType.RELEASE if kind is AcknowledgeType.ACCEPT else kind, lock)

    return acknowledged


def _sets_back_whoever_reads(original: Any) -> Any:
    """A group with members is reset."""

    def alter(draft: Any, request: Any, settings: Any) -> Any:
        group = draft.get(GroupRow, request.group_id)
        draft.put(replace_row(group, members=[]))
        answer = yield from original(draft, request, settings)
        draft.put(replace_row(draft.get(GroupRow, request.group_id), members=group.members))
        return answer

    return alter


def _forgets_no_partition(original: Any) -> Any:
    def alter(draft: Any, request: Any, settings: Any) -> Any:
        kept = [offset for offset in request.offsets if offset.start_offset >= 0]
        return original(draft, msgspec.structs.replace(request, offsets=kept), settings)

    return alter


def _keeps_the_row(original: Any) -> Any:
    """The answer contains changes that the row does not have."""
    return lambda state, row, *rest: row


def _skips_a_record(original: Any) -> Any:
    """The first offset that was read counts as a marker."""

    def span_of(*args: Any, **options: Any) -> Any:
        span = original(*args, **options)
        first = span.first_offset
        return msgspec.structs.replace(span, skipped=span.skipped or [(first, first + 1)])

    return span_of


def does_nothing(original: Any) -> Any:
    return lambda *args, **kwargs: None


def waits_for_nothing(original: Any) -> Any:
    """`does_nothing` in place of a coroutine function."""

    async def do(*args: Any, **kwargs: Any) -> None:
        return None

    return do


def _answers_before_the_commit(original: Any) -> Any:
    async def commit(
        self: Any, session: Any, number: int, description: Any, proposals: Any, deadline: Any, **more: Any
    ) -> Any:
        wanted = [FindPartition(each.topic_id, each.partition, 0, 0) for each in proposals]
        found = await self._sequencer.find_batches(FindRequest(wanted))
        runs = []
        for proposal, partition in zip(proposals, found.partitions, strict=True):
            offset, outcomes = partition.high_watermark, []
            for batch in proposal.batches:
                outcomes.append(BatchOutcome(BatchError.NONE, offset))
                offset += batch.record_count
            runs.append(RunOutcome(outcomes, 0))
        self._spawn(_later(original(self, session, number, description, proposals, None)))
        return CommitAnswer(0, runs)

    return commit


async def _later(work: Any) -> None:
    await work


def _trusts_every_upload(original: Any) -> Any:
    async def upload(self: Any, session: Any, key: str, sealed: Any) -> None:
        await original(self, session, key, sealed)

    return upload


def _deletes_uncounted(original: Any) -> Any:
    def delete_run(self: Any, run: Any) -> None:
        self.delete(RunRow, run.topic_id, run.partition, run.base_offset)

    return delete_run


def _counts_retired_objects_as_live(original: Any) -> Any:
    def move(self: Any, before: Any, after: Any) -> None:
        if after is not None and after.retired_ms is not None:
            after = replace_row(after, retired_ms=None)
        original(self, before, after)

    return move


def _stores_instead(*errors: BatchError) -> Callable[[Any], Any]:
    """Checks that should refuse (or recognize) a batch have it stored."""

    def change(original: Any) -> Any:
        def check_sequence(*args: Any, **named: Any) -> SequenceCheck:
            check: SequenceCheck = original(*args, **named)
            return STORE if check.error in errors else check

        return check_sequence

    return change


def _tells_duplicates_a_wrong_offset(original: Any) -> Any:
    def check_sequence(*args: Any, **named: Any) -> SequenceCheck:
        check: SequenceCheck = original(*args, **named)
        if check.error is BatchError.DUPLICATE:
            return SequenceCheck(BatchError.DUPLICATE, check.base_offset + 1)
        return check

    return check_sequence


def _admits_instead(*errors: BatchError) -> Callable[[Any], Any]:
    def change(original: Any) -> Any:
        def admit(*args: Any, **kwargs: Any) -> BatchError:
            error: BatchError = original(*args, **kwargs)
            return BatchError.NONE if error in errors else error

        return admit

    return change


def _any_session_is_live(original: Any) -> Any:
    def live_session(draft: Any, session_id: UUID) -> Any:
        found = draft.get(SessionRow, session_id)
        return found if found is not None else original(draft, session_id)

    return live_session


def _applies_each_commit_anew(original: Any) -> Any:
    async def decide(self: Any, draft: Any, change: Any, request: Any, turns: Any) -> Any:
        session = draft.get(SessionRow, request.session_id)
        if session is not None and request.number < session.next_number:
            draft.put(replace_row(session, next_number=request.number))
            try:
                session_now = draft.get(SessionRow, request.session_id)
                return at_once(upload_sessions.apply_commit(draft, session_now, request, self._settings))
            finally:
                draft.put(session)
        return await original(self, draft, change, request, turns)

    return decide


def _applies_commits_as_they_come(original: Any) -> Any:
    async def decide(self: Any, draft: Any, change: Any, request: Any, turns: Any) -> Any:
        session = draft.get(SessionRow, request.session_id)
        if session is not None and session.closed_ms is None and request.number > session.next_number:
            early = replace_row(session, next_number=request.number)
            draft.put(early)
            answer = at_once(upload_sessions.apply_commit(draft, early, request, self._settings))
            draft.put(session)
            return answer
        known = upload_sessions.known_answer(draft, request)
        if known is not None and session is not None and request.number == session.next_number:
            draft.put(replace_row(session, next_number=request.number + 1))
        return await original(self, draft, change, request, turns)

    return decide


def _keeps_its_state_after_a_failed_write(original: Any) -> Any:
    async def write(self: Any, draft: Any) -> None:
        await self._store.write(draft.changes, self._term.epoch)

    return write


def _shows_before_it_writes(original: Any) -> Any:
    async def write(self: Any, draft: Any) -> None:
        self._view.state.apply(draft.changes)
        await original(self, draft)

    return write


def _shows_kind_after_kind(original: Any) -> Any:
    async def show(self: Any, draft: Any) -> None:
        for kind, rows in draft.changes.by_kind.items():
            part = Changes()
            part.by_kind[kind] = rows
            draft.durable.apply(part)
            await self._clock.sleep(0.02)
        await original(self, draft)

    return show


def _refuses_transactions(original: Any) -> Any:
    def admit(draft: Any, topic_id: UUID, partition: int, batch: Any, **rest: Any) -> BatchError:
        if batch.is_transactional:
            return BatchError.TRANSACTION_CLOSED
        error: BatchError = original(draft, topic_id, partition, batch, **rest)
        return error

    return admit


def _refuses_now_and_then(error: BatchError) -> Callable[[Any], Any]:
    """Every third check of a batch that should be stored refuses it."""

    def change(original: Any) -> Any:
        stored = 0

        def check_sequence(*args: Any, **named: Any) -> SequenceCheck:
            nonlocal stored
            check: SequenceCheck = original(*args, **named)
            stored += check is STORE
            return SequenceCheck(error) if check is STORE and stored % 3 == 0 else check

        return check_sequence

    return change


def _knows_no_code(original: Any) -> Any:
    """One in ten errors has a code that the table doesn't have."""
    answers = 0

    def produce_code(*args: Any, **kwargs: Any) -> ErrorCode:
        nonlocal answers
        answers += 1
        code: ErrorCode = original(*args, **kwargs)
        return ErrorCode.UNKNOWN_SERVER_ERROR if answers % 10 == 0 else code

    return produce_code


def _takes_leases_away(original: Any) -> Any:
    """Every tenth renewal finds another incarnation."""
    renewals = 0

    def check_incarnation(self: Any, incarnation: int) -> None:
        nonlocal renewals
        renewals += 1
        if renewals % 10 == 0:
            raise IncarnationChanged("as planted")
        original(self, incarnation)

    return check_incarnation


def _takes_any_epoch(original: Any) -> Any:
    async def write(self: Any, changes: Any, committer_epoch: int) -> None:
        await original(self, changes, self._epoch)

    return write


def _looks_none_up(kind: type[Row]) -> Callable[[Any], Any]:
    def plant(original: Any) -> Any:
        async def look_up(self: Any, asked: type[Row], keys: Any) -> list[Row]:
            return [] if asked is kind else await original(self, asked, keys)

        return look_up

    return plant


def _keeps_what_it_looked_up(kind: type[Row]) -> Callable[[Any], Any]:
    def plant(original: Any) -> Any:
        kept: dict[tuple[int, Any], Any] = {}

        async def look_up(self: Any, asked: type[Row], keys: Any) -> list[Row]:
            rows: list[Row] = await original(self, asked, keys)
            if asked is not kind:
                return rows
            found = {key_of(row): row for row in rows}
            kept_rows = [kept.setdefault((id(self), key), found.get(key)) for key in keys]
            return [row for row in kept_rows if row is not None]

        return look_up

    return plant


def _follows_none_twice(kind: type[Row]) -> Callable[[Any], Any]:
    def plant(original: Any) -> Any:
        def apply(self: Any, shown: Any, changes: Any) -> None:
            rows = changes.by_kind.get(kind, {})
            for key in [key for key in rows if key in shown.state.recent[kind]]:
                del rows[key]
            original(self, shown, changes)

        return apply

    return plant


def _keeps_what_is_read_over(original: Any) -> Any:
    def take(self: Any, data: memoryview, start: int, end: int, *, is_kept: bool) -> Any:
        return original(self, data, start, end, is_kept=True)

    return take


def _drops_the_newest_rows(kind: type[Row]) -> Callable[[Any], Any]:
    def plant(original: Any) -> Any:
        def apply(self: Any, rows: Any) -> None:
            was = {key: self.get(key) for key in rows}
            original(self, rows)
            if self._kind is kind and len(self) >= 2:
                self._rows.update({key: row for key, row in was.items() if row is not None})

        return apply

    return plant


def _knows_only_recent_positions(original: Any) -> Any:
    async def look_up(self: Any, state: Any, group_id: str, keys: Any) -> list[Any]:
        recent = state.recent[GroupOffsetRow]
        return [recent.get(key) for key in keys if key in recent]

    return look_up


def _counts_no_position(original: Any) -> Any:
    def put_position(draft: Any, group: Any, *rest: Any) -> Any:
        original(draft, group, *rest)
        return group

    return put_position


def _counts_no_deletion(original: Any) -> Any:
    def delete_positions(draft: Any, keys: Any) -> Steps[int]:
        named = list(keys)
        groups_before = [draft.get(GroupRow, group_id) for group_id in dict.fromkeys(key[0] for key in named)]
        count: int = yield from original(draft, named)
        for group in groups_before:
            if group is not None:
                draft.put(group)
        return count

    return delete_positions


def _hands_over_what_it_has(original: Any) -> Any:
    async def hand_over(self: Any) -> Any:
        with mock.patch.object(self, "catch_up", always_nothing):
            return await original(self)

    return hand_over


async def always_nothing() -> None:
    """Do nothing, in place of a function that must be awaited."""


def _takes_a_failed_read_for_an_empty_one(original: Any) -> Any:
    async def look_up(self: Any, asked: type[Row], keys: Any) -> list[Row]:
        try:
            found: list[Row] = await original(self, asked, keys)
        except SequencerUnavailable:
            return []
        return found

    return look_up


def _takes_each_renewal_for_made(original: Any) -> Any:
    async def renew(self: Any) -> None:
        asked_at = self._clock.monotonic()
        try:
            await original(self)
        except SequencerUnavailable:
            self._valid_until = max(self._valid_until, asked_at + self._lease_ms / 1000)

    return renew


def _answers_as_of_now_and_then(original: Any) -> Any:
    async def answer(self: Any, method: Any, request: Any, seen: int) -> Any:
        with mock.patch.object(self, "_catch_up_in_time", always_nothing):
            return await original(self, method, request, min(seen, self.number))

    return answer


def _skips_every_seventh_transaction(original: Any) -> Any:
    def changes_of(row: Any, state: Any) -> Any:
        changes = yield from original(row, state)
        if row.number % 7 == 0:
            for kind in [kind for kind in changes.by_kind if kind is not CounterRow]:
                del changes.by_kind[kind]
        return changes

    return changes_of


def _sweeps_open_sessions(original: Any) -> Any:
    async def find_garbage(state: Any, store: Any, limit: int, settings: Any) -> Any:
        found = await original(state, store, limit, settings)
        opened = [
            DeadSession(row.session_id, row.prefix, 0)
            for row in state.all(SessionRow)
            if row.closed_ms is None
        ]
        return msgspec.structs.replace(found, sessions=[*found.sessions, *opened])

    return find_garbage


def _sweep_ends_quietly(original: Any) -> Any:
    def session_swept(draft: Any, request: Any, settings: Any) -> Any:
        row = draft.get(SessionRow, request.session_id)
        if row is not None and row.closed_ms is None:
            return Empty()
        return original(draft, request, settings)

    return session_swept


def _puts_at_any_time(original: Any) -> Any:
    def put(key: str, data: Any, store: Any, *, until_ms: int, clock: Any) -> Any:
        return original(key, data, store, until_ms=1 << 62, clock=clock)

    return put


def _collects_what_is_used(original: Any) -> Any:
    """Garbage is collected by age: anything older than a second."""

    async def collect(sequencer: Any, store: Any, clock: Any, **more: Any) -> Any:
        await sequencer.garbage(GarbageRequest(1))
        old = [info.key async for info in store.list("") if info.modified_ms < clock.wall_ms() - 1_000]
        await store.delete([key for key in old if "/mixed/" in key])
        return await original(sequencer, store, clock, **more)

    return collect


def _loses_a_run(original: Any) -> Any:
    def follow(window: Window, change: PartitionChange) -> Window:
        after: Window = original(window, change)
        return replace(after, runs=after.runs[:1] + after.runs[2:]) if len(after.runs) > 2 else after

    return follow


def _misses_swaps(original: Any) -> Any:
    def follow(window: Window, change: PartitionChange) -> Window:
        after: Window = original(window, msgspec.structs.replace(change, replaced_below=-1))
        return after

    return follow


def _mixes_offsets_up(original: Any) -> Any:
    """A session continues with all its partitions from the offset of the one that is farthest."""

    def begin(self: Any, *args: Any, **rest: Any) -> Any:
        context = yield from original(self, *args, **rest)
        if isinstance(context, FetchContext) and context.is_incremental:
            furthest = max((each.fetch_offset for each in context.partitions), default=0)
            for each in context.partitions:
                each.fetch_offset = furthest
        return context

    return begin


def _forgets_what_it_told(original: Any) -> Any:
    def usable(self: Any, watched: Any, now: float) -> Window | None:
        watched.last_sent = -1
        window: Window | None = original(self, watched, now)
        return window

    return usable


def _uses_old_windows(original: Any) -> Any:
    def usable(self: Any, watched: Any, now: float) -> Window | None:
        window: Window | None = original(self, watched, 0.0)
        return window

    return usable


def _tells_the_number_first(original: Any) -> Any:
    def publish(self: Subscriptions, number: int, *changed: Any) -> Steps[None]:
        for step in original(self, number, *changed):
            self._number = number
            yield step

    return publish


def _tells_of_no_deletion(original: Any) -> Any:
    def gone(self: Any, partition: Any) -> PartitionChange:
        change: PartitionChange = original(self, partition)
        return msgspec.structs.replace(change, topic_id=UUID(int=1))

    return gone


def _passes_over_a_run(original: Any) -> Any:
    async def first_run_reaching(self: Any, **query: Any) -> Any:
        found = await original(self, **query)
        if found.run is None:
            return found
        return await original(self, **{**query, "from_offset": found.run.end_offset})

    return first_run_reaching


def _begins_at_zero(original: Any) -> Any:
    async def offset_by_time(self: Any, query: Any, work: Any) -> Any:
        return msgspec.structs.replace(await original(self, query, work), log_start_offset=0)

    return offset_by_time


def _takes_the_first_run(original: Any) -> Any:
    async def run_of_max_timestamp(self: Any, *query: Any, end_offset: int) -> Any:
        return await self.first_run_reaching(*query[:2], 0, *query[2:])

    return run_of_max_timestamp


def _finds_the_first_record(original: Any) -> Any:
    return lambda self, run, timestamp, from_offset: original(self, run, 0, from_offset)


def _expires_one_run_more(original: Any) -> Any:
    def expired_end(runs: Any, total_bytes: int, limits: Any, now_ms: int) -> int | None:
        end: int | None = original(runs, total_bytes, limits, now_ms)
        later = [run.end_offset for run in runs if end is not None and run.end_offset > end]
        return min(later, default=end)

    return expired_end


def _ends_at_the_start(original: Any) -> Any:
    return lambda row, epoch: (epoch, row.log_start_offset)


def _looks_once(original: Any) -> Any:
    return lambda self, row, end, due_ms, now_ms: original(self, row, end, None, now_ms)


def _forgets_none(original: Any) -> Any:
    async def forget(*args: Any) -> int:
        return 0

    return forget


def _keeps_for_half_the_time(original: Any) -> Any:
    return lambda settings: replace(original(settings), ms=original(settings).ms // 2)


def _forgets_without_a_second_look(original: Any) -> Any:
    def forget(draft: Draft, kind: Any, keys: Any, lifetime: Any) -> int:
        known = [key for key in keys if draft.get(kind, *key) is not None]
        for key in known:
            draft.delete(kind, *key)
        return len(known)

    return forget


def _reads_all_groups(original: Any) -> Any:
    def due_ms(state: Any, row: Any, now_ms: int, *rest: Any, **named: Any) -> Any:
        is_read = row.positions and not row.members
        return now_ms if is_read else original(state, row, now_ms, *rest, **named)

    return due_ms


def _counts_from_the_commit(original: Any) -> Any:
    return lambda row, offset, settings: offset.commit_ms + settings.offsets_retention_ms


def _keeps_positions_of_the_deleted(original: Any) -> Any:
    def delete_group(draft: Draft, request: Any) -> Steps[Empty]:
        keys = draft.positions_of[request.group_id]
        kept = [row for key in keys if (row := draft.get(GroupOffsetRow, *key)) is not None]
        answer = yield from original(draft, request)
        for row in kept:
            draft.put(row)
        return answer

    return delete_group


def _deletes_whatever_lives(original: Any) -> Any:
    def delete_group(draft: Draft, request: Any) -> Steps[Empty]:
        row = draft.get(GroupRow, request.group_id)
        if row is not None:
            draft.put(replace_row(row, members=[]))
        return (yield from original(draft, request))

    return delete_group


def _deletes_pages_of_whatever_lives(original: Any) -> Any:
    def delete_some(draft: Draft, request: Any, keys: Any) -> Steps[bool]:
        yield from positions.delete_positions(draft, keys)
        draft.visible_change()
        return True

    return delete_some


def _asks_no_member(original: Any) -> Any:
    async def delete(self: Any, group_id: str) -> None:
        await self._sequencer.delete_group(GroupRef(group_id))

    return delete


def _ends_without_aborted_ranges(original: Any) -> Any:
    def end_range(draft: Any, opened: Any, producer_epoch: int, is_commit: bool) -> None:
        original(draft, opened, producer_epoch, is_commit)
        if not is_commit:
            key = (opened.topic_id, opened.partition, opened.producer_id, opened.first_offset)
            draft.delete(AbortedRow, *key)

    return end_range


def _commits_what_is_aborted(original: Any) -> Any:
    def end_range(draft: Any, opened: Any, producer_epoch: int, is_commit: bool) -> None:
        original(draft, opened, producer_epoch, True)

    return end_range


def _ends_one_partition_only(original: Any) -> Any:
    def finish(draft: Any, row: Any, *, is_commit: bool) -> Any:
        kept = replace_row(row, partitions=row.partitions[:1])
        for topic_id, number in row.partitions[1:]:
            draft.delete(OpenRangeRow, topic_id, number, row.producer_id)
        return original(draft, kept, is_commit=is_commit)

    return finish


def _times_out_without_a_new_epoch(original: Any) -> Any:
    def abort_and_fence(draft: Any, row: Any) -> Steps[None]:
        finished = yield from transactions._finish(draft, row, is_commit=False)
        draft.put(replace_row(finished, updated_ms=draft.now_ms))

    return abort_and_fence


def _commits_what_timed_out(original: Any) -> Any:
    def answer_before(row: Any, request: Any) -> Any:
        named = ProducerRef(request.transaction.producer_id, request.transaction.producer_epoch)
        end = row.last_end
        is_of_time_out = end is not None and named == end.producer and named != row.producer
        if is_of_time_out and request.is_commit and not end.is_commit:
            return ProducerGrant(*end.granted)
        return original(row, request)

    return answer_before


def _takes_over_without_a_new_epoch(original: Any) -> Any:
    def init_producer(draft: Any, request: Any, settings: Any) -> Any:
        with mock.patch.object(transactions, "_bumped", lambda draft, row: row):
            return at_once(original(draft, request, settings))

    return init_producer


def _remembers_ends_too_long(original: Any) -> Any:
    def answer_before(row: Any, request: Any) -> Any:
        named = request.transaction
        producer, end = ProducerRef(named.producer_id, named.producer_epoch), row.last_end
        is_last = end is not None and producer == end.producer and end.is_commit == request.is_commit
        if is_last and producer != row.producer:
            return ProducerGrant(*end.granted)
        return original(row, request)

    return answer_before


def _shows_pending_positions(original: Any) -> Any:
    """Pending positions are stored, and counted, so that only a reader of the position notices."""

    def put_pending(draft: Any, request: Any, pending: Any) -> None:
        group = draft.get(GroupRow, request.group_id)
        if group is None:
            original(draft, request, pending)
            return
        fields = {name: getattr(pending, name) for name in GroupOffsetRow.__struct_fields__}
        before = draft.get(GroupOffsetRow, pending.group_id, pending.topic_id, pending.partition)
        draft.put(positions.put_position(draft, group, GroupOffsetRow(**fields), before))

    return put_pending


def _drops_positions_at_the_end(original: Any) -> Any:
    def end_offsets(draft: Any, group_id: str, producer_id: int, is_commit: bool) -> Any:
        return original(draft, group_id, producer_id, False)

    return end_offsets


def _tells_of_nothing_pending(original: Any) -> Any:
    return lambda *args, **named: original(*args, **{**named, "has_pending": False})


def _any_generation_commits(original: Any) -> Any:
    def check_committer(draft: Any, request: Any, settings: Any) -> Any:
        row = draft.get(GroupRow, request.group_id)
        return row if row is not None else original(draft, request, settings)

    return check_committer


def _all_generations_are_fine(original: Any) -> Any:
    def heartbeat(self: Any, now: float, *rest: Any) -> ErrorCode:
        original(self, now, *rest)
        return ErrorCode.NONE

    return heartbeat


def _keeps_no_generations(original: Any) -> Any:
    def restored(state: Any, **rest: Any) -> Any:
        return original(msgspec.structs.replace(state, generation=0, members=[], blob=b""), **rest)

    return restored


def _nothing_reads_the_same(original: Any) -> Any:
    def reads_the_same(protocol_type: Any, before: bytes, now: bytes) -> Steps[bool]:
        yield 1
        return False

    return reads_the_same


def _all_is_free(original: Any) -> Any:
    def free_for(self: Any, member: Any) -> Steps[Any]:
        yield 1
        return {
            topic_id: of_topic - member.assigned.get(topic_id, frozenset())
            for topic_id, of_topic in member.target.items()
        }

    return free_for


def _nothing_is_free(original: Any) -> Any:
    def free_for(self: Any, member: Any) -> Steps[Any]:
        yield 1
        return {}

    return free_for


def _believes_that_nothing_is_owned(original: Any) -> Any:
    def advance(self: Any, now: float, member: Any, owned: Any) -> Any:
        return original(self, now, member, None if owned is None else {})

    return advance


def _keeps_no_partitions(original: Any) -> Any:
    def restored(*args: Any, **rest: Any) -> Steps[Any]:
        group = yield from original(*args, **rest)
        for member in group.members.values():
            yield from group.restart(member)
        group._holders.clear()
        return group

    return restored


def _steps_over_a_run(original: Any) -> Any:
    async def read(self: Any, runs: Any, *args: Any, **kwargs: Any) -> Any:
        kept = [run for index, run in enumerate(runs) if index != 1 or len(runs) < 4]
        return await original(self, kept, *args, **kwargs)

    return read


def _moves_log_start_anywhere(original: Any) -> Any:
    def move(draft: Any, row: Any, offset: int) -> int:
        draft.put(replace_row(row, log_start_offset=offset))
        draft.publish(row.topic_id, row.partition)
        draft.visible_change()
        return offset

    return move


def _deletes_one_too_many(original: Any) -> Any:
    def move(draft: Any, row: Any, offset: int) -> int:
        moved: int = original(draft, row, min(offset + 1, row.end_offset))
        return moved

    return move


def _gives_names_their_ids_again(original: Any) -> Any:
    def create(draft: Any, request: Any, **rest: Any) -> Any:
        named = UUID(bytes=request.name.encode().ljust(16, b".")[:16])
        return original(draft, request, **{**rest, "topic_id": named})

    return create


def _finds_no_deleted_topics(original: Any) -> Any:
    async def found(state: Any) -> Any:
        return {}

    return found


def _patches_what_is_not_sound(original: Any) -> Any:
    def patch(memory: Any, start: int, lengths: Any, base_offsets: Any, leader_epoch: int) -> bool:
        for length, base_offset in zip(lengths, base_offsets, strict=True):
            patch_base_offset_and_epoch(memory[start : start + length], base_offset, leader_epoch)
            start += length
        return True

    return patch


def _checks_the_crc_alone(original: Any) -> Any:
    def check(batch: Any) -> None:
        if crc_of(batch) != int.from_bytes(batch[17:21], "big"):
            original(batch)

    return check


def _leaves_a_run_out(original: Any) -> Any:
    def read_step(self: Any, runs: Any, request: Any, out: Any) -> Any:
        return original(self, runs[1:] if out.batch_count and len(runs) > 1 else runs, request, out)

    return read_step


def _serves_repeated_batches(original: Any) -> Any:
    def lay_out(self: Any, run: Any, *args: Any) -> None:
        batches = []
        for batch in run.batches:
            if batch.status is BatchStatus.DUPLICATE:
                batch = msgspec.structs.replace(
                    batch, status=BatchStatus.STORED, base_offset=run.end_offset, record_count=1
                )
            batches.append(batch)
        original(self, msgspec.structs.replace(run, batches=batches), *args)

    return lay_out


def _keys_by_object(original: Any) -> Any:
    return lambda run: (run.key, 0, 0)


def _sends_whole_runs_without_a_limit(original: Any) -> Any:
    """Runs that are kept whole are sent past the last stable offset."""

    def add(self: Any, runs: Any, request: Any, out: Any) -> Any:
        return original(self, runs, msgspec.structs.replace(request, end_limit=None), out)

    return add


def _wants_joined_runs_without_a_limit(original: Any) -> Any:
    """A joined run is sent past the last stable offset."""

    def is_wanted(self: Any, runs: Any, first: Any, **asked: Any) -> Any:
        return original(self, runs, first, **{**asked, "end_limit": 1 << 62})

    return is_wanted


def _joins_in_another_order(original: Any) -> Any:
    """The last of the joined runs comes first."""

    def join_ready(self: Any, runs: Any, parts: Any, leader_epoch: Any) -> None:
        original(self, runs, [*parts[-1:], *parts[:-1]], leader_epoch)

    return join_ready


def _goes_on_writing_to_it(original: Any) -> Any:
    """A chunk that is sent to a peer stays writable memory."""
    return lambda self: self.views(0, self.size)


def _answers_out_of_shared_memory(original: Any) -> Any:
    """All answers are made in the same memory, although parts of it still wait to be sent."""
    shared = memoryview(bytearray(1 << 20))

    def take_reply(self: Any, reply: Any, charge: Any) -> None:
        if reply.parts:
            data = b"".join(reply.parts)
            shared[: len(data)] = data
            reply.parts = [shared[: len(data)]]
        original(self, reply, charge)

    return take_reply


def _keeps_another_chunk(original: Any) -> Any:
    """A chunk that was read ahead is stored in the place of another object's chunk: its batches are valid, but not that
    chunk's own."""

    def keep(self: Any, chunk: Any, data: Any, is_catch_up: bool) -> None:
        before = vars(self).get("before", data) if chunk in self._prefetched else data
        if chunk in self._prefetched:
            self.__dict__["before"] = data
        original(self, chunk, before if before.size >= data.size else data, is_catch_up)

    return keep


def _takes_batches_as_they_come(original: Any) -> Any:
    """Requests enter the buffer at random times, not in the order in which they were read."""

    def submit(self: Any, batches: Any) -> None:
        loop = asyncio.get_running_loop()
        lane = self._lanes[0]
        loop.call_later(0.02 * lane._entropy.fraction(), lambda: original(self, batches))

    return submit


def _keeps_less(original: Any) -> Any:
    def keep(piece: Any, data: Any) -> Any:
        kept = original(piece, data)
        if len(kept.batches) < 2:
            return kept
        left_out = read_header(kept.batches[1].data).record_count
        return kept._replace(
            batches=kept.batches[:1] + kept.batches[2:], record_count=kept.record_count - left_out
        )

    return keep


def _keeps_everything(original: Any) -> Any:
    def keep(piece: Any, data: Any) -> Any:
        return original(msgspec.structs.replace(piece, aborted=[]), data)

    return keep


def _drops_last_values(original: Any) -> Any:
    def kept(rows: Any, of: Any, head: int) -> Any:
        return original(rows, of, head) & ((rows.newest != rows.offsets) | (rows.offsets >= head))

    return kept


def _finds_no_key(original: Any) -> Any:
    def may_hold(blocks: Any, hashes: Any) -> Any:
        return original(blocks, hashes) & False

    return may_hold


def _drops_neighbours(original: Any) -> Any:
    async def filtered(*arguments: Any) -> Any:
        left = await original(*arguments)
        if left.erased and left.packed:
            left.records -= sum(batch.header.record_count for batch in left.packed.pop())
        return left

    return filtered


def _drops_tombstones_at_once(original: Any) -> Any:
    def kept(rows: Any, of: Any, head: int) -> Any:
        return original(rows, of, head) & (~rows.is_tombstone | (rows.offsets >= head))

    return kept


class _Unstable:
    """A state in which nothing waits for open transactions."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return _Unstable(found) if name == "durable" else found

    def last_stable_offset(self, row: Any) -> int:
        return int(row.end_offset)


def _waits_for_no_transaction(original: Any) -> Any:
    async def with_unstable(given: Any, *rest: Any, **named: Any) -> Any:
        return await original(_Unstable(given), *rest, **named)

    return with_unstable


def _fails_the_whole_group(original: Any) -> Any:
    """A failure in a group of requests fails the whole group, and nobody knows what is stored."""

    def parts_of(self: Any, group: Any, outcomes: Any, error: Any) -> Any:
        self._view.is_stale = True
        for request in [outcome.request for outcome in outcomes] or group:
            group_commit_module._fail(request, SequencerUnavailable(str(error)))
        return []

    return parts_of


def _moves_log_starts_as_planned(original: Any) -> Any:
    """Log starts move as planned, whatever the limits are by now."""

    def move(draft: Any, planned: Any, settings: Any) -> int:
        moved = 0
        for due in planned:
            row = draft.live_partition(due.topic_id, due.partition)
            if row is not None and due.offset > row.log_start_offset:
                topics.move_log_start(draft, row, due.offset)
                moved += 1
        return moved

    return move


def _keys_by_place(original: Any) -> Any:
    """Keys are looked up by offset, whatever the topic."""
    return lambda run: ("", run.partition, run.base_offset)


def _forgets_reservations(original: Any) -> Any:
    def reserved_ends(found: Any) -> Any:
        for number, head in found.heads.items():
            found.heads[number] = msgspec.structs.replace(head, reservation=0)
        return original(found)

    return reserved_ends


def _lets_its_tasks_end(original: Any) -> Any:
    """An unforeseen error in a keeper's turn ends the keeper."""

    @contextmanager
    def log_and_continue(
        log: Any, event: str, *expected_errors: type[Exception], **details: object
    ) -> Iterator[None]:
        with suppress(*expected_errors):
            yield

    return log_and_continue


def _begins_full_answers_late(original: Any) -> Any:
    """An answer that can't hold everything leaves out its first run."""

    def take(self: Any, found: Any, max_bytes: int, *aborted: Any) -> Any:
        taken = original(self, found, max_bytes, *aborted)
        return taken[1:] if 1 < len(taken) < len(found.runs) else taken

    return take


def _swaps_whatever_stands(original: Any) -> Any:
    """A swap replaces whichever runs are there."""

    async def still_there(draft: Any, store: Any, replacement: Any, page: Any) -> Any:
        found = await store.runs_from(
            replacement.topic_id, replacement.partition, replacement.base_offset, 1 << 62, 1_000
        )
        return [run for run in found if run.base_offset < replacement.end_offset]

    return still_there


def _merges_less(original: Any) -> Any:
    """A merge silently omits the last run of each partition that has several."""

    def keep_all(item: Any, data: Any) -> Any:
        pieces = [msgspec.structs.replace(piece, runs=piece.runs[:-1] or piece.runs) for piece in item.pieces]
        return original(msgspec.structs.replace(item, pieces=pieces), data)

    return keep_all


def _leaves_merged_runs(original: Any) -> Any:
    """A merge deletes only the first of the runs that it replaces."""

    async def release(draft: Any, store: Any, runs: Any) -> Any:
        is_merge = all(run.kind is ObjectKind.PARQUET for run in runs)
        return await original(draft, store, runs[:1] if is_merge else runs)

    return release


def _keeps_small_rows(original: Any) -> Any:
    """The row that says that an object is small outlives the object."""

    def remove_runs(self: Any, runs: Any) -> Any:
        rows = [self.get(SmallObjectRow, run.topic_id, run.object_id) for run in runs]
        retired = yield from original(self, runs)
        for row in filter(None, rows):
            self.put(row)
        return retired

    return remove_runs


def _keeps_leases_of_the_dead(original: Any) -> Any:
    """A lease that nobody released is never free again."""

    def take_lease(draft: Any, request: Any) -> Any:
        row = draft.get(LeaseRow, request.name)
        is_given_back = request.lease_ms == 1
        if row is not None and not request.epoch and row.expires_ms > 0:
            raise LeaseLost("as planted")
        answer = original(draft, request)
        if is_given_back:
            draft.put(replace_row(draft.get(LeaseRow, request.name), expires_ms=0))
        return answer

    return take_lease


def _outlives_its_database(original: Any) -> Any:
    async def run_once(self: Any) -> Any:
        with suppress(IncarnationChanged):
            return await original(self)
        return self.last

    return run_once


def _gives_the_lease_to_all(original: Any) -> Any:
    def take_lease(draft: Any, request: Any) -> Any:
        lease = LeaseRow(name=request.name, holder="", epoch=1, expires_ms=draft.now_ms + request.lease_ms)
        draft.put(lease)
        return NamedLease(request.name, request.holder, 1, request.lease_ms)

    return take_lease


def _locates_by_the_ring(original: Any) -> Any:
    """A group's coordinator is looked up where its row would be placed now, whoever owns it."""

    def locate_group(state: Any, request: Any, *rest: Any) -> Any:
        return original(state, msgspec.structs.replace(request, group_id=""), *rest)

    return locate_group


def _takes_instances_for_members(original: Any) -> Any:
    """Any client that names a known instance counts as its member."""

    def heartbeat(
        self: Any, now: float, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        holder = None if instance_id is None else self.static_member(instance_id)
        code: ErrorCode = original(
            self, now, holder.member_id if holder else member_id, instance_id, generation
        )
        return code

    return heartbeat


def _knows_of_no_change(original: Any) -> Any:
    async def has_moved_on(self: Any, seen: Any) -> bool:
        return False

    return has_moved_on


def _makes_all_anew(original: Any) -> Any:
    """Growth begins at the first partition, not at the first new one."""

    def create_partitions(draft: Any, request: Any, *rest: Any) -> Any:
        grown = yield from original(draft, request, *rest)
        yield from topics._add_partitions(draft, request.topic_id, range(request.partitions))
        return grown

    return create_partitions


def _gives_groups_away(original: Any) -> Any:
    """A group is given to an agent although its owner is alive."""

    def load_group(draft: Any, request: Any) -> Any:
        with mock.patch.object(groups, "placeable_agent", lambda *_: None):
            return original(draft, request)

    return load_group


def _begins_no_term(original: Any) -> Any:
    def load_group(draft: Draft, request: Any) -> Any:
        state = original(draft, request)
        row = draft.get(GroupRow, request.group_id)
        if row is None:
            return state
        draft.put(replace_row(row, term=row.term - 1))
        return structs.replace(state, term=state.term - 1)

    return load_group


def _saves_whoever_asks(original: Any) -> Any:
    """A group's state is accepted from an agent that is not its owner."""

    def save_group(draft: Any, request: Any, settings: Any) -> Any:
        with mock.patch.object(groups, "_owned_group", lambda draft, name, *rest: draft.get(GroupRow, name)):
            return original(draft, request, settings)

    return save_group


def _takes_it_for_granted(original: Any) -> Any:
    async def confirm(*args: Any) -> None:
        return None

    return confirm


def _decides_each_time(original: Any) -> Any:
    return lambda draft, request_id, answer, decide: decide(draft)


def _aborts_nothing(original: Any) -> Any:
    return lambda draft, request: AbortedProducer([PartitionError.NONE] * len(request.partitions))


def _aborts_by(end: Callable[[Draft, Any, Any], Steps[None]]) -> Callable[[Any], Any]:
    """An operator's abort ends the open transaction in a partition in another way."""

    def plant(original: Any) -> Any:
        def abort_producer(draft: Draft, request: Any) -> Steps[AbortedProducer]:
            row = transactions.transaction_of(draft, request.producer_id)
            for place in request.partitions:
                opened = draft.get(OpenRangeRow, *place, request.producer_id)
                if opened is not None and row is not None:
                    yield from end(draft, row, opened)
            return AbortedProducer([PartitionError.NONE] * len(request.partitions))

        return abort_producer

    return plant


def _in_one_partition(draft: Draft, row: Any, opened: Any) -> Steps[None]:
    transactions._end_range(draft, opened, row.producer_epoch, is_commit=False)
    yield 1


def _without_a_fence(draft: Draft, row: Any, opened: Any) -> Steps[None]:
    draft.put((yield from transactions._finish(draft, row, is_commit=False)))


def _whatever_its_epoch(draft: Draft, row: Any, opened: Any) -> Steps[None]:
    yield from transactions._abort_and_fence(draft, row)


def _deletes_no_position(original: Any) -> Any:
    return lambda draft, request: OffsetErrors(0, [PartitionError.NONE] * len(request.partitions))


def _deletes_every_position(original: Any) -> Any:
    def delete_offsets(draft: Draft, request: Any) -> Steps[OffsetErrors]:
        everywhere = [(topic_id, number) for topic_id, _ in request.partitions for number in range(2)]
        yield from original(draft, msgspec.structs.replace(request, partitions=everywhere))
        answer: OffsetErrors = yield from original(draft, request)
        return answer

    return delete_offsets


def _follows_no_deletion(kind: type[Row]) -> Callable[[Any], Any]:
    def plant(original: Any) -> Any:
        def apply(self: Any, shown: Any, changes: Any) -> None:
            rows = changes.by_kind.get(kind, {})
            for key in [key for key, row in rows.items() if row is None]:
                del rows[key]
            original(self, shown, changes)

        return apply

    return plant


def _sends_no_deletions(original: Any) -> Any:
    def since(self: Any, known: int, version: int) -> Any:
        return msgspec.structs.replace(original(self, known, version), deleted=SecurityDeletions([], []))

    return since


def _takes_no_right_away(original: Any) -> Any:
    return lambda draft, request: DeletedAcls([[] for _ in request.filters])


def _deletes_no_user(original: Any) -> Any:
    def alter_scram(draft: Draft, request: Any, settings: Any) -> Any:
        return original(draft, msgspec.structs.replace(request, deletes=[]), settings)

    return alter_scram


def _keeps_the_first(kind: type[Row]) -> Callable[[Any], Any]:
    """A follower takes a row when it is new, and not when it changes."""

    def plant(original: Any) -> Any:
        def apply(self: Any, shown: Any, changes: Any) -> None:
            rows = changes.by_kind.get(kind, {})
            for key in [
                key
                for key, row in rows.items()
                if row is not None and shown.state.get(kind, *key) is not None
            ]:
                del rows[key]
            original(self, shown, changes)

        return apply

    return plant


def _never_expire(original: Any) -> Any:
    return lambda state, request, now_ms: original(state, request, 0)


def _renewed_without_end(original: Any) -> Any:
    def alter_token(draft: Draft, request: Any) -> Any:
        row = draft.get(DelegationTokenRow, request.fingerprint)
        if row is not None:
            draft.put(replace_row(row, max_ms=row.max_ms + 60_000))
        return original(draft, request)

    return alter_token


def _renews_nothing(original: Any) -> Any:
    def alter_token(draft: Draft, request: Any) -> Any:
        before = draft.get(DelegationTokenRow, request.fingerprint)
        answer = original(draft, request)
        if before is not None and request.period_ms > 0:
            draft.put(before)
        return answer

    return alter_token


def _deletes_nothing_pending(original: Any) -> Any:
    def delete_offsets(draft: Draft, request: Any) -> Steps[OffsetErrors]:
        rows = draft.pending_at(
            request.group_id, {(request.group_id, *place) for place in request.partitions}
        )
        answer: OffsetErrors = yield from original(draft, request)
        for row in rows:
            draft.put(row)
        return answer

    return delete_offsets


def _forgets_the_last_epoch(original: Any) -> Any:
    """Each write is treated as the first of its job."""

    async def commit_write(draft: Draft, *rest: Any) -> Any:
        for row in list(draft.all(WriteRow)):
            draft.delete(WriteRow, row.write_id)
        return await original(draft, *rest)

    return commit_write


def _loses_pending_commits(original: Any) -> Any:
    """An agent reports success to its producers when the session has ended."""

    async def commit(
        self: Any, session: Any, number: int, description: Any, proposals: Any, *rest: Any, **more: Any
    ) -> Any:
        answer = await original(self, session, number, description, proposals, *rest, **more)
        if answer is None and proposals:
            outcomes = [
                RunOutcome([BatchOutcome(BatchError.NONE, 0) for _ in each.batches], 0) for each in proposals
            ]
            return CommitAnswer(0, outcomes)
        return answer

    return commit


def _keeps_putting(original: Any) -> Any:
    return lambda self, grant, asked_at: asked_at + 1e9


def at(*misfortunes: str) -> tuple[tuple[float, str], ...]:
    """Return misfortunes, one after the other."""
    return tuple((0.8 + 0.6 * number, kind) for number, kind in enumerate(misfortunes))


FAILING_WRITES = {"failing_writes": 0.15, "agents": 3, "idempotent_producers": 2, "plain_producers": 2}
FAILS_OVER = {
    "sequencers": 3,
    "idempotent_producers": 2,
    "plain_producers": 2,
    "misfortunes": at(*3 * ["the committer crashes"]),
}
FALLS_BEHIND = {
    **FAILS_OVER,
    "follow_pause_s": 1.0,
    "trouble_s": 7.0,
    "batches": 12,
    "misfortunes": tuple((1.5 + number, COMMITTER_RESTARTS) for number in range(5)),
}
"""The committer ends in the middle of its work, and the next begins before any query makes the follower catch up."""
NO_TROUBLE = {
    name: value for name, value in ONLY_POISON.items() if name not in ("poisoners", "is_only_poisoned")
}
COMPACTS = {"compactors": 1}
MERGES = {"compactors": 1, "merges": True, "idempotent_producers": 2, "batches": 8}
KEYED = {"compactors": 1, "is_keyed": True, "partitions": 1}
ERASES = {**KEYED, "erases": True}
NO_OTHER_TRANSACTIONS = {
    "transactional_producers": 0,
    "processors": 0,
    "group_processors": 0,
    "idempotent_producers": 1,
}
TRANSACTIONS = {"transactional_producers": 2}
PROCESSES = {"processors": 1, "transactional_producers": 1, "partitions": 2}
GROUP_PROCESSES = {
    "processors": 0,
    "group_processors": 3,
    "transactional_producers": 1,
    "idempotent_producers": 2,
    "partitions": 3,
    "misfortunes": at("an agent is cut off", "a client stops for a while", "an agent stops for a while"),
}
ON_RECEIPT = {"receipt_producers": 2, "agents": 3, "batches": 10}
SHARES = {"share_members": 3, "idempotent_producers": 2, "batches": 10, "partitions": 1}
HOLES = {
    **SHARES,
    "transactional_producers": 2,
    "compactors": 2,
    "idempotent_producers": 0,
    "plain_producers": 0,
}
ABORTS = {"aborts": True, "transactional_producers": 3, "partitions": 2}
CREDENTIALS = {"credentials": True}
DISKS = {"has_disks": True, "rereads": True, "plain_producers": 3, "batches": 12}
DELETES = {"standalone_consumers": 2, "partitions": 2}
TIMED = {"is_timed": True}
GROWS = {"grows": True, "agents": 3}
FORGETS = {
    **REMEMBERED_FOR_SHORT,
    "plain_producers": 1,
    "trouble_s": 10.0,
    "misfortunes": at("the committer crashes"),
}
FORGETS_BY_PAGES = {**FORGETS, "has_low_bounds": True, "partitions": 3}
MANY_READERS = {"readers": 3, "agents": 2, "partitions": 2, "batches": 12, "idempotent_producers": 2}
GROUPS = {
    "group_members": 3,
    "batches": 10,
    "trouble_s": 7.0,
    "misfortunes": at("an agent is cut off", "an agent stops for a while", "a client stops for a while"),
}
RINGS_DIFFER = {
    **GROUPS,
    "agents": 3,
    "max_delay_s": 0.05,
    "cut": 0.05,
    "misfortunes": at(
        "an agent restarts",
        "an agent is cut off",
        "an agent restarts",
        "an agent stops for a while",
        "an agent restarts",
        "an agent crashes",
        "an agent restarts",
    ),
}
"""Agents come and go, and members look up their coordinator again and again."""
STATIC = {"static_members": 3, "agents": 2, "trouble_s": 8.0}
CONSUMERS = {
    "consumers": 3,
    "partitions": 3,
    "agents": 3,
    "batches": 10,
    "trouble_s": 7.0,
    "misfortunes": at(
        "an agent restarts",
        "an agent crashes",
        "an agent restarts",
        "an agent is cut off",
        "an agent restarts",
    ),
}
LATE_COMMITS = {
    "agents": 2,
    "sequencers": 3,
    "group_members": 3,
    "static_members": 3,
    "partitions": 3,
    "idempotent_producers": 2,
    "batches": 12,
    "trouble_s": 8.0,
    "misfortunes": tuple(
        (begin + after, kind)
        for begin in (0.8, 2.4, 4.0, 5.6)
        for after, kind in (
            (0.0, "an agent can't reach the committer"),
            (0.3, "a follower stops for a while"),
            (0.5, "a client stops for a while"),
        )
    ),
}
SLOW_ANSWERS = {
    "slow_answers_s": 4.0,
    "slow_for_s": 26.0,
    "trouble_s": 28.0,
    "loss": 0.0,
    "repetition": 0.0,
    "failing_writes": 0.0,
    "slow_loads_s": 0.0,
    "slow_writes": 0.0,
    "unforeseen": 0.0,
    "stutter": 0.0,
    "misfortunes": at(SLOW_DATABASE),
}
KEEPS = {
    **SLOW_ANSWERS,
    "slow_answers_s": 1.2,
    "slow_for_s": 20.0,
    "trouble_s": 22.0,
    "expires": True,
    "misfortunes": ((0.4, SLOW_DATABASE), (8.0, RETENTION_OFF)),
}
"""With a slow database it takes a while from the plan of retention to its step."""
REMAKES = {
    "makes_again": True,
    "plain_producers": 0,
    "idempotent_producers": 0,
    "transactional_producers": 0,
    "processors": 0,
    "group_processors": 0,
    "group_members": 0,
    "expires": False,
    "readers": 2,
    "batches": 10,
    "compactors": 0,
    "misfortunes": at("a topic is made again", "a topic is made again"),
}
"""Only a topic that is deleted and created again is in use."""
ROT = {"misfortunes": at(*6 * ["bytes rot in the store"]), "idempotent_producers": 2, "trouble_s": 6.0}
LOSES = {
    "loses_database": True,
    "is_on_sqlite": False,
    "idempotent_producers": 2,
    "plain_producers": 1,
    "transactional_producers": 0,
    "processors": 0,
    "group_processors": 0,
    "group_members": 0,
    "expires": False,
    "makes_again": False,
    "unforeseen": 0.0,
    "batches": 10,
    "trouble_s": 6.0,
    "misfortunes": at("an agent stops for a while", "an agent is cut off", "the database is lost"),
}
LONG_STOPS = {
    "misfortunes": at("an agent stops for long", "an agent stops for long"),
    "trouble_s": 6.0,
    "batches": 12,
    "idempotent_producers": 2,
}

LATE_REFERENCES = {
    **NO_OTHER_TRANSACTIONS,
    "has_long_sessions": True,
    "plan": DELETES_SLOWLY,
    "idempotent_producers": 5,
    "plain_producers": 0,
    "window": 5,
    "batches": 12,
    "trouble_s": 8.0,
    "misfortunes": tuple(
        (0.8 + 0.7 * number + after, kind)
        for number in range(7)
        for after, kind in ((0.0, "an agent is cut off"), (0.35, "a client stops for long"))
    ),
}
"""A batch waits for its gap when its agent loses the way to the sequencer, and its producer does not send it again."""

MUTATIONS: tuple[Mutation, ...] = (
    # --- write path
    Mutation("a produce request is answered before its commit", [(Lane, "_commit", _answers_before_the_commit)]),
    Mutation("a failed upload counts as successful", [(Uploader, "upload", _trusts_every_upload)]),
    Mutation(
        "a received batch stays a view of the buffer that the next read overwrites",
        [(ProduceFastPath, "take", _keeps_what_is_read_over)],
        {"idempotent_producers": 2},
    ),
    Mutation(
        "a commit under an ended session is reported as stored", [(Lane, "_commit", _loses_pending_commits)]
    ),
    Mutation(
        "requests enter the buffer out of order", [(Lanes, "submit", _takes_batches_as_they_come)],
        {"plain_producers": 2},
    ),
    Mutation(
        "commits are applied in order of arrival instead of by number",
        [(group_commit_module.GroupCommit, "_decide_commit", _applies_commits_as_they_come)],
    ),
    Mutation(
        "a retried commit is applied twice",
        [
            (upload_sessions, "known_answer", does_nothing),
            (group_commit_module.GroupCommit, "_decide_commit", _applies_each_commit_anew),
        ],
        {"plain_producers": 2},
    ),
    Mutation(
        "a gap in the sequence numbers is not detected",
        [(assign, "check_sequence", _stores_instead(BatchError.SEQUENCE_GAP))],
        {"idempotent_producers": 2, "window": 5},
    ),
    Mutation(
        "a duplicate batch is not recognised", [(assign, "check_sequence", _stores_instead(BatchError.DUPLICATE))],
        {"idempotent_producers": 2},
    ),
    Mutation(
        "a duplicate batch is answered with a wrong offset",
        [(assign, "check_sequence", _tells_duplicates_a_wrong_offset)],
        {"idempotent_producers": 2},
    ),
    Mutation(
        "a producer that is not in memory counts as new",
        [(RowLookup, "_rows_under", _looks_none_up(ProducerRow))],
        {"idempotent_producers": 2},
    ),
    Mutation(
        "a producer whose look-up failed counts as new",
        [(RowLookup, "_rows_under", _takes_a_failed_read_for_an_empty_one)],
        {"idempotent_producers": 3, "partitions": 3, "has_low_bounds": True, "failing_writes": 0.3},
    ),
    Mutation(
        "a second look-up of a producer returns the outdated row of the first",
        [(RowLookup, "_rows_under", _keeps_what_it_looked_up(ProducerRow))],
        {"idempotent_producers": 2, "has_low_bounds": True},
    ),
    Mutation(
        "a follower ignores changes to producers that it holds in memory",
        [(Follower, "_apply", _follows_none_twice(ProducerRow))],
        {"idempotent_producers": 2},
    ),
    Mutation(
        "a producer's new row does not replace the cached one",
        [(RecentRows, "apply", _drops_the_newest_rows(ProducerRow))],
        {"idempotent_producers": 2},
    ),
    Mutation(
        "every third batch in order is refused as out of order",
        [(assign, "check_sequence", _refuses_now_and_then(BatchError.OUT_OF_ORDER_SEQUENCE))],
        {"idempotent_producers": 2},
    ),
    Mutation(
        "one in ten produce errors is UNKNOWN_SERVER_ERROR",
        [(agent_errors, "produce_code", _knows_no_code)],
        {"unforeseen": 0.0},
    ),
    Mutation(
        "an agent's lease renewal wrongly reports another incarnation",
        [(LeaseKeeper, "_check_incarnation", _takes_leases_away)],
        NO_TROUBLE,
    ),
    # --- what is counted, and what is reported about topics
    Mutation("runs that a swap or retention removed are still counted", [(Draft, "delete_run", _deletes_uncounted)],
             COMPACTS),
    Mutation(
        "a retired object is still counted as live", [(SumDeltas, "object", _counts_retired_objects_as_live)], COMPACTS
    ),
    Mutation(
        "an agent does not learn which topics have changed", [(TopicChanges, "_changed_since", always([]))],
        {"makes_again": True, "misfortunes": at("a topic is made again")},
    ),
    # --- sessions, leases, the committer
    Mutation(
        "a commit under a closed session is accepted", [(upload_sessions, "live_session", _any_session_is_live)],
        LONG_STOPS,
    ),
    Mutation(
        "uploads continue after the session's lease has expired", [(Lane, "_no_put_after", _keeps_putting)], LONG_STOPS
    ),
    Mutation(
        "the committer keeps its old state after a failed write",
        [(group_commit_module.GroupCommit, "_write", _keeps_its_state_after_a_failed_write)],
        FAILING_WRITES,
    ),
    Mutation(
        "readers see a change before it is written",
        [(group_commit_module.GroupCommit, "_write", _shows_before_it_writes)],
        FAILING_WRITES,
    ),
    Mutation(
        "a database transaction becomes visible one kind of row at a time",
        [(CommitterView, "show", _shows_kind_after_kind)],
        TRANSACTIONS,
    ),
    Mutation(
        "the committer's epoch is not checked",
        [(MemoryRowStore, "write", _takes_any_epoch)],
        {
            "is_on_sqlite": False,
            "idempotent_producers": 2,
            "plain_producers": 2,
            "misfortunes": at(*3 * ["the committer stops for long"]),
        },
    ),
    Mutation(
        "the committer's epoch is not checked after the database's clock has jumped",
        [(MemoryRowStore, "write", _takes_any_epoch)],
        {
            "is_on_sqlite": False,
            "idempotent_producers": 2,
            "plain_producers": 2,
            "misfortunes": at(*6 * ["the database's clock jumps"]),
        },
    ),
    # --- followers
    Mutation(
        "a follower takes over without catching up",
        [(follower_module.Follower, "hand_over", _hands_over_what_it_has)],
        FALLS_BEHIND,
    ),
    Mutation(
        "a follower takes over without catching up or checking the last checkpoint",
        [
            (follower_module.Follower, "hand_over", _hands_over_what_it_has),
            (Checkpointer, "_check_head", waits_for_nothing),
        ],
        FALLS_BEHIND,
    ),
    Mutation(
        "a follower answers from older state than the caller has seen",
        [(follower_module.Follower, "answer", _answers_as_of_now_and_then)], FAILS_OVER,
    ),
    Mutation(
        "a follower skips a transaction of the journal",
        [(follower_module, "changes_of", _skips_every_seventh_transaction)], FAILS_OVER,
    ),
    Mutation(
        "a committer answers after its lease has expired",
        [(node_module.SequencerServer, "_confirm", _takes_it_for_granted), (Term, "confirm", _takes_it_for_granted)],
        {
            "sequencers": 3,
            "agents": 3,
            "readers": 2,
            "idempotent_producers": 2,
            "slow_loads_s": 0.0,
            "batches": 12,
            "trouble_s": 7.0,
            "misfortunes": at(*5 * ["the committer stops for long"]),
        },
    ),
    Mutation(
        "a failed renewal of the committer's lease counts as successful",
        [(Term, "_renew", _takes_each_renewal_for_made)],
        {
            "sequencers": 3,
            "agents": 3,
            "readers": 2,
            "idempotent_producers": 2,
            "batches": 12,
            "trouble_s": 8.0,
            "misfortunes": at(*4 * ["the committer can't reach the database"]),
        },
    ),
    Mutation(
        "the committer's lease stays short although the database is slow",
        [(term_module, "lease_for", lambda original: lambda shortest_ms, round_trip_s: shortest_ms)],
        SLOW_ANSWERS,
    ),
    Mutation(
        "a request that the database refuses fails its whole group commit",
        [(group_commit_module.GroupCommit, "_parts_of", _fails_the_whole_group)],
        ONLY_POISON,
    ),
    Mutation(
        "an unexpected error ends a background task", [(background_tasks, "log_and_continue", _lets_its_tasks_end)],
        {"unforeseen": 0.03},
    ),
    Mutation(
        "an epoch that a job repeats is stored again",
        [(writes, "commit_write", _forgets_the_last_epoch)],
        {"jobs": 2},
    ),
    Mutation(
        "a retried change is carried out again",
        [(repeats, "decide_once", _decides_each_time)],
        {"transactional_producers": 3, "repetition": 0.3},
    ),
    Mutation(
        "released memory is not granted to the requests that wait for it",
        [(MemoryBudget, "_hand_over", does_nothing)],
        {"has_low_bounds": True, "idempotent_producers": 2, "window": 5},
    ),
    # --- garbage
    Mutation(
        "the collector sweeps open sessions",
        [
            (garbage, "find_garbage", _sweeps_open_sessions),
            (garbage, "session_swept", _sweep_ends_quietly),
        ],
    ),
    Mutation("the collector deletes objects by age", [(node_module, "collect", _collects_what_is_used)]),
    Mutation(
        "a dead prefix is forgotten after one empty sweep",
        [(garbage, "EMPTY_SWEEPS_NEEDED", lambda original: 1)],
        {"plan": TROUBLED, "misfortunes": at(*4 * ["an agent restarts"]), "idempotent_producers": 2},
    ),
    Mutation(
        "a batch is stored by reference although its object was collected",
        [
            (upload_sessions, "_is_of_another_commit", always(False)),
            (upload_sessions, "check_object", does_nothing),
        ],
        LATE_REFERENCES,
    ),
    Mutation("expired sessions stay open", [(leases, "expire_sessions", always(0))]),
    # --- the log's start, topics, retention
    Mutation(
        "a log start moves back", [(topics, "move_log_start", _moves_log_start_anywhere)],
        {"misfortunes": at(*8 * ["records are deleted"]), "idempotent_producers": 2},
    ),
    Mutation(
        "a log start moves one record too far", [(topics, "move_log_start", _deletes_one_too_many)],
        {"misfortunes": at(*5 * ["records are deleted"]), "idempotent_producers": 2},
    ),
    Mutation(
        "a topic that is created again gets its old id",
        [(topics, "create_topic", _gives_names_their_ids_again)],
        {"makes_again": True, "misfortunes": at("a topic is made again")},
    ),
    Mutation(
        "a new committer does not know the remaining rows of a deleted topic",
        [(deleted_topics, "deleted_topics", _finds_no_deleted_topics)],
        {
            "makes_again": True,
            "idempotent_producers": 2,
            "misfortunes": at(*4 * ["a topic is made again", "the committer crashes"]),
        },
    ),
    Mutation(
        "retention removes all runs that it examines",
        [(retention, "expired_end", lambda original: lambda runs, *rest: runs[-1].end_offset if runs else None)],
    ),
    Mutation(
        "retention carries out its plan although the limits have changed",
        [(retention, "move_log_starts", _moves_log_starts_as_planned)],
        KEEPS,
    ),
    # --- reading
    Mutation("a fetch skips a run", [(reader_module.BatchReader, "read", _steps_over_a_run)]),
    Mutation("a window lacks a run", [(window_module, "follow", _loses_a_run)]),
    Mutation(
        "a fetch session reads all partitions from the offset of one",
        [(FetchSessions, "begin", _mixes_offsets_up)],
        MANY_READERS,
    ),
    Mutation(
        "an incremental fetch response omits the partitions that changed",
        [(FetchContext, "include_in_response", lambda original: lambda self, *rest: not self.is_incremental)],
        MANY_READERS,
    ),
    Mutation(
        "a commit counts as sent to subscribers before all of it is queued",
        [(Subscriptions, "publish", _tells_the_number_first)],
        {**MANY_READERS, "partitions": 8, "has_low_bounds": True},
    ),
    Mutation(
        "an agent answers from a window that is behind its last answer",
        [(Windows, "_usable", _forgets_what_it_told)], MANY_READERS,
    ),
    Mutation(
        "a window misses a swap", [(window_module, "follow", _misses_swaps)], {**COMPACTS, **MANY_READERS}
    ),
    Mutation(
        "an agent serves records from its windows that were deleted through it",
        [(Windows, "note_deleted", does_nothing)],
        {**MANY_READERS, "misfortunes": at(*8 * ["records are deleted"])},
    ),
    Mutation(
        "an agent keeps its windows when another committer takes over", [(Windows, "_check", does_nothing)],
        {**MANY_READERS, "misfortunes": at(*3 * ["the committer crashes"])},
    ),
    Mutation(
        "a window is used however old it is",
        [(Windows, "_usable", _uses_old_windows), (tail_module, "FRESH_S", lambda original: 1_000.0)],
        {**MANY_READERS, "misfortunes": at(*3 * ["an agent is cut off for long"]), "trouble_s": 8.0},
    ),
    Mutation(
        "an agent keeps the window of a deleted topic",
        [(Subscriptions, "_deletion", _tells_of_no_deletion)], REMAKES,
    ),
    Mutation(
        "duplicate batches are sent to consumers", [(Layout, "__init__", _serves_repeated_batches)],
        {"idempotent_producers": 3, "partitions": 1, "window": 5, "cut": 0.08},
    ),
    Mutation("the cache of framed runs identifies a run by its object alone", [(framed, "_key_of", _keys_by_object)]),
    Mutation(
        "the cache of framed runs identifies a run by partition and offset alone",
        [(framed, "_key_of", _keys_by_place)], REMAKES,
    ),
    Mutation(
        "whole framed runs are sent past the last stable offset",
        [(mixed_reader.MixedReader, "_add_whole_runs", _sends_whole_runs_without_a_limit)],
        TRANSACTIONS,
    ),
    Mutation(
        "a joined run is sent past the last stable offset",
        [(framed.JoinedRun, "is_wanted", _wants_joined_runs_without_a_limit)],
        {**TRANSACTIONS, "rereads": True},
    ),
    Mutation(
        "joined runs change their order",
        [(framed.FramedRuns, "join_ready", _joins_in_another_order)],
        {"rereads": True},
    ),
    Mutation(
        "a chunk is written to while it is sent to a peer",
        [(ChunkBytes, "frozen", _goes_on_writing_to_it)],
        {"rereads": True, "agents": 3, "peer_delay_s": 1.0},
    ),
    Mutation(
        "a response that waits to be sent is overwritten by the next one",
        [(KafkaConnection, "_take_reply", _answers_out_of_shared_memory)],
        {"full": 0.3},
    ),
    Mutation(
        "a chunk that was read ahead is cached in the place of another",
        [(ChunkCache, "_keep", _keeps_another_chunk)],
    ),
    Mutation(
        "an answer without room for all runs omits the first one",
        [(bounds.AnswerBudget, "take", _begins_full_answers_late)],
        {"has_low_bounds": True},
    ),
    Mutation(
        "the CRC of a batch is not checked",
        [(mixed_reader, "check_crc", does_nothing), (in_place, "patched_if_sound", _patches_what_is_not_sound)],
        ROT,
    ),
    Mutation(
        "batches are sent without their assigned offsets", [(mixed_reader, "is_ready", always(True))],
        {"readers": 3, "trouble_s": 8.0, "misfortunes": at(*3 * ["an agent restarts"])},
    ),
    Mutation(
        "header fields that the CRC does not cover are not checked",
        [(mixed_reader, "check_crc", _checks_the_crc_alone)],
        {**ROT, "misfortunes": at(*14 * ["bytes rot in the store"]), "readers": 3, "plain_producers": 3},
    ),
    Mutation(
        "a later step of a read omits its first run", [(mixed_reader.MixedReader, "_read_step", _leaves_a_run_out)],
        {"readers": 3, "rereads": True, "plain_producers": 3},
    ),
    Mutation(
        "the slowest partition of a fetch is held back too",
        [(alignment, "_end", lambda original: lambda runs, reach: runs[0].base_offset)],
        {"readers": 3},
    ),
    # --- transactions
    Mutation(
        "the last stable offset is the high watermark",
        [(HotState, "last_stable_offset", lambda original: lambda self, row: row.end_offset)],
        TRANSACTIONS,
    ),
    Mutation(
        "aborted ranges are not stored", [(transactions, "_end_range", _ends_without_aborted_ranges)], TRANSACTIONS
    ),
    Mutation("every transactional batch is refused", [(transactions, "admit", _refuses_transactions)], TRANSACTIONS),
    Mutation(
        "an abort commits the transaction",
        [(transactions, "_end_range", _commits_what_is_aborted)], TRANSACTIONS,
    ),
    Mutation(
        "only the first partition of a commit is added to its transaction",
        [(transactions, "join_partitions", does_nothing)],
        {**TRANSACTIONS, "partitions": 3},
    ),
    Mutation(
        "a transaction ends in its first partition only",
        [(transactions, "_finish", _ends_one_partition_only)],
        {**TRANSACTIONS, "partitions": 3},
    ),
    Mutation(
        "a late batch of an ended transaction is accepted",
        [
            (
                transactions,
                "admit",
                _admits_instead(BatchError.TRANSACTION_CLOSED, BatchError.INVALID_PRODUCER_EPOCH),
            ),
            (assign, "check_sequence", _stores_instead(BatchError.INVALID_PRODUCER_EPOCH)),
        ],
        {**TRANSACTIONS, "misfortunes": at(*3 * ["a client stops for long"])},
    ),
    Mutation(
        "a time-out aborts a transaction without a new producer epoch",
        [(transactions, "_abort_and_fence", _times_out_without_a_new_epoch)],
        {**TRANSACTIONS, "misfortunes": at(*3 * ["a client stops for long"])},
    ),
    Mutation(
        "the commit of a transaction that timed out is answered with its next epoch",
        [(transactions, "_answer_before", _commits_what_timed_out)],
        {**TRANSACTIONS, "misfortunes": at(*3 * ["a client stops for long"])},
    ),
    Mutation(
        "a transactional id is taken over without a new producer epoch",
        [(transactions, "init_producer", _takes_over_without_a_new_epoch)],
        TRANSACTIONS,
    ),
    Mutation(
        "EndTxn gets the answer of the previous transaction",
        [(transactions, "_answer_before", _remembers_ends_too_long)],
        {**TRANSACTIONS, "misfortunes": at("an agent stops for a while", "a client stops for a while")},
    ),
    Mutation(
        "pending positions are visible before their transaction ends",
        [(groups, "_put_pending", _shows_pending_positions)], PROCESSES,
    ),
    Mutation(
        "a committed transaction loses its positions",
        [(transactions, "_end_offsets", _drops_positions_at_the_end)], PROCESSES,
    ),
    Mutation(
        "a position is returned although a newer one is pending",
        [(reading_positions, "_position", _tells_of_nothing_pending)],
        {**GROUP_PROCESSES, "misfortunes": at(*6 * ["a client stops for long"])},
    ),
    Mutation(
        "a position that is not in memory is not returned",
        [(Positions, "_looked_up", _knows_only_recent_positions)],
        {**GROUPS, "has_low_bounds": True},
    ),
    Mutation(
        "a position that is not in memory counts as new",
        [(RowLookup, "_rows_under", _looks_none_up(GroupOffsetRow))],
        {**GROUPS, "has_low_bounds": True},
    ),
    Mutation(
        "a second look-up of a position returns the outdated row of the first",
        [(RowLookup, "_rows_under", _keeps_what_it_looked_up(GroupOffsetRow))],
        {**GROUPS, "has_low_bounds": True},
    ),
    Mutation(
        "a follower ignores changes to positions that it holds in memory",
        [(Follower, "_apply", _follows_none_twice(GroupOffsetRow))],
        GROUPS,
    ),
    Mutation(
        "a position's new row does not replace the cached one",
        [(RecentRows, "apply", _drops_the_newest_rows(GroupOffsetRow))],
        GROUPS,
    ),
    Mutation(
        "a group does not count its positions",
        [(each, "put_position", _counts_no_position) for each in (groups, transactions)],
        GROUPS,
    ),
    Mutation(
        "a group still counts its deleted positions",
        [(each, "delete_positions", _counts_no_deletion) for each in (groups, positions, deleted_topics)],
        FORGETS,
    ),
    Mutation(
        "the end of a transaction does not look up its positions",
        [(transactions, "positions_read", always(()))],
        {**GROUP_PROCESSES, "has_low_bounds": True},
    ),
    Mutation(
        "a transaction accepts positions from any generation",
        [
            (groups, "_check_committer", _any_generation_commits),
            (Group, "commit", always(ErrorCode.NONE)),
        ],
        GROUP_PROCESSES,
    ),
    # --- groups
    Mutation(
        "an offset commit of an old generation is accepted",
        [
            (groups, "_check_committer", _any_generation_commits),
            (Group, "commit", always(ErrorCode.NONE)),
        ],
        GROUPS,
    ),
    Mutation("a heartbeat of an old generation is accepted", [(Group, "heartbeat", _all_generations_are_fine)], GROUPS),
    Mutation(
        "a new coordinator forgets the generation and members of a group",
        [(stored_group, "restored", _keeps_no_generations)], GROUPS,
    ),
    Mutation(
        "an offset commit is stored although a later one has overtaken it",
        [(groups, "_is_older_than_stored", always(False))], LATE_COMMITS,
    ),
    Mutation(
        "a new coordinator numbers its requests as if it were in the previous one's term",
        [(groups, "load_group", _begins_no_term)],
        RINGS_DIFFER,
    ),
    Mutation(
        "agents load and save groups that they do not own",
        [
            (leases, "locate_group", _locates_by_the_ring),
            (groups, "load_group", _gives_groups_away),
            (groups, "save_group", _saves_whoever_asks),
        ],
        RINGS_DIFFER,
    ),
    Mutation(
        "a replaced static member is not fenced",
        [(Group, "heartbeat", _takes_instances_for_members)],
        STATIC,
    ),
    Mutation(
        "the return of a static member causes a rebalance",
        [(group_module, "reads_the_same", _nothing_reads_the_same)], STATIC,
    ),
    # --- topics that grow
    Mutation(
        "an agent reports a new partition as unknown without asking the sequencer",
        [
            (catalog_module, "has", lambda original: lambda known, partitions: known is not None),
            (Catalog, "has_moved_on", _knows_of_no_change),
        ],
        GROWS,
    ),
    Mutation(
        "adding partitions to a topic creates its old ones again",
        [(topics, "create_partitions", _makes_all_anew)], GROWS,
    ),
    # --- times
    Mutation(
        "a look-up by time skips a run",
        [(MemoryRowStore, "first_run_reaching", _passes_over_a_run)],
        {**TIMED, "is_on_sqlite": False},
    ),
    Mutation(
        "the largest timestamp is searched for in the first run only",
        [(MemoryRowStore, "run_of_max_timestamp", _takes_the_first_run)],
        {**TIMED, "is_on_sqlite": False},
    ),
    Mutation(
        "a look-up by time returns the first record of the run that it finds",
        [(reader_module.BatchReader, "find_timestamp", _finds_the_first_record)],
        TIMED,
    ),
    Mutation(
        "a look-up by time ignores the log start",
        [(reading_queries.Reader, "_offset_by_time", _begins_at_zero)],
        {**TIMED, "misfortunes": at(*4 * ["records are deleted"])},
    ),
    Mutation(
        "a look-up by time with read_committed ignores the last stable offset",
        [(list_offsets, "_stable_ends", always([]))],
        {
            **TIMED,
            "agents": 2,
            "transactional_producers": 3,
            "plain_producers": 3,
            "partitions": 1,
            "batches": 16,
            "misfortunes": at(*3 * ["a client stops for long"]),
        },
    ),
    Mutation(
        "a leader epoch is reported to end at the log start",
        [(reading_queries, "_end_of_epoch", _ends_at_the_start)], TIMED,
    ),
    Mutation(
        "retention by time removes a run that has not expired",
        [(retention, "expired_end", _expires_one_run_more)], TIMED,
    ),
    Mutation(
        "retention does not examine a partition again when its runs expire",
        [(PartitionWatch, "looked", _looks_once)], TIMED,
    ),
    # --- what is forgotten
    Mutation(
        "a producer expires too early", [(kept, "producer_lifetime", _keeps_for_half_the_time)], FORGETS
    ),
    Mutation(
        "producers never expire", [(expiry_module.Expiry, "_forget_producers", _forgets_none)], FORGETS
    ),
    Mutation(
        "an unknown producer may start at any sequence number",
        [(assign, "check_sequence", _stores_instead(BatchError.UNKNOWN_PRODUCER_ID))],
        FORGETS,
    ),
    Mutation(
        "a producer expires during its open transaction", [(kept, "_has_open_range", always(False))], FORGETS
    ),
    Mutation(
        "a transactional id expires during its open transaction", [(kept, "_is_ongoing", always(False))], FORGETS
    ),
    Mutation(
        "rows that were due to expire are deleted without a second check",
        [(kept, "forget", _forgets_without_a_second_look)],
        FORGETS,
    ),
    Mutation(
        "positions expire by the time of their commit alone",
        [
            (group_watch, "due_ms", _reads_all_groups),
            *((each, "over_ms", _counts_from_the_commit) for each in (positions, expiry_module)),
        ],
        FORGETS,
    ),
    Mutation(
        "a deleted group keeps its positions", [(groups, "delete_group", _keeps_positions_of_the_deleted)], FORGETS
    ),
    Mutation(
        "a group with members is deleted",
        [(groups, "delete_group", _deletes_whatever_lives), (GroupCoordinator, "delete", _asks_no_member)],
        FORGETS,
    ),
    Mutation(
        "a group with members loses its positions page by page",
        [
            (groups, "delete_some", _deletes_pages_of_whatever_lives),
            (GroupCoordinator, "delete", _asks_no_member),
        ],
        FORGETS_BY_PAGES,
    ),
    # --- what operators do
    Mutation("an operator's abort is answered but not carried out", [(transactions, "abort_producer", _aborts_nothing)],
             ABORTS),
    Mutation(
        "an operator's abort ends a transaction in only one of its partitions",
        [(transactions, "abort_producer", _aborts_by(_in_one_partition))],
        ABORTS,
    ),
    Mutation(
        "an operator's abort does not fence the producer",
        [(transactions, "abort_producer", _aborts_by(_without_a_fence))], ABORTS,
    ),
    Mutation(
        "an operator's abort ends the transaction of another epoch",
        [(transactions, "abort_producer", _aborts_by(_whatever_its_epoch))],
        ABORTS,
    ),
    Mutation(
        "the deletion of a position is answered but not carried out",
        [(groups, "delete_offsets", _deletes_no_position)],
        DELETES,
    ),
    Mutation(
        "the deletion of a position deletes those of other partitions too",
        [(groups, "delete_offsets", _deletes_every_position)],
        DELETES,
    ),
    Mutation(
        "the deletion of a position leaves the pending ones",
        [(groups, "delete_offsets", _deletes_nothing_pending)],
        DELETES,
    ),
    Mutation(
        "a follower keeps a deleted position",
        [(Follower, "_apply", _follows_no_deletion(GroupOffsetRow))],
        DELETES,
    ),
    Mutation("a deleted ACL stays in effect", [(access, "delete_acls", _takes_no_right_away)], {"grants": True}),
    Mutation(
        "a follower keeps a deleted ACL",
        [(Follower, "_apply", _follows_no_deletion(AclRow))],
        {"grants": True},
    ),
    Mutation(
        "an agent does not learn which ACLs are deleted",
        [(SecurityChanges, "_since", _sends_no_deletions)],
        {"grants": True},
    ),
    Mutation(
        "a chunk on the cache's disk is taken for another of the same object",
        [(disk_module, "_name", lambda original: lambda chunk: chunk.key)],
        DISKS,
    ),
    Mutation("a deleted user stays", [(access, "alter_scram", _deletes_no_user)], CREDENTIALS),
    Mutation("a follower keeps a deleted user", [(Follower, "_apply", _follows_no_deletion(ScramRow))], CREDENTIALS),
    Mutation("a follower keeps replaced credentials", [(Follower, "_apply", _keeps_the_first(ScramRow))], CREDENTIALS),
    Mutation("a delegation token is reported after it has expired", [(tokens, "tokens", _never_expire)], CREDENTIALS),
    Mutation(
        "a delegation token is renewed beyond its lifetime",
        [(tokens, "alter_token", _renewed_without_end)],
        CREDENTIALS,
    ),
    Mutation(
        "a token's renewal is answered but not carried out", [(tokens, "alter_token", _renews_nothing)], CREDENTIALS
    ),
    Mutation(
        "a follower keeps a token that was made to expire",
        [(Follower, "_apply", _follows_no_deletion(DelegationTokenRow))],
        CREDENTIALS,
    ),
    # --- groups whose coordinator assigns
    Mutation(
        "a partition is assigned before its previous owner has given it up",
        [(ConsumerGroup, "_free_for", _all_is_free)], CONSUMERS,
    ),
    Mutation("no member is ever assigned a partition", [(ConsumerGroup, "_free_for", _nothing_is_free)], CONSUMERS),
    Mutation(
        "the partitions that a member reports to own are ignored",
        [(ConsumerGroup, "advance", _believes_that_nothing_is_owned)],
        CONSUMERS,
    ),
    Mutation(
        "a new coordinator forgets which member has which partition",
        [(stored_consumer_group, "restored", _keeps_no_partitions)],
        CONSUMERS,
    ),
    # --- share groups
    Mutation(
        "the lock on an acquired record expires at once", [(SharePartition, "expire", _ends_every_lock)], SHARES
    ),
    Mutation("the lock on an acquired record never expires", [(SharePartition, "expire", does_nothing)], SHARES),
    Mutation(
        "the end of a share session releases records of the member's other session",
        [(SharePartition, "release", _of_all_sessions)],
        SHARES,
    ),
    Mutation(
        "an accepted record becomes available again", [(SharePartition, "_acknowledged", _gives_back)], SHARES
    ),
    Mutation(
        "dead letters count as stored although they are not written",
        [(dead_letters, "_write", _writes_nothing)], SHARES,
    ),
    Mutation("records are sent as acquired but not stored as acquired", [(shares, "_closed", _keeps_the_row)], SHARES),
    Mutation("a share group does not skip a hole in the log", [(share_fetch, "_is_hole", always(False))], HOLES),
    Mutation(
        "a share group skips a record as if it were a marker",
        [(share_fetch, "span_of", _skips_a_record)], SHARES,
    ),
    Mutation(
        "the start offset of a share group with members is changed",
        [(shares, "alter_share_offsets", _sets_back_whoever_reads)],
        {"resets": True},
    ),
    Mutation(
        "a share group keeps its state in a partition whose offsets are deleted",
        [(shares, "alter_share_offsets", _forgets_no_partition)],
        {"resets": True},
    ),
    # --- answers on receipt
    Mutation(
        "a lost batch that was acknowledged on receipt blocks its producer",
        [(producers, "check_sequence", _skips_no_gap)],
        {**ON_RECEIPT, "misfortunes": at(*4 * ["an agent crashes"])},
    ),
    Mutation(
        "a batch that was acknowledged on receipt is stored again on each retry",
        [(Receipts, "answer", _forgets_its_producer)],
        {**ON_RECEIPT, "cut": 0.05},
    ),
    Mutation(
        "a lost batch that was acknowledged on receipt is not counted",
        [(Receipts, "close", _counts_nothing)],
        {**ON_RECEIPT, "misfortunes": at(*3 * ["the store is away"])},
    ),
    # --- recovery
    Mutation(
        "a recovery reuses offsets that were assigned after the last checkpoint",
        [(bucket_module, "reserved_ends", _forgets_reservations)],
        LOSES,
    ),
    Mutation(
        "a commit assigns offsets that no checkpoint reserves",
        [(Checkpointer, "check_reserved", does_nothing)],
        {**LOSES, "reserves_few": True, "partitions": 1, "plain_producers": 3, "batches": 16},
    ),
    Mutation(
        "a job's write is answered before the checkpoint chain has a snapshot",
        [(Checkpointer, "recoverable", lambda _: Checkpointer.saved)],
        {**LOSES, "jobs": 2, "misfortunes": at("the database fails", "the database is lost"), "trouble_s": 3.0},
    ),
    Mutation(
        "an agent continues under another incarnation", [(LeaseKeeper, "_lose", does_nothing)], LOSES
    ),
    Mutation(
        "a compactor continues under another incarnation",
        [(rounds_module.Rounds, "run_once", _outlives_its_database)],
        {**LOSES, **COMPACTS},
    ),
    # --- compaction
    Mutation(
        "compaction keeps aborted records", [(rewrite_module, "keep", _keeps_everything)],
        {**COMPACTS, **TRANSACTIONS},
    ),
    Mutation("compaction omits a batch", [(rewrite_module, "keep", _keeps_less)], COMPACTS),
    Mutation(
        "a swap replaces whatever runs it finds",
        [
            (compaction, "_runs_to_replace", _swaps_whatever_stands),
            (leases, "take_lease", _gives_the_lease_to_all),
        ],
        {"compactors": 2},
    ),
    Mutation(
        "the lease of a crashed compactor never expires",
        [(leases, "take_lease", _keeps_leases_of_the_dead)],
        {**COMPACTS, "misfortunes": at(*4 * ["a compactor crashes"])},
    ),
    Mutation(
        "a compaction task uploads its object however late it is",
        [(rewrite_module, "_put", _puts_at_any_time)],
        {"compactors": 2, "batches": 12, "trouble_s": 20.0, "misfortunes": at(*4 * ["a compactor stops for long"])},
    ),
    Mutation("a merge omits the last run of a partition", [(rewrite_module, "_keep_all", _merges_less)], MERGES),
    Mutation(
        "a merge leaves some of the runs that it replaces",
        [(compaction, "release_runs", _leaves_merged_runs)], MERGES,
    ),
    Mutation("a merged object keeps its row as a small object", [(Draft, "remove_runs", _keeps_small_rows)], MERGES),
    Mutation(
        "compaction by key drops a key's last value", [(keyed_module, "kept", _drops_last_values)], KEYED
    ),
    Mutation(
        "compaction by key drops tombstones at once",
        [(keyed_module, "kept", _drops_tombstones_at_once)],
        KEYED,
    ),
    Mutation("an erasure's filter misses a key", [(erasure_search, "may_hold", _finds_no_key)], ERASES),
    Mutation(
        "an erasure drops a batch that it should keep",
        [(erasure_rewrite, "_filtered", _drops_neighbours)],
        ERASES,
    ),
    Mutation(
        "compaction by key replaces a record by one of an open transaction",
        [
            (compaction, "_candidate", _waits_for_no_transaction),
            (compaction, "_runs_to_replace", _waits_for_no_transaction),
        ],
        {**KEYED, **NO_OTHER_TRANSACTIONS},
    ),
    Mutation(
        "a swap does not shorten aborted ranges",
        [(compaction, "_shorten_aborted", waits_for_nothing)],
        {**COMPACTS, **TRANSACTIONS, "partitions": 1},
    ),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        default="",
        help="run only the bugs whose name contains this text, or one of several separated by commas",
    )
    parser.add_argument(
        "--after", type=int, default=0, help="skip this number of bugs at the start of the list"
    )
    parser.add_argument("--seeds", type=int, default=MAX_SEEDS, help="the most seeds to run for a bug")
    asked = parser.parse_args()
    missed = []
    print("| planted bug | found by seed | how it showed |\n|---|---|---|")
    for mutation in MUTATIONS[asked.after :]:
        if not any(part in mutation.name for part in asked.only.split(",")):
            continue
        finding = find(mutation, asked.seeds)
        if not finding.seeds:
            missed.append(mutation.name)
        told = f"{finding.seeds}" if finding.seeds else f"**not within {asked.seeds}**"
        print(f"| {mutation.name} | {told} | {finding.what.replace('|', '/')} |", flush=True)
    if missed:
        print(f"not found: {missed}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
