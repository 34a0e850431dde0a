"""Clients that record what they see: confluent-kafka producers, loops, readers and groups, one thread each.

They continue whatever happens: a request that times out is unanswered; after a fatal error the next instance starts,
with a new name. They stop only when the recorder stops.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.history.events import (
    UNKNOWN_OFFSET,
    AbortAsked,
    Acked,
    AnyEvent,
    Begun,
    BoundsSeen,
    CommitAsked,
    Ended,
    Failed,
    Guarantee,
    Isolation,
    OffsetCommitAsked,
    OffsetCommitEnded,
    OffsetFetched,
    OffsetsAdded,
    Outcome,
    Positioned,
    Read,
    Sent,
    Unanswered,
    identity,
)
from tests.support.history.files import HistoryLog

PLAIN_RETRIES = 3
DELIVERY_SECONDS = 60
_CALL_SECONDS = 10.0
_HUNG_SECONDS = 20.0
_DEFINITE_FAILURES = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
)


class ClientHung(Exception):
    """The client library did not return from a call that has a time-out."""


@dataclass
class Recorder:
    """What all clients of one run share: the log, the clock, the stop signal, and remarks on unusual events."""

    bootstrap: str
    log: HistoryLog = field(default_factory=HistoryLog)
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings of every client (for example, for security)."""
    remarks: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    _numbers: Iterator[int] = field(default_factory=count)

    def now(self) -> float:
        return time.monotonic()

    def add(self, event: AnyEvent) -> None:
        self.log.add(event)

    def next(self) -> int:
        return next(self._numbers)

    def remark(self, text: str) -> None:
        self.remarks.append(f"{self.now():.3f} {text}")

    def config(self, client: str, **settings: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": client,
            "log_level": 2,
            **self.settings,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }


class Client:
    """One thread that runs `work` until the recorder stops; after a fatal error it runs `work` again as the next
    instance."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder = recorder
        self.base_name = name
        self.instance = 0
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def name(self) -> str:
        return self.base_name if self.instance == 0 else f"{self.base_name}#{self.instance}"

    def start(self) -> None:
        self.thread.start()

    def work(self) -> None:
        """Run one instance; returns when the recorder stops."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self.recorder.stopping.is_set():
            try:
                self.work()
            except (KafkaException, ClientHung) as error:
                self.recorder.remark(f"{self.name}: {error}")
                self.recorder.stopping.wait(0.2)
            self.instance += 1


class _Sender:
    """Hands records to one Producer and records their outcome."""

    def __init__(self, recorder: Recorder, name: str, producer: Any, guarantee: Guarantee) -> None:
        self._recorder = recorder
        self._name = name
        self.producer = producer
        self._guarantee = guarantee
        self._numbers: dict[tuple[str, int], int] = defaultdict(int)
        self.is_broken = False

    def send(self, topic: str, partition: int, transaction: str = "", source: str = "") -> None:
        recorder = self._recorder
        number = self._numbers[topic, partition] = self._numbers[topic, partition] + 1
        key = f"{self._name}-{partition}".encode()
        value = f"{recorder.next():09d}".encode()
        record = identity(key, value)
        recorder.add(
            Sent(
                at=recorder.now(),
                client=self._name,
                topic=topic,
                partition=partition,
                record=record,
                number=number,
                guarantee=self._guarantee,
                transaction=transaction,
                times=1 + PLAIN_RETRIES if self._guarantee == "plain" else 1,
                source=source,
            )
        )

        def delivered(error: Any, message: Any) -> None:
            at = recorder.now()
            if error is None:
                offset = message.offset()
                recorder.add(
                    Acked(
                        at=at,
                        client=self._name,
                        record=record,
                        offset=offset if offset is not None and offset >= 0 else UNKNOWN_OFFSET,
                    )
                )
                return
            outcome = Failed if error.code() in _DEFINITE_FAILURES else Unanswered
            recorder.add(outcome(at=at, client=self._name, record=record, error=str(error)))
            if error.fatal() or error.code() == KafkaError._FATAL:
                self.is_broken = True

        while True:
            try:
                self.producer.produce(topic, value, key, partition=partition, on_delivery=delivered)
                return
            except BufferError:
                self.producer.poll(0.05)
            except KafkaException as error:
                recorder.add(Failed(at=recorder.now(), client=self._name, record=record, error=str(error)))
                self.is_broken = True
                return


class SteadyProducer(Client):
    """Sends at a steady rate to all partitions of a topic, idempotent or plain with a few retries."""

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        topic: str,
        partitions: int,
        rate: float,
        *,
        is_idempotent: bool = True,
    ) -> None:
        super().__init__(recorder, name)
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._is_idempotent = is_idempotent

    def work(self) -> None:
        recorder = self.recorder
        kind: dict[str, Any] = (
            {"enable_idempotence": True}
            if self._is_idempotent
            else {"enable_idempotence": False, "retries": PLAIN_RETRIES}
        )
        producer = Producer(
            recorder.config(
                self.name,
                acks="all",
                linger_ms=5,
                delivery_timeout_ms=DELIVERY_SECONDS * 1000,
                queue_buffering_max_messages=2_000,
                **kind,
            )
        )
        sender = _Sender(recorder, self.name, producer, "idempotent" if self._is_idempotent else "plain")
        began, sent = recorder.now(), 0
        while not recorder.stopping.is_set() and not sender.is_broken:
            due = int((recorder.now() - began) * self._rate)
            if due - sent > self._rate:  # delayed for long: continue from here instead of catching up
                sent = due - 1
            while sent < due and not sender.is_broken:
                sender.send(self._topic, sent % self._partitions)
                sent += 1
            producer.poll(0.01)
        left = producer.flush(DELIVERY_SECONDS)
        if left:
            recorder.remark(f"{self.name}: {left} records had no answer after {DELIVERY_SECONDS} s")


class TransactionLoop(Client):
    """Consume, transform, produce, exactly once: one output per input; the transaction commits the positions."""

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        *,
        inputs: str,
        outputs: str,
        partitions: int,
        group: str,
        abort_each: int = 7,
        transaction_ms: int = 30_000,
    ) -> None:
        super().__init__(recorder, name)
        self._inputs = inputs
        self._outputs = outputs
        self._partitions = partitions
        self._group = group
        self._abort_each = abort_each
        self._transaction_ms = transaction_ms

    def work(self) -> None:
        recorder = self.recorder
        producer = Producer(
            recorder.config(
                self.name,
                transactional_id=f"{self.base_name}-id",
                transaction_timeout_ms=self._transaction_ms,
                delivery_timeout_ms=self._transaction_ms - 1_000,
                linger_ms=2,
            )
        )
        self._patiently(lambda: producer.init_transactions(_CALL_SECONDS))
        sender = _Sender(recorder, self.name, producer, "transactional")
        with self._consumer() as consumer:
            while not recorder.stopping.is_set():
                self._transact(producer, sender, consumer)

    def _transact(self, producer: Any, sender: _Sender, consumer: Any) -> None:
        recorder = self.recorder
        messages = [each for each in consumer.consume(50, 0.2) if not self._is_odd(each)]
        if not messages:
            return
        name = f"{self.name}/{recorder.next()}"
        recorder.add(
            Begun(
                at=recorder.now(), client=self.name, transaction=name, transactional_id=f"{self.base_name}-id"
            )
        )
        outcome: Outcome = "unknown"
        try:
            producer.begin_transaction()
            for index, message in enumerate(messages):
                source = identity(message.key(), message.value())
                sender.send(self._outputs, index % self._partitions, name, source)
                producer.poll(0)
            self._add_offsets(producer, consumer, name)
            if recorder.next() % self._abort_each == 0:
                outcome = self._abort(producer, name)
            else:
                recorder.add(CommitAsked(at=recorder.now(), client=self.name, transaction=name))
                self._patiently(lambda: producer.commit_transaction(_CALL_SECONDS))
                outcome = "committed"
        except KafkaException as error:
            recorder.remark(f"{name}: {error}")
            if not error.args[0].txn_requires_abort():
                recorder.add(
                    Ended(
                        at=recorder.now(),
                        client=self.name,
                        transaction=name,
                        outcome="unknown",
                        error=str(error),
                    )
                )
                raise
            outcome = self._abort(producer, name)
        recorder.add(Ended(at=recorder.now(), client=self.name, transaction=name, outcome=outcome))
        if outcome != "committed":
            self._go_back(consumer)

    def _add_offsets(self, producer: Any, consumer: Any, transaction: str) -> None:
        positions = [place for place in consumer.position(consumer.assignment()) if place.offset >= 0]
        metadata = consumer.consumer_group_metadata()
        self._patiently(lambda: producer.send_offsets_to_transaction(positions, metadata, _CALL_SECONDS))
        for place in positions:
            self.recorder.add(
                OffsetsAdded(
                    at=self.recorder.now(),
                    client=self.name,
                    transaction=transaction,
                    group=self._group,
                    topic=place.topic,
                    partition=place.partition,
                    offset=place.offset,
                )
            )

    def _abort(self, producer: Any, transaction: str) -> Outcome:
        self.recorder.add(AbortAsked(at=self.recorder.now(), client=self.name, transaction=transaction))
        self._patiently(lambda: producer.abort_transaction(_CALL_SECONDS))
        return "aborted"

    def _go_back(self, consumer: Any) -> None:
        """After an abort, seek to the group's positions, or to the start if it has none."""
        for place in fetch_positions(self.recorder, self.name, consumer, self._group, consumer.assignment()):
            consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        consumer = Consumer(
            self.recorder.config(
                f"{self.name}-in",
                group_id=self._group,
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                fetch_wait_max_ms=100,
            )
        )
        consumer.subscribe([self._inputs])
        try:
            yield consumer
        finally:
            consumer.close()

    def _patiently(self, call: Any) -> None:
        """Retry while the error is retriable, as transactional calls require."""
        while True:
            try:
                self._bounded(call)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                self.recorder.remark(f"{self.name}: asked again: {error}")

    def _bounded(self, call: Callable[[], None]) -> None:
        """Make a call that does not always respect its own time-out, or raise ClientHung.

        librdkafka 2.16 never returns from send_offsets_to_transaction if the broker that it waits for as the group's
        coordinator leaves the metadata. The run then restarts the client, as an operator would; the hanging one stays
        behind as a zombie, to be fenced.
        """
        outcome: queue.Queue[Exception | None] = queue.Queue()

        def run() -> None:
            try:
                call()
            except Exception as error:
                outcome.put(error)
            else:
                outcome.put(None)

        threading.Thread(target=run, name=f"{self.name}-call", daemon=True).start()
        try:
            error = outcome.get(timeout=_HUNG_SECONDS)
        except queue.Empty:
            raise ClientHung(f"a call did not return within {_HUNG_SECONDS:.0f} s") from None
        if error is not None:
            raise error

    def _is_odd(self, message: Any) -> bool:
        error = message.error()
        if error is not None and not error.retriable():
            self.recorder.remark(f"{self.name}: {error}")
        return error is not None


class Reader(Client):
    """Reads partitions from their start, as they grow, and each offset once."""

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        topics: dict[str, int],
        isolation: Isolation,
        *,
        ends_at_eof: bool = False,
    ) -> None:
        super().__init__(recorder, name)
        self._isolation: Isolation = isolation
        self._ends_at_eof = ends_at_eof
        self._positions = {
            (topic, partition): 0 for topic, partitions in topics.items() for partition in range(partitions)
        }
        self._begun: set[tuple[str, int]] = set()
        self.ends: dict[tuple[str, int], int] = {}
        """The end of each partition, as the cluster last reported it."""

    def work(self) -> None:
        consumer = Consumer(
            self.recorder.config(
                self.name,
                group_id=f"unused-{self.name}",
                enable_auto_commit=False,
                enable_partition_eof=True,
                isolation_level=f"read_{self._isolation}",
                auto_offset_reset="error",
                check_crcs=True,
                fetch_wait_max_ms=100,
                fetch_error_backoff_ms=50,
            )
        )
        for place in self._positions:
            if place not in self._begun:
                self._begun.add(place)
                self._stand(place, is_seek=True)
        try:
            consumer.assign([TopicPartition(*place, offset) for place, offset in self._positions.items()])
            while not self.recorder.stopping.is_set() or (
                self._ends_at_eof and len(self.ends) < len(self._positions)
            ):
                for message in consumer.consume(500, 0.1):
                    self._take(message)
        finally:
            consumer.close()

    def _take(self, message: Any) -> None:
        recorder, place = self.recorder, (message.topic(), message.partition())
        error = message.error()
        if error is None:
            recorder.add(
                Read(
                    at=recorder.now(),
                    client=self.name_of_passes,
                    topic=place[0],
                    partition=place[1],
                    offset=message.offset(),
                    record=identity(message.key(), message.value()),
                    isolation=self._isolation,
                )
            )
            self._positions[place] = message.offset() + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            if message.offset() > self._positions[place]:
                self._positions[place] = message.offset()
            self.ends[place] = message.offset()
            self._stand(place)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            position = self._positions[place]
            at = recorder.now()
            recorder.remark(f"{self.name}: {place} at {position}: {error}")
            recorder.add(  # "no such offset" says that the log ends before it
                BoundsSeen(
                    at=at,
                    client=self.name,
                    topic=place[0],
                    partition=place[1],
                    asked=at - 0.001,
                    high_watermark=position - 1,
                )
            )
            raise KafkaException(error)
        elif not error.retriable():
            recorder.remark(f"{self.name}: {place}: {error}")

    @property
    def name_of_passes(self) -> str:
        """The name under which the history records this reader: a restarted reader continues at its position and keeps
        it."""
        return self.base_name

    def _stand(self, place: tuple[str, int], *, is_seek: bool = False) -> None:
        self.recorder.add(
            Positioned(
                at=self.recorder.now(),
                client=self.name_of_passes,
                topic=place[0],
                partition=place[1],
                offset=self._positions[place],
                isolation=self._isolation,
                is_seek=is_seek,
            )
        )


class GroupMember(Client):
    """A group member that commits what it has read. After each assignment it continues from the group's position."""

    def __init__(
        self, recorder: Recorder, name: str, topic: str, group: str, *, commit_seconds: float = 0.5
    ) -> None:
        super().__init__(recorder, name)
        self._topic = topic
        self._group = group
        self._commit_seconds = commit_seconds
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}

    def work(self) -> None:
        consumer = Consumer(
            self.recorder.config(
                self.name,
                group_id=self._group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=6_000,
                fetch_wait_max_ms=100,
            )
        )
        consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        last = self.recorder.now()
        try:
            while not self.recorder.stopping.is_set():
                for message in consumer.consume(200, 0.1):
                    if message.error() is None:
                        self._take(message)
                if self.recorder.now() - last > self._commit_seconds:
                    last = self.recorder.now()
                    self._commit(consumer)
        finally:
            consumer.close()

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        try:
            found = fetch_positions(self.recorder, self.name, consumer, self._group, partitions)
        except KafkaException as error:
            self.recorder.remark(f"{self.name}: assigned, but no positions: {error}")
            consumer.assign([])  # the next rebalance assigns it again
            consumer.unsubscribe()
            consumer.subscribe(
                [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            return
        places = [TopicPartition(self._topic, place.partition, max(place.offset, 0)) for place in found]
        self._positions, self._committed = {}, {}
        for place in places:
            self._positions[place.partition] = self._committed[place.partition] = place.offset
            self.recorder.add(
                Positioned(
                    at=self.recorder.now(),
                    client=self.name,
                    topic=self._topic,
                    partition=place.partition,
                    offset=place.offset,
                    is_seek=True,
                )
            )
        consumer.assign(places)

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        self._commit(consumer)
        self._positions = {}

    def _lost(self, consumer: Any, partitions: list[Any]) -> None:
        self._positions = {}

    def _take(self, message: Any) -> None:
        if message.partition() not in self._positions:
            return
        self._positions[message.partition()] = message.offset() + 1
        self.recorder.add(
            Read(
                at=self.recorder.now(),
                client=self.name,
                topic=self._topic,
                partition=message.partition(),
                offset=message.offset(),
                record=identity(message.key(), message.value()),
            )
        )

    def _commit(self, consumer: Any) -> None:
        places = {
            partition: offset
            for partition, offset in self._positions.items()
            if offset > self._committed.get(partition, 0)
        }
        if not places:
            return
        commit = f"{self.name}/{self.recorder.next()}"
        for partition, offset in places.items():
            self.recorder.add(
                OffsetCommitAsked(
                    at=self.recorder.now(),
                    client=self.name,
                    commit=f"{commit}/{partition}",
                    group=self._group,
                    topic=self._topic,
                    partition=partition,
                    offset=offset,
                )
            )
        try:
            answers = consumer.commit(
                offsets=[
                    TopicPartition(self._topic, partition, offset) for partition, offset in places.items()
                ],
                asynchronous=False,
            )
        except KafkaException:
            return  # it may have taken effect, or may do so later
        for place in answers:
            if place.error is None:
                self._committed[place.partition] = places[place.partition]
                self.recorder.add(
                    OffsetCommitEnded(
                        at=self.recorder.now(), client=self.name, commit=f"{commit}/{place.partition}"
                    )
                )


class BoundsWatcher(Client):
    """Asks for the ends of the logs, as read_uncommitted and as read_committed see them."""

    def __init__(
        self, recorder: Recorder, name: str, topics: dict[str, int], every_seconds: float = 0.25
    ) -> None:
        super().__init__(recorder, name)
        self._places = [
            TopicPartition(topic, partition)
            for topic, partitions in topics.items()
            for partition in range(partitions)
        ]
        self._every_seconds = every_seconds

    def work(self) -> None:
        consumers = {isolation: self._consumer(isolation) for isolation in ("uncommitted", "committed")}
        try:
            while not self.recorder.stopping.is_set():
                for place in self._places:
                    for isolation, consumer in consumers.items():
                        look(self.recorder, self.name, consumer, place, isolation)
                    if self.recorder.stopping.wait(self._every_seconds / len(self._places)):
                        break
        finally:
            for consumer in consumers.values():
                consumer.close()

    def _consumer(self, isolation: str) -> Any:
        return Consumer(
            self.recorder.config(
                f"{self.name}-{isolation}", group_id="unused-bounds", isolation_level=f"read_{isolation}"
            )
        )


def look(recorder: Recorder, client: str, consumer: Any, place: Any, isolation: str) -> int | None:
    """Ask for one partition's bounds and record them; returns the end, or None if no answer came."""
    asked = recorder.now()
    try:
        low, high = consumer.get_watermark_offsets(place, timeout=5, cached=False)
    except KafkaException:
        return None
    recorder.add(
        BoundsSeen(
            at=recorder.now(),
            client=client,
            topic=place.topic,
            partition=place.partition,
            asked=asked,
            log_start=low,
            **{"last_stable" if isolation == "committed" else "high_watermark": high},
        )
    )
    return int(high)


def fetch_positions(
    recorder: Recorder, client: str, consumer: Any, group: str, partitions: list[Any]
) -> list[Any]:
    """Fetch and record the group's positions; retry until an answer comes."""
    while True:
        asked = recorder.now()
        try:
            places: list[Any] = consumer.committed(partitions, timeout=_CALL_SECONDS)
            break
        except KafkaException as error:
            if recorder.stopping.is_set() or not (
                error.args[0].retriable()
                or error.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._WAIT_COORD)
            ):
                raise
    for place in places:
        if place.error is None:
            recorder.add(
                OffsetFetched(
                    at=recorder.now(),
                    client=client,
                    group=group,
                    topic=place.topic,
                    partition=place.partition,
                    offset=max(place.offset, -1),
                    asked=asked,
                )
            )
    return places
