"""Upload sessions, and the commits under them.

Invariants:
- a session's commit numbers are applied in order, each once; a retry of a number gets its first answer;
- closing a session changes its row, so no commit is applied after it;
- the first commit of a session closes its predecessor: no commit of a lane's old session follows one of the new;
- a run's row names an object that has a row.

A writer's session (sequencer.rules.writes) has no commit numbers: it is only a prefix and a lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from uuid import UUID

import msgspec

from sequencer.api.commits import (
    ANY_TRANSACTION,
    BatchError,
    CommitAnswer,
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunOutcome,
    RunProposal,
    SessionGrant,
    SessionRef,
    uploaded_key,
)
from sequencer.api.errors import InvalidRequest, LeaseLost, LimitReached, SessionClosed
from sequencer.api.values import Empty
from sequencer.rules.assign import Assignment, RunChecks, assign_offsets, refuse_all
from sequencer.rules.producers import state_of
from sequencer.rules.transactions import Joined, admit, join_partitions, note_stored
from sequencer.settings import SequencerSettings
from sequencer.store.batch_table import encode_table
from sequencer.store.draft import Draft
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.rows import (
    AgentRow,
    CommitRow,
    LeaseRow,
    ObjectRow,
    OpenRangeRow,
    PartitionRow,
    ProducerKey,
    ProducerRow,
    RunRow,
    SessionRow,
    TopicRow,
    advanced,
)
from sequencer.store.state import COMMIT_NUMBER, HotState, replace_row
from tailrace.ids import NO_PRODUCER_ID, TopicPartition
from tailrace.limits import INT16, INT32, MAX_KEY_BYTES
from tailrace.turns import Steps

BATCHES_AS_A_RUN = 10
"""The number of batches that cost as much as a run."""
WORK_IN_A_STEP = 16
"""Work per step, in runs. A step costs as much as a run, so it is not taken after each run."""
BATCHES_IN_A_STEP = 100
COMPACTOR_BROKER_ID = -1
"""A session opened under this broker id belongs to the compactor; `agent_epoch` is the epoch of its named lease."""
COMPACTOR_LEASE = "compactor"
WRITER_BROKER_ID = -2
"""A session opened under this broker id belongs to a writer: a job that is not an agent and commits with
`commit_write`."""

_LEAST, _MOST = INT32[0], INT32[-1]
_LEAST_EPOCH, _MOST_EPOCH = INT16[0], INT16[-1]

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_answers = msgspec.msgpack.Decoder(CommitAnswer)
_topic_partition = partial(tuple.__new__, TopicPartition)
"""Makes a `TopicPartition` from a tuple without a Python-level call; there is one per run."""


def open_session(
    draft: Draft,
    request: OpenSession,
    session_id: UUID,
    identity: DatabaseIdentity,
    settings: SequencerSettings,
    slack_ms: int = 0,
) -> SessionGrant:
    """Grant a new prefix to a live agent or to the compactor; grant a writer the prefix of its named session."""
    is_writer = request.broker_id == WRITER_BROKER_ID
    if is_writer:
        if request.name is None:
            raise InvalidRequest("a writer's session must have a name")
        known = _writers_session(draft, request.name, settings)
        if known is not None:
            return renew_session(
                draft=draft,
                request=SessionRef(known),
                identity=identity,
                settings=settings,
                slack_ms=slack_ms,
            )
    folder = "written" if is_writer else _folder_of_holder(draft, request)
    # The first part spreads sessions over the store's partitions; the id is random and needs no hash.
    prefix = f"{identity.cluster_id}/{folder}/{session_id.hex[-4:]}/{session_id}/"
    lease_ms = (settings.writer_lease_ms if is_writer else settings.session_lease_ms) + slack_ms
    row = SessionRow(
        session_id=session_id,
        broker_id=request.broker_id,
        prefix=prefix,
        predecessor=request.predecessor if request.name is None else request.name,
        next_number=0,
        expires_ms=draft.now_ms + lease_ms,
        closed_ms=None,
    )
    draft.put(row)
    return _granted(row, lease_ms, identity, settings)


def _folder_of_holder(draft: Draft, request: OpenSession) -> str:
    """Return the folder for the compactor or the agent, which must hold its lease. Raises LeaseLost."""
    if request.broker_id == COMPACTOR_BROKER_ID:
        lease = draft.get(LeaseRow, COMPACTOR_LEASE)
        if lease is None or lease.epoch != request.agent_epoch or lease.expires_ms <= draft.now_ms:
            raise LeaseLost(
                f"no live lease {COMPACTOR_LEASE!r} of epoch {request.agent_epoch}; take it again"
            )
        return "parquet"
    agent = draft.get(AgentRow, request.broker_id)
    if agent is None or agent.epoch != request.agent_epoch or agent.expires_ms == 0:
        raise LeaseLost(f"no live agent {request.broker_id} of epoch {request.agent_epoch}; register again")
    return "mixed"


def _granted(
    row: SessionRow, lease_ms: int, identity: DatabaseIdentity, settings: SequencerSettings
) -> SessionGrant:
    return SessionGrant(
        session_id=row.session_id,
        prefix=row.prefix,
        lease_ms=lease_ms,
        incarnation=identity.incarnation,
        collected_ms=settings.sweep_interval_ms,
        by_reference_ms=_by_reference_ms(settings),
    )


def _by_reference_ms(settings: SequencerSettings) -> int:
    """Return how long a run may name a retired object again. Later the collector may be deleting the object, or begin
    to before the run is written: a database transaction may take half of the grace period."""
    return settings.deletion_grace_ms // 2


def _writers_session(draft: Draft, name: UUID, settings: SequencerSettings) -> UUID | None:
    """Return the id of the live session with this name; the row stores the name as predecessor. Each opening creates a
    session with a new id: objects uploaded under an expired session may be collected, and are never committed under the
    next one.

    Raises LimitReached if there is no such session and the limit of open ones is reached.
    """
    rows = draft.open_sessions_of(WRITER_BROKER_ID)
    for row in rows:
        if row.predecessor == name and row.expires_ms > draft.now_ms:
            return row.session_id
    if len(rows) >= settings.max_writers:
        raise LimitReached(f"{len(rows)} jobs are writing; max_writers is {settings.max_writers}")
    return None


def live_session(draft: Draft, session_id: UUID) -> SessionRow:
    """Return the session's row. Raises SessionClosed unless it is open and its lease is valid."""
    session = draft.get(SessionRow, session_id)
    if session is None:
        raise SessionClosed(f"session {session_id} is not known; open another")
    if session.closed_ms is not None:
        raise SessionClosed(f"session {session_id} was closed; open another")
    if session.expires_ms <= draft.now_ms:
        late_ms = draft.now_ms - session.expires_ms
        raise SessionClosed(f"session {session_id} expired {late_ms} ms ago; open another")
    return session


def renew_session(
    draft: Draft,
    request: SessionRef,
    identity: DatabaseIdentity,
    settings: SequencerSettings,
    slack_ms: int = 0,
) -> SessionGrant:
    """Extend a live session's lease. The row is written only if a tenth of the lease has passed."""
    session = live_session(draft, request.session_id)
    is_writers = session.broker_id == WRITER_BROKER_ID
    lease_ms = (settings.writer_lease_ms if is_writers else settings.session_lease_ms) + slack_ms
    left_ms = session.expires_ms - draft.now_ms
    if left_ms <= lease_ms * 9 // 10:
        left_ms = lease_ms
        draft.put(replace_row(session, expires_ms=draft.now_ms + left_ms))
    return _granted(session, left_ms, identity, settings)


def close_session(draft: Draft, request: SessionRef) -> Empty:
    """Close a session. Do nothing if it is closed or unknown."""
    session = draft.get(SessionRow, request.session_id)
    if session is not None and session.closed_ms is None:
        draft.put(replace_row(session, closed_ms=draft.now_ms))
    return Empty()


def check_commit(request: CommitRequest, settings: SequencerSettings) -> Steps[None]:
    """Raise InvalidRequest or LimitReached for a commit that is invalid under any session. Each batch is a unit of
    work."""
    if request.number < 0:
        raise InvalidRequest(f"commit number {request.number}; numbers start at 0")
    if request.object is None:
        if request.runs:
            raise InvalidRequest(f"{len(request.runs)} runs without an object")
        return
    if len(request.runs) > settings.max_runs_per_commit:
        raise LimitReached(f"{len(request.runs)} runs; max_runs_per_commit is {settings.max_runs_per_commit}")
    batches = records = unyielded = 0
    for run in request.runs:
        lengths = 0
        for batch in run.batches:
            length = batch.length
            # Whether the values fit the fields of a non-empty record batch.
            if not (
                0 < length <= _MOST
                and 0 < batch.record_count <= _MOST
                and _LEAST_EPOCH <= batch.producer_epoch <= _MOST_EPOCH
                and _LEAST <= batch.base_sequence <= _MOST
            ):
                raise InvalidRequest(f"{batch}: no batch has such values")
            lengths += length
            records += batch.record_count
        if not run.batches or lengths != run.length:
            raise InvalidRequest(f"a run of {run.length} bytes whose batches take {lengths}")
        if run.transactions and len(run.transactions) != len(run.batches):
            raise InvalidRequest(f"{len(run.transactions)} transactions for {len(run.batches)} batches")
        if run.start < 0 or run.start + run.length > request.object.index_start:
            raise InvalidRequest(
                f"a run at [{run.start}, {run.start + run.length}) of an object whose batches end at"
                f" {request.object.index_start}"
            )
        batches += len(run.batches)
        unyielded += len(run.batches)
        if unyielded >= BATCHES_IN_A_STEP:
            yield unyielded
            unyielded = 0
    if batches > settings.max_batches_per_commit:
        raise LimitReached(f"{batches} batches; max_batches_per_commit is {settings.max_batches_per_commit}")
    if records > settings.max_offsets_at_once:
        check_offsets(request.runs, settings)


def check_offsets(runs: Iterable[RunProposal], settings: SequencerSettings) -> None:
    """Raise LimitReached for runs that need more offsets of a partition than a checkpoint reserves: no later checkpoint
    would help."""
    records: Counter[tuple[UUID, int]] = Counter()
    for run in runs:
        records[run.topic_id, run.partition] += sum(batch.record_count for batch in run.batches)
    (place, most), *_ = records.most_common(1)
    if most > settings.max_offsets_at_once:
        raise LimitReached(
            f"{most} records at once in partition {place[0]}-{place[1]}; a checkpoint reserves"
            f" {settings.max_offsets_at_once} offsets (checkpoint_reservation)"
        )


def check_object(described: ObjectDescription, prefix: str) -> None:
    """Raise InvalidRequest for an object that no session with this prefix can have stored."""
    if not described.key.startswith(prefix) or len(described.key.encode()) > MAX_KEY_BYTES:
        raise InvalidRequest(
            f"object {described.key[:200]!r}: a key of at most {MAX_KEY_BYTES} bytes under the session's prefix"
            f" {prefix!r} is needed"
        )
    if described.format_version not in INT16:
        raise InvalidRequest(f"object {described.key!r} of format version {described.format_version}")


def names_earlier_object(session: SessionRow | None, key: str, number: int) -> bool:
    """Whether the object of this key in the commit of this number may already have a row: a retried batch names the
    object of an earlier commit. An object with the key of the commit's own number is new, unless the number was already
    applied. The store refuses an id that another object has."""
    return session is None or key != uploaded_key(session.prefix, number)


def _is_of_another_commit(key: str, session: SessionRow) -> bool:
    """Whether the key is another session's, or that of another commit than the session's next."""
    own = uploaded_key(session.prefix, session.next_number)
    number = key.removeprefix(session.prefix)
    return not key.startswith(session.prefix) or (number.isdigit() and len(key) >= len(own) and key != own)


def known_answer(draft: Draft, request: CommitRequest) -> CommitAnswer | None:
    """Return the first answer to this commit number; None if it is not kept (any more)."""
    row = draft.get(CommitRow, request.session_id, request.number)
    return None if row is None else _answers.decode(row.answer)


def apply_commit(
    draft: Draft, session: SessionRow, request: CommitRequest, settings: SequencerSettings
) -> Steps[CommitAnswer]:
    """Apply the session's next commit: object, runs, producers, answer. Each run is one unit of work.

    The caller has looked up the object's row, if any, into `draft.objects`.
    """
    if request.object is None:
        return _answer(draft, session, request, [])
    known = draft.get(ObjectRow, request.object.object_id)
    if known is None and _is_of_another_commit(request.object.key, session):
        # Every commit of an object leaves a row, which is deleted after the object's bytes: this object was collected.
        return _answer(draft, session, request, _refusals(draft, request.runs))
    outcomes = yield from commit_object(
        draft, session, described=request.object, proposals=request.runs, settings=settings
    )
    return _answer(draft, session, request, outcomes)


def _refusals(draft: Draft, proposals: list[RunProposal]) -> list[RunOutcome]:
    return [
        RunOutcome(refuse_all(run.batches, BatchError.OUT_OF_ORDER_SEQUENCE), _log_start(draft, run))
        for run in proposals
    ]


def _answer(
    draft: Draft, session: SessionRow, request: CommitRequest, outcomes: list[RunOutcome]
) -> CommitAnswer:
    assert session.next_number == request.number, f"expected {session.next_number}, not {request.number}"
    if request.number == 0 and session.predecessor is not None:
        close_session(draft, SessionRef(session.predecessor))
    answer = CommitAnswer(draft.counter(COMMIT_NUMBER), outcomes)
    for number in draft.durable.commits_of.get(session.session_id, ()):
        if number < request.answered_below:
            draft.delete(CommitRow, session.session_id, number)
    draft.put(CommitRow(session_id=session.session_id, number=request.number, answer=_encoder.encode(answer)))
    draft.put(replace_row(session, next_number=request.number + 1))
    return answer


def commit_object(
    draft: Draft,
    session: SessionRow,
    described: ObjectDescription,
    proposals: list[RunProposal],
    settings: SequencerSettings,
) -> Steps[list[RunOutcome]]:
    """Store an object's runs. The caller has looked up its row, if any, into `draft.objects`."""
    stored = draft.get(ObjectRow, described.object_id)
    if stored is None:
        check_object(described, session.prefix)
        stored = object_row(described)
    elif (stored.key, stored.size) != (described.key, described.size):
        raise InvalidRequest(
            f"object {described.object_id} is stored as {stored.key!r} of {stored.size} bytes"
        )
    elif stored.retired_ms is not None and stored.retired_ms + _by_reference_ms(settings) <= draft.now_ms:
        return _refusals(draft, proposals)
    outcomes: list[RunOutcome] = []
    joined: Joined = {}
    runs = length = work = 0
    for proposal in proposals:
        outcome, is_stored = _commit_run(draft, stored, proposal=proposal, joined=joined, settings=settings)
        outcomes.append(outcome)
        if is_stored:
            runs += 1
            length += proposal.length
        work += 1 + len(proposal.batches) // BATCHES_AS_A_RUN
        if work >= WORK_IN_A_STEP:
            yield work
            work = 0
    yield work
    join_partitions(draft, joined, settings)
    draft.sum_deltas.runs(ObjectKind.MIXED, runs, length)
    live = stored.live_runs + runs
    draft.put(
        replace_row(stored, live_runs=live, retired_ms=None if live else (stored.retired_ms or draft.now_ms))
    )
    return outcomes


def producers_of(state: HotState, runs: Iterable[RunProposal]) -> Steps[list[ProducerKey]]:
    """Return the keys of the producers whose states `commit_object` may need for these runs; duplicates are
    possible."""
    keys: list[ProducerKey] = []
    topic_id: UUID | None = None
    for run in runs:
        if topic_id is None or topic_id.int != run.topic_id.int:
            topic = state.get(TopicRow, run.topic_id)
            topic_id = run.topic_id if topic is None else topic.topic_id
        partition = run.partition
        for producer_id in {batch.producer_id: None for batch in run.batches}:
            if producer_id != NO_PRODUCER_ID:
                keys.append((topic_id, partition, producer_id))
        yield 1 + len(run.batches) // BATCHES_AS_A_RUN
    return keys


def object_row(described: ObjectDescription) -> ObjectRow:
    """Return an object's row before any run names it."""
    return ObjectRow(
        object_id=described.object_id,
        kind=described.kind,
        key=described.key,
        size=described.size,
        crc=described.crc,
        index_start=described.index_start,
        created_ms=described.created_ms,
        format_version=described.format_version,
        live_runs=0,
        retired_ms=None,
        index_crc=described.index_crc,
    )


def _log_start(draft: Draft, proposal: RunProposal) -> int:
    row = draft.live_partition(proposal.topic_id, proposal.partition)
    return -1 if row is None else row.log_start_offset


def _commit_run(
    draft: Draft, stored: ObjectRow, proposal: RunProposal, joined: Joined, settings: SequencerSettings
) -> tuple[RunOutcome, bool]:
    """Return the outcome of a proposal, and whether a batch of it is stored. Changes the rows of the partition and the
    producers, and appends the run."""
    number = proposal.partition
    partition = draft.live_partition(proposal.topic_id, number)
    topic_id = draft.live_topic
    if partition is None or topic_id is None:
        return RunOutcome(refuse_all(proposal.batches, BatchError.UNKNOWN_TOPIC_OR_PARTITION), -1), False
    assigned = assign_offsets(
        partition.end_offset, proposal.batches, partial(_checks, draft, topic_id, proposal, settings)
    )
    outcome = RunOutcome(assigned.outcomes, partition.log_start_offset)
    if not assigned.has_stored:
        return outcome, False
    if assigned.producers:
        _put_producers(draft, topic_id, number, assigned)
    if assigned.transactional:
        note_stored(
            draft,
            topic_id,
            partition=number,
            first_offsets=assigned.transactional,
            joined=joined,
            settings=settings,
        )
    partition = advanced(partition, assigned.end_offset, assigned.max_timestamp)
    key = _topic_partition((topic_id, number))
    draft.changes.of(PartitionRow)[key] = partition
    # Positional arguments are faster, and there is one row per run of each commit.
    row = RunRow(
        topic_id,
        number,
        assigned.base_offset,
        assigned.end_offset,
        stored.object_id,
        proposal.start,
        proposal.length,
        assigned.max_timestamp,
        partition.running_max_timestamp,
        draft.visible_change(),
        draft.now_ms,
        ObjectKind.MIXED,
        encode_table(assigned.table),
    )
    draft.append_run(key, row, stored, assigned.table)
    return outcome, True


def _checks(draft: Draft, topic_id: UUID, proposal: RunProposal, settings: SequencerSettings) -> RunChecks:
    """Return the checks for a proposal's batches, from the draft's rows of producers and transactions."""
    number, batches = proposal.partition, proposal.batches
    row_of = draft.producers_on(topic_id, number)

    def admitted(index: int) -> BatchError:
        named = proposal.transactions[index] if proposal.transactions else ANY_TRANSACTION
        return admit(draft, topic_id, partition=number, batch=batches[index], number=named, settings=settings)

    def open_from(producer_id: int) -> int | None:
        opened = draft.get(OpenRangeRow, topic_id, number, producer_id)
        return None if opened is None else opened.first_offset

    return RunChecks(
        lambda producer_id: state_of(row_of(producer_id)),
        admit=admitted,
        open_from=open_from,
        transactional_ids=draft.durable.transactional_ids,
        may_skip=proposal.may_skip,
    )


def _put_producers(draft: Draft, topic_id: UUID, number: int, assigned: Assignment) -> None:
    last_timestamp, now_ms = assigned.max_timestamp, draft.now_ms
    changed = draft.changes.of(ProducerRow)
    for producer_id, state in assigned.producers.items():
        changed[topic_id, number, producer_id] = ProducerRow(
            topic_id=topic_id,
            partition=number,
            producer_id=producer_id,
            producer_epoch=state.epoch,
            recent=state.recent,  # its own list, which nothing changes after the run's checks
            last_timestamp=last_timestamp,
            updated_ms=now_ms,
        )
