"""A model of a Kafka that keeps its promises, driven by luck: it makes histories in which nothing is wrong.

Its clients lose answers, give up, die, abort, seek, commit backwards and delete records; the log does only what it
may. So whatever the checker finds in such a history is a false alarm, unless it was planted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import msgspec

from tests.support.history.events import (
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
    LogStartMoved,
    OffsetCommitAsked,
    OffsetCommitEnded,
    OffsetFetched,
    OffsetsAdded,
    Positioned,
    Read,
    Sent,
    TopicDropped,
    TopicMade,
    Unanswered,
    log_name,
)

INPUT, OUTPUT, PLAIN = "input", "output", "plain"
LOOP_GROUP, READ_GROUP = "loop", "readers"
PARTITIONS = 2


@dataclass(slots=True)
class Entry:
    """What stands at an offset: a record, or the marker that ends a transaction."""

    record: str
    transaction: str = ""


@dataclass(slots=True)
class Log:
    entries: list[Entry] = field(default_factory=list)
    start: int = 0


@dataclass(slots=True)
class Transaction:
    name: str
    client: str
    places: set[tuple[str, int]] = field(default_factory=set)
    inputs: dict[int, int] = field(default_factory=dict)


class ModelKafka:
    """Makes one history. `random` decides everything."""

    def __init__(self, random: Random, *, steps: int = 150) -> None:
        self.random = random
        self.steps = steps
        self.events: list[AnyEvent] = []
        self.now = 0.0
        self.logs: dict[tuple[str, int], Log] = defaultdict(Log)
        self.outcome: dict[str, str] = {}
        self.numbers: dict[tuple[str, str, int], int] = defaultdict(int)
        self.count = 0
        self.positions: dict[tuple[str, str, int], int] = {}
        self.readers: dict[tuple[str, str, int], int] = {}
        self.open: Transaction | None = None
        self.incarnation = 1
        self.instance = 1

    def run(self) -> list[AnyEvent]:
        actions: list[Callable[[], None]] = [
            *[self.send_idempotent] * 5,
            *[self.send_plain] * 2,
            *[self.go_on_with_the_loop] * 5,
            *[self.read] * 8,
            self.seek,
            *[self.commit_position] * 2,
            *[self.fetch_position] * 2,
            *[self.look_at_bounds] * 2,
            self.delete_records,
            self.make_topic_anew,
        ]
        for _ in range(self.steps):
            self.random.choice(actions)()
        if self.open is not None:
            self.end_loop_transaction(self.open, dies=True)
        for place in list(self.logs):
            self.read_to_the_end(place)
        for group, topic, partition in list(self.positions):
            self.fetch(group, topic, partition)
        return self.events

    # -- the log

    def stable_end(self, place: tuple[str, int]) -> int:
        entries = self.logs[place].entries
        for offset, entry in enumerate(entries):
            if entry.transaction and entry.transaction not in self.outcome:
                return offset
        return len(entries)

    def is_visible(self, entry: Entry, isolation: Isolation) -> bool:
        if not entry.record:
            return False
        return (
            isolation == "uncommitted"
            or not entry.transaction
            or self.outcome.get(entry.transaction) == "commit"
        )

    # -- producers

    def send_idempotent(self) -> None:
        """A few batches of one producer, sent before any is answered; some get lost, the last may be given up."""
        client = f"idempotent-{self.random.randrange(2)}"
        topic, partition = (
            self.random.choice([log_name(INPUT), log_name(INPUT), self.plain_topic()]),
            self.partition(),
        )
        batches = [
            self._sent(
                client,
                topic,
                partition,
                "idempotent",
                self.random.randint(1, 3),
                batch=f"batch-{self.next()}",
            )
            for _ in range(self.random.randint(1, 3))
        ]
        records = [record for batch in batches for record in batch]
        stored = len(batches) if self.chance(0.9) else self.random.randrange(len(batches) + 1)
        kept = sum(len(batch) for batch in batches[:stored])
        first = len(self.logs[topic, partition].entries)
        self.logs[topic, partition].entries.extend(Entry(record) for record in records[:kept])
        if self.chance(0.2):
            self.read()
        for index, record in enumerate(records):
            if index >= kept or self.chance(0.05):
                self.add(Unanswered(at=self.tick(), client=client, record=record))
            else:
                offset = -1 if self.chance(0.1) else first + index
                self.add(Acked(at=self.tick(), client=client, record=record, offset=offset))
        if kept < len(records):
            self.numbers[client, topic, partition] += 100

    def send_plain(self) -> None:
        client = "plain-0"
        place = self.random.choice([self.plain_topic(), log_name(INPUT)]), self.partition()
        [record] = self._sent(client, *place, "plain", 1)
        log = self.logs[place]
        luck = self.random.random()
        if luck < 0.5:
            log.entries.append(Entry(record))
            self.add(Acked(at=self.tick(), client=client, record=record, offset=len(log.entries) - 1))
        elif luck < 0.6:
            self.add(Failed(at=self.tick(), client=client, record=record, error="too large"))
        elif luck < 0.8:
            self.add(Unanswered(at=self.tick(), client=client, record=record))
            if self.chance(0.5):
                log.entries.append(Entry(record))
        else:
            number = self.numbers[client, *place]
            log.entries.append(Entry(record))
            self.add(
                Sent(
                    at=self.tick(),
                    client=client,
                    topic=place[0],
                    partition=place[1],
                    record=record,
                    number=number,
                    guarantee="plain",
                )
            )
            log.entries.append(Entry(record))
            self.add(Acked(at=self.tick(), client=client, record=record, offset=len(log.entries) - 1))

    def go_on_with_the_loop(self) -> None:
        """A consume-transform-produce loop: begin, process some inputs, or end what is open."""
        if self.open is None:
            name = f"transaction-{self.next()}"
            self.open = Transaction(name, f"loop-{self.instance}")
            self.add(
                Begun(at=self.tick(), client=self.open.client, transaction=name, transactional_id="loop")
            )
        elif self.chance(0.5):
            self.process(self.open)
        else:
            self.end_loop_transaction(self.open, dies=self.chance(0.2))

    def process(self, transaction: Transaction) -> None:
        partition = self.partition()
        place = log_name(INPUT), partition
        position = transaction.inputs.get(partition, self.positions.get((LOOP_GROUP, *place), 0))
        for entry in self.logs[place].entries[position : position + self.random.randint(1, 4)]:
            position += 1
            output = log_name(OUTPUT), self.partition()
            [record] = self._sent(
                transaction.client, *output, "transactional", 1, transaction.name, source=entry.record
            )
            self.logs[output].entries.append(Entry(record, transaction.name))
            transaction.places.add(output)
            transaction.inputs[partition] = position
            if self.chance(0.95):
                offset = len(self.logs[output].entries) - 1
                self.add(Acked(at=self.tick(), client=transaction.client, record=record, offset=offset))
        if partition in transaction.inputs:
            self.add(
                OffsetsAdded(
                    at=self.tick(),
                    client=transaction.client,
                    transaction=transaction.name,
                    group=LOOP_GROUP,
                    topic=place[0],
                    partition=partition,
                    offset=position,
                )
            )

    def end_loop_transaction(self, transaction: Transaction, *, dies: bool) -> None:
        self.open = None
        names = {"client": transaction.client, "transaction": transaction.name}
        is_asked = not dies or self.chance(0.5)
        commits = self.chance(0.7)
        if is_asked:
            self.add((CommitAsked if commits else AbortAsked)(at=self.tick(), **names))
        does_commit = is_asked and commits and (not dies or self.chance(0.5))
        if self.chance(0.3):
            self.read()  # while it ends
        self.outcome[transaction.name] = "commit" if does_commit else "abort"
        for place in sorted(transaction.places):
            self.logs[place].entries.append(Entry(""))
        if does_commit:
            for partition, position in transaction.inputs.items():
                self.positions[LOOP_GROUP, log_name(INPUT), partition] = position
        if not dies:
            self.add(Ended(at=self.tick(), outcome="committed" if does_commit else "aborted", **names))
        else:
            self.instance += 1
            if self.chance(0.5):
                self.add(Ended(at=self.tick(), outcome="unknown", **names))

    # -- readers

    def read(self) -> None:
        place = self.random.choice(
            [(log_name(INPUT), 0), (log_name(OUTPUT), 0), (log_name(OUTPUT), 1), (self.plain_topic(), 0)]
        )
        isolation: Isolation = self.random.choice(["committed", "uncommitted"])
        key = f"reader-{isolation}", *place
        if key not in self.readers or self.readers[key] < self.logs[place].start:
            self.seek_to(key, place, isolation, self.logs[place].start)
        self.read_some(key, place, isolation, self.random.randint(1, 12))

    def seek(self) -> None:
        if self.readers:
            key = self.random.choice(list(self.readers))
            place = key[1], key[2]
            log = self.logs[place]
            isolation: Isolation = "committed" if key[0] == "reader-committed" else "uncommitted"
            self.seek_to(
                key, place, isolation, self.random.randint(log.start, max(log.start, self.stable_end(place)))
            )

    def seek_to(
        self, key: tuple[str, str, int], place: tuple[str, int], isolation: Isolation, offset: int
    ) -> None:
        self.readers[key] = offset
        self.add(self._position(key, place, isolation, is_seek=True))

    def read_some(
        self, key: tuple[str, str, int], place: tuple[str, int], isolation: Isolation, most: int
    ) -> None:
        log = self.logs[place]
        end = self.stable_end(place) if isolation == "committed" else len(log.entries)
        while self.readers[key] < end and most:
            offset = self.readers[key]
            entry = log.entries[offset]
            if self.is_visible(entry, isolation):
                self.add(
                    Read(
                        at=self.tick(),
                        client=key[0],
                        topic=place[0],
                        partition=place[1],
                        offset=offset,
                        record=entry.record,
                        isolation=isolation,
                    )
                )
            self.readers[key] = offset + 1
            most -= 1
        if self.chance(0.5):
            self.add(self._position(key, place, isolation))

    def read_to_the_end(self, place: tuple[str, int]) -> None:
        if place[0].startswith(PLAIN) and place[0] != self.plain_topic():
            return
        for isolation in ("committed", "uncommitted"):
            key = f"final-{isolation}", *place
            self.look_at(place)
            self.seek_to(key, place, isolation, self.logs[place].start)
            self.read_some(key, place, isolation, 100_000)
            self.add(self._position(key, place, isolation))

    def look_at_bounds(self) -> None:
        self.look_at(
            self.random.choice([(log_name(INPUT), 0), (log_name(OUTPUT), 1), (self.plain_topic(), 0)])
        )

    def look_at(self, place: tuple[str, int]) -> None:
        log, asked = self.logs[place], self.tick()
        seen = (log.start, len(log.entries), self.stable_end(place))
        self.add(
            BoundsSeen(
                at=self.tick(),
                client="looker",
                topic=place[0],
                partition=place[1],
                asked=asked,
                log_start=seen[0],
                high_watermark=seen[1],
                last_stable=seen[2],
            )
        )

    # -- positions

    def commit_position(self) -> None:
        place = log_name(INPUT), self.partition()
        end = len(self.logs[place].entries)
        offset = self.random.randint(0, end) if self.chance(0.2) else end
        commit = f"commit-{self.next()}"
        self.add(
            OffsetCommitAsked(
                at=self.tick(),
                client="member",
                commit=commit,
                group=READ_GROUP,
                topic=place[0],
                partition=place[1],
                offset=offset,
            )
        )
        luck = self.random.random()
        if luck < 0.8:
            self.positions[READ_GROUP, *place] = offset
            self.add(OffsetCommitEnded(at=self.tick(), client="member", commit=commit))
        elif luck < 0.9:
            self.add(OffsetCommitEnded(at=self.tick(), client="member", commit=commit, answer="refused"))
        elif self.chance(0.5):
            self.positions[READ_GROUP, *place] = offset

    def fetch_position(self) -> None:
        self.fetch(self.random.choice([READ_GROUP, LOOP_GROUP]), log_name(INPUT), self.partition())

    def fetch(self, group: str, topic: str, partition: int) -> None:
        asked = self.tick()
        offset = self.positions.get((group, topic, partition), -1)
        self.add(
            OffsetFetched(
                at=self.tick(),
                client="member",
                group=group,
                topic=topic,
                partition=partition,
                offset=offset,
                asked=asked,
            )
        )

    # -- topics

    def delete_records(self) -> None:
        place = self.plain_topic(), self.partition()
        log = self.logs[place]
        if self.chance(0.3) and log.start < len(log.entries):
            offset = self.random.randint(log.start, len(log.entries))
            asked = LogStartMoved(at=self.tick(), topic=place[0], partition=place[1], offset=offset)
            self.add(asked)
            log.start = offset
            self.add(msgspec.structs.replace(asked, at=self.tick(), is_done=True))

    def make_topic_anew(self) -> None:
        if self.chance(0.1):
            self.add(TopicDropped(at=self.tick(), topic=self.plain_topic()))
            self.add(TopicDropped(at=self.tick(), topic=self.plain_topic(), is_done=True))
            self.incarnation += 1
            self.add(TopicMade(at=self.tick(), topic=self.plain_topic()))

    def plain_topic(self) -> str:
        return log_name(PLAIN, self.incarnation)

    # -- small things

    def add(self, event: AnyEvent) -> None:
        self.events.append(event)

    def tick(self) -> float:
        """The next moment; sometimes the same one."""
        self.now += self.random.choice([0.0, 0.001, 0.001, 0.01])
        return self.now

    def next(self) -> int:
        self.count += 1
        return self.count

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def partition(self) -> int:
        return self.random.randrange(PARTITIONS)

    def _position(
        self,
        key: tuple[str, str, int],
        place: tuple[str, int],
        isolation: Isolation,
        *,
        is_seek: bool = False,
    ) -> Positioned:
        return Positioned(
            at=self.tick(),
            client=key[0],
            topic=place[0],
            partition=place[1],
            offset=self.readers[key],
            isolation=isolation,
            is_seek=is_seek,
        )

    def _sent(
        self,
        client: str,
        topic: str,
        partition: int,
        guarantee: Guarantee,
        count: int,
        transaction: str = "",
        source: str = "",
        batch: str = "",
    ) -> list[str]:
        records: list[str] = []
        for _ in range(count):
            self.numbers[client, topic, partition] += 1
            records.append(f"record-{self.next()}")
            self.add(
                Sent(
                    at=self.tick(),
                    client=client,
                    topic=topic,
                    partition=partition,
                    record=records[-1],
                    number=self.numbers[client, topic, partition],
                    guarantee=guarantee,
                    transaction=transaction,
                    source=source,
                    batch=batch,
                )
            )
        return records


def good_history(seed: int, steps: int = 150) -> list[AnyEvent]:
    return ModelKafka(Random(seed), steps=steps).run()
