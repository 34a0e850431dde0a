"""What each method of the interface does: the rule that decides it (DECISIONS) or the query that answers it (QUERIES).

A decision changes rows: the committer runs it on a draft in its turn, and answers when the changes are durable. A query
reads the state that the committer shows. Both are functions of the request and the committer's context.

An entry refers to its method through the declaration (`Sequencer.renew_session`), so that a type checker compares
request and answer with the interface. Two methods are neither: `commit` is decided in the order of its session's commit
numbers (sequencer.engine.group_commit), and `apply_retention` takes many transactions (sequencer.engine.expiry).
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from sequencer.api.agents import AgentInfo, AgentLease, AgentRef, RenewAgent
from sequencer.api.compaction import CleanPoints, CleanPointsRequest, TablePins, TablePinsRequest
from sequencer.api.groups import GroupOwner, LocateGroup
from sequencer.api.interface import Sequencer
from sequencer.api.objects import ObjectRef, RunsAnswer
from sequencer.api.producers import InitProducer, ProducerGrant
from sequencer.api.retention import ForgetObjects, Garbage, GarbageRequest, KnownKeys
from sequencer.api.security import Tokens, TokensRequest
from sequencer.api.topics import AlterConfig, BrokerConfigsRequest, Configs, ConfigScope
from sequencer.api.transactions import CurrentTransactionsAnswer, CurrentTransactionsRequest
from sequencer.api.values import Empty, Value
from sequencer.bounds import MAX_PAGE
from sequencer.engine.silent_agents import SilentAgentsLog
from sequencer.reading.live_files import live_files
from sequencer.reading.queries import Reader
from sequencer.reading.view import CommitterView, ReadView
from sequencer.rules import (
    access,
    cleaning,
    client_configs,
    compaction,
    garbage,
    groups,
    leases,
    shares,
    tables,
    tokens,
    topics,
    transactions,
    upload_sessions,
    writes,
)
from sequencer.rules.topics import ValidateConfig
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.quick_ids import quick_id
from sequencer.store.required_rows import Needs, RequiredRows, positions_needed
from sequencer.store.row_store import RowStore
from sequencer.store.rows import AgentRow, BrokerConfigRow, ObjectRow
from sequencer.store.state import PRODUCER_ID, HotState
from tailrace.clock import Clock, Entropy
from tailrace.turns import Steps, Turns, in_turns

R = TypeVar("R", bound=Value)
A = TypeVar("A", bound=Value)
Declared = Callable[[Sequencer, R], Coroutine[Any, Any, A]]
"""A method as the interface declares it."""

QUERIES_IN_A_TURN = 2_000


@dataclass(frozen=True, slots=True)
class QueryContext:
    """What a query uses besides the request, on a committer or a follower. `reads` is the store over separate
    connections."""

    view: ReadView
    reads: RowStore
    settings: SequencerSettings

    @property
    def state(self) -> HotState:
        """The rows that readers see."""
        return self.view.state

    @property
    def reader(self) -> Reader:
        """Answers from these rows and the store."""
        return self.view.reader


@dataclass(frozen=True, slots=True)
class Context(QueryContext):
    """What a committer's decisions and queries use besides the request. `slack_ms` returns how much longer leases last
    because the database is slow."""

    view: CommitterView
    store: RowStore
    clock: Clock
    entropy: Entropy
    validate_config: ValidateConfig
    slack_ms: Callable[[], int]
    silence: SilentAgentsLog

    def has_left(self, agent: AgentRef) -> bool:
        """Whether a suspected agent has been silent for so long that its lease may be ended."""
        return self.view.heard.has_left(agent, self.clock.monotonic(), self.settings, self.slack_ms())

    def has_run_out(self, agent: AgentRef) -> bool:
        """Whether an agent has been silent for a whole lease."""
        return self.view.heard.has_run_out(agent, self.clock.monotonic(), self.settings, self.slack_ms())

    def look_for_silent(self) -> None:
        """Note that the committer is about to end expired leases."""
        self.view.heard.look(self.clock.monotonic(), self.settings, self.slack_ms())

    def log_silent(self, agents: Sequence[AgentRow]) -> None:
        """Log that the leases of these agents end because they are silent."""
        heard, now = self.view.heard, self.clock.monotonic()
        self.silence.leases_end(
            agents, lambda agent: heard.silent_ms(AgentRef(agent.broker_id, agent.epoch), now) / 1000
        )


class CheckpointWait(enum.Enum):
    """What a checkpoint must contain of a change before it is answered; see `sequencer.checkpoint.checkpointer`."""

    NOT = "nothing"
    SAVED = "a head has it: all that recovery needs to know of a topic"
    RECOVERABLE = "a recovery would come back to it"


@dataclass(frozen=True, slots=True)
class Decision:
    """How a method that changes rows is carried out.

    `request_id`: returns the id under which the first answer is kept for retries; None: every attempt is decided.
    `is_alone`: the decision awaits look-ups in the store, so it forms a group by itself.
    `waits`: what the answer waits for.
    `needs`: returns the rows that the decision reads and that may not be in memory.
    """

    name: str
    decide: Callable[[Draft, Any, Context], Any]
    request_id: Callable[[Any], UUID | None]
    is_alone: bool = False
    waits: CheckpointWait = CheckpointWait.NOT
    needs: Callable[[HotState, Any], RequiredRows] | None = None

    def needs_of(self, request: Any) -> Needs | None:
        needs = self.needs
        return None if needs is None else lambda state: needs(state, request)


@dataclass(frozen=True, slots=True)
class Query:
    """How a read-only method is answered: directly or by an awaitable. Queries that a follower answers
    (sequencer.methods) use only a QueryContext."""

    name: str
    answer: Callable[[Any, Any], Any]


def _request_id(request: Value) -> UUID | None:
    """Return the request's id; None for a request that only validates, because it changes nothing."""
    is_change = not getattr(request, "validate_only", False)
    return getattr(request, "request_id", None) if is_change else None


def _decides(
    method: Declared[R, A],
    decide: Callable[[Draft, R, Context], A | Steps[A]],
    *,
    request_id: Callable[[R], UUID | None] = _request_id,
    waits: CheckpointWait = CheckpointWait.NOT,
    needs: Callable[[HotState, R], RequiredRows] | None = None,
) -> Decision:
    return Decision(method.__name__, decide, request_id, waits=waits, needs=needs)


def _decides_alone(
    method: Declared[R, A],
    decide: Callable[[Draft, R, Context], Awaitable[A]],
    *,
    waits: CheckpointWait = CheckpointWait.NOT,
) -> Decision:
    return Decision(method.__name__, decide, _request_id, is_alone=True, waits=waits)


def _answers(method: Declared[R, A], answer: Callable[[R, Context], A]) -> Query:
    return Query(method.__name__, answer)


def _looks_up(method: Declared[R, A], answer: Callable[[R, Context], Awaitable[A]]) -> Query:
    return Query(method.__name__, answer)


# --- methods that need more than a rule


def _register_agent(draft: Draft, request: AgentInfo, context: Context) -> AgentLease:
    lease = leases.register_agent(
        draft=draft,
        info=request,
        identity=context.view.identity,
        settings=context.settings,
        slack_ms=context.slack_ms(),
    )
    context.view.heard.note(lease, context.clock.monotonic())
    return lease


def _renew_agent(draft: Draft, request: RenewAgent, context: Context) -> AgentLease:
    lease = leases.renew_agent(
        draft=draft,
        request=request,
        identity=context.view.identity,
        settings=context.settings,
        slack_ms=context.slack_ms(),
    )
    now = context.clock.monotonic()
    context.view.heard.note(lease, now, is_renewal=True)
    return context.view.budgets.answer(lease, request, now)


def _suspect_agent(draft: Draft, request: AgentRef, context: Context) -> Empty:
    context.view.heard.suspect(request)
    silent = leases.suspect_agent(draft, request, has_left=context.has_left(request))
    if silent is not None:
        context.log_silent([silent])
    return Empty()


def _init_producer(
    draft: Draft, request: InitProducer, context: Context
) -> ProducerGrant | Steps[ProducerGrant]:
    """Grant a producer id. As in Kafka, an idempotent producer gets a new id each time, and its bumped epochs are
    checked per partition. A transactional id keeps its producer id."""
    if request.transactional_id is None:
        return ProducerGrant(draft.next_value(PRODUCER_ID), 0)
    return transactions.init_producer(draft, request, context.settings)


def _init_producer_id(request: InitProducer) -> UUID | None:
    """None for an idempotent producer: its retry may get another id, because the first id is never used."""
    return None if request.transactional_id is None else request.request_id


async def _forget_objects(draft: Draft, request: ForgetObjects, context: Context) -> Empty:
    grace_ms = context.settings.deletion_grace_ms
    return await garbage.forget_objects(draft, context.store, request, grace_ms)


def _alter_config(draft: Draft, request: AlterConfig, context: Context) -> Empty:
    if request.scope in (ConfigScope.TOPIC, ConfigScope.BROKER):
        return topics.alter_config(draft, request, context.validate_config)
    return client_configs.alter_client_config(draft, request, context.settings)


def _broker_configs(request: BrokerConfigsRequest, context: Context) -> Configs:
    row = context.state.get(BrokerConfigRow, request.name)
    return Configs({} if row is None else row.configs)


async def _current_transactions(
    request: CurrentTransactionsRequest, context: Context
) -> CurrentTransactionsAnswer:
    return await in_turns(transactions.current_transactions(context.state, request), Turns(QUERIES_IN_A_TURN))


def _locate_group(request: LocateGroup, context: Context) -> GroupOwner:
    heard, now, slack_ms = context.view.heard, context.clock.monotonic(), context.slack_ms()
    return leases.locate_group(
        context.state, request, lambda agent: heard.has_stopped(agent, now, context.settings, slack_ms)
    )


async def _garbage(request: GarbageRequest, context: Context) -> Garbage:
    limit = min(request.limit, MAX_PAGE)
    answer = await garbage.find_garbage(context.state, context.reads, limit, context.settings)
    checkpointer = context.view.checkpointer
    if checkpointer is None:
        return answer
    # A recovery from the last durable checkpoint needs every object that the checkpoint names.
    saved = [
        (object_id, key)
        for object_id, key in answer.objects
        if checkpointer.is_saved(ObjectRow, (object_id,))
    ]
    return Garbage(saved, answer.sessions)


async def _known_keys(request: KnownKeys, context: Context) -> KnownKeys:
    return KnownKeys(await context.reads.keys_known(request.keys))


async def _table_pins(request: TablePinsRequest, context: Context) -> TablePins:
    return tables.table_pins(context.state, request, await context.reads.now_ms())


async def _tokens(request: TokensRequest, context: Context) -> Tokens:
    return tokens.tokens(context.state, request, await context.reads.now_ms())


async def _clean_points(request: CleanPointsRequest, context: Context) -> CleanPoints:
    return cleaning.clean_points(context.state, request, await context.reads.now_ms())


async def _object_runs(request: ObjectRef, context: Context) -> RunsAnswer:
    return RunsAnswer(await context.reads.runs_of_object(request.object_id))


# --- the tables


def _by_name(entries: Iterable[Any]) -> dict[str, Any]:
    return {entry.name: entry for entry in entries}


DECISIONS: dict[str, Decision] = _by_name(
    (
        # Upload sessions.
        _decides(
            Sequencer.open_session,
            lambda draft, request, context: upload_sessions.open_session(
                draft=draft,
                request=request,
                session_id=context.entropy.uuid(),
                identity=context.view.identity,
                settings=context.settings,
                slack_ms=context.slack_ms(),
            ),
        ),
        _decides(
            Sequencer.renew_session,
            lambda draft, request, context: upload_sessions.renew_session(
                draft=draft,
                request=request,
                identity=context.view.identity,
                settings=context.settings,
                slack_ms=context.slack_ms(),
            ),
        ),
        _decides(
            Sequencer.close_session, lambda draft, request, _: upload_sessions.close_session(draft, request)
        ),
        _decides_alone(
            Sequencer.commit_write,
            lambda draft, request, context: writes.commit_write(
                draft, context.store, request, context.settings
            ),
            waits=CheckpointWait.RECOVERABLE,
        ),
        # Agents and the ring.
        _decides(Sequencer.register_agent, _register_agent),
        _decides(Sequencer.renew_agent, _renew_agent),
        _decides(Sequencer.release_agent, lambda draft, request, _: leases.release_agent(draft, request)),
        _decides(Sequencer.suspect_agent, _suspect_agent),
        _decides(
            Sequencer.take_lease,
            lambda draft, request, _: leases.take_lease(draft, request),
            request_id=lambda request: None if request.epoch else request.request_id,
        ),
        # Topics and configs.
        _decides(
            Sequencer.create_topic,
            lambda draft, request, context: topics.create_topic(
                draft=draft,
                request=request,
                topic_id=quick_id(context.entropy.uuid()),
                validate=context.validate_config,
                settings=context.settings,
            ),
            waits=CheckpointWait.SAVED,
        ),
        _decides(Sequencer.delete_topic, lambda draft, request, _: topics.delete_topic(draft, request)),
        _decides(
            Sequencer.create_partitions,
            lambda draft, request, context: topics.create_partitions(draft, request, context.settings),
            waits=CheckpointWait.SAVED,
        ),
        _decides(Sequencer.alter_config, _alter_config),
        # Users and access control lists.
        _decides(
            Sequencer.alter_scram,
            lambda draft, request, context: access.alter_scram(draft, request, context.settings),
        ),
        _decides(
            Sequencer.create_acls,
            lambda draft, request, context: access.create_acls(draft, request, context.settings),
        ),
        _decides(Sequencer.delete_acls, lambda draft, request, _: access.delete_acls(draft, request)),
        _decides(
            Sequencer.create_token,
            lambda draft, request, context: tokens.create_token(draft, request, context.settings),
        ),
        _decides(Sequencer.alter_token, lambda draft, request, _: tokens.alter_token(draft, request)),
        # Records.
        _decides(Sequencer.delete_records, lambda draft, request, _: topics.delete_records(draft, request)),
        # Producers and transactions.
        _decides(Sequencer.init_producer, _init_producer, request_id=_init_producer_id),
        _decides(
            Sequencer.add_to_transaction,
            lambda draft, request, context: transactions.add_to_transaction(draft, request, context.settings),
        ),
        _decides(
            Sequencer.end_transaction,
            lambda draft, request, _: transactions.end_transaction(draft, request),
            needs=lambda state, request: positions_needed(transactions.positions_read(state, request)),
        ),
        _decides(
            Sequencer.abort_producer, lambda draft, request, _: transactions.abort_producer(draft, request)
        ),
        # Groups.
        _decides(Sequencer.load_group, lambda draft, request, _: groups.load_group(draft, request)),
        _decides(
            Sequencer.save_group,
            lambda draft, request, context: groups.save_group(draft, request, context.settings),
            request_id=lambda request: request.request_id if request.may_create else None,
        ),
        _decides(
            Sequencer.delete_group,
            lambda draft, request, _: groups.delete_group(draft, request),
            needs=lambda state, request: RequiredRows(groups=[request.group_id]),
        ),
        _decides(
            Sequencer.commit_offsets,
            lambda draft, request, context: groups.commit_offsets(draft, request, context.settings),
            request_id=lambda request: None if request.turn else request.request_id,
            needs=lambda state, request: positions_needed(groups.positions_committed(request)),
        ),
        _decides(
            Sequencer.delete_offsets,
            lambda draft, request, _: groups.delete_offsets(draft, request),
            needs=lambda state, request: positions_needed(groups.positions_deleted(request)),
        ),
        # Share groups: the row itself keeps the last answers for retries.
        _decides(
            Sequencer.share_records,
            lambda draft, request, context: shares.share_records(draft, request, context.settings),
            request_id=lambda request: None,
        ),
        _decides(
            Sequencer.alter_share_offsets,
            lambda draft, request, context: shares.alter_share_offsets(draft, request, context.settings),
        ),
        # Garbage, tables and compaction.
        _decides(Sequencer.mark_clean, lambda draft, request, _: cleaning.mark_clean(draft, request)),
        _decides(Sequencer.pin_table, lambda draft, request, _: tables.pin_table(draft, request)),
        _decides(Sequencer.release_table, lambda draft, request, _: tables.release_table(draft, request)),
        _decides_alone(Sequencer.forget_objects, _forget_objects),
        _decides(
            Sequencer.session_swept,
            lambda draft, request, context: garbage.session_swept(draft, request, context.settings),
        ),
        _decides_alone(
            Sequencer.swap, lambda draft, request, context: compaction.swap(draft, context.store, request)
        ),
    )
)

QUERIES: dict[str, Query] = _by_name(
    (
        _answers(
            Sequencer.metadata,
            lambda request, context: context.view.topics.answer(request, context.view.identity),
        ),
        _answers(Sequencer.broker_configs, _broker_configs),
        _answers(
            Sequencer.client_configs,
            lambda request, context: client_configs.client_configs(context.state, request),
        ),
        _answers(Sequencer.security, lambda request, context: context.view.security.answer(request)),
        _looks_up(Sequencer.tokens, _tokens),
        _looks_up(Sequencer.find_batches, lambda request, context: context.reader.find_batches(request)),
        _looks_up(Sequencer.list_offsets, lambda request, context: context.reader.list_offsets(request)),
        _answers(
            Sequencer.offsets_for_epochs, lambda request, context: context.reader.offsets_for_epochs(request)
        ),
        _looks_up(
            Sequencer.feed,
            lambda request, context: context.view.feed.follow(
                request, min(request.max_wait_ms, context.settings.max_feed_wait_ms)
            ),
        ),
        _looks_up(
            Sequencer.watch,
            lambda request, context: context.view.subscriptions.watch(
                request, min(request.max_wait_ms, context.settings.max_feed_wait_ms)
            ),
        ),
        _looks_up(Sequencer.sizes, lambda request, context: context.reader.sizes(request)),
        _looks_up(
            Sequencer.live_files,
            lambda request, context: live_files(context.state, context.reader, context.reads, request),
        ),
        _looks_up(
            Sequencer.describe_producers, lambda request, context: context.reader.describe_producers(request)
        ),
        _looks_up(Sequencer.current_transactions, _current_transactions),
        _answers(
            Sequencer.transactions, lambda request, context: transactions.describe(context.state, request)
        ),
        _answers(Sequencer.locate_group, _locate_group),
        _answers(Sequencer.list_groups, lambda request, context: groups.list_groups(context.state, request)),
        _looks_up(Sequencer.fetch_offsets, lambda request, context: context.view.positions.fetch(request)),
        _answers(
            Sequencer.share_offsets, lambda request, context: shares.share_offsets(context.state, request)
        ),
        _looks_up(Sequencer.lags, lambda request, context: context.view.positions.lags(request)),
        _looks_up(Sequencer.garbage, _garbage),
        _looks_up(Sequencer.known_keys, _known_keys),
        _looks_up(
            Sequencer.compaction_candidates,
            lambda request, context: compaction.find_candidates(
                context.state, context.reads, request, context.settings
            ),
        ),
        _looks_up(Sequencer.clean_points, _clean_points),
        _looks_up(Sequencer.table_pins, _table_pins),
        _looks_up(Sequencer.objects, lambda request, context: context.reader.objects(request)),
        _looks_up(Sequencer.object_runs, _object_runs),
        _looks_up(Sequencer.statistics, lambda request, context: context.reader.statistics()),
    )
)
