"""Fetch: find the runs, wait for enough bytes, read them, answer by Kafka's rules.

The bounds of a partition (log start, high watermark, last stable offset) and its runs come from one answer of the
sequencer, so they belong to one commit number; OFFSET_OUT_OF_RANGE is said only from there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from operator import attrgetter

import structlog

from agent.errors import EXPECTED, PARTITION_CODES, code_of
from agent.fetch.memory import Grant
from agent.fetch.sessions import FetchContext, FetchWish
from agent.handlers.current_topics import UNKNOWN_CODES
from agent.metadata import KnownTopic, has
from agent.services import HeldResponse, RequestContext, Services
from cache.read_batches import ReadBatches
from cache.reader import BatchReader
from sequencer.api import (
    FindAnswer,
    FindPartition,
    FindRequest,
    FoundPartition,
    ObjectKind,
    PartitionError,
    Run,
    SequencerError,
)
from tailrace.ids import TopicPartition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tailrace.object_store.api import ObjectMissing
from tailrace.record_batch import MARKER_BYTES
from tailrace.turns import Turns

log = structlog.get_logger("agent.fetch")

FIRST_TOPIC_ID_VERSION = 13
BATCHES_IN_A_TURN = 10_000
"""Rows of batch tables that are looked through in one turn of the loop."""
READ_IN_A_TURN = 1_000
"""Partitions and runs, kept as they are sent, that are read in one turn of the loop."""
READ_COMMITTED = 1
MAX_PLANS = 3
"""How often a fetch is planned anew when an object was gone (compacted, collected) between plan and read."""

MEMORY_WAIT_SECONDS = 5.0
"""How long a fetch waits at least for memory; then it is answered without records, and its client asks again."""


@dataclass(slots=True)
class _Wanted:
    """One partition of the fetch: its wish, its topic (if known), and its row of the response."""

    wish: FetchWish
    topic: KnownTopic | None
    data: PartitionData
    found: FoundPartition | None = None
    ready_bytes: int = 0
    read_bytes: int = 0

    @property
    def is_failed(self) -> bool:
        return self.data.error_code != ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class _Reading:
    """One partition's part of a read: `room` bytes, or one batch where `minimum_one` says so."""

    wanted: _Wanted
    room: int
    minimum_one: bool
    read_committed: bool

    @property
    def found(self) -> FoundPartition:
        assert self.wanted.found is not None, "only what was found is read"
        return self.wanted.found

    @property
    def end(self) -> int:
        """Nothing is read that begins at or after this offset."""
        return self.found.last_stable_offset if self.read_committed else self.found.high_watermark


async def handle(
    services: Services, context: RequestContext, request: FetchRequest
) -> FetchResponse | HeldResponse:
    """Serve one fetch; see the module."""
    fetch = services.sessions.begin(request, context.client_id)
    if isinstance(fetch, ErrorCode):
        return FetchResponse(error_code=fetch, session_id=0)
    grant: Grant | None = None
    try:
        before = services.catalog.snapshot
        wanted = await _wanted(services, context, fetch)
        if _is_sent_away(services, context, wanted):
            return _response(fetch, _failed(fetch, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        grant = await _fill(services, request, wanted)
        if _has_unknown(wanted) and await services.catalog.has_moved_on(before):
            if grant is not None:
                grant.release()
                grant = None
            wanted = await _wanted(services, context, fetch)
            grant = await _fill(services, request, wanted)
    except SequencerError as error:
        code = code_of(error)
        log.warning("a fetch got no answer from the sequencer", error=str(error))
        services.telemetry.fetch_failures.labels(code.name).inc(len(fetch.wishes))
        wanted = _failed(fetch, code)
    response = _response(fetch, wanted)
    return response if grant is None else HeldResponse(response, grant.release)


def _failed(fetch: FetchContext, code: ErrorCode) -> list[_Wanted]:
    return [
        _Wanted(wish, None, PartitionData(partition_index=wish.key[2], error_code=code, high_watermark=-1))
        for wish in fetch.wishes
    ]


async def _wanted(services: Services, context: RequestContext, fetch: FetchContext) -> list[_Wanted]:
    by_id = context.api_version >= FIRST_TOPIC_ID_VERSION
    snapshot = services.catalog.snapshot
    if not all(
        has(snapshot.by_id.get(wish.key[1]) if by_id else snapshot.by_name.get(wish.key[0]), wish.key[2] + 1)
        for wish in fetch.wishes
    ):
        snapshot = await services.catalog.refresh()
    wanted = []
    for wish in fetch.wishes:
        name, topic_id, partition = wish.key
        data = PartitionData(partition_index=partition, high_watermark=-1)
        topic = snapshot.by_id.get(topic_id) if by_id else snapshot.by_name.get(name)
        if topic is None:
            data.error_code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif not 0 <= partition < topic.topic.partitions:
            data.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wanted.append(_Wanted(wish, topic, data))
    return wanted


def _is_sent_away(services: Services, context: RequestContext, wanted: list[_Wanted]) -> bool:
    """Whether the consumer is to ask who leads now."""
    identity = services.identity
    return identity.is_leaving or context.leadership.sends_away(
        services.catalog.snapshot.replicas,
        identity.broker_id,
        context.zone,
        services.clock.monotonic(),
        (
            TopicPartition(each.topic.topic.topic_id, each.wish.key[2])
            for each in wanted
            if each.topic is not None
        ),
    )


def _has_unknown(wanted: list[_Wanted]) -> bool:
    return any(each.data.error_code in UNKNOWN_CODES for each in wanted)


async def _fill(services: Services, request: FetchRequest, wanted: list[_Wanted]) -> Grant | None:
    """Wait until there is enough to send, then read it; plans again where an object was gone meanwhile.

    Returns what was taken of the budget for it, if anything was.
    """
    settings = services.settings
    max_wait = min(max(request.max_wait_ms, 0), settings.fetch_max_wait_ms) / 1000
    deadline = services.clock.monotonic() + max_wait
    max_bytes = min(request.max_bytes if request.max_bytes > 0 else 2**31 - 1, settings.fetch_max_bytes)
    read_committed = request.isolation_level == READ_COMMITTED
    for each in wanted:
        each.data.aborted_transactions = [] if read_committed else None
    plans = 0
    while True:
        live = [each for each in wanted if not each.is_failed]
        if not live:
            return None
        answer = await _find(services, live, max_bytes, read_committed)
        failed = any(each.is_failed for each in wanted)
        there = sum(each.ready_bytes for each in live)
        is_cut = any(_is_cut(each, read_committed) for each in live)
        left = deadline - services.clock.monotonic()
        if there >= request.min_bytes or is_cut or failed or left <= 0:
            plans += 1
            bytes_wanted = min(max_bytes, _bytes_expected(live, there))
            first_batch = _first_batch_bytes(services.reader, live)
            grant = services.fetch_memory.try_grant(bytes_wanted, first_batch)
            if grant is None:
                for each in live:
                    each.found = None  # rows are not kept while others' answers are taken
                patience = max(left, MEMORY_WAIT_SECONDS)
                grant = await services.fetch_memory.grant(bytes_wanted, patience, first_batch)
                if grant is None:
                    services.telemetry.deferred_fetches.inc()
                    return None
            try:
                if any(each.found is None for each in live):
                    await _find(services, live, max_bytes, read_committed)
                if await _read(services, live, grant.bytes, read_committed, is_last_plan=plans >= MAX_PLANS):
                    grant.resize(sum(each.read_bytes for each in live))
                    return grant
            except BaseException:
                grant.release()
                raise
            grant.release()
            continue
        assert all(each.topic is not None for each in live)
        await services.tail.wait(
            [(each.topic.topic.topic_id, each.wish.key[2]) for each in live if each.topic is not None],
            answer.commit_number,
            left,
        )


async def _find(services: Services, live: list[_Wanted], max_bytes: int, read_committed: bool) -> FindAnswer:
    answer = await services.sequencer.find_batches(
        FindRequest(
            [
                FindPartition(
                    each.topic.topic.topic_id,
                    each.wish.key[2],
                    each.wish.fetch_offset,
                    max(0, min(each.wish.max_bytes, max_bytes)),
                )
                for each in live
                if each.topic is not None
            ],
            max_bytes,
        )
    )
    turns = Turns(BATCHES_IN_A_TURN)
    for each, found in zip(live, answer.partitions, strict=True):
        each.found = found
        each.data.error_code = PARTITION_CODES[found.error]
        if found.error is not PartitionError.UNKNOWN_TOPIC_OR_PARTITION:
            each.data.high_watermark = found.high_watermark
            each.data.last_stable_offset = found.last_stable_offset
            each.data.log_start_offset = found.log_start_offset
        each.ready_bytes = 0 if each.is_failed else _bytes_ready(services.reader, each, read_committed)
        await turns.did(1 + sum(len(run.batches) for run in found.runs))
    return answer


def _bytes_ready(reader: BatchReader, wanted: _Wanted, read_committed: bool) -> int:
    """Bytes that could be sent now, as far as rows tell: at most the partition's own bound."""
    found = wanted.found
    if found is None:
        return 0
    end = found.last_stable_offset if read_committed else found.high_watermark
    if wanted.wish.fetch_offset >= end:
        return 0  # also where the log begins, and so ends for this reader, within an open transaction's batch
    ready = 0
    for run in found.runs:
        ready += _run_bytes(reader, run, wanted.wish.fetch_offset, end)
    return min(ready, max(wanted.wish.max_bytes, 1)) if ready else 0


def _first_batch_bytes(reader: BatchReader, live: list[_Wanted]) -> int:
    """The bytes of the batch that must be sent whole, however little is asked for; 0 where rows don't tell."""
    for each in live:
        if each.is_failed or not each.ready_bytes:
            continue
        assert each.found is not None, "what is ready was found"
        sizes = (
            reader.first_batch_bytes(run, each.wish.fetch_offset) for run in each.found.runs if run.batches
        )
        return next(filter(None, sizes), 0)
    return 0


def _is_cut(wanted: _Wanted, read_committed: bool) -> bool:
    """Whether the sequencer's answer had no room for all that this partition could send: waiting brings no more."""
    found = wanted.found
    if found is None or wanted.is_failed:
        return False
    end = found.last_stable_offset if read_committed else found.high_watermark
    upto = found.runs[-1].end_offset if found.runs else wanted.wish.fetch_offset
    return upto < end


def _bytes_expected(live: list[_Wanted], there: int) -> int:
    """Bytes that a read may give: what is there, but for Parquet runs, whose batches are made anew."""
    made = [
        each.wish.max_bytes
        for each in live
        if each.found is not None and any(run.kind is ObjectKind.PARQUET for run in each.found.runs)
    ]
    return there + sum(made)


def _run_bytes(reader: BatchReader, run: Run, offset: int, end: int) -> int:
    """Of a run that is wanted whole all its bytes, though batches that were not stored are among them."""
    if run.base_offset >= end:
        return 0
    if run.batches and offset <= run.base_offset and run.end_offset <= end:
        return run.length
    if not run.batches:
        # A hole brings a batch without data, which takes the client past it.
        return max(run.length, MARKER_BYTES)
    return reader.ready_bytes(run, offset, end)


async def _read(
    services: Services, live: list[_Wanted], max_bytes: int, read_committed: bool, is_last_plan: bool
) -> bool:
    """Fill in the records, sharing `max_bytes` in order; False if the plan is stale and should be made anew."""
    left, minimum_one = max_bytes, True
    turns = Turns(READ_IN_A_TURN)
    waiting: list[_Reading] = []
    for each in live:
        ready = 0 if each.is_failed else each.ready_bytes
        if not ready or (left <= 0 and not minimum_one):
            continue
        reading = _Reading(each, min(each.wish.max_bytes, max(left, 0)), minimum_one, read_committed)
        left -= ready
        minimum_one = False
        if not _read_held(services, reading):
            waiting.append(reading)
        await turns.did(1 + len(each.found.runs if each.found is not None else ()))
    if not waiting:
        return True
    outcomes = await asyncio.gather(
        *(_read_partition(services, reading) for reading in waiting), return_exceptions=True
    )
    if not is_last_plan and any(isinstance(outcome, ObjectMissing) for outcome in outcomes):
        return False
    for reading, outcome in zip(waiting, outcomes, strict=True):
        each = reading.wanted
        if isinstance(outcome, EXPECTED):
            each.data.error_code = code = code_of(outcome)
            services.telemetry.fetch_failures.labels(code.name).inc()
            log.error(
                "records can't be read now",
                topic=each.topic.topic.name if each.topic else "", partition=each.wish.key[2],
                offset=each.wish.fetch_offset, error=str(outcome),
            )  # fmt: skip
        elif isinstance(outcome, BaseException):
            raise outcome
    return True


def _read_held(services: Services, reading: _Reading) -> bool:
    """Read the partition if nothing must be waited for."""
    found = reading.found
    read = services.reader.read_held(
        found.runs,
        reading.wanted.wish.fetch_offset,
        reading.room,
        found.leader_epoch,
        minimum_one=reading.minimum_one,
        end_limit=reading.end,
    )
    if read is None:
        return False
    _take(services, reading, read)
    return True


async def _read_partition(services: Services, reading: _Reading) -> None:
    found = reading.found
    read = await services.reader.read(
        found.runs,
        reading.wanted.wish.fetch_offset,
        reading.room,
        found.leader_epoch,
        minimum_one=reading.minimum_one,
        end_limit=reading.end,
    )
    _take(services, reading, read)


def _take(services: Services, reading: _Reading, read: ReadBatches) -> None:
    wanted = reading.wanted
    wanted.data.records = read.parts
    wanted.read_bytes = read.bytes
    services.telemetry.fetched_bytes.inc(read.bytes)
    services.telemetry.fetched_records.inc(read.record_count)
    if reading.read_committed:
        wanted.data.aborted_transactions = [
            AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in sorted(reading.found.aborted, key=attrgetter("first_offset", "last_offset"))
            if aborted.first_offset < read.end_offset and aborted.last_offset >= wanted.wish.fetch_offset
        ]


def _response(fetch: FetchContext, wanted: list[_Wanted]) -> FetchResponse:
    response = FetchResponse(session_id=fetch.session_id)
    topics: dict[tuple[str, object], FetchableTopicResponse] = {}
    for each in wanted:
        if not fetch.must_tell(each.wish, each.data):
            continue
        fetch.told(each.wish, each.data)
        if each.data.records is None:
            each.data.records = b""
        name, topic_id, _ = each.wish.key
        topic = topics.get((name, topic_id))
        if topic is None:
            topic = topics[name, topic_id] = FetchableTopicResponse(topic=name, topic_id=topic_id)
            response.responses.append(topic)
        topic.partitions.append(each.data)
    return response
