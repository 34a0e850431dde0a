"""Checks the options of the source. They have the names, values and meanings of Spark's own Kafka source.

Unknown options are refused, because a misspelt one would be silently ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compactor.on_spark.spark_options import (
    SECURITY,
    count_of,
    is_true,
    known_options,
    names_in,
    security_files,
)
from compactor.spark_source.columns import COLUMNS, KAFKA_COLUMNS
from tailrace.limits import INT64_MAX
from tailrace.rpc.loaded_security import SecurityFiles

EARLIEST, LATEST = "earliest", "latest"
EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
ERROR = "error"

_KNOWN = (
    "store", "sequencer", "database", "subscribe", "subscribePattern", "assign", "topic", "columns", "includeHeaders",
    "startingOffsets", "startingGroup", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "failOnDataLoss", "failOnUnreadable",
    "minPartitions", "pushFilters",
    *SECURITY,
)  # fmt: skip
_REFUSED = {
    "maxOffsetsPerTrigger": "Spark does not tell a Python source where a restarted stream continues, so a batch could"
    " not be bounded after a restart; leave it out",
    "provider": "Spark 4.1 passes what CREATE TABLE sets to no query of the table; use CREATE TEMPORARY VIEW ... USING"
    " tailrace OPTIONS (...)",
    "kafka.bootstrap.servers": "this source reads the store and asks the sequencer, not a broker; give 'store' and"
    " 'sequencer'",
}

PerPartition = Mapping[str, Mapping[int, int]]
"""A number per partition, by topic."""


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """The partitions to read: of topics in `names`, or of topics that `pattern` fully matches. `assigned`: only
    these."""

    names: frozenset[str] = frozenset()
    pattern: str = ""
    assigned: Mapping[str, frozenset[int]] | None = None

    def has_topic(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None if self.pattern else name in self.names

    def has_partition(self, name: str, partition: int) -> bool:
        """Whether the partition of a chosen topic is read."""
        return self.assigned is None or partition in self.assigned[name]

    def __str__(self) -> str:
        return f"pattern {self.pattern!r}" if self.pattern else ", ".join(sorted(self.names))


@dataclass(frozen=True, slots=True)
class Position:
    """Where a query starts or ends: at an end of the log, at offsets, or at times in ms. `option`: its option's name.

    `group`: start at the offsets that this consumer group has committed, and at the edge where it has committed none.
    """

    option: str
    edge: str = ""
    group: str = ""
    offsets: PerPartition | None = None
    time_ms: int | None = None
    times_ms: PerPartition | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options. `fails_without_time`: if no record is at or after a starting time, fail; otherwise start at
    the end. `pushes_filters`: take filters over from Spark, for a DataFrame that has one query."""

    store: str
    sequencers: tuple[str, ...]
    database: str
    topics: TopicChoice
    columns: tuple[str, ...]
    starting: Position | None
    ending: Position | None
    fails_without_time: bool
    fails_on_data_loss: bool
    fails_on_unreadable: bool
    min_tasks: int
    pushes_filters: bool
    security: SecurityFiles

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check options. Raises ValueError with the option, what was given and what is allowed."""
        given = known_options(options, _KNOWN, _REFUSED)
        sequencers = names_in(given.get("sequencer", ""))
        database = given.get("database", "")
        if not given.get("store"):
            raise ValueError(
                "option 'store' is missing; a table of the catalog needs its options in WITH (...)"
            )
        if bool(sequencers) == bool(database):
            raise ValueError("give one of the options 'sequencer' (host:port) and 'database' (a URL)")
        strategy = given.get("startingOffsetsByTimestampStrategy", ERROR).lower()
        if strategy not in (ERROR, LATEST):
            raise ValueError(
                f"option 'startingOffsetsByTimestampStrategy': {strategy!r}; expected 'error' or 'latest'"
            )
        return cls(
            store=given["store"],
            sequencers=sequencers,
            database=database,
            topics=_topics(given),
            columns=_columns(given),
            starting=_position(given, "starting"),
            ending=_position(given, "ending"),
            fails_without_time=strategy == ERROR,
            fails_on_data_loss=is_true(given, "failOnDataLoss", default=True),
            fails_on_unreadable=is_true(given, "failOnUnreadable", default=True),
            min_tasks=count_of(given, "minPartitions", default=1),
            pushes_filters=is_true(given, "pushFilters", default=False),
            security=security_files(given, sequencers),
        )


def _topics(given: Mapping[str, str]) -> TopicChoice:
    ways = [name for name in ("subscribe", "subscribePattern", "assign", "topic") if given.get(name)]
    if len(ways) != 1:
        raise ValueError(
            f"{'options ' + ', '.join(ways) if ways else 'none'} given; expected one of 'subscribe' (topics,"
            " separated by commas), 'subscribePattern', 'assign' ({\"topic\": [0, 1]}) and 'topic'"
        )
    (way,) = ways
    if way == "subscribePattern":
        try:
            re.compile(given[way])
        except re.error as error:
            raise ValueError(f"option {way!r}: {given[way]!r}: {error}") from error
        return TopicChoice(pattern=given[way])
    if way != "assign":
        return TopicChoice(frozenset(names_in(given[way])))
    try:
        assigned = {
            str(name): frozenset(map(int, numbers)) for name, numbers in json.loads(given[way]).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"option 'assign': {given[way]!r}; expected JSON such as {{\"topic\": [0, 1]}}"
        ) from error
    return TopicChoice(frozenset(assigned), assigned=assigned)


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = (*KAFKA_COLUMNS, "headers")
    usual = with_headers if is_true(given, "includeHeaders", default=False) else KAFKA_COLUMNS
    columns = names_in(given.get("columns", "")) or usual
    if any(name not in COLUMNS for name in columns) or len(set(columns)) != len(columns):
        raise ValueError(f"option 'columns': {','.join(columns)!r}; allowed, once each: {', '.join(COLUMNS)}")
    return columns


def _position(given: Mapping[str, str], side: str) -> Position | None:
    """Return the position from the first of three options that is given, in the order of Spark's Kafka source; else
    None."""
    if side == "starting" and given.get("startingGroup"):
        return _group_position(given)
    if name := _given(given, f"{side}Timestamp"):
        if not given[name].isdecimal() or int(given[name]) > INT64_MAX:
            raise ValueError(
                f"option {name!r}: {given[name]!r}; expected a time in ms since 1970, at most {INT64_MAX}"
            )
        return Position(name, time_ms=int(given[name]))
    if name := _given(given, f"{side}OffsetsByTimestamp"):
        times = _per_partition(name, given[name], least=0)
        return Position(name, times_ms=times)
    if name := _given(given, f"{side}Offsets"):
        if given[name].lower() in (EARLIEST, LATEST):
            return Position(name, edge=given[name].lower())
        return Position(name, offsets=_per_partition(name, given[name], least=EARLIEST_OFFSET))
    return None


def _group_position(given: Mapping[str, str]) -> Position:
    edge = given.get("startingOffsets", EARLIEST).lower()
    times = [name for name in ("startingTimestamp", "startingOffsetsByTimestamp") if given.get(name)]
    if times or edge not in (EARLIEST, LATEST):
        raise ValueError(
            "option 'startingGroup': only startingOffsets 'earliest' or 'latest' may be combined with it, for"
            " partitions of which the group has no offset"
        )
    return Position("startingGroup", edge=edge, group=given["startingGroup"])


def _given(given: Mapping[str, str], name: str) -> str:
    return name if given.get(name) else ""


def _per_partition(name: str, given: str, *, least: int) -> PerPartition:
    try:
        numbers: dict[str, dict[int, int]] = {
            str(topic): {int(partition): _whole(number) for partition, number in of_topic.items()}
            for topic, of_topic in json.loads(given).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        words = f"{EARLIEST!r}, {LATEST!r}, or " if name.endswith("Offsets") else ""
        raise ValueError(
            f"option {name!r}: {given!r}; expected {words}a number for each partition as JSON:"
            ' {"topic": {"0": 17}}'
        ) from error
    if any(not least <= number <= INT64_MAX for of_topic in numbers.values() for number in of_topic.values()):
        raise ValueError(f"option {name!r}: {given!r}; no number is below {least} or above {INT64_MAX}")
    return numbers


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise TypeError(f"{number!r} is no whole number")
    return number
