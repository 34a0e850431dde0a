"""`tailrace consume`: print records as lines, by a template or as JSON. Reads with librdkafka."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tailrace.clock import SystemClock
from tailrace_cli.connections.broker import PATIENCE_SECONDS, check_topic_name, check_utf8
from tailrace_cli.connections.connecting import BootstrapFlag, PartitionsFlag
from tailrace_cli.connections.librdkafka import BrokerWatch, ClientFlag, client_config, refused
from tailrace_cli.connections.offsets import within
from tailrace_cli.errors import CommandFailed, WrongUsage
from tailrace_cli.flags import flag, switch
from tailrace_cli.output import JsonFlag
from tailrace_cli.record_text import (
    Encoding,
    TextRecord,
    compile_template,
    is_changed_as_text,
    parse_time_ms,
    to_json,
)

ATTEMPTS = 10
POLL_RECORDS = 1_000
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Start:
    """Where reading starts, and the time before which it stops. A negative offset counts from the end."""

    offset: int | None = None
    since_ms: int | None = None
    is_end: bool = False
    until_ms: int | None = None


Topics = Annotated[list[str], typer.Argument(metavar="TOPIC")]
StartFlag = Annotated[
    str | None,
    flag("--from -o", "START", "start (the default), end, an offset, or -N (the last N of each partition)."),
]
Since = Annotated[
    str | None,
    flag("--since", "TIME", "Start at a time: 2026-01-31T12:00, ms since 1970, or 2h (2 hours ago)."),
]
Until = Annotated[str | None, flag("--until", "TIME", "Skip records with this timestamp or a later one.")]
Count = Annotated[int | None, flag("--count -n", "N", "Stop after this many records.", min=1)]
Follow = Annotated[bool, switch("--follow -f", "Keep waiting for new records.")]
Group = Annotated[
    str | None,
    flag("--group -g", "GROUP", "Join this group, start at its committed offsets, and commit offsets."),
]
Template = Annotated[
    str,
    flag(
        "--format",
        "TEMPLATE",
        r"A template of {topic} {partition} {offset} {timestamp} {time} {key} {value} {headers} \t \n.",
    ),
]
EncodingFlag = Annotated[Encoding, switch("--encoding -e", "Encoding of printed keys, values and headers.")]
Uncommitted = Annotated[bool, switch("--uncommitted", "Also read records of open and aborted transactions.")]


def consume(
    topics: Topics,
    partition: PartitionsFlag = None,
    start: StartFlag = None,
    since: Since = None,
    until: Until = None,
    count: Count = None,
    follow: Follow = False,
    group: Group = None,
    template: Template = "{value}",
    encoding: EncodingFlag = Encoding.TEXT,
    uncommitted: Uncommitted = False,
    bootstrap: BootstrapFlag = None,
    client: ClientFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Read topics from the start to their current end.

    Prints one record per line. With --follow, it keeps reading. With --group, it reads the partitions that the group
    assigns, starts at the group's committed offsets, and commits the offsets of printed records.
    """
    began = _parse_start(start, since, until)
    for name in topics:
        if group is None or not name.startswith("^"):  # a group may subscribe to a pattern
            check_topic_name(name)
        check_utf8("topic", name)
    check_utf8("--group", group or "")
    if group is not None and (partition or began.offset is not None or began.since_ms is not None):
        raise WrongUsage(
            "a group has its own offsets; leave out --partition, --from and --since, or use `tailrace group reset`"
        )
    form = (lambda record: to_json(record, encoding)) if as_json else compile_template(template, encoding)
    write = _warning_of_bytes(form) if encoding is Encoding.TEXT else form
    watch = BrokerWatch(bootstrap)
    of_client = {
        "group.id": group or "tailrace-cli",  # librdkafka requires one; without --group it is never joined
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "latest" if began.is_end else "earliest",
        "isolation.level": "read_uncommitted" if uncommitted else "read_committed",
        "allow.auto.create.topics": False,
    }
    _read(
        client_config(watch, client or [], **of_client),
        topics,
        partitions=partition or [],
        began=began,
        group=group,
        watch=watch,
        printer=_Printer(write, began.until_ms, count),
        follow=follow,
    )


def _warning_of_bytes(form: Callable[[TextRecord], str]) -> Callable[[TextRecord], str]:
    """Return `form`, with one line on stderr if a printed record has bytes that text can't show."""
    has_said = False

    def write(record: TextRecord) -> str:
        nonlocal has_said
        line = form(record)
        if not has_said and "\ufffd" in line and is_changed_as_text(record):
            has_said = True
            print(
                f"{record.topic}-{record.partition}, offset {record.offset}: bytes that are not UTF-8 are printed as"
                " \ufffd; --encoding hex or base64 prints them unchanged",
                file=sys.stderr,
            )
        return line

    return write


@dataclass
class _Printer:
    """Prints records as lines until there are `most`. Skips records at or after the time `until_ms`."""

    write: Callable[[TextRecord], str]
    until_ms: int | None
    most: int | None
    printed: int = 0

    @property
    def is_done(self) -> bool:
        return self.printed == self.most

    def print_some(self, messages: Sequence[Any]) -> dict[tuple[str, int], int]:
        """Print records. Return the position after them in each partition."""
        read: dict[tuple[str, int], int] = {}
        for message in messages:
            read[message.topic(), message.partition()] = message.offset() + 1
            record = _record_of(message)
            if self.until_ms is None or (record.timestamp_ms or 0) < self.until_ms:
                print(self.write(record))
                self.printed += 1
            if self.is_done:
                break
        sys.stdout.flush()
        return read


def _read(
    config: dict[str, Any],
    topics: Sequence[str],
    *,
    partitions: Sequence[int],
    began: Start,
    group: str | None,
    watch: BrokerWatch,
    printer: _Printer,
    follow: bool,
) -> None:
    from confluent_kafka import Consumer, KafkaException

    try:
        consumer = Consumer(config)
    except KafkaException as error:
        raise refused("--client", error.args[0]) from None
    unread = UnreadPartitions()
    try:
        if group is None:
            _assign(consumer, _partitions(consumer, topics, partitions, watch), began, unread)
        else:
            consumer.subscribe(
                list(topics),
                on_assign=lambda _, given: unread.add(given),
                on_revoke=lambda _, taken: unread.remove(taken),
            )
        for messages, ends in _polled(consumer, unread, watch, follow=follow):
            read = printer.print_some(messages)
            positions = read if printer.is_done else {**read, **ends}
            if group is not None and positions:
                consumer.commit(offsets=_topic_partitions(positions), asynchronous=not read)
            if printer.is_done:
                return
    except KafkaException as error:
        raise refused(", ".join(topics), error.args[0]) from None
    except KeyboardInterrupt:
        return  # the user's way to stop --follow
    finally:
        consumer.close()


class UnreadPartitions:
    """The assigned partitions that are not read to their end yet, each with its end offset if known."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], int | None] = {}
        self.is_assigned = False

    def add(self, partitions: Sequence[Any], ends: Sequence[int] | None = None) -> None:
        """Note that these partitions were assigned."""
        self.is_assigned = True
        for index, partition in enumerate(partitions):
            self._ends[partition.topic, partition.partition] = None if ends is None else ends[index]

    def remove(self, partitions: Sequence[Any]) -> None:
        """Note that these partitions were revoked."""
        for partition in partitions:
            self._ends.pop((partition.topic, partition.partition), None)

    def read(self, topic: str, partition: int, offset: int) -> None:
        """Note that the record at this offset was read."""
        end = self._ends.get((topic, partition))
        if end is not None and offset + 1 >= end:
            del self._ends[topic, partition]

    def ended(self, topic: str, partition: int) -> None:
        """Note that the partition has no more records at the moment."""
        self._ends.pop((topic, partition), None)

    def named(self) -> str:
        """Return the first of these partitions by name, and how many others there are."""
        (topic, partition), *others = self._ends
        return f"{topic}-{partition}" + (f" and {len(others)} other partitions" if others else "")

    @property
    def is_done(self) -> bool:
        """Whether partitions were assigned and all of them are read to their end."""
        return self.is_assigned and not self._ends


class _Patience:
    """After PATIENCE_SECONDS, gives up on assigned partitions that bring nothing, or says that a group assigns none."""

    def __init__(self, unread: UnreadPartitions, *, gives_up: bool) -> None:
        self._unread = unread
        self._gives_up = gives_up
        self._clock = SystemClock()
        self._began = self._progress = self._clock.monotonic()
        self._has_said = False

    def check(self, *, has_progress: bool) -> None:
        """Call it after each poll. Raises CommandFailed."""
        now = self._clock.monotonic()
        if not self._unread.is_assigned:
            self._progress = now
            if not self._has_said and now - self._began > PATIENCE_SECONDS:
                self._has_said = True
                print(
                    f"the group has assigned no partitions for {PATIENCE_SECONDS:g} s. It may wait for members that are"
                    " gone; an agent's log may say why",
                    file=sys.stderr,
                )
        elif has_progress:
            self._progress = now
        elif self._gives_up and now - self._progress > PATIENCE_SECONDS:
            raise CommandFailed(
                f"no records of {self._unread.named()} came for {PATIENCE_SECONDS:g} s; the agent's log says why. If a "
                "stored object is missing, `tailrace audit` names it"
            )


def _polled(
    consumer: Any, unread: UnreadPartitions, watch: BrokerWatch, *, follow: bool
) -> Iterator[tuple[list[Any], dict[tuple[str, int], int]]]:
    """Yield records as they arrive, and the offsets of the ends that were reached; until the end of every partition or,
    with `follow`, for ever.

    A group commits the ends, too. Without an offset, a partition in which it has read nothing yet would have no lag.
    librdkafka retries fetches that fail, and tells nobody. So without `follow`, this gives up when nothing comes.
    Raises CommandFailed, KafkaException.
    """
    from confluent_kafka import KafkaError, KafkaException

    patience = _Patience(unread, gives_up=not follow)
    while follow or not unread.is_done:
        messages: list[Any] = []
        ends: dict[tuple[str, int], int] = {}
        for message in consumer.consume(POLL_RECORDS, POLL_SECONDS):
            error = message.error()
            if error is None:
                unread.read(message.topic(), message.partition(), message.offset())
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.ended(message.topic(), message.partition())
                ends[message.topic(), message.partition()] = message.offset()
            elif error.code() in (KafkaError.INVALID_MSG, KafkaError._BAD_MSG):
                raise CommandFailed(
                    f"topic {message.topic()!r}, partition {message.partition()}, offset {message.offset()}: the bytes "
                    "stored there are damaged (CORRUPT_MESSAGE); the agent's log names the object and the next offset "
                    "that may be read; `tailrace audit --full` lists all damaged objects"
                )
            elif not error.retriable():
                raise KafkaException(error)
        if watch.is_down and not unread.is_assigned:
            raise watch.failure()
        patience.check(has_progress=bool(messages or ends))
        yield messages, ends


def _partitions(
    consumer: Any, topics: Sequence[str], chosen: Sequence[int], watch: BrokerWatch
) -> list[tuple[str, int]]:
    """Return the (topic, partition) pairs to read. Raises CommandFailed."""
    pairs: list[tuple[str, int]] = []
    for name in topics:
        topic = _described(consumer, name, watch)
        if topic.error is not None:
            failed = refused(f"topic {name!r}", topic.error)
            raise CommandFailed(f"{failed}; `tailrace topic list` shows the topics")
        for partition in chosen or sorted(topic.partitions):
            if partition not in topic.partitions:
                raise CommandFailed(
                    f"topic {name!r} has no partition {partition}; it has {len(topic.partitions)}"
                )
            pairs.append((name, partition))
    return pairs


def _described(consumer: Any, topic: str, watch: BrokerWatch) -> Any:
    """Return the topic's metadata. Raises CommandFailed if no broker answers."""
    from confluent_kafka import KafkaException

    for _ in range(ATTEMPTS):
        try:
            return consumer.list_topics(topic, PATIENCE_SECONDS / ATTEMPTS).topics[topic]
        except KafkaException:
            consumer.poll(0)  # delivers the errors seen meanwhile to the watch
            if watch.is_down:
                break
    raise watch.failure()


def _assign(
    consumer: Any, partitions: Sequence[tuple[str, int]], began: Start, unread: UnreadPartitions
) -> None:
    """Assign the partitions from the requested start. `unread` gets their current ends, where reading may stop."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    def offsets(time: int) -> list[int]:
        times = [TopicPartition(topic, partition, time) for topic, partition in partitions]
        answered = consumer.offsets_for_times(times, PATIENCE_SECONDS)
        offset_of = {(position.topic, position.partition): position.offset for position in answered}
        return [offset_of[topic_partition] for topic_partition in partitions]

    firsts, ends = offsets(OFFSET_BEGINNING), offsets(OFFSET_END)
    if began.since_ms is not None:
        starts = [
            end if since < 0 else since for since, end in zip(offsets(began.since_ms), ends, strict=True)
        ]
    elif began.is_end:
        starts = ends
    elif began.offset is None:
        starts = firsts
    elif began.offset < 0:
        starts = [max(first, end + began.offset) for first, end in zip(firsts, ends, strict=True)]
    else:
        wanted = dict.fromkeys(partitions, began.offset)
        logs = {name: (first, end) for name, first, end in zip(partitions, firsts, ends, strict=True)}
        starts = list(within(logs, wanted).values())
    consumer.assign(_topic_partitions(dict(zip(partitions, starts, strict=True))))
    unread.add([TopicPartition(*topic_partition) for topic_partition in partitions], ends)
    for topic_partition, start, end in zip(partitions, starts, ends, strict=True):
        if start >= end:
            unread.ended(*topic_partition)


def _topic_partitions(offsets: dict[tuple[str, int], int]) -> list[Any]:
    from confluent_kafka import TopicPartition

    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]


def _record_of(message: Any) -> TextRecord:
    kind, timestamp = message.timestamp()
    return TextRecord(
        value=message.value(),
        key=message.key(),
        headers=message.headers() or (),
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=timestamp if kind else None,
    )


def _parse_start(start: str | None, since: str | None, until: str | None) -> Start:
    """Parse --from, --since and --until. Raises CommandFailed."""
    now = SystemClock().wall_ms()
    until_ms = None if until is None else parse_time_ms(until, now)
    if since is not None:
        if start is not None:
            raise WrongUsage("--from and --since both say where to begin; give one")
        return Start(since_ms=parse_time_ms(since, now), until_ms=until_ms)
    if start is None or start in ("start", "end"):
        return Start(is_end=start == "end", until_ms=until_ms)
    try:
        return Start(offset=int(start), until_ms=until_ms)
    except ValueError:
        raise WrongUsage(
            f"--from {start!r}: expected start, end, an offset such as 42, or -10: the last 10"
        ) from None
