"""Kafka clients of the simulated world. What each of them sees becomes events of a history.

They speak the protocol's bytes with any agent (any agent serves any partition), give up on silent connections, and
retry as Kafka's own clients do. Each is a process: it may be stopped, or crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from tailrace.batches.record_batch import BatchHeader, check_crc, read_header
from tailrace.batches.records import NewRecord, Record, decode_records, encode_batch
from tailrace.clock import Entropy
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tailrace.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tailrace.kafka.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tailrace.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.simulation.aborts import AbortWatch
from tests.simulation.cluster import Cluster
from tests.simulation.loop import SimulatedClock, SimulatedProcess
from tests.simulation.network import KafkaStream, NoAnswer
from tests.support.history.events import (
    Acked,
    AnyEvent,
    BoundsSeen,
    Failed,
    Guarantee,
    Isolation,
    LogStartMoved,
    Positioned,
    Read,
    Sent,
    TopicDropped,
    TopicMade,
    Unanswered,
    identity,
    log_name,
)

PATIENCE_S = 5.0
"""How long a client waits for an answer before it closes the connection."""
REFUSED = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
"""Error codes for a batch after which its producer ends."""
OUT_OF_SEQUENCE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
"""librdkafka treats these as fatal for the first batch in flight; it resends others."""
GONE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
MAX_MISSES = 20
_TOPIC_RESOURCE = 2
"""Kafka's ConfigResource.Type."""
ABORT_MARKER = b"\x00\x00\x00\x00"


class Stage(Protocol):
    """What the world provides to its clients."""

    cluster: Cluster
    clock: SimulatedClock
    is_calm: bool
    is_input_over: bool
    """No client writes any more to the topics that others read and process."""
    may_refuse: bool
    """A fault may cause producers to be refused; they try again."""
    is_time_kept: bool
    """The database's clock, by which time-outs end, has not jumped yet."""
    may_surprise: bool
    """A call may fail in a way that no interface declares."""
    names: LogNames
    aborts: AbortWatch
    """The open transactions, and the aborts that an operator requested."""

    def entropy(self, name: str) -> Entropy: ...
    def note(self, event: str) -> None: ...
    def violated(self, what: str) -> None: ...
    def record(self, event: AnyEvent) -> None: ...
    def now(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Log:
    """One incarnation of a topic, as a client knows it. `name` is its name in the history."""

    topic: str
    topic_id: UUID
    partitions: int
    name: str


class LogNames:
    """Names for topics' incarnations, in the order in which clients first saw them."""

    def __init__(self) -> None:
        self._seen: dict[str, list[UUID]] = {}

    def of(self, topic: str, topic_id: UUID) -> str:
        seen = self._seen.setdefault(topic, [])
        if topic_id not in seen:
            seen.append(topic_id)
        return log_name(topic, seen.index(topic_id) + 1)

    def all(self) -> list[str]:
        """Return every log that ever existed."""
        return [
            log_name(topic, number + 1) for topic, ids in self._seen.items() for number in range(len(ids))
        ]


class Client:
    """A process with connections to agents."""

    def __init__(self, stage: Stage, name: str, process: SimulatedProcess | None = None) -> None:
        self.stage = stage
        self.process = process or stage.cluster.process(name)
        self.name = self.process.name
        self.clock = SimulatedClock(stage.cluster.loop, self.process)
        self.luck = stage.entropy(self.name)
        self._streams: dict[str, KafkaStream] = {}
        self.answered_by, self.answer_asked_at = "", 0.0
        """The agent's process that gave `until_answered` its last answer, and when it was asked."""

    # --- asking

    def some_agent(self) -> str:
        """Pick any agent that was ever reported."""
        hosts = list(self.stage.cluster.agents)
        return hosts[self.luck.below(len(hosts))]

    def stream(self, host: str) -> KafkaStream:
        """Return the connection to an agent, opening it if needed. Raises NoAnswer."""
        found = self._streams.get(host)
        if found is None or found.is_over:
            address = self.stage.cluster.agents[host].address
            found = self._streams[host] = self.stage.cluster.network.open_stream(address, self.process)
        return found

    async def ask(
        self, host: str, api: ApiKey, version: int, request: Any, patience_s: float = PATIENCE_S
    ) -> Any:
        """Send one request and return its response. Raises NoAnswer."""
        stream = self.stream(host)
        return await self.wait(stream, stream.send(api, version, request, self.name), patience_s)

    async def wait(
        self, stream: KafkaStream, answer: asyncio.Future[Any], patience_s: float = PATIENCE_S
    ) -> Any:
        """Return the response. Raises NoAnswer; a connection that is silent too long is closed."""
        await asyncio.wait({answer}, timeout=patience_s)
        if not answer.done():
            stream.cut()
        return await answer

    async def pause(self, least_s: float, most_s: float) -> None:
        await self.clock.sleep(least_s + (most_s - least_s) * self.luck.fraction())

    async def until_answered(
        self, api: ApiKey, version: int, request: Any, is_final: Callable[[Any], bool]
    ) -> Any:
        """Ask one agent after another until one gives a final answer."""
        while True:
            host, self.answer_asked_at = self.some_agent(), self.stage.now()
            self.answered_by = self.stage.cluster.agents[host].process.name
            try:
                response = await self.ask(host, api, version, request)
            except NoAnswer:
                await self.pause(0.05, 0.2)
                continue
            if is_final(response):
                return response
            await self.pause(0.05, 0.2)

    async def look_up(self, topic: str) -> Log | None:
        """Return the topic as it is now; None if it does not exist."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        found = (
            await self.until_answered(
                ApiKey.METADATA,
                12,
                request,
                lambda response: response.topics[0].error_code in (ErrorCode.NONE, *GONE),
            )
        ).topics[0]
        if found.error_code != ErrorCode.NONE:
            return None
        return Log(topic, found.topic_id, len(found.partitions), self.stage.names.of(topic, found.topic_id))

    async def surely_look_up(self, topic: str) -> Log:
        """Return the topic, waiting until it exists."""
        while True:
            found = await self.look_up(topic)
            if found is not None:
                return found
            await self.pause(0.1, 0.3)


# --- producers


@dataclass(slots=True)
class OutBatch:
    """A batch in transfer. `offset`: the acknowledged offset, -1 for none yet."""

    log: Log
    partition: int
    data: bytes
    records: list[str]
    base_sequence: int
    is_acked: bool = False
    refusal: ErrorCode | None = None
    is_doubtful: bool = False
    """An attempt had no definite answer: the batch may be stored now or later."""
    follows_refusal: bool = False
    """The agent refused a batch before this one, and the client resends that one elsewhere: the agent that has this
    batch may wait for its sequences in vain."""


class Producer(Client):
    """Makes batches and sends them; subclasses decide what to retry."""

    guarantee: Guarantee = "plain"
    expected: tuple[ErrorCode, ...] = ()
    """Error codes that this producer may get without any fault."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(stage, name)
        self.producer_id = -1
        self.epoch = -1
        self._numbers: dict[tuple[str, int], int] = {}

    def make(
        self,
        log: Log,
        partition: int,
        sequence: int = -1,
        *,
        transaction: str = "",
        sources: Sequence[str] = (),
    ) -> OutBatch:
        """Make a batch of new records, and record them as sent in the history."""
        place = (log.name, partition)
        count = len(sources) or 1 + self.luck.below(3)
        records: list[NewRecord] = []
        names: list[str] = []
        for index in range(count):
            number = self._numbers[place] = self._numbers.get(place, -1) + 1
            value = f"{self.name}/{log.name}/{partition}/{number}".encode()
            records.append(NewRecord(b"k", value, (("pad", b"." * self.luck.below(120)),)))
            names.append(identity(b"k", value))
            self.stage.record(
                Sent(
                    at=self.stage.now(), client=self.name, topic=log.name, partition=partition,
                    record=names[-1], number=number, guarantee=self.guarantee, transaction=transaction,
                    batch=f"{self.name}/{log.name}/{partition}/{number - index}",
                    source=sources[index] if sources else "",
                )
            )  # fmt: skip
        data = encode_batch(
            records,
            timestamps=[self.clock.wall_ms()] * count,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=bool(transaction),
        )
        return OutBatch(log, partition, data, names, sequence)

    def hand_over(
        self, host: str, batches: Sequence[OutBatch], *, version: int, transactional_id: str | None = None
    ) -> tuple[KafkaStream, asyncio.Future[Any]]:
        """Send batches (one per partition) as one request, now. Raises NoAnswer."""
        topics: dict[Log, TopicProduceData] = {}
        for batch in batches:
            log = batch.log
            topic = topics.setdefault(log, TopicProduceData(name=log.topic, topic_id=log.topic_id))
            topic.partition_data.append(PartitionProduceData(batch.partition, memoryview(batch.data)))
        request = ProduceRequest(
            transactional_id=transactional_id, acks=-1, timeout_ms=4_000, topic_data=list(topics.values())
        )
        stream = self.stream(host)
        return stream, stream.send(ApiKey.PRODUCE, version, request, self.name)

    def settle(self, batches: Sequence[OutBatch], response: Any) -> None:
        """Process the answers to a request's batches."""
        rows: dict[tuple[Any, int], Any] = {}
        for topic in response.responses:
            for row in topic.partition_responses:
                rows[topic.name, row.index] = rows[topic.topic_id, row.index] = row
        for batch in batches:
            row = rows.get((batch.log.topic_id, batch.partition)) or rows[batch.log.topic, batch.partition]
            code = ErrorCode(row.error_code)
            batch.refusal = None
            # An agent that joins or leaves sends clients to others, with or without poison.
            is_told = code in (
                ErrorCode.NONE,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                *REFUSED,
                *GONE,
                *self.expected,
            ) or (code is ErrorCode.REQUEST_TIMED_OUT and batch.follows_refusal)
            if not is_told and not self.stage.may_refuse:
                self.stage.violated(f"{batch.records[0]} refused, {code.name}, and nothing goes wrong")
            if code is ErrorCode.UNKNOWN_SERVER_ERROR and not self.stage.may_surprise:
                self.stage.violated(f"{batch.records[0]} refused, {code.name}: it says nothing to a client")
            if code is ErrorCode.NONE:
                self._acked(batch, row.base_offset)
            elif code in REFUSED or (code in GONE and not batch.is_doubtful):
                batch.refusal = code
            else:
                batch.refusal = code
                batch.is_doubtful = batch.is_doubtful or code not in GONE

    def _acked(self, batch: OutBatch, base_offset: int) -> None:
        batch.is_acked = True
        now = self.stage.now()
        for index, record in enumerate(batch.records):
            self.stage.record(Acked(at=now, client=self.name, record=record, offset=base_offset + index))

    def give_up(self, batch: OutBatch) -> None:
        """Record in the history that this batch will not be sent again."""
        now = self.stage.now()
        error = batch.refusal.name if batch.refusal is not None else ""
        is_refused = batch.refusal is not None and not batch.is_doubtful
        for record in batch.records:
            if is_refused:
                self.stage.record(Failed(at=now, client=self.name, record=record, error=error))
            else:
                self.stage.record(Unanswered(at=now, client=self.name, record=record, error=error))

    def is_any_left(self, batches: Sequence[OutBatch]) -> bool:
        """Return whether a batch is not stored as far as the client knows."""
        return any(not batch.is_acked for batch in batches)

    async def take_producer_id(self) -> None:
        """Get a producer id, for an idempotent producer."""
        response = await self.until_answered(
            ApiKey.INIT_PRODUCER_ID,
            4,
            InitProducerIdRequest(None, 0),
            lambda response: response.error_code == ErrorCode.NONE,
        )
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch


class PlainProducer(Producer):
    """Sends each batch once, several in flight, and never again."""

    async def run(self, topic: str, batches: int) -> None:
        log = await self.surely_look_up(topic)
        host = self.some_agent()
        for _ in range(batches):
            if self.luck.below(4) == 0:
                host = self.some_agent()
            made = [self.make(log, self.luck.below(log.partitions)) for _ in range(1 + self.luck.below(5))]
            sent: list[tuple[OutBatch, KafkaStream, asyncio.Future[Any]]] = []
            try:
                for batch in made:
                    stream, answer = self.hand_over(host, [batch], version=11)
                    sent.append((batch, stream, answer))
                    await self.pause(0.0, 0.03)
            except NoAnswer:
                pass
            for batch, stream, answer in sent:
                try:
                    self.settle([batch], await self.wait(stream, answer))
                except NoAnswer:
                    batch.is_doubtful = True
            for batch in made:
                if not batch.is_acked:
                    self.give_up(batch)
            await self.pause(0.02, 0.4)


class IdempotentProducer(Producer):
    """Sends in windows of up to five batches a partition, and resends them in order, to any agent, until all are
    stored."""

    guarantee: Guarantee = "idempotent"

    async def run(self, topic: str, batches: int, window: int, *, by_id: bool) -> None:
        await self.take_producer_id()
        log = await self.surely_look_up(topic)
        async with asyncio.TaskGroup() as partitions:
            for partition in range(log.partitions):
                partitions.create_task(self._keep_sending(log, partition, batches, window, by_id))

    async def _keep_sending(self, log: Log, partition: int, batches: int, window: int, by_id: bool) -> None:
        await self._send_batches(log, partition, batches, window, by_id=by_id)

    async def _send_batches(self, log: Log, partition: int, batches: int, window: int, *, by_id: bool) -> int:
        """Send this many batches; returns the next sequence, or -1 if the producer must end."""
        sequence = done = 0
        while done < batches:
            waiting: list[OutBatch] = []
            for _ in range(1 + self.luck.below(window)):
                batch = self.make(log, partition, sequence)
                sequence += len(batch.records)
                waiting.append(batch)
            done += len(waiting)
            while waiting:
                await self._send_in_order(waiting, by_id)
                waiting = [batch for batch in waiting if not batch.is_acked]
                if any(batch.refusal in GONE for batch in waiting) and by_id:
                    for batch in waiting:
                        self.give_up(batch)
                    log, sequence, waiting = await self.surely_look_up(log.topic), 0, []
                    if partition >= log.partitions:
                        return -1
                refused = [batch for batch in waiting if batch.refusal in REFUSED]
                if refused:
                    self.stage.violated(f"{self.name}: {refused[0].records[0]} refused: {refused[0].refusal}")
                    return -1
                if waiting:
                    await self.pause(0.0, 0.1)
            await self.pause(0.0, 0.3)
        return sequence

    async def _send_in_order(self, waiting: Sequence[OutBatch], by_id: bool) -> None:
        """Send one request per batch, each before the next; usually all on one connection."""
        host = self.some_agent()
        sent: list[tuple[OutBatch, KafkaStream, asyncio.Future[Any]]] = []
        for batch in waiting:
            batch.refusal = None
            try:
                stream, answer = self.hand_over(host, [batch], version=13 if by_id else 11)
            except NoAnswer:
                break
            sent.append((batch, stream, answer))
            if self.luck.below(12) == 0:
                host = self.some_agent()  # a metadata refresh has named another leader
            await self.pause(0.0, 0.01)
        is_refused = False
        for batch, stream, answer in sent:
            batch.follows_refusal = is_refused
            try:
                self.settle([batch], await self.wait(stream, answer))
            except NoAnswer:
                batch.is_doubtful = True
            is_refused = is_refused or batch.refusal is ErrorCode.NOT_LEADER_OR_FOLLOWER
        if waiting[0].refusal in OUT_OF_SEQUENCE:
            refusal = f"{waiting[0].records[0]} refused: {waiting[0].refusal.name}"
            self.stage.violated(f"{self.name}: {refusal}, and all before it were acknowledged")


# --- readers


@dataclass(slots=True)
class Got:
    """The result of a fetch for one partition."""

    records: list[Record] = field(default_factory=list)
    position: int = -1
    code: ErrorCode = ErrorCode.NONE
    log_start: int = -1
    high_watermark: int = -1
    last_stable: int = -1


@dataclass(slots=True)
class Session:
    """An agent's state of a reader's fetch session (KIP-227). `sent`: offset and bytes by partition."""

    log: Log
    number: int = 0
    epoch: int = 0
    sent: dict[int, tuple[int, int]] = field(default_factory=dict)

    def put_into(self, request: FetchRequest, wanted: dict[int, tuple[int, int]]) -> None:
        """Put only what has changed into the request."""
        request.session_id, request.session_epoch = self.number, self.epoch
        partitions = request.topics[0].partitions
        request.topics[0].partitions = [
            each for each in partitions if self.sent.get(each.partition) != wanted[each.partition]
        ]
        if not request.topics[0].partitions:
            request.topics = []
        if gone := [partition for partition in self.sent if partition not in wanted]:
            request.forgotten_topics_data = [ForgottenTopic(self.log.topic, self.log.topic_id, gone)]
        self.sent = wanted


class Reader(Client):
    """Fetches partitions from its position, and drops aborted records as Kafka's consumers do."""

    def __init__(
        self, stage: Stage, name: str, isolation: Isolation, process: SimulatedProcess | None = None
    ) -> None:
        super().__init__(stage, f"{name} {isolation}", process)
        self.isolation: Isolation = isolation
        self.has_sessions = False
        """Whether it uses incremental fetch sessions."""
        self.begins_anew = 60
        """In one of this many rounds it starts again; in all others it continues from its position."""
        self._sessions: dict[str, Session] = {}

    async def fetch(
        self,
        host: str,
        log: Log,
        positions: dict[int, int],
        *,
        max_wait_ms: int = 100,
        max_bytes: int = 1 << 20,
    ) -> dict[int, Got]:
        """Fetch the partitions once at these positions. Raises NoAnswer."""
        asked_at = self.stage.now()
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=int(self.isolation == "committed"),
            topics=[
                FetchTopic(
                    topic=log.topic,
                    topic_id=log.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
                        )
                        for partition, offset in positions.items()
                    ],
                )
            ],
        )
        source = self.stage.cluster.agents[host].process.name
        # Whatever happens in between, the next fetch there begins a session, as with Kafka's consumers.
        session = self._sessions.pop(host, None) if self.has_sessions else None
        if self.has_sessions:
            session = session if session is not None and session.log == log else Session(log)
            session.put_into(request, {each: (offset, max_bytes) for each, offset in positions.items()})
        response = await self.ask(host, ApiKey.FETCH, 16, request)
        if response.error_code != ErrorCode.NONE:
            raise NoAnswer(ErrorCode(response.error_code).name)
        if session is not None and response.session_id:
            session.number, session.epoch = response.session_id, session.epoch + 1
            self._sessions[host] = session
        found: dict[int, Got] = {}
        for topic in response.responses:
            for row in topic.partitions:
                position = positions[row.partition_index]
                found[row.partition_index] = self._take_in(log, row, position, asked_at, source)
        return found

    def _take_in(self, log: Log, row: PartitionData, position: int, asked_at: float, source: str) -> Got:
        got = Got([], position, ErrorCode(row.error_code))
        if row.high_watermark >= 0:
            got.log_start, got.high_watermark = row.log_start_offset, row.high_watermark
            got.last_stable = row.last_stable_offset
            self.stage.record(
                BoundsSeen(
                    at=self.stage.now(), client=self.name, topic=log.name, partition=row.partition_index,
                    asked=asked_at, log_start=row.log_start_offset, high_watermark=row.high_watermark,
                    last_stable=row.last_stable_offset, source=source,
                )
            )  # fmt: skip
            if not row.log_start_offset <= row.last_stable_offset <= row.high_watermark:
                self.stage.violated(f"{log.name}-{row.partition_index}: bounds {got}")
        if got.code is ErrorCode.NONE:
            self._take_batches(log, row, got)
        return got

    def _take_batches(self, log: Log, row: PartitionData, got: Got) -> None:
        data = memoryview(bytes(row.records or b""))  # type: ignore[arg-type]
        aborted = sorted(
            ((each.first_offset, each.producer_id) for each in row.aborted_transactions or ()), reverse=True
        )
        dropped: set[int] = set()
        place, end = f"{log.name}-{row.partition_index}", -1
        bound = got.last_stable if self.isolation == "committed" else got.high_watermark
        while data:
            header = read_header(data)
            batch, data = data[: header.length], data[header.length :]
            check_crc(batch)
            if header.base_offset < end:
                self.stage.violated(f"{place}: a batch at {header.base_offset} after one that ended at {end}")
            end = header.base_offset + header.last_offset_delta + 1
            if header.base_offset >= bound:
                self.stage.violated(
                    f"{place}: a batch at {header.base_offset}, bound {bound}, {self.isolation}"
                )
            if end <= got.position:
                continue
            while aborted and aborted[-1][0] < end:
                dropped.add(aborted.pop()[1])
            if header.is_control:
                if _is_abort(batch, header):
                    dropped.discard(header.producer_id)
            elif not (
                self.isolation == "committed" and header.is_transactional and header.producer_id in dropped
            ):
                got.records += [each for each in decode_records(batch) if each.offset >= got.position]
            got.position = max(got.position, end)

    # --- passes

    async def read_for_ever(self, topic: str) -> None:
        """Read from the start to the end and beyond, with small and large fetches, now and then from the start
        again."""
        log = await self.surely_look_up(topic)
        positions: dict[int, int] = {}
        while True:
            for partition in range(log.partitions):
                if partition not in positions or self.luck.below(self.begins_anew) == 0:
                    positions[partition] = await self._begin(log, partition)
            largest = (1, 400, 4_000, 1 << 20)[self.luck.below(4)]
            try:
                found = await self.fetch(self.some_agent(), log, positions, max_bytes=largest)
            except NoAnswer:
                await self.pause(0.02, 0.1)
                continue
            for partition, got in found.items():
                if got.code is ErrorCode.NONE:
                    self.saw(log, partition, got)
                    positions[partition] = got.position
                elif got.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    self.out_of_range(log, partition, positions.pop(partition), got)
                elif got.code in GONE:
                    log, positions = await self.surely_look_up(topic), {}
                    break
            await self.pause(0.03, 0.3)

    def out_of_range(self, log: Log, partition: int, position: int, got: Got) -> None:
        if got.log_start <= position <= got.high_watermark:
            self.stage.violated(f"{log.name}-{partition}: {position} out of range: {got}")
        if position > got.high_watermark:
            self.stage.violated(
                f"{log.name}-{partition}: read to {position}, the end is {got.high_watermark}"
            )

    async def _begin(self, log: Log, partition: int) -> int:
        """Seek to 0 or to the first offset; to 0, too, if ListOffsets, which goes by name, found another log."""
        offset = 0 if self.luck.below(2) else await self.offset_of(log, partition, -2)
        self.position(log, partition, offset, is_seek=True)
        return offset

    async def offset_of(self, log: Log, partition: int, timestamp: int) -> int:
        """Send ListOffsets: -2 for the first offset, -1 for the end (at this reader's isolation level). Returns 0 if
        the topic is another one by now."""
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(self.isolation == "committed"),
            topics=[ListOffsetsTopic(log.topic, [ListOffsetsPartition(partition, timestamp=timestamp)])],
        )
        response = await self.until_answered(
            ApiKey.LIST_OFFSETS,
            7,
            request,
            lambda response: response.topics[0].partitions[0].error_code in (ErrorCode.NONE, *GONE),
        )
        row = response.topics[0].partitions[0]
        now = await self.look_up(log.topic)
        return int(row.offset) if row.error_code == ErrorCode.NONE and now == log else 0

    def position(self, log: Log, partition: int, offset: int, *, is_seek: bool = False) -> None:
        self.stage.record(
            Positioned(
                at=self.stage.now(), client=self.name, topic=log.name, partition=partition, offset=offset,
                isolation=self.isolation, is_seek=is_seek,
            )
        )  # fmt: skip

    def saw(self, log: Log, partition: int, got: Got) -> None:
        now = self.stage.now()
        for record in got.records:
            self.stage.record(
                Read(
                    at=now, client=self.name, topic=log.name, partition=partition, offset=record.offset,
                    record=identity(record.key, record.value), isolation=self.isolation,
                )
            )  # fmt: skip
        self.position(log, partition, got.position)

    async def read_once(self, topic: str) -> None:
        """Read from the first offset to the end as it is when the reader reaches it; a record that can't be read is a
        violation."""
        log = await self.look_up(topic)
        if log is None:
            return
        for partition in range(log.partitions):
            offset, end, misses = await self._begin(log, partition), -1, 0
            while offset != end and misses <= MAX_MISSES:
                got = Got(code=ErrorCode.UNKNOWN_SERVER_ERROR)
                try:
                    found = await self.fetch(self.some_agent(), log, {partition: offset}, max_wait_ms=0)
                    got = found.get(partition, got)
                except NoAnswer:
                    pass
                end = got.last_stable if self.isolation == "committed" else got.high_watermark
                if got.code is ErrorCode.NONE and (got.position > offset or got.position == end):
                    self.saw(log, partition, got)
                    offset = got.position
                elif got.code is ErrorCode.OFFSET_OUT_OF_RANGE and offset < got.log_start:
                    offset = got.log_start
                    self.position(log, partition, offset, is_seek=True)
                else:
                    misses += 1
                    await self.pause(0.05, 0.1)
            if misses > MAX_MISSES:
                what = f"nothing at {offset} below {end}: {got.code.name}"
                self.stage.violated(f"{log.name}-{partition}, {self.isolation}: {what}")


@dataclass(slots=True)
class Home:
    """The agent that some readers share."""

    agent: str = ""


class ReturningReader(Reader):
    """Reads the log from its start again and again, mostly through the agent that others of its kind use: so it gets
    what that agent has kept for them."""

    def __init__(self, stage: Stage, name: str, isolation: Isolation, home: Home) -> None:
        super().__init__(stage, name, isolation)
        self.begins_anew = 5
        self._home = home

    def some_agent(self) -> str:
        if not self._home.agent or self.luck.below(8) == 0:
            self._home.agent = super().some_agent()
        return self._home.agent


def _is_abort(batch: memoryview, header: BatchHeader) -> bool:
    return any((record.key or b"")[:4] == ABORT_MARKER for record in decode_records(batch))


# --- administration


class Admin(Client):
    """Creates topics, and deletes them and their records."""

    async def make_topic(self, topic: str, partitions: int, **configs: str) -> Log:
        """Create a topic, unless it exists. Config names are written with `_` in place of `.`."""
        asked = CreatableTopic(
            name=topic,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name.replace("_", "."), value) for name, value in configs.items()],
        )
        await self.until_answered(
            ApiKey.CREATE_TOPICS,
            7,
            CreateTopicsRequest(topics=[asked], timeout_ms=4_000),
            lambda response: (
                response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            ),
        )
        log = await self.surely_look_up(topic)
        may_expire = any("retention" in name for name in configs)
        self.stage.record(TopicMade(at=self.stage.now(), topic=log.name, may_expire=may_expire))
        return log

    async def drop_topic(self, log: Log) -> None:
        """Delete a topic by its id."""
        self.stage.record(TopicDropped(at=self.stage.now(), topic=log.name))
        await self.until_answered(
            ApiKey.DELETE_TOPICS,
            6,
            DeleteTopicsRequest(topics=[DeleteTopicState(None, log.topic_id)], timeout_ms=4_000),
            lambda response: response.responses[0].error_code in (ErrorCode.NONE, *GONE),
        )
        self.stage.record(TopicDropped(at=self.stage.now(), topic=log.name, is_done=True))
        self.stage.note(f"{log.name} is deleted")

    async def set_config(self, log: Log, name: str, value: str) -> None:
        """Set one config of a topic."""
        topic = AlterConfigsResource(_TOPIC_RESOURCE, log.topic, [AlterableConfig(name, value=value)])
        await self.until_answered(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            IncrementalAlterConfigsRequest([topic]),
            lambda response: response.responses[0].error_code == ErrorCode.NONE,
        )
        self.stage.note(f"{log.name}: {name} is {value}")

    async def delete_records(self, log: Log, partition: int, before: int) -> None:
        """Move a log's start up."""
        self.stage.record(
            LogStartMoved(at=self.stage.now(), topic=log.name, partition=partition, offset=before)
        )
        response = await self.until_answered(
            ApiKey.DELETE_RECORDS,
            2,
            DeleteRecordsRequest([DeleteRecordsTopic(log.topic, [DeleteRecordsPartition(partition, before)])], 4_000),
            lambda response: response.topics[0].partitions[0].error_code
            in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, *GONE),
        )  # fmt: skip
        row = response.topics[0].partitions[0]
        if row.error_code == ErrorCode.NONE:
            self.stage.record(
                LogStartMoved(
                    at=self.stage.now(), topic=log.name, partition=partition, offset=before, is_done=True
                )
            )
            self.stage.record(
                BoundsSeen(
                    at=self.stage.now(), client=self.name, topic=log.name, partition=partition,
                    asked=self.answer_asked_at, log_start=row.low_watermark, source=self.answered_by,
                )
            )  # fmt: skip
            if row.low_watermark < before:
                self.stage.violated(
                    f"{log.name}-{partition}: start {row.low_watermark} after asking {before}"
                )
        self.stage.note(f"{log.name}-{partition}: records below {before} deleted")
