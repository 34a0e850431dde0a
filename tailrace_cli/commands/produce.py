"""`tailrace produce`: write arguments, lines or JSON to a topic as records. Sends with librdkafka."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from tailrace.clock import SystemClock
from tailrace_cli.connections.broker import PATIENCE_SECONDS, check_topic_name, check_utf8
from tailrace_cli.connections.connecting import BootstrapFlag, listed_pairs
from tailrace_cli.connections.librdkafka import BrokerWatch, ClientFlag, client_config, hand_over, refused
from tailrace_cli.errors import CommandFailed, WrongUsage
from tailrace_cli.flags import flag, switch
from tailrace_cli.output import JsonFlag
from tailrace_cli.record_text import (
    MAX_PARTITION,
    Encoding,
    TextRecord,
    from_json,
    parse_time_ms,
    to_bytes,
    to_json,
    unescape,
)

MAX_SHOWN_ERRORS = 3


Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Values = Annotated[
    list[str] | None,
    typer.Argument(metavar="VALUE", help="Values to send. Without any, each line of stdin is a value."),
]
Key = Annotated[str | None, flag("--key -k", "KEY", "The key of every record.")]
KeySeparator = Annotated[
    str | None,
    flag("--key-separator -K", "TEXT", r"Text that separates key and value in each line, such as '\t'."),
]
Header = Annotated[
    list[str] | None,
    flag("--header -H", "NAME=VALUE", "A header of every record. Can be repeated, also with the same name."),
]
Partition = Annotated[
    int | None,
    flag(
        "--partition -p",
        "N",
        "The partition of every record. Default: chosen by the key, as Java clients do.",
        min=0,
        max=MAX_PARTITION,
    ),
]
Timestamp = Annotated[
    str | None,
    flag(
        "--timestamp",
        "TIME",
        "The time of every record: 2026-01-31T12:00, ms since 1970, or 2h (2 hours ago).",
    ),
]
Tombstone = Annotated[bool, switch("--tombstone", "Send an empty value as null (a deletion).")]
LinesOfJson = Annotated[
    bool, switch("--from-json", "Read each line as a JSON object, as printed by `tailrace consume --json`.")
]
EncodingFlag = Annotated[Encoding, switch("--encoding -e", "Encoding of keys, values and headers.")]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Compression = Annotated[str, flag("--compression", "CODEC", "none, gzip, snappy, lz4 or zstd.")]


def produce(
    topic: Topic,
    values: Values = None,
    key: Key = None,
    key_separator: KeySeparator = None,
    header: Header = None,
    partition: Partition = None,
    timestamp: Timestamp = None,
    tombstone: Tombstone = False,
    lines_of_json: LinesOfJson = False,
    encoding: EncodingFlag = Encoding.TEXT,
    compression: Compression = "none",
    bootstrap: BootstrapFlag = None,
    client: ClientFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Write records to a topic, from arguments or lines of stdin.

    Each line is one record; for values with line feeds or binary data, see --encoding and --from-json. Exits with 0
    once every record is acknowledged.
    """
    check_topic_name(topic)
    if compression not in CODECS:
        raise WrongUsage(f"--compression {compression!r}: expected one of {', '.join(CODECS)}")
    headers = listed_pairs(header or [], "--header", "source=radar")
    for name, _ in headers:
        check_utf8("--header", name)
    shared = TextRecord(
        value=None,
        key=to_bytes(key, encoding),
        headers=[(name, to_bytes(value, encoding)) for name, value in headers],
        partition=partition,
        timestamp_ms=None if timestamp is None else parse_time_ms(timestamp, SystemClock().wall_ms()),
    )
    if lines_of_json and (values or key_separator):
        raise WrongUsage(
            "--from-json reads records and their keys from stdin; remove VALUE and --key-separator"
        )
    lines: Iterable[str] = values if values else _lines_of_stdin()
    separator = None if key_separator is None else unescape(key_separator)
    records = (
        _merged(from_json(line, encoding), shared)
        if lines_of_json
        else _of_line(line, shared, separator, encoding, is_tombstone=tombstone)
        for line in lines
    )
    watch = BrokerWatch(bootstrap)
    of_client = {
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "compression.type": compression,
        "delivery.timeout.ms": int(PATIENCE_SECONDS * 1000),
    }
    config = client_config(watch, client or [], **of_client)
    count = _send(config, topic, records, watch=watch, printed_as=encoding if as_json else None)
    if not as_json:
        print(f"{count} record{'' if count == 1 else 's'} written to {topic}", file=sys.stderr)


class _Deliveries:
    """Counts acknowledged and failed records. `printed_as`: print each acknowledged record in this encoding."""

    def __init__(self, topic: str, printed_as: Encoding | None) -> None:
        self._topic = topic
        self._printed_as = printed_as
        self.acknowledged = 0
        self.failures: list[str] = []

    def note(self, error: Any, message: Any) -> None:
        """Handle librdkafka's delivery report of one record."""
        if error is not None:
            partition = message.partition()  # None if it was not chosen yet
            where = self._topic if partition is None else f"{self._topic}-{partition}"
            self.failures.append(str(refused(where, error)))
            return
        self.acknowledged += 1
        if self._printed_as is not None:
            # librdkafka does not keep the headers of a sent record.
            record = TextRecord(
                value=message.value(),
                key=message.key(),
                topic=self._topic,
                partition=message.partition(),
                offset=message.offset(),
                timestamp_ms=message.timestamp()[1],
            )
            print(to_json(record, self._printed_as))

    def check(self, unanswered: int) -> None:
        """Raise CommandFailed unless all records were acknowledged."""
        if self.failures or unanswered:
            shown = "; ".join(dict.fromkeys(self.failures[:MAX_SHOWN_ERRORS])) or "no answer in time"
            count = len(self.failures) + unanswered
            raise CommandFailed(f"{self.acknowledged} records were acknowledged, {count} were not: {shown}")


def _send(
    config: dict[str, Any],
    topic: str,
    records: Iterator[TextRecord],
    *,
    watch: BrokerWatch,
    printed_as: Encoding | None,
) -> int:
    from confluent_kafka import KafkaException, Producer

    deliveries = _Deliveries(topic, printed_as)
    invalid: CommandFailed | None = None
    try:
        producer = Producer(config)
        try:
            for record in records:
                _hand_over(producer, topic, record, deliveries.note)
                producer.poll(0)
                if len(deliveries.failures) >= MAX_SHOWN_ERRORS:
                    break
        except CommandFailed as error:
            invalid = error  # the line is not a record; the records before it are still written
        left = len(producer)
        while left and not (watch.is_down and not deliveries.acknowledged):  # it ends: every record times out
            left = producer.flush(1.0)
    except KafkaException as error:
        raise refused(f"topic {topic!r}", error.args[0]) from None
    if (deliveries.failures or left) and watch.is_down and not deliveries.acknowledged:
        raise watch.failure()
    deliveries.check(left)
    if invalid is not None:
        raise CommandFailed(f"{deliveries.acknowledged} records were acknowledged, then: {invalid}")
    return deliveries.acknowledged


def _hand_over(producer: Any, topic: str, record: TextRecord, delivered: Any) -> None:
    given: dict[str, Any] = {
        "key": record.key,
        "headers": list(record.headers) or None,
        "on_delivery": delivered,
    }
    if record.partition is not None:
        given["partition"] = record.partition
    if record.timestamp_ms is not None:
        given["timestamp"] = record.timestamp_ms
    hand_over(producer, topic, record.value, **given)


def _lines_of_stdin() -> Iterator[str]:
    if sys.stdin.isatty():
        print("type one record per line; end with Ctrl-D", file=sys.stderr)
    # Bytes that are not UTF-8 are sent unchanged.
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")  # type: ignore[union-attr]
    return (line.removesuffix("\n") for line in sys.stdin)


def _of_line(
    line: str, shared: TextRecord, separator: str | None, encoding: Encoding, *, is_tombstone: bool
) -> TextRecord:
    key, value = shared.key, line
    if separator is not None:
        head, has_separator, value = line.partition(separator)
        if not has_separator:
            raise CommandFailed(f"--key-separator {separator!r} is not in the line {line[:80]!r}")
        key = to_bytes(head, encoding)
    data = None if is_tombstone and not value else to_bytes(value, encoding)
    return _merged(TextRecord(value=data, key=key), shared)


def _merged(record: TextRecord, shared: TextRecord) -> TextRecord:
    """Return the record; fields that it does not set come from the flags. Headers of both are sent."""
    return TextRecord(
        value=record.value,
        key=shared.key if record.key is None else record.key,
        headers=[*shared.headers, *record.headers],
        partition=shared.partition if record.partition is None else record.partition,
        timestamp_ms=shared.timestamp_ms if record.timestamp_ms is None else record.timestamp_ms,
    )
